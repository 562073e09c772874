"""Tests of rows with missing values against the textbook's formulas, and of what accelerates their steps."""

import numpy as np
import pytest
from sklearn.preprocessing import scale as standardised

from fedpca_flwr.maths import incomplete_rows
from fedpca_flwr.maths.anderson import Anderson
from fedpca_flwr.maths.incomplete_rows import MIN_EIGENVALUE, fill_by_covariance, fill_by_factors, invert_covariance
from fedpca_flwr.maths.krylov import random_block
from fedpca_flwr.maths.moments import Moments, unpack_symmetric
from fedpca_flwr.strategies.em import gap_groups, gaussian_em
from fedpca_flwr.strategies.em.factor_em import FactorEM, FactorGaussian, factor_sums, squared_error_by_factors
from fedpca_flwr.strategies.em.gap_groups import GappedRows
from fedpca_flwr.strategies.em.gaussian_em import Gaussian, GaussianEM, expected_sums
from tests.refusals import refused

D = 7
FACTORS = FactorGaussian(np.linspace(1, -1, D), np.linalg.qr(random_block(D, 3, seed=0)).Q, np.array([3, 2, 1.3]), 0.4)
COVARIANCE = FACTORS.loadings @ FACTORS.loadings.T + FACTORS.noise * np.eye(D)


def covariance(d=6, seed=0):
    factor = np.random.default_rng(seed).standard_normal((d, d))
    return factor @ factor.T / d + 0.1 * np.eye(d)


def with_holes(rows, share=0.3, seed=1):
    holes = np.random.default_rng(seed).random(rows.shape) < share
    holes[holes.all(axis=1), 0] = False
    return np.where(holes, np.nan, rows)


def textbook(rows, S):
    """E[y | what is observed] of rows, and the sum of the covariances of what is missing, by regression on the rest."""
    y, C = rows.copy(), np.zeros_like(S)
    for pattern in np.unique(np.isnan(rows), axis=0):
        own, u, o = (np.isnan(rows) == pattern).all(axis=1), pattern, ~pattern
        B = np.linalg.solve(S[np.ix_(o, o)], S[np.ix_(o, u)])
        y[np.ix_(own, u)] = rows[np.ix_(own, o)] @ B
        C[np.ix_(u, u)] += own.sum() * (S[np.ix_(u, u)] - S[np.ix_(u, o)] @ B)
    return y, C


def gapped(rows):
    return GappedRows(rows, incomplete_rows.Patterns.from_rows(rows))


def sums_of(rows, model, sums=expected_sums):
    return sums(gapped(rows), model, np.zeros(rows.shape[1]), np.ones(rows.shape[1]))


def rows_with_gaps():
    """Return rows with gaps of their own, an empty and a complete one, then rows of which many have the same gaps."""
    rows = with_holes(np.random.default_rng(2).standard_normal((60, D)))
    rows[0], rows[1] = np.nan, 1.0
    return np.vstack([rows, with_holes(np.random.default_rng(5).standard_normal((200, D)), 0.1)])


@pytest.mark.parametrize("elements", [2**22, 1])
def test_sums_and_errors_over_equal_gaps_are_those_of_the_rows(elements, monkeypatch):
    """Groups of one row, of several rows and of all features are loaded at once or read piece by piece."""
    monkeypatch.setattr(gap_groups, "MAX_ELEMENTS", elements)
    rng, S = np.random.default_rng(2), covariance()
    some, whole = with_holes(rng.standard_normal((240, 6)), 0.1), rng.standard_normal((80, 6)) + 1e6
    rows = np.vstack([some, whole, [[np.nan] * 6]])
    centre, unit, mean = rng.standard_normal(6), np.geomspace(0.1, 10, 6), rng.standard_normal(6)
    y, C = textbook((rows[:-1] - centre) / unit - mean, S)
    found = gaussian_em.completed_sums(gapped(rows), invert_covariance(S), centre, unit, mean)
    np.testing.assert_allclose(found.first, y.sum(axis=0), rtol=1e-12)
    np.testing.assert_allclose(found.second, y.T @ y, rtol=1e-10)
    np.testing.assert_allclose(found.uncertainty, C, atol=1e-12)
    rows, mean, unit, scale = rows_with_gaps(), FACTORS.mean, np.geomspace(0.1, 10, D), np.linspace(1, 2, D)
    components = random_block(D, 2, seed=1).T
    factors = np.vstack([FACTORS.loadings.T * unit, FACTORS.noise * unit**2])
    whole = fill_by_factors(rows - mean, factors) / scale
    left = np.sum(whole**2) - np.sum((whole @ components.T) ** 2)
    rows, S = gapped(rows), COVARIANCE * np.outer(unit, unit)
    by_factors = squared_error_by_factors(rows, factors, mean, scale, components)
    by_covariance = gaussian_em.squared_error_by_covariance(rows, S, mean, scale, components)
    np.testing.assert_allclose([by_factors, by_covariance], left, rtol=1e-10)
    rows = np.vstack([rows_with_gaps(), rows_with_gaps() + 1.0])
    sums = sums_of(rows, FACTORS, factor_sums)
    deviations = (rows - FACTORS.mean)[~np.isnan(rows).all(axis=1)]  # the others have no part in it
    y, C = textbook(deviations, COVARIANCE)
    expected = y.T @ y + C
    np.testing.assert_allclose(sums.first, y.sum(axis=0), atol=1e-11)
    np.testing.assert_allclose(sums.product, expected @ FACTORS.basis, rtol=1e-11)
    np.testing.assert_allclose(sums.square, np.trace(expected), rtol=1e-13)
    observed = [(row[o], COVARIANCE[np.ix_(o, o)]) for row, o in zip(deviations, ~np.isnan(deviations), strict=True)]
    losses = [np.linalg.slogdet(S)[1] + row @ np.linalg.solve(S, row) for row, S in observed]
    np.testing.assert_allclose(sums.likelihood, -sum(losses) / 2, rtol=1e-13)


def test_rows_whose_gaps_enough_others_have_take_part():
    kinds = {".": [False, False], "a": [True, False], "b": [False, True], "n": [True, True]}
    for gaps, least, multiple, taken in (
        ("...ab", 1, 1, [1, 1, 1, 1, 1]),
        ("...aa", 2, 1, [1, 1, 1, 1, 1]),  # as many as the least
        ("...aab", 2, 1, [1, 1, 1, 1, 1, 0]),
        ("..n", 2, 1, [1, 1, 1]),  # a row without values has no gap that others could share
        ("...", 2, 2, [1, 1, 0]),
        ("...", 3, 2, [0, 0, 0]),  # two would be too few
    ):
        rows = np.where([kinds[gap] for gap in gaps], np.nan, 1.0)
        np.testing.assert_array_equal(incomplete_rows.Patterns.from_rows(rows).common_rows(least, multiple), taken)


def plain_em(rows, prior, steps):
    n, d = rows.shape
    m, S = np.zeros(d), np.eye(d)
    for _ in range(steps):
        y, C = textbook(rows - m, S)
        m, T = m + y.mean(axis=0), n * np.cov(y.T, ddof=0) + C
        S = (T + prior * np.eye(d)) / (n + prior)
    return m, T


def fitted(rows, prior, steps, start=0.0):
    em = GaussianEM(len(rows), np.full(6, start), np.ones(6), prior=prior)
    for _ in range(steps):
        em.add(sums_of(rows, em.model))
    return em


@pytest.mark.engine
def test_em_takes_fewer_steps_than_the_textbooks_iteration():
    whole, prior = np.random.default_rng(3).standard_normal((120, 6)) @ covariance(seed=4), 5.0
    rows = standardised(with_holes(whole, 0.5))
    T, ours = (unpack_symmetric(fitted(rows, prior, steps).scatter, 6) for steps in (100, 30))
    assert np.abs(ours - T).max() < np.abs(plain_em(rows, prior, 30)[1] - T).max() / 100


def test_one_step_without_gaps_gives_the_moments():
    rows = standardised(np.random.default_rng(3).standard_normal((80, 6)) @ covariance())
    em = fitted(rows, 10.0, 1, start=3.0)
    np.testing.assert_allclose(em.mean, np.zeros(6), atol=1e-12)
    np.testing.assert_allclose(em.scatter, Moments.from_rows(rows).scatter, atol=1e-10)


def test_what_cannot_be_regressed_on_is_filled_by_its_mean():
    # Of 2^53, 2^53 + 2 and 2^53 + 2 the mean is 2^53 + 4/3, which float64 does not hold.
    own = gapped(2.0**53 + np.array([[0.0], [2.0], [2.0], [np.nan]])).observed_moments
    assert (own.mean - 2.0**53) + own.remainder == pytest.approx(4 / 3)
    assert own.squares == pytest.approx(8 / 3)
    S, rows = covariance(), np.random.default_rng(2).standard_normal((4, 6))
    S[2], S[:, 2], rows[:, 2] = 0.0, 0.0, np.nan
    assert not fill_by_covariance(rows, S)[:, 2].any()
    assert invert_covariance(np.diag([1.0, 2 * MIN_EIGENVALUE])) is not None
    for singular in (np.diag([1.0, MIN_EIGENVALUE / 2]), np.array([[1.0, 2.0], [2.0, 1.0]])):
        assert invert_covariance(singular) is None
    with refused(ValueError):
        sums_of(np.zeros((1, 2)), Gaussian(np.zeros(2), np.ones((2, 2))))
    with refused(ValueError):
        fill_by_covariance(np.zeros((1, 2)), np.ones((2, 2)))
    for em, spread in ((GaussianEM, np.ones(2)), (FactorEM, np.ones((2, 1)))):
        assert em(2**30, np.zeros(2), spread, prior=1e-6).prior == 4 * MIN_EIGENVALUE * 2**30


def path(mapping, start, count, allowed=lambda point: True):
    """Return the points of so many steps of an iteration, and the iteration after the last."""
    iteration, points = Anderson(start, allowed), []
    for _ in range(count):
        points.append(iteration.point)
        iteration.add(mapping(iteration.point))
    return np.array(points), iteration


def test_anderson_takes_far_fewer_steps_and_finds_a_fixed_point():
    rates = np.array([0.1, 0.5, 0.9, 0.99])
    points, iteration = path(lambda x: rates * x, np.ones(4), 8)
    assert np.linalg.norm(points[-1]) < 1e-4  # the plain iteration is at 0.93
    assert iteration.steps_ahead == pytest.approx(100.0, rel=0.05)  # 1 / (1 - 0.99)
    assert path(lambda x: 0.9 * x, np.ones(1), 1)[1].steps_ahead is None
    assert path(lambda x: 0.9 * x, np.ones(1), 2)[1].steps_ahead == pytest.approx(10.0, rel=1e-4)
    # Where a combination is not allowed, the plain iteration goes on.
    points, _ = path(lambda x: 0.9 * x + 1.0, np.zeros(1), 9, allowed=lambda point: bool(point[0] < 6.0))
    np.testing.assert_allclose(points[:, 0], 10.0 * (1 - 0.9 ** np.arange(9)))
    # Slow near the start, wild beyond 5: the point there is given up for the last image.
    points, _ = path(lambda x: np.where(x < 5.0, 0.99 * x + 0.1, x + 1000.0), np.zeros(1), 4)
    np.testing.assert_allclose(points[:, 0], [0.0, 0.1, 10.0, 0.199], rtol=1e-4)
    for objective in (0.0, None):
        at_rest = Anderson(np.ones(2), lambda point: True)
        for _ in range(5):
            at_rest.add(np.ones(2), objective)
            np.testing.assert_array_equal(at_rest.point, np.ones(2))
    found = Anderson(np.zeros(1), lambda point: True)
    found.add(np.ones(1), 1.0)
    # Half way to 2, as low as rounding; a lower one, after which the last image is the point; and half way again.
    for image, height, point in ((1.5, 1.0 - 1e-10, 2.0), (5.0, -1.0, 1.5), (1.75, 0.0, 1.75)):
        found.add(np.array([image]), height)
        np.testing.assert_allclose(found.point, [point])
    found = Anderson(np.zeros(2), lambda point: True)
    for pair in ([1e-170, 0.0], [2e-170, 1e-171], [2e-170, 1e-170]):  # their differences cannot be squared
        found.add(np.array(pair), 0.0)
    np.testing.assert_array_equal(found.point, pair)


@pytest.mark.parametrize("unit", [1e-9, 1.0, 1e9])
def test_missing_values_follow_by_regression_in_any_unit(unit):
    S, rows = covariance(), with_holes(np.random.default_rng(2).standard_normal((40, 6)))
    expected, units = textbook(rows, S)[0], np.geomspace(1, unit, 6)
    np.testing.assert_allclose(incomplete_rows.complete_deviations(rows, invert_covariance(S)), expected, atol=1e-12)
    filled = fill_by_covariance(rows * units, S * np.outer(units, units)) / units
    np.testing.assert_allclose(filled, expected, atol=1e-10)
    rows, units = rows_with_gaps(), np.geomspace(1, unit, D)
    arrays = np.vstack([(FACTORS.loadings * units[:, None]).T, FACTORS.noise * units**2])
    whole = fill_by_covariance(rows * units, COVARIANCE * np.outer(units, units))
    np.testing.assert_allclose(fill_by_factors(rows * units, arrays) / units, whole / units)


def plain_ppca(rows, q, prior, steps):
    """Mean, directions and noise by the closed M-step of Tipping and Bishop on whole matrices, nothing accelerated."""
    n, d = rows.shape
    m, S = np.zeros(d), np.eye(d)
    for _ in range(steps):
        y, C = textbook(rows - m, S)
        m = m + y.mean(axis=0)
        values, U = np.linalg.eigh((n * np.cov(y.T, ddof=0) + C + prior * np.eye(d)) / (n + prior))
        s = values[:-q].mean()
        S = U[:, -q:] * (values[-q:] - s) @ U[:, -q:].T + s * np.eye(d)
    return m, U[:, : -q - 1 : -1], s
