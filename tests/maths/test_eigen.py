"""Leading eigenpairs: those of LAPACK, on matrices that make Lanczos go wrong too; and angles of subspaces."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from scipy.sparse import linalg

from fedpca_flwr.maths import eigen
from fedpca_flwr.maths.eigen import Eigenpairs, angle_bound, leading_eigenpairs, principal_angles, resolution
from tests.families import with_spectrum


def matrix_of(values, seed=0):
    S, basis = with_spectrum(values, seed)
    return np.asfortranarray(S), basis


SLOW = 1 / np.arange(1, 501)
SPECTRA = {"few": (SLOW[:5], 4), "dense": (SLOW[:60], 10)}
SPECTRA |= {f"Lanczos in units of {unit}": (unit * SLOW, 10) for unit in (1.0, 1e-30, 1e26)}
SPECTRA |= {f"{k} times the same": (np.r_[np.full(k, 2.0), SLOW[: 500 - k]], k) for k in (2, 5, 30)}
SPECTRA |= {f"of rank {k}": (np.r_[np.arange(k, 0, -1.0), np.zeros(500 - k)], k) for k in (1, 4)}


@pytest.mark.parametrize("kind", SPECTRA)
def test_leading_eigenpairs_hold_for_any_spectrum_and_unit(kind):
    """Take units in which ARPACK's absolute stopping test certifies nothing without scaling (1e-30)."""
    values, k = SPECTRA[kind]
    S, basis = matrix_of(values)
    pairs = leading_eigenpairs(S, k)
    np.testing.assert_allclose(pairs.values, values[:k], rtol=1e-12)
    np.testing.assert_allclose(pairs.following, values[k], rtol=1e-12, atol=2e-13 * values[0])
    assert principal_angles(pairs.vectors, basis[:, :k]).max() < 1e-9
    np.testing.assert_allclose(pairs.vectors.T @ pairs.vectors, np.eye(k), atol=1e-10)


def test_only_the_lower_triangle_is_read_and_no_pair_of_a_cluster_is_lost():
    S, _ = matrix_of(SLOW)
    garbage, expected = np.asfortranarray(np.tril(S) + np.triu(np.full_like(S, np.nan), 1)), leading_eigenpairs(S, 3)
    for overwrite in (False, True):
        found = leading_eigenpairs(garbage, 3, overwrite_upper=overwrite)
        np.testing.assert_array_equal([*found.vectors, found.values], [*expected.vectors, expected.values])
        np.testing.assert_array_equal(np.tril(garbage), np.tril(S))
    assert expected.residual_directions(garbage) == pytest.approx(SLOW[3:].sum() ** 2 / np.square(SLOW[3:]).sum())
    # For 13 of these seeds LAPACK's MRRR returns too few pairs at the edge of a cluster, without a word.
    values = np.r_[9.0, 9, 4, np.ones(57)]
    for seed in range(150):
        np.testing.assert_allclose(leading_eigenpairs(matrix_of(values, seed)[0], 3).values, [9, 9, 4], rtol=1e-10)


@pytest.mark.parametrize("fault", ["", "missed", "turned"])
@pytest.mark.parametrize("unit", [2.0**-600, 1.0, 2.0**600])
def test_lanczos_misses_are_noticed_in_any_unit(unit, fault, monkeypatch):
    """The fault: squares of residuals overflowed, with a warning; or were zero, which certified any vectors."""
    (S, basis), honest = matrix_of(SLOW), linalg.eigsh

    def eigsh(operator, count, **options):
        values, vectors = honest(operator, count + 1, **options)
        slanted = np.linalg.qr(vectors[:, 1:] + 1e-6 * (fault == "turned") * vectors[:, :1])[0]
        return (values[:-1], vectors[:, :-1]) if fault == "missed" else (values[1:], slanted)

    monkeypatch.setattr(linalg, "eigsh", eigsh)
    if not fault:
        monkeypatch.setattr(eigen, "eigh", None)  # LAPACK is not needed
    pairs = leading_eigenpairs(S * unit, 3)
    np.testing.assert_allclose(pairs.values, unit * SLOW[:3], rtol=1e-12)
    assert principal_angles(pairs.vectors, basis[:, :3]).max() < 1e-9


def test_a_fraction_takes_components_until_it_is_reached():
    """Of a sum of the first shares no excess is counted, whichever way the share was rounded."""
    values = np.array([0.4, 0.3, 0.2, 0.1]) / 3
    counts = dict.fromkeys((0.7, np.nextafter(0.7, 0), np.nextafter(0.7, 1), 0.7 - 1e-15), 3)
    counts |= {0.69: 2, 0.71: 3, 0.39: 1, 1 - 1e-9: 4}
    assert {share: eigen.count_to_exceed_share(values, values.sum(), share) for share in counts} == counts
    S = np.asfortranarray(np.diag([4.0, 2.0, 1.0, 1.0]) / 8)
    assert [leading_eigenpairs(S, fraction).values.size for fraction in (0.49, 0.5, 0.75, 0.99)] == [1, 2, 3, 4]
    # Of 1 in the matrix, a half is more than 0.45; of 1.25 in all it is not.
    assert [leading_eigenpairs(S, 0.45, total=total).values.size for total in (1.0, 1.25)] == [1, 2]
    pairs = Eigenpairs(np.array([5.0, 3.0, 1.0]), np.eye(4)[:, :3], 0.5)
    assert [pairs.leading(k).following for k in (1, 2, 3)] == [3.0, 1.0, 0.5]


@pytest.mark.parametrize("angle", [1e-9, 1e-3, 30.0, 90.0])
def test_angles_and_signs_of_vectors(angle):
    a, t = np.eye(4)[:, :2], np.radians(angle)
    b = np.array([[1, 0], [0, np.cos(t)], [0, np.sin(t)], [0, 0]])
    np.testing.assert_allclose(principal_angles(a, b).max(), angle, rtol=1e-7)
    np.testing.assert_allclose(eigen.projector_distance(a, b), np.sin(t), rtol=1e-7)
    np.testing.assert_array_equal(eigen.fix_signs(np.array([[0.6, -0.8], [-0.8, -0.6]])), [[-0.6, 0.8], [0.8, 0.6]])
    alike = np.array([[-0.5, 0.5 - 2e-9], [0.5 + 1e-12, -0.5]])
    np.testing.assert_array_equal(eigen.fix_signs(alike), alike * [-1, 1])  # the first of those that rounding orders
    a = np.linalg.qr(np.random.default_rng(0).standard_normal((6, 3)))[0]
    assert principal_angles(a, -a @ np.linalg.qr(np.random.default_rng(1).standard_normal((3, 3)))[0]).max() < 1e-12


def test_bounds_on_angles_in_closed_form():
    """sin(angle) <= error / (gap - error), rounding included in the error."""
    pairs = Eigenpairs(np.array([5.0, 3.0]), np.eye(4)[:, :2], 1.0)
    expected = np.degrees(np.arcsin([0.5 / (2 - 0.5), 1, 1]))
    np.testing.assert_allclose([angle_bound(error, pairs) for error in (0.5, 1.0, 2.5)], expected)
    pairs = Eigenpairs(np.array([5.0, 0.19]), np.eye(4)[:, :2], 0.1, error=0.1)
    assert resolution(pairs).angle == pytest.approx(eigen.sine_theorem(0.1, 5 - 0.19 - 0.1))
    assert resolution(replace(pairs, error=3.0)).angle == 90
    assert [eigen.certificate_text(angle) for angle in (90.0, 89.5)] == ["no bound", "90 degrees at most"]
    bounds = {1.04: "1.1", 1.06: "1.1", 2.0: "2", 0.1: "0.1", 9.91e-7: "1e-06", 3.1e-8: "3.1e-08"}
    assert {bound: eigen.format_upper_bound(bound) for bound in bounds} == bounds  # few digits, of no less than it is
    for bound, digits in product((0.0, 1.04e-7, 5.64e-7, 9.949e-3, 1.0, 1.001, 0.3, 89.99), (1, 2)):
        assert bound <= float(eigen.format_upper_bound(bound, digits=digits)) <= bound * (1 + 10.0 ** (1 - digits))


@pytest.mark.parametrize("error", [0.0, 0.01])
@pytest.mark.parametrize(("following", "gap"), [([1.0], 2), ([-1.0], 3), ([1e-13, 0.0], 3)])
def test_resolution_is_rounding_and_twice_the_error(following, gap, error):
    *values, last = 5.0, 3.0, *following
    pairs, wrong = Eigenpairs(np.array(values), np.eye(4)[:, : len(values)], last), error + 5 * eigen.rounding_bound(4)
    found = resolution(replace(pairs, error=error))
    assert found.floor == pytest.approx(eigen.TIE_TOLERANCE * 4 * 5 + 2 * error, rel=1e-6, abs=0)
    assert found.angle == pytest.approx(eigen.sine_theorem(wrong, gap - wrong), rel=1e-6, abs=0)
    assert gap != 2 or found.angle == angle_bound(error, pairs)


@pytest.mark.parametrize("unit", [2.0**-900, 2.0**-480, 2.0**900])
def test_small_eigenvalues_are_the_same_in_any_unit(unit):
    """The fault: below 1e-140 LAPACK was off by 1e-9 of the first value, and small components by 90 degrees."""
    values = np.array([1.0, 2e-2, *np.geomspace(4e-9, 1e-12, 26)])
    S, basis = matrix_of(values)
    pairs = leading_eigenpairs(S * unit, 17)
    np.testing.assert_allclose(np.r_[pairs.values, pairs.following] / unit, values[:18], rtol=0, atol=1e-14)
    assert principal_angles(pairs.vectors, basis[:, :17]).max() < 0.1


def test_spectral_norm_bounds_are_never_too_small():
    assert eigen.rounding_bound(5) >= 38 * np.finfo(np.float64).eps  # which scatters of 5 to 200 features are off by
    diagonals = ([1.0, 2e-12], [1.0, 2.1e-12], [1.0, 4e-12, 1.0, 1.0, 1.0])
    assert [eigen.count_varying_directions(np.diag(diagonal)) for diagonal in diagonals] == [1, 2, 4]
    # Features in any units, of which the last is the first again.
    S = np.array([[4.0, 1e3, 4.0], [1e3, 1e6, 1e3], [4.0, 1e3, 4.0]])
    W, (inverse, dropped) = eigen.whitening_matrix(S), eigen.pseudo_inverse(S)
    np.testing.assert_allclose(W.T @ S @ W, np.eye(2), atol=1e-12)
    np.testing.assert_allclose(S @ inverse @ S, S, rtol=1e-9)
    np.testing.assert_allclose(np.abs(dropped), np.sqrt([[0.5], [0.0], [0.5]]), atol=1e-9)
    np.testing.assert_array_equal(eigen.diagonal_roots(np.diag([4.0, 0.0, -1e-20])), [2, 1, 1])
    # One projection leaves rounding of the whole vector, which is much beside a millionth of a millionth.
    Q, _ = np.linalg.qr(np.random.default_rng(0).standard_normal((50, 4)))
    left = eigen.project_out(Q[:, :3] @ [1.0, 2.0, 3.0] + 1e-12 * Q[:, 3], Q[:, :3])
    assert np.abs(Q[:, :3].T @ left).max() < 1e-14 * np.linalg.norm(left)
    # Lanczos comes from below, and stops early where many eigenvalues are near the largest: hence one per cent.
    norms = [eigen.spectral_norm(np.diag(1 - np.linspace(0, width, 600) ** 2)) for width in (0.1, 0.3, 0.5, 0.7)]
    for d in (5, 600):  # whatever the sign and the unit
        norms.append(eigen.spectral_norm(np.diag(1e200 * np.linspace(-2, 1, d))) / 2e200)
    assert 1 <= min(norms) <= max(norms) <= 1.0101
    assert eigen.spectral_norm(np.zeros((2, 2))) == 0


@pytest.mark.parametrize("d", [6, 500])
def test_the_largest_eigenvalue_is_not_the_largest_in_size(d):
    """The fault: Lanczos takes the eigenvalue farthest from zero; a sigmoid kernel has negative ones."""
    S, Q = with_spectrum(np.linspace(-9, 1, d))
    value, vector = eigen.largest_eigenpair(S)
    assert value == pytest.approx(1.0, rel=1e-12)
    np.testing.assert_allclose(np.abs(vector), np.abs(Q[:, -1]), atol=1e-9)
    assert vector[np.abs(vector).argmax()] > 0
    assert eigen.largest_eigenpair(np.zeros((d, d)))[0] == 0
