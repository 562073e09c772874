"""What every analysis does: it says what it is of, and what it finds shows itself as a table of numbers by names."""

import html
import re
from dataclasses import is_dataclass, replace
from functools import partial
from typing import Any, cast

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

MAKERS: dict[str, Any] = {
    "AdjustedMoments": lambda: analyses.adjusted(MOMENTS, ["gene 2", "gene 4"]),
    "CanonicalCorrelations": lambda: analyses.canonical_correlations(MOMENTS, ["gene 0", "gene 1"]),
    "Categories": lambda: analyses.categories(run("p-cov", [WARDS], n_components=2, scale=True, levels=["ward"])),
    "Clusters": lambda: analyses.clusters(run("p-cov", [X[NAMES]], n_components=2, clusters=2)),
    "Discriminant": lambda: analyses.discriminant(SecondMoments.of(X), CLASSES),
    "Drift": lambda: analyses.drift(MODEL, X[NAMES]),
    "Factorability": lambda: analyses.factorability(MOMENTS),
    "FactorModel": lambda: analyses.factor_analysis(MOMENTS, 2),
    "HowMany": lambda: analyses.how_many(MOMENTS),
    "HowSure": lambda: analyses.how_sure(MOMENTS, 3),
    "MultipleFactorAnalysis": lambda: analyses.multiple_factor_analysis(MOMENTS, {"a": NAMES[:3], "b": NAMES[3:]}),
    "Outliers": lambda: analyses.outliers(MODEL, ODD),
    "Reading": lambda: analyses.read(MOMENTS, 2),
    "Regression": lambda: analyses.ridge(MOMENTS, ["gene 0"]),
    "SparseComponents": lambda: analyses.sparse_components(MOMENTS, 2, 1),
    "Spikes": lambda: analyses.spikes(MOMENTS, 3),
    "SecondMoments": lambda: MOMENTS,
}


def formatted(form, values):
    return [f"{value:{form}}" for value in values]


def largest(values, first=0):
    """Return the beginning of a cell: the feature of the largest absolute value, of those from the first on."""
    return NAMES[first + np.abs(values).argmax()]


g, percent = partial(formatted, ".4g"), partial(formatted, ".2%")
columns, PCS = partial(zip, strict=False), ("PC1", "PC2", "PC3")
LINES: dict[str, Any] = {  # the first cells of each line of a table, by the result's own numbers
    "AdjustedMoments": lambda r: columns(r.moments.features, *map(g, r.coefficients)),
    "CanonicalCorrelations": lambda r: columns(
        "12", g(r.correlations), map(largest, r.x_directions.T), [largest(y, first=2) for y in r.y_directions.T]
    ),
    "Categories": lambda r: columns(r.levels, percent(r.shares), *map(g, [*r.coordinates.T, *r.squared_cosines.T])),
    "Clusters": lambda r: columns("01", map(str, r.rows), *map(g, r.centres.T)),
    "Discriminant": lambda r: columns(r.classes, map(str, r.counts)),
    "Drift": lambda r: columns(["shift of the mean", "spread off the components"], g(list(vars(r).values())[:2])),
    "Factorability": lambda r: columns(NAMES, g(r.kmo_by_feature)),
    "FactorModel": lambda r: columns(NAMES, *map(g, [*r.components, r.noise_variance, r.communalities])),
    "HowMany": lambda r: columns(r.by_rule, map(str, r.by_rule.values())),
    "HowSure": lambda r: columns(PCS, *map(g, [r.variances, *r.variance_intervals.T, r.loading_errors.max(axis=1)])),
    "MultipleFactorAnalysis": lambda r: [
        ["(eigenvalue)", "", *g(r.eigenvalues)],
        *zip(r.groups, g(r.group_eigenvalues), *map(percent, r.contributions), strict=True),
    ],
    "Outliers": lambda r: [[str(i), *g([r.t_squared[i], r.spe[i]]), largest(r.spe_contributions[i])] for i in r.oddest],
    "Reading": lambda r: columns([*NAMES, "(variance)"], *map(g, np.c_[r.correlations, r.variances])),
    "Regression": lambda r: columns(
        ["R squared", "(intercept)", *NAMES[1:]], g([*r.explained_share, *r.intercepts, *r.coefficients[:, 0]])
    ),
    "SparseComponents": lambda r: columns(PCS, percent(r.explained_shares), percent(r.gaps), ["proven"] * 2),
    "Spikes": lambda r: columns(PCS, g(r.variances), g(r.angles)),
    "SecondMoments": lambda r: columns(NAMES, g(r.mean), g(np.sqrt(np.diagonal(r.covariance)))),
}
TITLES: dict[str, Any] = {  # what a title says in numbers
    "AdjustedMoments": lambda r: "2 covariates, 200 rows",
    "Clusters": lambda r: "k-means",
    "Drift": lambda r: f" {r.odd_share:.1%} of them",
    "Factorability": lambda r: f"KMO {r.kmo:.4g}; Bartlett's chi squared {r.chi_squared:.4g} of 28 degrees",
    "FactorModel": lambda r: f"log-likelihood {r.log_likelihood:.4g}",
    "Outliers": lambda r: (
        f"{r.odd.sum()} of 200 rows exceed a limit of new rows "
        f"(T squared {r.t_squared_limit:.4g}, SPE {r.spe_limit:.4g})"
    ),
    "SecondMoments": lambda r: "200 rows",
    "SparseComponents": lambda r: f" {r.explained_shares.sum():.2%} of the variance",
}
HEADS = {
    **{name: ["PC1", "PC2"] for name in ("Clusters", "MultipleFactorAnalysis", "Reading")},
    "Categories": ["cos2 PC2"],
    "FactorModel": ["F2"],
    "HowSure": ["variance", "at least", "at most", "largest error of a loading"],
    "Spikes": ["variance in the population", "degrees from the population's"],
}


OF_MODELS = {"categories", "clusters", "drift", "harmonised", "highly_variable", "outliers", "projected"}
OF_MODELS |= {"variance_intervals", "whitened"}
SCALED = {"scale": True}
RUNS = [{}, SCALED, {**SCALED, "levels": ["ward"]}, {**SCALED, "center": False, "divisor": "n"}]
FOUND = {name: (make, TITLES.get(name, lambda result: type(result).__name__)) for name, make in MAKERS.items()}


@pytest.mark.parametrize("name", FOUND)
def test_what_is_found_shows_itself_as_a_table_of_its_numbers(name):
    make, title_of = FOUND[name]
    result = make()
    text, page = repr(result), result._repr_html_()
    title, *rest = text.splitlines()
    assert type(result).__name__ == name
    assert title.startswith(name)
    assert title_of(result) in title
    assert len(rest) < 29
    assert "array(" not in text
    cells = [list(map(html.unescape, re.findall("<t[dh][^>]*>([^<]*)", line))) for line in page.split("<tr>")]
    heads, *lines = cells[1:]
    assert [head for head in heads if head in HEADS.get(name, [])] == HEADS.get(name, [])
    assert not [shown for shown in heads + lines[0] if shown.strip() not in text]
    for line, expected in zip(lines, map(list, LINES[name](result)), strict=True):
        assert all(shown.startswith(cell) for shown, cell in zip(line, expected, strict=False)), (line, expected)


def test_moments_and_models_are_not_taken_for_each_other():
    """The faults: AttributeErrors of whatever came first."""
    kinds = {name for name in analyses.__all__ if isinstance(getattr(analyses, name), type)}
    assert {name for name in kinds if is_dataclass(getattr(analyses, name))} | {"SecondMoments"} == set(MAKERS)
    for name in set(analyses.__all__) - kinds:
        analysis, of_models = getattr(analyses, name), name in OF_MODELS
        kind, word = ("PCAModel", "model") if of_models else ("SecondMoments", "moments")
        advice = "pca" if of_models else "keep='moments'"
        for given in (None, X.to_numpy(), MOMENTS if of_models else MODEL):
            with refused(ConfigError, f"'{word}'", type(given).__name__, kind, match=advice):
                analysis(given, [0], [1])
        with refused(ConfigError, f"'{word}'", "str"):
            analysis(**{word: "model.npz"})


def test_a_number_of_directions_or_draws_is_a_number():
    for k in (None, "2", 1.5, 2.0, True, 0, 8):
        for analysis in (analyses.partial_least_squares, analyses.principal_component_regression):
            with refused(ConfigError, "'k'", repr(k), 1, 7):
                analysis(MOMENTS, ["gene 3"], k=k)
        if k != 8:
            with refused(ConfigError, "'draws'"):
                analyses.how_many(MOMENTS, draws=k)
    by_name: Any = {"moments": MOMENTS, "n_components": 3}
    np.testing.assert_array_equal(cast("Any", analyses.pca)(**by_name).components_, MODEL.components_)


@pytest.mark.parametrize("options", RUNS, ids=str)
def test_an_analysis_of_a_model_takes_its_features_as_the_run_did(options, tmp_path):
    """The fault: analyses of the moments of a scaled run describe the PCA of unscaled features."""
    table = WARDS if "levels" in options else 50 * X[NAMES]
    model = run("p-cov", [table[:90], table[90:]], n_components=3, keep="moments", **options)
    moments, unit = model.moments_, 1.0 if model.scale_ is None else model.scale_
    kept = moments.select(moments.features[::-1]).select(moments.features)
    sources = [model, moments, SecondMoments.load(kept.save(tmp_path / "moments"))]
    for source in sources if model.scale_ is None else [*sources, moments.scaled(), moments.scaled(unit)]:
        again = analyses.pca(source)
        np.testing.assert_allclose(again.components_, model.components_, atol=1e-9)
        np.testing.assert_allclose(again.explained_variance_, model.explained_variance_, rtol=1e-9)
        assert not [note for note in again.log["notes"] if "the run" in note]
    with refused(ConfigError, "'divisors'"):
        moments.scaled(-np.ones(len(moments.features)))
    assert [note for note in analyses.pca(model, scale=not options).log["notes"] if "the run" in note]
    spectrum = np.linalg.eigvalsh(model.moments_.covariance / unit / np.reshape(unit, (-1, 1)))[::-1]
    np.testing.assert_allclose(analyses.how_many(model).spectrum, spectrum, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(analyses.spikes(model).variances, analyses.spikes(kept, 3).variances)
    for result in (analyses.how_many(model), analyses.read(model), analyses.sparse_components(model, None, 2)):
        assert ("divided by their deviations" in repr(result)) == bool(options)
    assert "the run" in repr(analyses.how_many(model, scale=not options))


def test_no_unit_of_the_rows_changes_a_result():
    def of(u):
        lda = analyses.discriminant(SecondMoments.of((u * X[NAMES]).assign(ill=X["ill"], well=X["well"])), CLASSES)
        moments = SecondMoments.of(u * X[NAMES])
        sure, sparse = analyses.how_sure(moments, 3), analyses.sparse_components(moments, 3, 3)
        numbers = sure.loading_errors, sparse.components, sparse.exact
        return [lda.slopes * u, lda.directions * u, sure.variance_intervals / u**2, sparse.bounds / u**2, *numbers]

    for small, here, large in zip(*map(of, (2.0**-100, 1.0, 2.0**100)), strict=True):
        np.testing.assert_allclose([small, large], [here, here], rtol=1e-6, atol=1e-9)
    # A cluster of no rows is not one of few.
    assert re.findall(r"^  [01] +(\w+)", repr(replace(MAKERS["Clusters"](), rows=(0, None))), re.M) == ["0", "few"]
