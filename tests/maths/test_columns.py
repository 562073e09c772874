"""A party's columns are the same factor of products, as an array, block by block and sparse; rows about a centre."""

import numpy as np
import pytest
from scipy import sparse

from fedpca_flwr.maths import columns, rows
from fedpca_flwr.maths.columns import prepare_columns

RNG = np.random.default_rng(0)


def table(n=300, f=40):
    """Make few entries: a column without zeros far from zero, two constant columns, and a column that hardly varies."""
    X = RNG.gamma(1.0, 1.0, size=(n, f)) * (RNG.random((n, f)) < 0.05)
    X[:, 7] = 1e6 + RNG.standard_normal(n)
    X[:, 8], X[:, 9] = 0.0, 0.1
    X[:, 10] = 1e9 + 1e-6 * (np.arange(n) % 2)
    return X


X = table()
KINDS = {
    "array": X,
    "blocks": rows.Blocks(lambda: np.split(X, [1, 100, 130]), X.shape[1], X.dtype, count=len(X)),
    "sparse": rows.sparse_rows(sparse.csr_array(X)),
}


@pytest.fixture(autouse=True)
def many_chunks(monkeypatch):
    monkeypatch.setattr(rows.chunks, "__defaults__", (0,))  # of 64 rows
    monkeypatch.setattr(rows.sparse_chunks, "__defaults__", (1000,))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("center", [True, False])
@pytest.mark.parametrize("scale", [True, False])
def test_products_are_those_of_the_centred_and_scaled_columns(kind, center, scale):
    found = prepare_columns(KINDS[kind], center=center, scale=scale)
    mean, deviation = X.mean(axis=0), np.where(np.isin(np.arange(40), (8, 9)), 1.0, X.std(axis=0))
    mean[10], deviation[10] = X[:2, 10].mean(), np.ptp(X[:, 10]) / 2  # a column that hardly varies, exactly
    expected = (X - mean * center) / (deviation if scale else 1.0)
    if center:
        expected[:, [8, 9]] = 0.0
        assert not found.X[:, [8, 9]].any()
    size = np.abs(expected).max()
    np.testing.assert_allclose(found.X, expected, rtol=1e-13, atol=1e-15 * 1e9)
    Q, V = np.linalg.qr(RNG.standard_normal((300, 3))).Q, RNG.standard_normal((40, 2))
    np.testing.assert_allclose(found.T @ Q, found.X.T @ Q, rtol=1e-12, atol=1e-12 * size)
    np.testing.assert_allclose(found @ V, found.X @ V, rtol=1e-12, atol=1e-12 * size)
    product, energies = columns.gram_product(found, Q), columns.projection_energies(found, Q)
    np.testing.assert_allclose(product, found.X @ (found.X.T @ Q), rtol=1e-10, atol=1e-11 * size**2)
    np.testing.assert_allclose(energies, columns.projection_energies(found.X, Q), rtol=1e-10, atol=1e-11 * size**2)
    assert found.energy == pytest.approx(np.vdot(found.X, found.X), rel=1e-12)
    if kind == "blocks":  # the bits of the array
        array = prepare_columns(X, center=center, scale=scale)
        assert (columns.gram_product(array, Q).tobytes(), array.energy) == (product.tobytes(), found.energy)


def test_what_rounding_the_mean_lost_is_subtracted():
    """Take a column that varies by a last digit, and whose mean is a third of a digit away from every float64."""
    found = prepare_columns(np.repeat(2.0**52 + np.array([[0.0], [0.0], [1.0]]), 100, axis=0))
    assert abs(found.X.sum()) < 1e-9
    assert found.energy == pytest.approx(300 * 2 / 9, rel=1e-12)
    assert abs((found.T @ np.ones((300, 1))).item()) < 1e-9
    np.testing.assert_allclose(found @ np.ones((1, 1)), found.X, atol=1e-12)
    last_digit = np.repeat(1 + np.finfo(float).eps * np.array([[0.0], [0.0], [1.0]]), 100, axis=0)
    assert not prepare_columns(last_digit, scale=True).X.any()  # not a feature of deviation 1
    # Columns 1 and 3 about 1.5, whose mean is half a unit above, in units of 2.
    of_two = np.array([[1.0], [3.0]]), np.array([1.5]), np.array([0.5]), np.array([2.0]), np.array([False])
    found = columns.Columns(*of_two)
    np.testing.assert_array_equal(found.X, [[-0.5], [0.5]])
    np.testing.assert_array_equal(found @ np.array([[4.0]]), [[-2.0], [2.0]])
    assert found.energy == 0.5


def test_directions_of_the_authors_program():
    own = np.array([[0.0, 3.0], [-2.0, 0.0]])
    np.testing.assert_allclose(columns.leading_directions(own, 3), [[3.0, 0, 0], [0, 2.0, 0]], atol=1e-15)
    for drawn in RNG.standard_normal((5, 6, 3)):
        found = columns.leading_directions(drawn, 3)
        assert (found[np.abs(found).argmax(axis=0), range(3)] > 0).all()
    basis, following = columns.merge_directions([own], 1)
    np.testing.assert_allclose(np.abs(basis), [[1.0], [0.0]], atol=1e-15)
    assert following == pytest.approx(4.0)
    factor = columns.row_covariance_factor(drawn)
    np.testing.assert_allclose(factor @ factor.T, np.cov(drawn))
    found = columns.orthogonal_direction(np.array([2.0, 0.0, 0.0]), np.eye(3)[:, :1])
    np.testing.assert_array_equal(found, [0.0, 1.0, 0.0])
    assert columns.default_gamma(np.ones((3, 2))) == 1


@pytest.mark.parametrize(("n", "f", "unit"), [(300, 5, 1e-85), (300, 1, 1.0), (40, 90, 1.0)])
def test_few_columns_and_blocks_of_rows_give_what_all_at_once_do(n, f, unit):
    """With a tiny unit squares of products vanish; rows far from zero cost the kernel few digits."""
    X, start = unit * RNG.standard_normal((n, f)) * np.linspace(2, 1, f), np.ones(n)
    value, vector = columns.gram_power_iteration(X, start, 6)
    expected = columns.power_iteration(lambda a: X @ (X.T @ a), start, 6)
    np.testing.assert_allclose([value, *vector], [expected[0], *expected[1]], rtol=1e-10, atol=1e-12 * unit**2)
    assert columns.gram_power_iteration(0 * X, start, 6) == (0.0, pytest.approx(0 * start))
    kernel = np.exp(-0.1 * np.square(X[:, None] - X).sum(axis=2) / unit**2)
    np.testing.assert_allclose(columns.Kernel("rbf", 0.1).matrix(X / unit + 1e4), kernel, rtol=0, atol=1e-10)
