"""What every analysis does: it says what it is of, and what it finds shows itself as a table of numbers by names."""

from dataclasses import is_dataclass
from typing import Any

import numpy as np
import pandas as pd
import pytest

from fedpca_flwr import analyses, run
from fedpca_flwr.errors import ConfigError
from fedpca_flwr.model.second_moments import SecondMoments
from tests.families import rows
from tests.refusals import refused

NAMES = [f"gene {j}" for j in range(8)]
X = pd.DataFrame(rows(200, 8), columns=NAMES).assign(ill=np.arange(200) % 3 == 0, well=np.arange(200) % 3 != 0)
CLASSES = ["ill", "well"]
PARTIES = {f"site {i}": SecondMoments.of(X[NAMES][i::5]).moments for i in range(5)}
MOMENTS = SecondMoments(SecondMoments.of(X[NAMES]).moments, tuple(NAMES), PARTIES)
MODEL = analyses.pca(MOMENTS, 3)
ODD = X[NAMES].copy()
ODD.iloc[7, 2] += 100

WARDS = X[NAMES].assign(ward=["a", "b"] * 100)

FOUND = {
    "AdjustedMoments": (lambda: analyses.adjusted(MOMENTS, ["gene 2"]), ["gene 2", "gene 7"]),
    "CanonicalCorrelations": (lambda: analyses.canonical_correlations(MOMENTS, ["gene 0", "gene 1"]), ["gene 0"]),
    "Categories": (
        lambda: analyses.categories(run("p-cov", [WARDS], n_components=2, scale=True, levels=["ward"])),
        ["ward=b", "cos2 PC2", "50"],
    ),
    "Clusters": (lambda: analyses.clusters(run("p-cov", [X[NAMES]], n_components=2, clusters=2)), ["k-means", "PC2"]),
    "Discriminant": (lambda: analyses.discriminant(SecondMoments.of(X), CLASSES), ["ill", "67", "gene"]),
    "Drift": (lambda: analyses.drift(MODEL, X[NAMES]), ["still"]),
    "FactorModel": (lambda: analyses.factor_analysis(MOMENTS, 2), ["gene 5", "F2"]),
    "HowMany": (lambda: analyses.how_many(MOMENTS), ["broken stick"]),
    "HowSure": (lambda: analyses.how_sure(MOMENTS, 3), ["PC3", f"{MODEL.explained_variance_[2]:.4g}"]),
    "MultipleFactorAnalysis": (
        lambda: analyses.multiple_factor_analysis(MOMENTS, {"early": NAMES[:3], "late": NAMES[3:]}),
        ["early", "PC2"],
    ),
    "Outliers": (lambda: analyses.outliers(MODEL, ODD), ["7", "gene 2"]),
    "Reading": (lambda: analyses.read(MOMENTS, 2), ["gene 5", "PC2"]),
    "Regression": (lambda: analyses.ridge(MOMENTS, ["gene 0"]), ["R squared", "gene 5"]),
    "SparseComponents": (lambda: analyses.sparse_components(MOMENTS, 2, 1), ["PC2", "proven", "gene"]),
    "Spikes": (lambda: analyses.spikes(MOMENTS, 3), ["PC3"]),
    "SecondMoments": (lambda: MOMENTS, ["200 rows", "5 parties", "gene 5"]),
}


def test_every_analysis_is_here():
    kinds = {name for name in analyses.__all__ if is_dataclass(getattr(analyses, name))}
    assert kinds | {"SecondMoments"} == set(FOUND)


@pytest.mark.parametrize("name", FOUND)
def test_what_is_found_shows_itself_as_a_table(name):
    make, told = FOUND[name]
    found: Any = make()
    text, page = repr(found), found._repr_html_()
    assert type(found).__name__ == name
    assert text.startswith(name)
    assert len(text.splitlines()) < 30
    assert "array(" not in text
    assert "<table>" in page
    assert not [one for one in told if one not in text or one not in page]


OF_MODELS = {
    *("categories", "clusters", "drift", "harmonised", "highly_variable", "outliers", "projected"),
    *("variance_intervals", "whitened"),
}
ANALYSES = [name for name in analyses.__all__ if not isinstance(getattr(analyses, name), type)]


@pytest.mark.parametrize("name", ANALYSES)
def test_moments_and_models_are_not_taken_for_each_other(name):
    """The faults: AttributeErrors of whatever came first."""
    analysis, of_models = getattr(analyses, name), name in OF_MODELS
    kind, word = ("PCAModel", "model") if of_models else ("SecondMoments", "moments")
    for given in (None, X.to_numpy(), MOMENTS if of_models else MODEL):
        with refused(ConfigError, f"'{word}'", type(given).__name__, kind):
            analysis(given, [0], [1])
    with refused(ConfigError, f"'{word}'", "str"):
        analysis(**{word: "model.npz"})


@pytest.mark.parametrize("analysis", [analyses.partial_least_squares, analyses.principal_component_regression])
@pytest.mark.parametrize("k", [None, "2", 1.5, 2.0, True, 0, 8])
def test_a_number_of_directions_or_draws_is_a_number(analysis, k):
    with refused(ConfigError, "'k'", repr(k), 1, 7):
        analysis(MOMENTS, ["gene 3"], k=k)
    if k != 8:
        with refused(ConfigError, "'draws'"):
            analyses.how_many(MOMENTS, draws=k)
    np.testing.assert_array_equal(analyses.pca(moments=MOMENTS, n_components=3).components_, MODEL.components_)
