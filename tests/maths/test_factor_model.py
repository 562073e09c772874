"""Rows with missing values under a model of few factors, against the Gaussian with the same covariance."""

import numpy as np
import pytest

from fedpca_flwr.maths import anderson, gap_groups
from fedpca_flwr.maths.eigen import principal_angles
from fedpca_flwr.maths.factor_em import (
    FactorEM,
    FactorGaussian,
    factor_sums,
    filled_by_factors,
    squared_error_by_factors,
)
from fedpca_flwr.maths.incomplete_rows import filled, squared_error_of
from fedpca_flwr.maths.krylov import random_block
from tests.maths.test_incomplete import gapped, standardised, textbook, with_holes

D, Q = 7, 3
FACTORS = FactorGaussian(
    np.random.default_rng(1).standard_normal(D),
    np.linalg.qr(np.random.default_rng(0).standard_normal((D, Q)))[0],
    np.array([3.0, 2.0, 1.3]),
    0.4,
)
COVARIANCE = FACTORS.loadings @ FACTORS.loadings.T + FACTORS.noise * np.eye(D)


def sums_of(rows, factors):
    """The E-step of rows that are standardised."""
    return factor_sums(gapped(rows), factors, np.zeros(D), np.ones(D))


def incomplete_rows():
    rows = with_holes(np.random.default_rng(2).standard_normal((60, D)))
    rows[0], rows[1] = np.nan, 1.0
    return rows


def log_density(rows, S):
    """Of what is observed, but for the constant."""
    total = 0.0
    for row in rows:
        o = ~np.isnan(row)
        part = S[np.ix_(o, o)]
        total -= (np.linalg.slogdet(part)[1] + row[o] @ np.linalg.solve(part, row[o])) / 2
    return total


@pytest.mark.parametrize("elements", [2**22, 1])
def test_the_squared_error_is_that_of_the_rows_as_they_are_filled(elements, monkeypatch):
    monkeypatch.setattr(gap_groups, "ELEMENTS", elements)
    rows = np.vstack([incomplete_rows(), with_holes(np.random.default_rng(5).standard_normal((200, D)), 0.1)])
    mean, unit, scale = FACTORS.mean, np.geomspace(0.1, 10, D), np.linspace(1, 2, D)
    components = random_block(D, 2, seed=1).T
    factors = np.vstack([FACTORS.loadings.T * unit, FACTORS.noise * unit**2])
    whole = filled_by_factors(rows - mean, factors) / scale
    left = np.sum(whole**2) - np.sum((whole @ components.T) ** 2)
    rows, S = gapped(rows), COVARIANCE * np.outer(unit, unit)
    np.testing.assert_allclose(squared_error_by_factors(rows, factors, mean, scale, components), left, rtol=1e-10)
    np.testing.assert_allclose(squared_error_of(rows, S, mean, scale, components), left, rtol=1e-10)


@pytest.mark.parametrize("elements", [2**22, 1])
def test_sums_are_those_of_the_gaussian_with_that_covariance(elements, monkeypatch):
    """Rows that share their gaps among them; held at once, or read piece by piece."""
    monkeypatch.setattr(gap_groups, "ELEMENTS", elements)
    rows = incomplete_rows()
    rows = np.vstack([rows, with_holes(np.random.default_rng(5).standard_normal((200, D)), 0.1), rows + 1.0])
    sums = sums_of(rows, FACTORS)
    deviations = (rows - FACTORS.mean)[~np.isnan(rows).all(axis=1)]  # the others have no part in it
    y, C = textbook(deviations, COVARIANCE)
    expected = y.T @ y + C
    np.testing.assert_allclose(sums.first, y.sum(axis=0), atol=1e-11)
    np.testing.assert_allclose(sums.product, expected @ FACTORS.basis, rtol=1e-11)
    np.testing.assert_allclose(sums.square, np.trace(expected), rtol=1e-13)
    np.testing.assert_allclose(sums.likelihood, log_density(deviations, COVARIANCE), rtol=1e-13)


@pytest.mark.parametrize("unit", [1e-9, 1e9])
def test_rows_are_filled_in_any_unit(unit):
    rows, units = incomplete_rows(), np.geomspace(1, unit, D)
    arrays = np.vstack([(FACTORS.loadings * units[:, None]).T, FACTORS.noise * units**2])
    whole = filled(rows * units, COVARIANCE * np.outer(units, units))
    np.testing.assert_allclose(filled_by_factors(rows * units, arrays) / units, whole / units)


def rows_of_factors(share):
    rng = np.random.default_rng(3)
    rows = rng.standard_normal((150, Q)) * [3, 2, 1.5] @ rng.standard_normal((Q, D))
    return standardised(with_holes(rows + 0.7 * rng.standard_normal((150, D)), share))


def plain_ppca(rows, q, prior, steps, m=None, S=None):
    """Mean, directions and noise by the closed M-step of Tipping and Bishop on whole matrices, nothing accelerated."""
    n, d = rows.shape
    m, S = (np.zeros(d), np.eye(d)) if m is None else (m, S)
    for _ in range(steps):
        y, C = textbook(rows - m, S)
        a = y.mean(axis=0)
        m = m + a
        values, U = np.linalg.eigh(((y - a).T @ (y - a) + C + prior * np.eye(d)) / (n + prior))
        s = values[:-q].mean()
        S = U[:, -q:] * (values[-q:] - s) @ U[:, -q:].T + s * np.eye(d)
    return m, U[:, : -q - 1 : -1], s


def fitted(rows, q, steps):
    em = FactorEM(len(rows), np.zeros(rows.shape[1]), random_block(rows.shape[1], q, 1), prior=5.0)
    for _ in range(steps):
        em.add(sums_of(rows, em.model))
    return em


def test_em_of_factors_rests_where_the_textbook_does_and_at_the_scatter_of_whole_rows():
    rows = rows_of_factors(0.3)
    em = fitted(rows, 2, 60)
    S = em.model.loadings @ em.model.loadings.T + em.model.noise * np.eye(D)
    m, V, s = plain_ppca(rows, 2, 5.0, 2, em.mean, S)
    assert principal_angles(em.vectors, V).max() < 1e-9
    np.testing.assert_allclose(em.mean, m, atol=1e-11)
    np.testing.assert_allclose(em.model.noise, s, rtol=1e-10)
    rows = rows_of_factors(0.0)
    em = fitted(rows, Q, 40)
    values, vectors = np.linalg.eigh(rows.T @ rows)
    assert principal_angles(em.vectors, vectors[:, -Q:]).max() < 1e-9
    np.testing.assert_allclose(em.values, values[::-1][:Q], rtol=1e-10)
    np.testing.assert_allclose(em.total, values.sum(), rtol=1e-12)


def test_anderson_takes_fewer_steps_of_em_and_the_last_image_where_the_function_is_lower(monkeypatch):
    iteration = anderson.Anderson(np.array([4.0]), lambda point: True)
    iteration.add(np.array([3.0]), -4.0)
    iteration.add(np.array([2.4]), -3.0)  # of steps -1 and -0.6 the combination is beyond both
    far = iteration.point
    assert far[0] < 2.0
    iteration.add(far - 1, -5.0)
    np.testing.assert_array_equal(iteration.point, [2.4])
    rows = rows_of_factors(0.5)
    limit = fitted(rows, 2, 60).vectors
    ours = principal_angles(fitted(rows, 2, 30).vectors, limit).max()
    monkeypatch.setattr(anderson, "DEPTH", 0)
    assert ours < principal_angles(fitted(rows, 2, 30).vectors, limit).max() / 1000
