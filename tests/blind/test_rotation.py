"""Secret rotations, noise that they do not change, and the exact check of eigenvectors."""

import hashlib

import numpy as np
import pytest
from scipy.stats import kstest, ortho_group

from fedpca_flwr.blind.rotation import (
    HaarRotation,
    secret_normals,
    secret_signs,
    secret_stream,
    sign_products,
    symmetric_noise,
    symmetric_noise_norm,
    vector_integers,
)
from fedpca_flwr.maths.moments import unpack_symmetric


def key(*numbers: int) -> bytes:
    return hashlib.sha256(repr(numbers).encode()).digest()


def matrix(rotation: HaarRotation, d: int) -> np.ndarray:
    return rotation.turned_back(np.eye(d))


def test_the_stream_is_that_of_rfc_8439():
    assert secret_stream(bytes(32), 8).hex() == "76b8e0ada0f13d90"


def test_normal_numbers_are_finite_and_normal():
    numbers = secret_normals(key(1), 100_000)
    assert np.isfinite(numbers).all()
    assert kstest(numbers, "norm").pvalue > 1e-4


@pytest.mark.parametrize("d", [1, 2, 5, 60])
def test_a_rotation_is_orthogonal_and_turns_back(d):
    rotation, symmetric = HaarRotation(key(2), d), np.random.default_rng(0).standard_normal((d, d))
    symmetric = symmetric + symmetric.T
    Q = matrix(rotation, d)
    np.testing.assert_allclose(Q.T @ Q, np.eye(d), atol=1e-13)
    np.testing.assert_allclose(rotation.rotated(symmetric), Q.T @ symmetric @ Q, atol=1e-12)
    assert (matrix(HaarRotation(key(2), d), d) == Q).all()


def test_rotations_are_haar_distributed():
    d, drawn = 4, np.array([matrix(HaarRotation(key(3, i), 4), 4) for i in range(3000)])
    expected = ortho_group.rvs(d, size=3000, random_state=1)
    entries = [kstest(drawn[:, i, j], expected[:, i, j]).pvalue for i in range(d) for j in range(d)]
    assert min(entries) > 0.01 / d**2
    for statistic in (lambda Q: Q[:, 0, 0] * Q[:, 1, 1], lambda Q: Q[:, 0, 1] + Q[:, 3, 2], lambda Q: Q.trace(0, 1, 2)):
        assert kstest(statistic(drawn), statistic(expected)).pvalue > 0.001
    assert abs(np.linalg.det(drawn).mean()) < 0.1


def test_noise_keeps_its_distribution_under_rotations():
    d = 5
    noise = np.array([unpack_symmetric(symmetric_noise(key(4, i), d), d) for i in range(4000)])
    Q = ortho_group.rvs(d, random_state=2)
    turned = Q.T @ noise @ Q
    for i, j in [(0, 0), (0, 1), (3, 2), (4, 4)]:
        assert kstest(turned[:, i, j], "norm", (0, np.sqrt(2.0) if i == j else 1.0)).pvalue > 1e-3
    assert (np.linalg.norm(noise, 2, axis=(1, 2)) < symmetric_noise_norm(d)).all()


def test_sign_products_are_those_of_whole_numbers():
    rng = np.random.default_rng(5)
    T, W = rng.integers(-(2**62), 2**62, (50, 50)), rng.integers(-(2**52), 2**52, (3, 50))
    signs = secret_signs(key(6), (7, 50))
    expected = signs.astype(np.int64).astype(object) @ T.astype(object) @ W.T.astype(object)
    assert set(signs.ravel()) == {-1.0, 1.0}
    assert (sign_products(signs, T, W) == expected).all()


def test_sign_products_of_extreme_integers_do_not_wrap():
    d = 1024
    T, W = np.full((d, d), -(2**63)), np.full((1, d), 2**52)
    products = sign_products(np.ones((1, d)), T, W)
    assert products[0, 0] == -(2**63) * 2**52 * d * d


def test_a_false_direction_shows_in_half_of_all_signs():
    """Two equal residuals cancel half the time, and no other residuals do more often."""
    assert 0.45 < (np.abs(secret_signs(key(7), (2000, 6)) @ [0, 0, 1.0, 0, 1.0, 0]) > 0.5).mean() < 0.55


def test_vector_integers_round_to_the_nearest():
    np.testing.assert_array_equal(vector_integers(np.array([[1.0, -0.5, 2.0**-53 * 1.5]])), [[2**52, -(2**51), 1]])
