"""How many components to keep, and how sure variances and loadings are (`benchmarks.coverage` counts how often)."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import norm, t
from sklearn.datasets import load_breast_cancer, load_digits, load_wine

from fedpca_flwr import analyses, run
from fedpca_flwr.errors import ConfigError, ContractError, DataError
from fedpca_flwr.model.second_moments import SecondMoments
from tests.families import cut, rows
from tests.harness import own
from tests.refusals import refused


def fit(X, **options):
    n = len(X)
    return run("p-cov", cut(X, n - n // 3 - n // 5, n // 3, n // 5), n_components="auto", keep="moments", **options)


def test_bi_cross_validation_holds_out_parties():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((600, 3)) @ rng.standard_normal((3, 15)) * 3 + rng.standard_normal((600, 15))
    own = run("p-cov", cut(X, 200, 300, 60, 40), n_components=2, keep="parties").moments_
    rule = "bi-cross-validation (Owen, Perry)"
    assert analyses.how_many(own, draws=5).by_rule[rule] == 3
    assert rule not in analyses.how_many(own.pooled(), draws=5).by_rule
    whole = SecondMoments.of(rows(60, 5))
    alone = SecondMoments(whole.moments, parties={"only": whole.moments})
    assert analyses.how_many(alone).by_rule == analyses.how_many(whole).by_rule


def test_rules_and_spikes_are_those_of_a_known_spectrum():
    """Ten features, 100 degrees of freedom: noise reaches 1.8, and values that help to reconstruct begin at 2.6."""
    values, rng = np.array([10, 5, 2, *np.ones(7)]), np.random.default_rng(0)
    centred = rng.standard_normal((101, 10))
    centred = np.linalg.qr(centred - centred.mean(axis=0))[0] * np.sqrt(100 * values)
    moments = SecondMoments.of(centred)
    kept = analyses.how_many(moments, draws=5).by_rule
    rules = ("Marchenko-Pastur edge", "optimal threshold (Gavish, Donoho)", "broken stick", "95% of the variance")
    assert [kept[rule] for rule in rules] == [3, 2, 2, 9]
    found = analyses.spikes(moments, 4)
    noise, own = found.variances[3], found.variances[:3]
    over = noise / (own - noise)
    np.testing.assert_allclose(own * (1 + 0.1 * over), values[:3], rtol=1e-9)
    cosines = np.sqrt((1 - 0.1 * over**2) / (1 + 0.1 * over))
    np.testing.assert_allclose(found.angles, [*np.degrees(np.arccos(cosines)), 90], rtol=1e-9)


@pytest.mark.parametrize("scale", [False, True])
@pytest.mark.parametrize("load", [load_wine, load_breast_cancer])
def test_auto_keeps_what_horns_own_procedure_keeps(load, scale):
    """Horn's own procedure takes the eigenvalues of data matrices of unrelated normal features."""
    X = np.insert(load().data, 2, 5.0, axis=1)  # a constant feature among them
    model = fit(X, scale=scale)
    own, rng = X / np.where(X.std(axis=0) > 0, X.std(axis=0), 1) if scale else X, np.random.default_rng(9)
    drawn = [rng.standard_normal(own.shape) * own.std(axis=0) for _ in range(100)]
    sizes = [np.linalg.svd(rows - rows.mean(axis=0), compute_uv=False) for rows in (own, *drawn)]
    expected = int(np.append(sizes[0] > np.percentile(sizes[1:], 95, axis=0), False).argmin())
    assert model.n_components_ == max(1, expected)
    said = [note for note in model.log["notes"] if "Horn" in note]
    assert said == [f"n-components='auto': parallel analysis (Horn) keeps {expected or 'none'} of {X.shape[1]}"]
    assert analyses.how_many(model.moments_, scale=scale).by_rule["parallel analysis (Horn)"] == expected
    assert analyses.pca(model.moments_, "auto", scale=scale).n_components_ == model.n_components_


def test_auto_leaves_one_component_of_unrelated_features():
    X = load_digits().data[:300]
    assert fit(X, secure_aggregation=True, bound=30.0).n_components_ == fit(X).n_components_ > 5
    model = fit(np.random.default_rng(0).standard_normal((300, 5)))
    assert model.n_components_ == 1
    assert "keeps none of 5" in model.summary(full=True)


def test_auto_is_about_variances_and_another_word_is_refused():
    for method in ("sub-it", "qr-pca", "sapca", "dp-pca", "adaptive", "vertical"):  # which have not all variances
        with refused(ConfigError, "n_components", "'auto'"):
            run(method, cut(rows(60), 40, 20), n_components="auto", **own(method))
    moments = SecondMoments.of(rows(60))
    for ask in (lambda: fit(rows(60), center=False), lambda: analyses.pca(moments, "auto", center=False)):
        with refused(ConfigError, "n_components", "'auto'", "center=True"):
            ask()
    for wrong in ("all", "Auto", 0, -0.5, 1.5):
        with refused(ConfigError, "n_components", repr(wrong)):
            run("p-cov", cut(rows(60), 40, 20), n_components=wrong)
        with refused(ConfigError, "n-components", repr(wrong)):
            analyses.pca(moments, wrong)


def test_the_report_has_every_rule():
    found = analyses.how_many(fit(rows(300)).moments_, fraction=0.9)
    for rule in ("Horn", "Marchenko-Pastur", "Gavish", "Minka", "broken stick", "90% of the variance"):
        assert rule in str(found)
    assert analyses.how_many(SecondMoments.of(rows(8, 12))).by_rule["greatest evidence (Minka)"] is None
    with refused(DataError):
        analyses.how_many(SecondMoments.of(np.ones((5, 3))))
    for wrong in (95, 1.0, 0.0, float("nan")):
        with refused(ConfigError, "'fraction'", wrong):
            analyses.how_many(SecondMoments.of(rows(60)), fraction=wrong)


ROWS = rows(400, 6)


@pytest.fixture(scope="module")
def moments():
    return run("p-cov", cut(ROWS, 100, 80, 60, 50, 40, 30, 20, 20), n_components=2, keep="parties").moments_


def test_errors_are_those_of_the_bootstrap(moments):
    """Another way to the same, from the rows themselves; eight parties know a spread to some 30 %."""
    components, _ = analyses.pca(moments, 2).loadings()
    rng, found = np.random.default_rng(0), []
    for _ in range(400):
        drawn = ROWS[rng.integers(0, len(ROWS), len(ROWS))]
        _, sizes, own = np.linalg.svd(drawn - drawn.mean(axis=0), full_matrices=False)
        signs = np.sign(np.sum(own[:2] * components, axis=1))
        found.append(np.column_stack([own[:2] * signs[:, None], np.log(sizes[:2] ** 2)]))
    spread = np.std(found, axis=0)
    for ask, step in ((analyses.how_sure, 1.96), (analyses.how_sure_by_parties, 2.365)):  # 7 degrees of freedom
        told = ask(moments, 2)
        np.testing.assert_allclose(np.linalg.norm(told.loading_errors), np.linalg.norm(spread[:, :-1]), rtol=0.35)
        low, high = told.variance_intervals.T
        np.testing.assert_allclose(np.log(high / low) / 2 / step, spread[:, -1], rtol=0.5)
        assert (low < told.variances).all()
        assert (told.variances < high).all()
        np.testing.assert_allclose(told.variances, analyses.pca(moments, 2).explained_variance_)


def test_intervals_follow_the_level_and_the_draws(moments):
    variances, step = analyses.pca(moments, 2).explained_variance_, norm.ppf(0.9)
    expected = variances[:, None] / (1 + np.array([1, -1]) * step * np.sqrt(2 / 399))
    np.testing.assert_allclose(analyses.how_sure(moments, 2, level=0.8).variance_intervals, expected, rtol=1e-12)
    model = analyses.pca(moments, 2)
    model = replace(model, log={**model.log, "kurtosis": [3.0, 5.0]})
    expected = variances[:, None] / (1 + np.outer(np.sqrt([2 / 400, 4 / 400]), [step, -step]))
    np.testing.assert_allclose(analyses.variance_intervals(model, level=0.8), expected, rtol=1e-12)
    wide, narrow = (analyses.how_sure_by_parties(moments, 2, level=level).variance_intervals for level in (0.95, 0.8))
    widths = np.log(wide[:, 1] / wide[:, 0]) / np.log(narrow[:, 1] / narrow[:, 0])
    np.testing.assert_allclose(widths, t.ppf(0.975, 7) / t.ppf(0.9, 7))  # eight parties
    assert analyses.how_many(moments, draws=1).null_band[0] != analyses.how_many(moments, draws=2).null_band[0]
    with refused(ConfigError, "'draws'", 100_001, 1, 100_000):
        analyses.how_many(moments, draws=100_001)


def test_unlike_parties_widen_intervals_and_signs_do_not():
    parties = cut(rows(400, 6), *[50] * 8)
    widths = []
    for scale in (1, 4):
        kept = run("p-cov", [*parties[:-1], parties[-1] * scale], n_components=2, keep="parties").moments_
        widths.append(np.log(np.divide(*analyses.how_sure_by_parties(kept, 1).variance_intervals[0])))
    assert widths[1] < 3 * widths[0]
    # Two loadings of one size and opposite signs: the larger of them is positive, whichever that is.
    rng = np.random.default_rng(1)
    x = rng.standard_normal((400, 1))
    parties = cut(np.hstack([x, -x]) + 0.1 * rng.standard_normal((400, 2)), *[50] * 8)
    moments = run("p-cov", parties, n_components=1, keep="parties").moments_
    assert len({np.sign(analyses.pca(moments.without(party), 1).components_[0, 0]) for party in moments.parties}) == 2
    assert analyses.how_sure_by_parties(moments, 1).loading_errors.max() < 0.01


def test_errors_of_scaled_features_are_of_scaled_moments(moments):
    found = analyses.how_sure_by_parties(moments, 2, scale=True)
    np.testing.assert_allclose(found.variances, analyses.pca(moments, 2, scale=True).explained_variance_)
    spikes, expected = analyses.spikes(moments, 2, scale=True), analyses.spikes(moments.scaled(), 2)
    np.testing.assert_array_equal(spikes.variances, expected.variances)
    assert (spikes.variances != analyses.spikes(moments, 2).variances).any()
    # Few rows for many features are turned.
    wide = run("p-cov", cut(rows(60, 40) * 5, 40, 20), n_components=2, keep="moments").moments_
    turned = analyses.spikes(wide, 3)
    assert 0 < turned.angles[0] < turned.angles[1] < turned.angles[2] <= 90
    assert (turned.variances[:1] < analyses.pca(wide, 1).explained_variance_).all()


def test_components_of_rounding_have_no_errors(moments):
    four = SecondMoments(moments.moments, parties=dict(list(moments.parties.items())[:4]))
    for kept, few in ((moments.pooled(), 0), (four, 4)):
        with refused(ConfigError, few, 5):
            analyses.how_sure_by_parties(kept, 2)
    for held, k, level, named in (
        *((moments, 2, level, ["'level'", repr(level)]) for level in (95, "0.9")),
        (moments, 7, 0.95, ["'k'", 7, 1, 6]),
        (SecondMoments.of(ROWS[:3]), 3, 0.95, ["'k'", 3, 2]),
    ):
        with refused(ConfigError, *named):
            analyses.how_sure(held, k, level=level)
    # They would have small ones: of how float64 rounds.
    doubled = np.column_stack([ROWS[:, :2], ROWS[:, :2] * 2])
    parties = run("p-cov", cut(doubled, 100, 80, 70, 80, 70), n_components=1, keep="parties")
    for ask in (analyses.how_sure, analyses.how_sure_by_parties):
        with refused(ContractError, 3):
            ask(parties.moments_, 3)
