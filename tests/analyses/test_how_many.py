"""`n-components='auto'`, and what all rules say of the moments that a run kept."""

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer, load_digits, load_wine

from fedpca_flwr import analyses
from fedpca_flwr.errors import ConfigError, DataError
from fedpca_flwr.model.second_moments import SecondMoments
from simulations import run
from tests.families import cut, rows
from tests.harness import own
from tests.refusals import refused


def fit(X, **options):
    n = len(X)
    return run("p-cov", cut(X, n - n // 3 - n // 5, n // 3, n // 5), n_components="auto", keep="moments", **options)


def by_whole_draws(X, scale, draws=100):
    """Horn's as he wrote it: eigenvalues of whole data matrices of unrelated normal features."""
    X = X / np.where(X.std(axis=0) > 0, X.std(axis=0), 1) if scale else X
    rng = np.random.default_rng(9)
    drawn = [np.linalg.svd(_centred(rng.standard_normal(X.shape) * X.std(axis=0)))[1] for _ in range(draws)]
    above = np.linalg.svd(_centred(X))[1] > np.percentile(drawn, 95, axis=0)
    return int(np.append(above, False).argmin())


def _centred(X):
    centred = X - X.mean(axis=0)
    return centred.T @ centred


def test_bi_cross_validation_holds_out_parties_where_there_are_several():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((600, 3)) @ rng.standard_normal((3, 15)) * 3 + rng.standard_normal((600, 15))
    options = {"n_components": 2}
    own = run("p-cov", cut(X, 200, 300, 60, 40), keep="parties", **options).moments_
    rule = "bi-cross-validation (Owen, Perry)"
    assert analyses.how_many(own, draws=5).by_rule[rule] == 3
    assert rule not in analyses.how_many(own.pooled(), draws=5).by_rule
    whole = SecondMoments.of(rows(60, 5))
    alone = SecondMoments(whole.moments, parties={"only": whole.moments})
    assert analyses.how_many(alone).by_rule == analyses.how_many(whole).by_rule


@pytest.mark.parametrize("scale", [False, True])
@pytest.mark.parametrize("load", [load_digits, load_wine, load_breast_cancer])
def test_auto_keeps_what_horns_own_procedure_keeps(load, scale):
    X = load().data
    model = fit(X, scale=scale)
    expected = by_whole_draws(X, scale)
    assert model.n_components_ == max(1, expected)
    said = [note for note in model.log["notes"] if "stand out" in note]
    assert said == [f"n-components='auto': {expected or 'none'} of {X.shape[1]} stand out of unrelated features (Horn)"]
    assert analyses.how_many(model.moments_, scale=scale).by_rule["parallel analysis (Horn)"] == expected
    assert analyses.pca(model.moments_, "auto", scale=scale).n_components_ == model.n_components_


@pytest.mark.parametrize("secured", [{"secure_aggregation": True, "bound": 30.0}])
def test_auto_needs_the_sums_only(secured):
    X = load_digits().data
    assert fit(X, **secured).n_components_ == fit(X).n_components_ > 5


def test_auto_is_about_variances_and_leaves_one_component_of_unrelated_features():
    model = fit(np.random.default_rng(0).standard_normal((300, 5)))
    assert model.n_components_ == 1
    assert "none of 5 stand out" in model.summary()
    with refused(ConfigError, "n_components", "'auto'", "center=True"):
        fit(rows(60), center=False)
    with refused(ConfigError, "n_components", "'auto'", "center=True"):
        analyses.pca(SecondMoments.of(rows(60)), "auto", center=False)


@pytest.mark.parametrize("method", ["sub-it", "qr-pca", "sapca", "dp-pca", "adaptive", "vertical"])
def test_methods_without_all_variances_refuse_it(method):
    with refused(ConfigError, "n_components", "'auto'"):
        run(method, cut(rows(60), 40, 20), n_components="auto", **own(method))


@pytest.mark.parametrize("wrong", ["all", "Auto", 0, 1.5])
def test_another_word_is_refused(wrong):
    with refused(ConfigError, "n_components", repr(wrong)):
        run("p-cov", cut(rows(60), 40, 20), n_components=wrong)
    wrong = wrong if wrong != 1.5 else -0.5
    with refused(ConfigError, "n-components", repr(wrong)):
        analyses.pca(SecondMoments.of(rows(60)), wrong)


def test_the_report_has_every_rule():
    found = analyses.how_many(fit(rows(300)).moments_, fraction=0.9)
    text = str(found)
    for rule in ("Horn", "Marchenko-Pastur", "Gavish", "Minka", "broken stick", "90% of the variance"):
        assert rule in text
    assert analyses.how_many(SecondMoments.of(rows(8, 12))).by_rule["greatest evidence (Minka)"] is None
    with refused(DataError):
        analyses.how_many(SecondMoments.of(np.ones((5, 3))))
    for wrong in (95, 1.0, 0.0, float("nan")):
        with refused(ConfigError, "'fraction'", wrong):
            analyses.how_many(SecondMoments.of(rows(60)), fraction=wrong)
