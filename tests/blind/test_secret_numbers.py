"""Numbers of blind runs: secret rotations and their noise, the check of eigenvectors, and sums with a linear tag."""

import hashlib
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import kstest, ortho_group

from fedpca_flwr.blind import rotation as rotations
from fedpca_flwr.blind import tagged_sums
from fedpca_flwr.maths.moments import unpack_symmetric


def key(*numbers: int) -> bytes:
    return hashlib.sha256(repr(numbers).encode()).digest()


def matrix(rotation: rotations.HaarRotation, d: int) -> np.ndarray:
    return rotation.turned_back(np.eye(d))


def test_the_stream_is_that_of_rfc_8439_and_its_normal_numbers_are_finite_and_normal():
    assert rotations.secret_stream(bytes(32), 8).hex() == "76b8e0ada0f13d90"
    numbers = rotations.secret_normals(key(1), 100_000)
    assert np.isfinite(numbers).all()
    assert kstest(numbers, "norm").pvalue > 1e-4


@pytest.mark.parametrize("d", [1, 2, 5, 60])
def test_a_rotation_is_orthogonal_and_turns_back(d):
    rotation, symmetric = rotations.HaarRotation(key(2), d), np.random.default_rng(0).standard_normal((d, d))
    symmetric = symmetric + symmetric.T
    Q = matrix(rotation, d)
    np.testing.assert_allclose(Q.T @ Q, np.eye(d), atol=1e-13)
    np.testing.assert_allclose(rotation.rotated(symmetric), Q.T @ symmetric @ Q, atol=1e-12)
    assert (matrix(rotations.HaarRotation(key(2), d), d) == Q).all()


def test_rotations_are_haar_distributed_and_noise_keeps_its_distribution_under_them():
    d, drawn = 4, np.array([matrix(rotations.HaarRotation(key(3, i), 4), 4) for i in range(3000)])
    expected = ortho_group.rvs(d, size=3000, random_state=1)
    assert min(kstest(drawn[:, i, j], expected[:, i, j]).pvalue for i in range(d) for j in range(d)) > 0.01 / d**2
    for statistic in (lambda Q: Q[:, 0, 0] * Q[:, 1, 1], lambda Q: Q[:, 0, 1] + Q[:, 3, 2], lambda Q: Q.trace(0, 1, 2)):
        assert kstest(statistic(drawn), statistic(expected)).pvalue > 0.001
    assert abs(np.linalg.det(drawn).mean()) < 0.1
    d = 5
    noise = np.array([unpack_symmetric(rotations.symmetric_noise(key(4, i), d), d) for i in range(4000)])
    Q = ortho_group.rvs(d, random_state=2)
    turned = Q.T @ noise @ Q
    for i, j in [(0, 0), (0, 1), (3, 2), (4, 4)]:
        assert kstest(turned[:, i, j], "norm", (0, np.sqrt(2.0) if i == j else 1.0)).pvalue > 1e-3
    assert (np.linalg.norm(noise, 2, axis=(1, 2)) < rotations.symmetric_noise_norm(d)).all()


def test_sign_products_are_those_of_whole_numbers_to_the_nearest_and_do_not_wrap():
    rng = np.random.default_rng(5)
    T, W = rng.integers(-(2**62), 2**62, (50, 50)), rng.integers(-(2**52), 2**52, (3, 50))
    signs = rotations.secret_signs(key(6), (7, 50))
    expected = signs.astype(np.int64).astype(object) @ T.astype(object) @ W.T.astype(object)
    assert set(signs.ravel()) == {-1.0, 1.0}
    assert (rotations.sign_products(signs, T, W) == expected).all()
    d = 1024
    products = rotations.sign_products(np.ones((1, d)), np.full((d, d), -(2**63)), np.full((1, d), 2**52))
    assert products[0, 0] == -(2**63) * 2**52 * d * d
    np.testing.assert_array_equal(
        rotations.vector_integers(np.array([[1.0, -0.5, 2.0**-53 * 1.5]])), [[2**52, -(2**51), 1]]
    )
    # A false direction shows in half of all signs: two equal residuals cancel so often, and no others do more often.
    shown = np.abs(rotations.secret_signs(key(7), (2000, 6)) @ [0, 0, 1.0, 0, 1.0, 0]) > 0.5
    assert 0.45 < shown.mean() < 0.55
    assert 0.35 < shown[-200:].mean() < 0.65  # no sign is left at what an empty stream has


KEY = bytes(range(32))
INTEGERS = st.lists(st.integers(-(2**500), 2**500), min_size=1, max_size=5)


def test_elements_fill_the_field_and_have_one_way_to_be_written():
    elements = tagged_sums.secret_elements(KEY, 2000)
    assert all(0 <= element < tagged_sums.PRIME for element in elements)
    shares = np.array([element / tagged_sums.PRIME for element in elements])
    assert abs(shares.mean() - 0.5) < 0.03
    assert abs(shares.var() - 1 / 12) < 0.01
    assert tagged_sums.signed_integer(tagged_sums.PRIME // 2) == tagged_sums.PRIME // 2
    elements = [0, 1, tagged_sums.PRIME - 1]
    assert tagged_sums.elements_from_bytes(tagged_sums.elements_to_bytes(elements)) == elements
    for beyond in (tagged_sums.PRIME, tagged_sums.PRIME + 1, 2**528 - 1):
        with pytest.raises(ValueError, match="prime"):
            tagged_sums.elements_from_bytes(tagged_sums.elements_to_bytes([beyond]))


@given(INTEGERS, INTEGERS)
def test_tags_of_sums_are_sums_of_tags(first, second):
    n = min(len(first), len(second))
    first, second = first[:n], second[:n]
    total = tagged_sums.combine_elements(first, second)
    tags = [tagged_sums.linear_tag(KEY, values) for values in (first, second, total)]
    assert tags[2] == (tags[0] + tags[1]) % tagged_sums.PRIME
    assert list(map(tagged_sums.signed_integer, total)) == [a + b for a, b in zip(first, second, strict=True)]
    assert tagged_sums.combine_elements(total, second, -1) == [a % tagged_sums.PRIME for a in first]
    with pytest.raises(ValueError, match="longer"):
        tagged_sums.combine_elements(total, [*second, 1])


@given(st.lists(st.floats(-1e100, 1e100), max_size=6), st.integers(-300, 900))
def test_scaled_integers_are_exact_sums_rounded_once(parts, bits):
    exact = sum(map(Fraction, parts), Fraction(0)) * Fraction(2) ** bits
    assert abs(tagged_sums.scaled_integer(parts, bits) - exact) <= Fraction(1, 2)
    assert tagged_sums.scaled_integer([1e300, 2.0**-900, -1e300], 900) == 1
    assert tagged_sums.scaled_integer([math.ulp(0.0)], 900) == tagged_sums.scaled_integer([], 1073) == 0
