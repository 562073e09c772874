"""Intervals of variances and errors of loadings; `simulations.benchmarks.coverage` counts how often they hold."""

import numpy as np
import pytest

from fedpca_flwr import analyses
from fedpca_flwr.errors import ConfigError, ContractError
from simulations import run
from tests.families import cut, rows
from tests.refusals import refused

X = rows(400, 6)


@pytest.fixture(scope="module")
def moments():
    parties = cut(X, 100, 80, 60, 50, 40, 30, 20, 20)
    return run("p-cov", parties, n_components=2, keep="parties").moments_


def bootstrap(statistic, draws=400):
    rng = np.random.default_rng(0)
    return np.std([statistic(X[rng.integers(0, len(X), len(X))]) for _ in range(draws)], axis=0)


def aligned(rows_of, components):
    _, _, found = np.linalg.svd(rows_of - rows_of.mean(axis=0), full_matrices=False)
    found = found[:2]
    return found * np.sign(np.sum(found * components, axis=1))[:, None]


@pytest.mark.parametrize("ask", [analyses.how_sure, analyses.how_sure_by_parties])
def test_errors_are_those_of_the_bootstrap(moments, ask):
    """Another way to the same, from the rows themselves; eight parties know a spread to some 30 %."""
    components, _ = analyses.pca(moments, 2).loadings()
    found = ask(moments, 2)
    expected = bootstrap(lambda drawn: aligned(drawn, components))
    np.testing.assert_allclose(np.linalg.norm(found.loading_errors), np.linalg.norm(expected), rtol=0.35)
    spread = bootstrap(lambda drawn: np.log(np.linalg.svd(drawn - drawn.mean(axis=0))[1][:2] ** 2))
    low, high = found.variance_intervals.T
    step = {analyses.how_sure: 1.96, analyses.how_sure_by_parties: 2.365}[ask]  # 7 degrees of freedom
    np.testing.assert_allclose(np.log(high / low) / 2 / step, spread, rtol=0.5)
    assert (low < found.variances).all()
    assert (found.variances < high).all()
    np.testing.assert_allclose(found.variances, analyses.pca(moments, 2).explained_variance_)


def test_parties_that_differ_widen_what_they_tell_and_coin_tosses_of_signs_do_not():
    parties = cut(rows(400, 6), *[50] * 8)
    even, odd = (
        run("p-cov", [*parties[:-1], parties[-1] * scale], n_components=2, keep="parties").moments_ for scale in (1, 4)
    )
    one, other = (np.log(np.divide(*analyses.how_sure_by_parties(m, 1).variance_intervals[0])) for m in (even, odd))
    assert other < 3 * one
    # Two loadings of one size and opposite signs: the larger of them is positive, whichever that is.
    rng = np.random.default_rng(1)
    x = rng.standard_normal((400, 1))
    parties = cut(np.hstack([x, -x]) + 0.1 * rng.standard_normal((400, 2)), *[50] * 8)
    moments = run("p-cov", parties, n_components=1, keep="parties").moments_
    assert len({np.sign(analyses.pca(moments.without(party), 1).components_[0, 0]) for party in moments.parties}) == 2
    assert analyses.how_sure_by_parties(moments, 1).loading_errors.max() < 0.01


def test_scaled_features_have_errors_and_spikes_of_their_scaled_moments(moments):
    found = analyses.how_sure_by_parties(moments, 2, scale=True)
    np.testing.assert_allclose(found.variances, analyses.pca(moments, 2, scale=True).explained_variance_)
    spikes, expected = analyses.spikes(moments, 2, scale=True), analyses.spikes(moments.scaled(), 2)
    np.testing.assert_array_equal(spikes.variances, expected.variances)
    assert (spikes.variances != analyses.spikes(moments, 2).variances).any()


def test_few_rows_for_many_features_are_turned():
    wide = run("p-cov", cut(rows(60, 40) * 5, 40, 20), n_components=2, keep="moments").moments_
    found = analyses.spikes(wide, 3)
    assert 0 < found.angles[0] < found.angles[1] < found.angles[2] <= 90
    assert (found.variances[:1] < analyses.pca(wide, 1).explained_variance_).all()


def test_what_cannot_be_told_is_refused_and_components_of_rounding_have_no_errors(moments):
    with refused(ConfigError, 0, 5):
        analyses.how_sure_by_parties(moments.pooled(), 2)
    with refused(ConfigError, "'level'", 95):
        analyses.how_sure(moments, 2, level=95)
    with refused(ConfigError, "'k'", 7, 1, 6):
        analyses.how_sure(moments, 7)
    # They would have small ones: of how float64 rounds.
    doubled = np.column_stack([X[:, :2], X[:, :2] * 2])
    parties = run("p-cov", cut(doubled, 100, 80, 70, 80, 70), n_components=1, keep="parties")
    for ask in (analyses.how_sure, analyses.how_sure_by_parties):
        with refused(ContractError, 3):
            ask(parties.moments_, 3)
