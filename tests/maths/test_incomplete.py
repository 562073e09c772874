"""Rows with missing values under a Gaussian model, against the textbook's formulas."""

from __future__ import annotations

import numpy as np
import pytest

from fedpca_flwr.maths.gaussian_em import Gaussian, GaussianEM, expected_sums
from fedpca_flwr.maths.incomplete import FLOOR, completed, filled, precision_of
from fedpca_flwr.maths.moments import Moments, symmetric


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


def test_what_is_missing_is_what_regression_on_the_rest_says():
    S, rows = covariance(), with_holes(np.random.default_rng(2).standard_normal((40, 6)))
    (true_y, true_C), (y, C) = textbook(rows, S), completed(rows, precision_of(S))
    np.testing.assert_allclose(y, true_y, atol=1e-12)
    np.testing.assert_allclose(C, true_C, atol=1e-12)


def test_a_row_without_any_value_is_the_mean():
    y, C = completed(np.full((1, 6), np.nan), precision_of(covariance()))
    np.testing.assert_array_equal(y, np.zeros((1, 6)))
    np.testing.assert_allclose(C, covariance(), atol=1e-12)


def test_a_row_without_missing_values_is_itself():
    rows = np.random.default_rng(2).standard_normal((5, 6))
    y, C = completed(rows, precision_of(covariance()))
    np.testing.assert_array_equal(y, rows)
    assert not C.any()


@pytest.mark.parametrize("unit", [1e-9, 1e9])
def test_rows_are_filled_in_any_unit(unit):
    S, rows = covariance(), with_holes(np.random.default_rng(2).standard_normal((40, 6)))
    units = np.geomspace(1, unit, 6)
    ours = filled(rows * units, S * np.outer(units, units)) / units
    np.testing.assert_allclose(ours, textbook(rows, S)[0], atol=1e-10)


def test_a_feature_without_variance_is_filled_by_its_mean():
    S = covariance()
    S[2], S[:, 2] = 0.0, 0.0
    rows = np.random.default_rng(2).standard_normal((4, 6))
    rows[:, 2] = np.nan
    assert not filled(rows, S)[:, 2].any()


def test_a_covariance_that_is_nearly_singular_is_not_inverted():
    assert precision_of(np.diag([1.0, 2 * FLOOR])) is not None
    assert precision_of(np.diag([1.0, FLOOR / 2])) is None
    assert precision_of(np.array([[1.0, 2.0], [2.0, 1.0]])) is None
    with pytest.raises(ValueError, match="not positive definite"):
        expected_sums([np.zeros((1, 2))], Gaussian(np.zeros(2), np.ones((2, 2))))


def standardised(rows):
    return (rows - np.nanmean(rows, axis=0)) / np.nanstd(rows, axis=0)


def plain_em(rows, prior, steps):
    """The textbook's iteration, nothing accelerated."""
    (n, d), m, S = rows.shape, np.zeros(rows.shape[1]), np.eye(rows.shape[1])
    for _ in range(steps):
        y, C = textbook(rows - m, S)
        m = m + y.mean(axis=0)
        T = (y - y.mean(axis=0)).T @ (y - y.mean(axis=0)) + C
        S = (T + prior * np.eye(d)) / (n + prior)
    return m, T


def fitted(rows, prior, steps):
    em = GaussianEM(len(rows), np.zeros(rows.shape[1]), prior=prior)
    for _ in range(steps):
        em.add(expected_sums([rows[:50], rows[50:]], em.model))
    return em


@pytest.mark.parametrize("prior", [5.0, 20.0])
def test_em_comes_to_rest_where_the_textbooks_iteration_does(prior):
    rows = standardised(with_holes(np.random.default_rng(3).standard_normal((120, 6)) @ covariance(seed=4)))
    m, T = plain_em(rows, prior, 300)
    em = fitted(rows, prior, 60)
    np.testing.assert_allclose(em.mean, m, atol=1e-10)
    np.testing.assert_allclose(symmetric(em.scatter, 6), T, atol=1e-8)


def test_squarem_takes_fewer_steps():
    rows = standardised(with_holes(np.random.default_rng(3).standard_normal((120, 6)) @ covariance(seed=4), 0.5))
    _, T = plain_em(rows, 5.0, 500)
    plain = np.abs(plain_em(rows, 5.0, 30)[1] - T).max()
    ours = np.abs(symmetric(fitted(rows, 5.0, 30).scatter, 6) - T).max()
    assert ours < plain / 100


def test_without_missing_values_one_step_gives_the_scatter():
    rows = standardised(np.random.default_rng(3).standard_normal((80, 6)) @ covariance())
    em = fitted(rows, 10.0, 1)
    np.testing.assert_allclose(em.scatter, Moments.of(rows).scatter, atol=1e-11)


def test_what_the_prior_is_worth():
    """Of one feature without missing values, n + prior rows whose variances are 1: the model's variance is 1 again."""
    rows = standardised(np.random.default_rng(3).standard_normal((80, 2)) @ [[1.0, 2.0], [0.0, 1.0]])
    r = float(rows[:, 0] @ rows[:, 1]) / 80
    S = fitted(rows, 20.0, 1).fitted.covariance
    np.testing.assert_allclose(S, [[1.0, r * 0.8], [r * 0.8, 1.0]], atol=1e-12)


def test_from_a_wrong_mean_one_step_finds_the_mean_and_the_scatter_about_it():
    rows = standardised(np.random.default_rng(3).standard_normal((80, 6)) @ covariance())
    em = GaussianEM(80, np.full(6, 3.0), prior=10.0)
    em.add(expected_sums([rows], em.model))
    np.testing.assert_allclose(em.mean, np.zeros(6), atol=1e-12)
    np.testing.assert_allclose(em.scatter, Moments.of(rows).scatter, atol=1e-10)
