"""Leading eigenpairs: those of LAPACK, on matrices that make Lanczos go wrong too; and angles of subspaces."""

from dataclasses import replace

import numpy as np
import pytest

from fedpca_flwr.maths import eigen
from fedpca_flwr.maths.eigen import (
    ALIKE,
    Eigenpairs,
    Resolution,
    angle_bound,
    at_most,
    certified,
    fix_signs,
    leading_eigenpairs,
    outside,
    principal_angles,
    projector_distance,
    resolution,
    rounding,
    sine_theorem,
    varying_directions,
)


def matrix_of(values, seed=0):
    basis, _ = np.linalg.qr(np.random.default_rng(seed).standard_normal((len(values), len(values))))
    return np.asfortranarray((basis * values) @ basis.T), basis


@pytest.mark.parametrize(("d", "unit"), [(5, 1.0), (60, 1.0), (500, 1.0), (500, 1e-30), (500, 1e26)])
def test_they_are_the_leading_ones_in_any_unit(d, unit):
    """ARPACK's own stopping test is absolute: without scaling, what it finds in a unit of 1e-30 is not certified."""
    values = unit / np.arange(1, d + 1)
    S, basis = matrix_of(values)
    k = min(10, d - 1)
    pairs = leading_eigenpairs(S, k)
    assert d < 500 or eigen._lanczos(S, k) is not None
    np.testing.assert_allclose(pairs.values, values[:k], rtol=1e-12)
    assert principal_angles(pairs.vectors, basis[:, :k]).max() < 1e-9
    np.testing.assert_allclose(pairs.following, values[k], rtol=1e-12)


def test_only_the_lower_triangle_is_read():
    S, _ = matrix_of(1 / np.arange(1, 501))
    garbage = np.asfortranarray(np.tril(S) + np.triu(np.full_like(S, np.nan), 1))
    np.testing.assert_array_equal(leading_eigenpairs(garbage, 3).values, leading_eigenpairs(S, 3).values)


@pytest.mark.parametrize("copies", [2, 5, 30])
def test_equal_eigenvalues_are_all_found(copies):
    values = np.concatenate([np.full(copies, 2.0), 1 / np.arange(1, 501 - copies)])
    S, basis = matrix_of(values)
    pairs = leading_eigenpairs(S, copies)
    np.testing.assert_allclose(pairs.values, 2.0, rtol=1e-12)
    assert principal_angles(pairs.vectors, basis[:, :copies]).max() < 1e-9
    np.testing.assert_allclose(pairs.vectors.T @ pairs.vectors, np.eye(copies), atol=1e-10)


def test_what_lanczos_misses_is_noticed(monkeypatch):
    """Without the certificate this would return eigenvalues 2 to 4 as the first three."""
    values = 1 / np.arange(1, 501)
    S, basis = matrix_of(values)

    def forgetful(matrix, unit, k, **_):
        return values[1 : k + 1][::-1], basis[:, 1 : k + 1][:, ::-1]

    monkeypatch.setattr(eigen, "_eigsh", forgetful)
    np.testing.assert_allclose(leading_eigenpairs(S, 3).values, values[:3], rtol=1e-12)


@pytest.mark.parametrize("unit", [2.0**-600, 1.0, 2.0**600])
def test_pairs_of_large_matrices_are_certified_in_any_unit(unit):
    """The fault: squares of residuals overflowed, with a warning; or were zero, which certified any vectors."""
    S, basis = matrix_of(1 / np.arange(1, 501))
    right = Eigenpairs(unit / np.arange(1, 4), basis[:, :3], unit / 4)
    assert eigen._certified(S * unit, right)
    turned = basis[:, :3] * np.cos(1e-6) + basis[:, 6:9] * np.sin(1e-6)
    assert not eigen._certified(S * unit, replace(right, vectors=turned))


@pytest.mark.parametrize("rank", [1, 4])
def test_a_large_matrix_of_low_rank(rank):
    values = np.concatenate([np.arange(rank, 0, -1.0), np.zeros(500 - rank)])
    S, basis = matrix_of(values)
    pairs = leading_eigenpairs(S, rank)
    assert principal_angles(pairs.vectors, basis[:, :rank]).max() < 1e-9
    assert abs(pairs.following) < 1e-12


@pytest.mark.parametrize(("fraction", "k"), [(0.39, 1), (0.41, 2), (0.99, 4)])
def test_a_fraction_of_the_trace(fraction, k):
    S, _ = matrix_of(np.array([4.0, 3.0, 2.0, 1.0]))
    assert leading_eigenpairs(S, fraction).values.size == k


def test_a_fraction_takes_components_until_it_is_reached():
    S = np.asfortranarray(np.diag([4.0, 2.0, 1.0, 1.0]))
    assert [leading_eigenpairs(S, fraction).values.size for fraction in (0.5, 0.75)] == [2, 3]
    # Of 7 in the matrix, 4 are more than half; of 10 in all they are not.
    assert leading_eigenpairs(np.diag([4.0, 3.0]), 0.5).values.size == 1
    assert leading_eigenpairs(np.diag([4.0, 3.0]), 0.5, total=10.0).values.size == 2
    pairs = Eigenpairs(np.array([5.0, 3.0, 1.0]), np.eye(4)[:, :3], 0.5)
    assert [pairs.first(k).following for k in (1, 2, 3)] == [3.0, 1.0, 0.5]


def test_signs_and_rotations_within_a_subspace_do_not_matter():
    V = fix_signs(np.array([[0.6, -0.8], [-0.8, -0.6]]))
    np.testing.assert_array_equal(V, [[-0.6, 0.8], [0.8, 0.6]])
    a = np.linalg.qr(np.random.default_rng(0).standard_normal((6, 3)))[0]
    turn = np.linalg.qr(np.random.default_rng(1).standard_normal((3, 3)))[0]
    assert principal_angles(a, -a @ turn).max() < 1e-12


def test_no_pair_of_a_tight_cluster_is_lost():
    """LAPACK's MRRR returns fewer pairs than asked at the edge of a cluster, without a word (13 of these seeds)."""
    for seed in range(150):
        basis, _ = np.linalg.qr(np.random.default_rng(seed).standard_normal((60, 60)))
        values = np.r_[9.0, 9, 4, np.ones(57)]
        pairs = leading_eigenpairs(np.asfortranarray((basis * values) @ basis.T), 3)
        np.testing.assert_allclose(pairs.values, [9, 9, 4], rtol=1e-10)


def test_bounds_on_angles_in_closed_form():
    """sin(angle) <= error / (gap - error), rounding included in the error."""
    pairs = Eigenpairs(np.array([5.0, 3.0]), np.eye(4)[:, :2], 1.0)
    assert angle_bound(0.5, pairs) == pytest.approx(np.degrees(np.arcsin(0.5 / (2 - 0.5))))
    assert angle_bound(1.0, pairs) == pytest.approx(90)
    assert angle_bound(2.5, pairs) == 90
    pairs = Eigenpairs(np.array([5.0, 0.19]), np.eye(4)[:, :2], 0.1, error=0.1)
    assert resolution(pairs).angle == pytest.approx(sine_theorem(0.1, 5 - 0.19 - 0.1))
    assert resolution(Eigenpairs(np.array([5.0, 0.19]), np.eye(4)[:, :2], 0.1, error=3.0)).angle == 90
    assert certified(90.0) == "no bound"
    assert certified(89.5) == "90 degrees at most"


def test_a_spectral_norm_is_never_below_the_true_one():
    """Lanczos comes from below, and stops early where many eigenvalues are near the largest: hence one per cent."""
    d = 600
    norms = [eigen.spectral_norm(np.diag(1 - np.linspace(0, width, d) ** 2)) for width in (0.1, 0.3, 0.5, 0.7)]
    assert min(norms) >= 1
    assert max(norms) <= 1.0101


@pytest.mark.parametrize("d", [5, 600])
def test_a_spectral_norm_is_of_the_lower_triangle_whatever_the_sign_and_the_unit(d):
    matrix = np.diag(1000 * np.linspace(-2, 1, d)) + np.triu(np.full((d, d), np.nan), 1)
    assert 2000 <= eigen.spectral_norm(matrix) <= 2020.1


@pytest.mark.parametrize("error", [0.0, 0.01])
def test_resolution_is_rounding_and_twice_the_error_and_the_angle_that_they_turn(error):
    wrong = error + 5 * rounding(4)

    def the(value):
        return pytest.approx(value, rel=1e-6, abs=0)

    def told(values, following):
        return resolution(Eigenpairs(np.array(values), np.eye(4)[:, : len(values)], following, error=error))

    floor = the(ALIKE * 4 * 5 + 2 * error)
    assert told([5.0, 3.0], 1.0) == Resolution(floor, the(sine_theorem(wrong, 2 - wrong)))
    assert told([5.0, 3.0], -1.0) == Resolution(floor, the(sine_theorem(wrong, 3 - wrong)))
    assert told([5.0, 3.0, 1e-13], 0.0) == Resolution(floor, the(sine_theorem(wrong, 3 - wrong)))
    assert angle_bound(error, Eigenpairs(np.array([5.0, 3.0]), np.eye(4)[:, :2], 1.0)) == told([5.0, 3.0], 1.0).angle


@pytest.mark.parametrize("unit", [2.0**-900, 2.0**-480, 2.0**900])
def test_small_eigenvalues_are_the_same_in_any_unit(unit):
    """The fault: below 1e-140 LAPACK was off by 1e-9 of the first value, and small components by 90 degrees."""
    values = np.array([1.0, 2e-2, *np.geomspace(4e-9, 1e-12, 26)])
    S, basis = matrix_of(values)
    pairs = leading_eigenpairs(S * unit, 17)
    np.testing.assert_allclose(pairs.values / unit, values[:17], rtol=0, atol=1e-14)
    np.testing.assert_allclose(pairs.following / unit, values[17], rtol=0, atol=1e-14)
    assert principal_angles(pairs.vectors, basis[:, :17]).max() < 0.1


def test_what_counts_as_rounding():
    """38 epsilons in a scatter of 5 to 200 features."""
    assert rounding(5) >= 38 * np.finfo(np.float64).eps
    assert varying_directions(np.diag([1.0, 2e-12])) == 1
    assert varying_directions(np.diag([1.0, 2.1e-12])) == 2
    assert varying_directions(np.diag([1.0, 4e-12, 1.0, 1.0, 1.0])) == 4
    # One projection leaves rounding of the whole vector, which is much beside a millionth of a millionth.
    Q, _ = np.linalg.qr(np.random.default_rng(0).standard_normal((50, 4)))
    left = outside(Q[:, :3] @ [1.0, 2.0, 3.0] + 1e-12 * Q[:, 3], Q[:, :3])
    assert np.abs(Q[:, :3].T @ left).max() < 1e-14 * np.linalg.norm(left)


@pytest.mark.parametrize(("bound", "text"), [(1.04, "1.1"), (1.06, "1.1"), (2.0, "2"), (9.91e-7, "1e-06")])
def test_few_digits_of_a_bound_are_no_less_than_it_is(bound, text):
    assert at_most(bound) == text


@pytest.mark.parametrize("angle", [1e-9, 1e-3, 30.0, 90.0])
def test_a_rotation_by_an_angle_has_that_angle(angle):
    a, t = np.eye(4)[:, :2], np.radians(angle)
    b = np.array([[1, 0], [0, np.cos(t)], [0, np.sin(t)], [0, 0]])
    np.testing.assert_allclose(principal_angles(a, b).max(), angle, rtol=1e-7)
    np.testing.assert_allclose(projector_distance(a, b), np.sin(t), rtol=1e-7)
