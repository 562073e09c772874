"""Factors: the same scatter as the matrix, stacked or truncated, tall or wide."""

import numpy as np
import pytest

from fedpca_flwr.maths import factors
from fedpca_flwr.maths.eigen import principal_angles
from fedpca_flwr.maths.factors import Factor, factor_eigenpairs, stack_factors, triangular_factor, truncated_factor
from fedpca_flwr.maths.moments import Head, Moments
from tests.families import cut, rows


def scatter(X):
    centred = X - X.mean(axis=0)
    return centred.T @ centred


def factor_of(F, **left_out):
    return Factor(Moments.from_rows(F).head, F, 1.0, **left_out)


@pytest.mark.parametrize("n", [1, 2, 5, 9, 12, 13, 40])
def test_a_triangular_factor_is_the_scatter(n):
    dependent = rows(n)
    dependent[:, [0, 1, 5]] = 0.0, 3.0, 0.1
    dependent[:, 8] = dependent[:, 7]
    for X in (rows(n) + 3, dependent):
        head, R = triangular_factor(X)
        assert R.shape == (min(n - 1, 12), 12)
        np.testing.assert_allclose(R.T @ R, scatter(X), atol=1e-12)
        np.testing.assert_array_equal(np.tril(R, -1), 0)
        packed = factors.pack_trapezoid(R)
        assert packed.size == factors.trapezoid_size(n, 12) <= 12 * 13 // 2
        np.testing.assert_array_equal(factors.unpack_trapezoid(packed, len(R), 12), R)
        assert head.n == n


def test_factors_of_parts_and_of_chunks_are_those_of_all(monkeypatch):
    X = rows(100)
    X[60:] += 5
    whole = stack_factors([Factor(*triangular_factor(Y), trace=np.trace(scatter(Y))) for Y in cut(X, 60, 30, 10)])
    np.testing.assert_allclose(whole.rows.T @ whole.rows, scatter(X), rtol=1e-11)
    np.testing.assert_allclose(whole.trace, np.trace(scatter(X)), rtol=1e-12)
    pairs = factor_eigenpairs(factor_of(np.random.default_rng(0).standard_normal((3, 50))[[0, 1, 0]]), 3)
    np.testing.assert_allclose(pairs.vectors.T @ pairs.vectors, np.eye(3), atol=1e-10)
    assert pairs.values[2] <= 1e-30 * pairs.values[0]
    # Chunks keep singular values that squares lose.
    monkeypatch.setattr(factors, "chunks", lambda data, elements: iter(np.array_split(data, 7)))
    for X in (rows(n) + np.linspace(0, 9, n)[:, None] for n in (70, 500)):
        _, R = triangular_factor(X)
        np.testing.assert_allclose(R.T @ R, scatter(X), rtol=1e-11)
    wide = rows(30, 50)
    _, R = triangular_factor(wide)
    assert R.shape == (29, 50)
    np.testing.assert_allclose(R.T @ R, scatter(wide), atol=1e-12)
    left, right = (np.linalg.qr(np.random.default_rng(0).standard_normal((n, 12)))[0] for n in (600, 12))
    X = (left - left.mean(axis=0)) * np.geomspace(1, 1e-11, 12) @ right.T
    found, true = (np.linalg.svd(matrix, compute_uv=False) for matrix in (triangular_factor(X)[1], X - X.mean(axis=0)))
    np.testing.assert_allclose(found, true, rtol=0, atol=3e-15)
    assert true[-1] < 3e-11


@pytest.mark.parametrize("shape", [(40, 12), (8, 50)])
def test_leading_pairs_do_not_depend_on_row_order(shape):
    F = np.random.default_rng(0).standard_normal(shape) / np.arange(1, shape[1] + 1)
    pairs = factor_eigenpairs(factor_of(F, floor=0.5), 4)
    values, vectors = np.linalg.eigh(F.T @ F)
    np.testing.assert_allclose(pairs.values, values[::-1][:4] + 0.5, rtol=1e-11)
    assert principal_angles(pairs.vectors, vectors[:, ::-1][:, :4]).max() < 1e-9
    # The fault: the order of the rows turned the components by 600,000 times what rounding was said to.
    for huge in (1e4, 1e8):
        F = np.random.default_rng(1).standard_normal((3, 5))
        F[2, 0] = huge
        first, second = (factor_eigenpairs(factor_of(rows), 2) for rows in (F, F[::-1]))
        apart = principal_angles(first.vectors, second.vectors).max()
        assert apart <= first.resolution.angle + second.resolution.angle <= 1e-11


@pytest.mark.parametrize("beside", [1e-15, 4e-15, 7e-15, 9e-15, 1.05e-14, 1.2e-14, 5e-14])
@pytest.mark.parametrize("apart", [1e-2, 1.5e-7, 1e-9])
def test_no_angle_is_larger_than_what_factors_resolve(beside, apart):
    """The fault: LAPACK takes up to 1.1e-14 for zero, and the bound took in 1.4e-15."""
    F = np.array([[1.0, beside], [0.0, 1.0 - apart]])
    pairs, ((xx, xy), (_, yy)) = factor_eigenpairs(factor_of(F), 1), F.T.astype(np.longdouble) @ F
    off = np.arctan2(*pairs.vectors[::-1, 0]) - np.arctan2(2 * xy, xx - yy) / 2  # in 80 bits
    assert np.degrees(min(off % np.pi, -off % np.pi)) <= pairs.resolution.angle


def test_what_is_left_out_of_a_factor_and_what_is_assumed_for_it():
    def about_zero(F, count, trace, **left_out):
        return Factor(Head(count, np.zeros(F.shape[1]), np.zeros(F.shape[1])), F, trace, **left_out)

    plain = truncated_factor(rows(200), 4)
    for factor in (plain, plain.with_floor()):
        error = np.linalg.norm(scatter(rows(200)) - factor.rows.T @ factor.rows - factor.floor * np.eye(12), 2)
        assert error <= factor.error * (1 + 1e-9)
    np.testing.assert_allclose(plain.with_floor().error, plain.error / 2)
    filled = about_zero(np.array([[3.0, 0.0]]), 2, 9.0, omitted=2.0).with_floor()
    np.testing.assert_allclose(filled.times(np.eye(2)), np.diag([9.0, 1.0]), rtol=1e-15)
    assert filled.error == 1.0
    values, few = np.linalg.eigvalsh(scatter(rows(4, 6))), truncated_factor(rows(4, 6), 1)
    error = np.linalg.norm(scatter(rows(4, 6)) - few.rows.T @ few.rows, 2)
    assert (few.omitted, error, few.trace) == pytest.approx((values[-2], values[-2], values.sum()), rel=1e-12)
    assert plain.trace == pytest.approx(np.trace(scatter(rows(200))), rel=1e-12)
    first = about_zero(np.array([[3.0, 0.0]]), 5, 9.0, omitted=2.0, floor=1.0)
    second = about_zero(np.array([[0.0, 1.0]]), 4, 1.0, omitted=1.0, floor=0.25)
    one, other = stack_factors([first, second]), stack_factors([second, first])
    assert (one.omitted, one.floor) == (3.0, 1.25)
    assert one.rows.tobytes() == other.rows.tobytes()
    # Variances 5, 2 and 1, of which the first is less than 0.7 of 8.
    factor = about_zero(np.diag([2.0, 1.0, 0.0])[:2], 5, 5.0, floor=1.0)
    np.testing.assert_allclose(factor_eigenpairs(factor, 0.7).values, [5.0, 2.0])
    assert factor_eigenpairs(factor, 2).following == 1
    found = factor_eigenpairs(about_zero(np.diag([2e3, 2e3]), 5, 8e6), 1).resolution
    assert (found.floor, found.angle) == (pytest.approx((2e3 * 1e-15) ** 2 * 2, rel=1e-9, abs=0), 90.0)
