"""A party's columns are the same factor of products, as an array, block by block and sparse; rows about a centre."""

import numpy as np
import pytest
from scipy import sparse

from fedpca_flwr.errors import ContractError
from fedpca_flwr.maths import columns, rows
from fedpca_flwr.maths.columns import prepare_columns
from fedpca_flwr.maths.moments import Moments
from fedpca_flwr.strategies.personalised import mixing as personalised
from fedpca_flwr.strategies.personalised.own_rows import LocalRows, centre_local_moments, centre_local_rows
from tests import families
from tests.refusals import refused

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
def _many_chunks(monkeypatch):
    monkeypatch.setattr(rows.chunks, "__defaults__", (0,))  # of 64 rows
    monkeypatch.setattr(rows.sparse_chunks, "__defaults__", (1000,))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("center", [True, False])
@pytest.mark.parametrize("scale", [True, False])
def test_products_are_those_of_the_centred_and_scaled_columns(kind, center, scale):
    found = prepare_columns(KINDS[kind], center=center, scale=scale)
    deviation = np.where(np.isin(np.arange(40), (8, 9, 10)), 1.0, X.std(axis=0)) if scale else np.ones(40)
    expected = (X - X.mean(axis=0) * center) / deviation
    if center:
        still = [8, 9, 10] if scale else [8, 9]
        expected[:, still] = 0.0
        assert not found.X[:, still].any()
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
        assert columns.gram_product(array, Q).tobytes() == product.tobytes()
        assert array.energy == found.energy


def test_what_rounding_the_mean_lost_is_subtracted():
    """Take columns whose mean is a third of a last digit away from every float64."""
    far = np.repeat(2.0**52 + np.array([[0.0], [0.0], [4.0]]), 100, axis=0)
    found = prepare_columns(far)
    assert abs(found.X.sum()) < 1e-9
    assert found.energy == pytest.approx(300 * 32 / 9, rel=1e-12)
    assert abs((found.T @ np.ones((300, 1))).item()) < 1e-9
    np.testing.assert_allclose(found @ np.ones((1, 1)), found.X, atol=1e-12)
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
    # Rows of two columns that differ by 2, and by 0: the first has a variance of 2.
    product = columns.local_product(np.array([[1.0, 3.0], [2.0, 2.0]]), faithful=True)
    np.testing.assert_array_equal(product(np.array([1.0, 0.0])), [2.0, 0.0])
    found = columns.orthogonal_direction(np.array([2.0, 0.0, 0.0]), np.eye(3)[:, :1])
    np.testing.assert_array_equal(found, [0.0, 1.0, 0.0])


def test_default_gamma_and_a_centred_kernel():
    X = RNG.standard_normal((50, 6)) + np.arange(6)
    assert columns.default_gamma(X) == pytest.approx(1 / (6 * X.var()), rel=1e-12)
    assert columns.default_gamma(np.ones((3, 2))) == 1
    centred = columns.centre_kernel(X @ X.T)
    np.testing.assert_allclose(centred, (X - X.mean(axis=0)) @ (X - X.mean(axis=0)).T, atol=1e-12)


# A party's rows about a centre that somebody else chose


def test_rows_and_moments_give_personalised_products():
    X, centre = prepare_columns(KINDS["blocks"], center=False).X, RNG.standard_normal(40)
    about, V = X - centre, RNG.standard_normal((2, 40, 3))
    for held in (
        centre_local_rows(KINDS["blocks"], centre, np.zeros(40)),
        centre_local_moments(Moments.from_rows(KINDS["blocks"]), centre, np.zeros(40)),
    ):
        np.testing.assert_allclose(held.gram(V[0]), (about @ V[0]).T @ (about @ V[0]), rtol=1e-9)
        found, product = (personalised.scatter_times(own, V) for own in (held, about))
        np.testing.assert_allclose(found, product, rtol=1e-10, atol=1e-10 * np.abs(product).max())
        assert personalised.row_energy(held) == pytest.approx(personalised.row_energy(about), rel=1e-12)
        assert personalised.largest_eigenvalue(held) == pytest.approx(personalised.largest_eigenvalue(about), rel=1e-10)
        basis, _ = np.linalg.qr(V[0])
        residual = np.square(about - about @ basis @ basis.T).sum()
        assert held.residual_energy(basis) == pytest.approx(residual, rel=1e-10)
        assert held.shape == X.shape


def test_energy_is_about_the_centre_in_all_units():
    """Rows 1 and 3 about 1: 4, of which half lies between their mean and the centre."""
    own = centre_local_rows(np.array([[1.0, 0.0], [3.0, 0.0]]), np.array([1.0, 0.0]), np.zeros(2))
    np.testing.assert_allclose(own.shift, [np.sqrt(2), 0.0])
    np.testing.assert_allclose(own.energy, 4.0)
    for seed in range(30):
        basis, _ = np.linalg.qr(np.random.default_rng(seed).standard_normal((6, 6)))
        assert centre_local_rows(families.rows(6, 6, seed=seed), np.ones(6), np.zeros(6)).residual_energy(basis) >= 0
    # Numbers far apart count for nothing or are refused.
    own = LocalRows(np.array([[0.0, 1.0], [0.0, -1.0]]), np.zeros(2))
    found = own.times_scaled(np.array([[1.0, 0.0, 1e-150], [1e-150, 1e-150, 1e-150]]))
    np.testing.assert_array_equal(found, [[0, 0, 0], [0, 2e-150, 2e-150]])
    X = np.array([[1.0, 0.0], [3.0, 0.0]])
    shift = centre_local_rows(X, np.ones(2), np.array([0.5, 0.0])).shift
    np.testing.assert_allclose(shift, np.sqrt(2) * np.array([0.5, -1.0]))
    with refused(ContractError):
        centre_local_rows(X, np.full(2, 1e160), np.zeros(2))
