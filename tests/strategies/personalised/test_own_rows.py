"""A party's rows about a centre that somebody else chose: products, energies, and numbers far apart."""

import numpy as np
import pytest

from fedpca_flwr.errors import ContractError
from fedpca_flwr.maths.moments import Moments
from fedpca_flwr.strategies.personalised import mixing
from fedpca_flwr.strategies.personalised.own_rows import LocalRows, centre_local_moments, centre_local_rows
from tests import families
from tests.maths.test_columns import KINDS, RNG, many_chunks  # noqa: F401
from tests.refusals import refused


def test_rows_and_moments_give_personalised_products():
    X, centre = KINDS["array"], RNG.standard_normal(40)
    about, V = X - centre, RNG.standard_normal((2, 40, 3))
    for held in (
        centre_local_rows(KINDS["blocks"], centre, np.zeros(40)),
        centre_local_moments(Moments.from_rows(KINDS["blocks"]), centre, np.zeros(40)),
    ):
        np.testing.assert_allclose(held.gram(V[0]), (about @ V[0]).T @ (about @ V[0]), rtol=1e-9)
        found, product = (mixing.scatter_times(own, V) for own in (held, about))
        np.testing.assert_allclose(found, product, rtol=1e-10, atol=1e-10 * np.abs(product).max())
        assert mixing.row_energy(held) == pytest.approx(mixing.row_energy(about), rel=1e-12)
        assert mixing.largest_eigenvalue(held) == pytest.approx(mixing.largest_eigenvalue(about), rel=1e-10)
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
