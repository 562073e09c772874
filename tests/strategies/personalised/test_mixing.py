"""The mathematics of Ozkara et al. 2023 (gradients: tests/papers), their manifold, and rows about a given centre."""

import numpy as np
import pytest
from scipy.linalg import eigh

from fedpca_flwr.errors import ContractError
from fedpca_flwr.maths.eigen import polar_factor, principal_angles
from fedpca_flwr.maths.moments import Moments
from fedpca_flwr.maths.rows import validation_rows
from fedpca_flwr.strategies.personalised import mixing as module
from fedpca_flwr.strategies.personalised.mixing import local_components, personal_components, subspace_distance
from fedpca_flwr.strategies.personalised.own_rows import LocalRows, centre_local_moments, centre_local_rows
from fedpca_flwr.strategies.personalised.stiefel import align, retract, symmetric_part, tangent_projection, transpose
from tests import families
from tests.maths.test_columns import KINDS, RNG, many_chunks  # noqa: F401
from tests.refusals import refused

NOISE, SPREAD = 0.5, 0.04


def setting(n=20, d=12, r=3, m=6):
    rng = np.random.default_rng(0)
    U, V = (polar_factor(rng.standard_normal((d, r))) for _ in range(2))
    return rng.standard_normal((m, n, d)) * np.linspace(2, 0.5, d), U, V


def dense_objective(rows, U, V):
    """Equation (4) with its d x d matrices, and no turning."""
    W, S = U @ U.T + NOISE * np.eye(len(U)), rows.T @ rows / len(rows)
    prior = np.square(tangent_projection(V, U)).sum() / (2 * SPREAD)
    return len(rows) / 2 * (np.linalg.slogdet(W)[1] + np.trace(np.linalg.solve(W, S))) + prior


def test_formulas_are_those_of_the_paper():
    rows, U, V = setting()
    left, _, right = np.linalg.svd(U.T @ V)
    turned, distance = U @ left @ right, 3 - np.square(V.T @ U).sum()
    value = module.objective(rows[0], U, V, noise=NOISE, spread=SPREAD)
    assert value == pytest.approx(dense_objective(rows[0], turned, V), rel=1e-12)
    assert value < dense_objective(rows[0], U, V)
    assert np.square(tangent_projection(V, turned)).sum() == pytest.approx(distance, rel=1e-12)
    assert subspace_distance(U, V) == pytest.approx(distance, rel=1e-12)
    assert subspace_distance(V, V) < 1e-28
    turned = U @ polar_factor(np.random.default_rng(2).standard_normal((3, 3)))
    np.testing.assert_allclose(align(turned, U), U, atol=1e-14)


def test_solvers_give_leading_eigenvectors():
    rows, _, V = setting(n=7)
    strengths, several = np.array([0.5, 2.0]), np.array([V, V[:, ::-1]])
    for i in range(2):
        one = personal_components(rows[0], several[i], strengths[i], several[i])
        assert principal_angles(personal_components(rows[0], several, strengths, several)[i], one).max() < 1e-6
    rows, U, V = setting(n=40, d=30, r=3)
    gains = []
    for _ in range(7):
        gains.append(np.square(rows[0] @ U).sum() + 2.0 * np.square(V.T @ U).sum())
        U = personal_components(rows[0], V, 2.0, U)
    assert (np.diff(gains) >= -1e-10).all()
    for n in (2, 4, 9, 40):
        rows, _, V = setting(n=n)
        scatter, rank = rows[0].T @ rows[0], min(n, 3)
        own = module.converged_components(rows[0], V, 5.0, V)
        assert principal_angles(own, eigh(scatter + 5.0 * V @ V.T)[1][:, -3:]).max() < 1e-5
        own = local_components(rows[0], V)
        np.testing.assert_allclose(own.T @ own, np.eye(3), atol=1e-13)
        assert principal_angles(own[:, :rank], eigh(scatter)[1][:, -rank:]).max() < 1e-6
        if n == 2:  # a PCA of few rows is filled by what it is given
            assert principal_angles(own, personal_components(rows[0], V, 1e-9, V)).max() < 1e-3
            assert subspace_distance(local_components(np.zeros((2, 12)), V), V) < 1e-25


def test_rows_of_few_directions_keep_orthonormal_components():
    """The fault: products of such rows lie in the span of the start, and a Cholesky factor of their rest is noise."""
    rng = np.random.default_rng(3)
    V = np.eye(40, 4)
    rows = np.hstack([rng.standard_normal((60, 6)), np.zeros((60, 34))])
    U = V
    for _ in range(30):
        U = personal_components(rows, V, np.array([2.0, 50.0]), U)
    np.testing.assert_allclose(transpose(U) @ U, np.broadcast_to(np.eye(4), (2, 4, 4)), atol=1e-12)
    for found, strength in zip(U, (2.0, 50.0), strict=True):
        assert principal_angles(found, eigh(rows.T @ rows + strength * V @ V.T)[1][:, -4:]).max() < 1e-5


def test_held_out_rows_do_not_depend_on_order_or_unit():
    X, order = np.random.default_rng(4).standard_normal((53, 4)), np.random.default_rng(5).permutation(53)
    assert validation_rows(X, 1).sum() == 10
    np.testing.assert_array_equal(validation_rows(X[order], 1), validation_rows(X, 1)[order])
    assert (validation_rows(X, 1) != validation_rows(X, 2)).any()
    counts = np.arange(24, dtype=np.uint8).reshape(8, 3)
    np.testing.assert_array_equal(validation_rows(counts, 1), validation_rows(counts.astype(float), 1))
    for unit in (2.0**-300, 2.0, 2.0**300):
        np.testing.assert_array_equal(validation_rows(unit * X, 1), validation_rows(X, 1))
    zeros = np.where(X > 0, X, 0.0)
    np.testing.assert_array_equal(validation_rows(zeros, 1), validation_rows(np.where(X > 0, X, -0.0), 1))


def test_perpca_separates_shared_components():
    rng = np.random.default_rng(6)
    basis, _ = np.linalg.qr(rng.standard_normal((10, 10)))
    truth = np.array([basis[:, [0, 1, 2 + i]] for i in range(4)])
    rows = (rng.standard_normal((4, 400, 3)) * [3, 2, 1.5]) @ np.swapaxes(truth, 1, 2)
    rows = rows + 0.05 * rng.standard_normal(rows.shape)
    _, _, vectors = np.linalg.svd(rows.reshape(-1, 10), full_matrices=False)
    found = module.perpca(rows, vectors[:3].T, 2)
    assert principal_angles(found[0][:, :2], basis[:, :2]).max() < 1
    assert max(principal_angles(one, true).max() for one, true in zip(found, truth, strict=True)) < 1
    for U in module.perpca(rows, vectors[:3].T, 1, iterations=2):
        np.testing.assert_allclose(U.T @ U, np.eye(3), atol=1e-12)


@pytest.mark.parametrize("several", [(), (4,)], ids=["one", "a stack"])
def test_tangents_and_retractions_of_a_point(several):
    rng = np.random.default_rng(0)
    U, X = polar_factor(rng.standard_normal((*several, 9, 3))), rng.standard_normal((*several, 9, 3))
    T, other = tangent_projection(U, X), tangent_projection(U, rng.standard_normal(U.shape))
    np.testing.assert_allclose(symmetric_part(transpose(U) @ T), 0, atol=1e-14)
    np.testing.assert_allclose(tangent_projection(U, T), T, atol=1e-14)
    np.testing.assert_allclose(np.vdot(X - T, other), 0, atol=1e-12)
    for length in (1e-8, 1.0, 1e6):
        end = retract(U, length * T)
        np.testing.assert_allclose(transpose(end) @ end, np.broadcast_to(np.eye(3), (*several, 3, 3)), atol=1e-13)
    # Lemma 1: the distance to U + tX falls with the square of t.
    left = [np.linalg.norm(retract(U, t * T) - (U + t * T)) for t in (1e-2, 1e-3)]
    assert left[0] / left[1] == pytest.approx(100, rel=0.05)
    np.testing.assert_array_equal(retract(U, 0 * T), U)


def test_rows_and_moments_give_personalised_products():
    X, centre = KINDS["array"], RNG.standard_normal(40)
    about, V = X - centre, RNG.standard_normal((2, 40, 3))
    for held in (
        centre_local_rows(KINDS["blocks"], centre, np.zeros(40)),
        centre_local_moments(Moments.from_rows(KINDS["blocks"]), centre, np.zeros(40)),
    ):
        np.testing.assert_allclose(held.gram(V[0]), (about @ V[0]).T @ (about @ V[0]), rtol=1e-9)
        found, product = (module.scatter_times(own, V) for own in (held, about))
        np.testing.assert_allclose(found, product, rtol=1e-10, atol=1e-10 * np.abs(product).max())
        assert module.row_energy(held) == pytest.approx(module.row_energy(about), rel=1e-12)
        assert module.largest_eigenvalue(held) == pytest.approx(module.largest_eigenvalue(about), rel=1e-10)
        basis, _ = np.linalg.qr(V[0])
        residual = np.square(about - about @ basis @ basis.T).sum()
        assert held.residual_energy(basis) == pytest.approx(residual, rel=1e-10)
        assert held.shape == X.shape


@pytest.mark.parametrize("n", [8, 90])
def test_a_far_centre_shows_no_rounding_of_the_components(n):
    """The adversary: a server whose mean near 2^53 turned the last bits of U, of any rows, into errors of 1e18."""
    X, centre = RNG.standard_normal((n, 40)), np.zeros(40)
    centre[:2] = -(2.0**54), -(2.0**53)
    basis, _ = np.linalg.qr(np.column_stack([centre, RNG.standard_normal((40, 2))]))
    mean = X.mean(axis=0)
    for held in (
        centre_local_rows(X, centre, np.zeros(40)),
        centre_local_moments(Moments.from_rows(X), centre, np.zeros(40)),
    ):
        for turn in (np.eye(3), np.linalg.qr(RNG.standard_normal((3, 3)))[0]):  # of the same span
            deviations = (X - mean) - (X - mean) @ basis @ basis.T
            assert held.residual_energy(basis @ turn) == pytest.approx(np.square(deviations).sum(), rel=1e-9)


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
