import numpy as np
import pytest
from scipy.linalg import sqrtm

from fedpca_flwr.maths.stiefel import aligned, polar, retraction, symmetric, tangent, transposed


@pytest.fixture(params=[(), (4,)], ids=["one", "a stack"])
def point_and_direction(request):
    rng = np.random.default_rng(0)
    return polar(rng.standard_normal((*request.param, 9, 3))), rng.standard_normal((*request.param, 9, 3))


def is_on_the_manifold(U):
    return np.allclose(transposed(U) @ U, np.eye(U.shape[-1]), atol=1e-13)


def test_a_projection_is_orthogonal_and_moves_no_tangent(point_and_direction):
    U, X = point_and_direction
    T = tangent(U, X)
    np.testing.assert_allclose(symmetric(transposed(U) @ T), 0, atol=1e-14)
    np.testing.assert_allclose(tangent(U, T), T, atol=1e-14)
    U, X = point_and_direction
    other = tangent(U, np.random.default_rng(1).standard_normal(U.shape))
    np.testing.assert_allclose(np.vdot(X - tangent(U, X), other), 0, atol=1e-12)


@pytest.mark.parametrize("length", [1e-8, 1.0, 1e6])
def test_a_retraction_stays_on_the_manifold(point_and_direction, length):
    U, X = point_and_direction
    assert is_on_the_manifold(retraction(U, length * tangent(U, X)))


def test_retraction_and_alignment_are_those_of_the_paper():
    rng = np.random.default_rng(2)
    U = polar(rng.standard_normal((9, 3)))
    X = tangent(U, rng.standard_normal((9, 3)))
    formula = (U + X) @ np.linalg.inv(sqrtm(np.eye(3) + X.T @ X))
    np.testing.assert_allclose(retraction(U, X), formula, atol=1e-13)
    np.testing.assert_allclose(retraction(U, X), polar(U + X), atol=1e-13)
    rng = np.random.default_rng(3)
    V = polar(rng.standard_normal((9, 3)))
    turned = V @ polar(rng.standard_normal((3, 3)))
    np.testing.assert_allclose(aligned(turned, V), V, atol=1e-14)


def test_it_follows_a_tangent_to_second_order(point_and_direction):
    """Lemma 1: the distance to U + tX falls with the square of t."""
    U, X = point_and_direction
    T = tangent(U, X)
    left = [np.linalg.norm(retraction(U, t * T) - (U + t * T)) for t in (1e-2, 1e-3)]
    assert left[0] / left[1] == pytest.approx(100, rel=0.05)
    np.testing.assert_array_equal(retraction(U, 0 * T), U)
