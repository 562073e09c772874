"""Directions and lengths of rows of any size, shells of them, and what noisy numbers of rows tell."""

import numpy as np
import pytest

from fedpca_flwr.maths.moments import pack
from fedpca_flwr.maths.privacy import clip
from fedpca_flwr.maths.private_scatter import (
    HIGHEST,
    LOWEST,
    OCTAVES,
    NoisyCentre,
    beyond,
    descending,
    directions,
    moved,
    octaves,
    placed,
    reach,
    shell_of,
)
from fedpca_flwr.maths.rows import lengths
from fedpca_flwr.maths.shells import MOST_SHELLS, combined, one_shell, shells_of
from tests.families import rows

SIZES = [5e-324, 1e-300, 1e-5, 1.0, 1e160, 1e307]


@pytest.mark.parametrize("size", SIZES)
def test_lengths_and_directions_are_those_of_rows_of_any_size(size):
    data = np.array([[3.0, 4.0], [0.0, -1.0], [0.0, 0.0]]) * size
    np.testing.assert_allclose(lengths(data), np.array([5.0, 1.0, 0.0]) * size, rtol=1e-12)
    np.testing.assert_allclose(directions(data), [[0.6, 0.8], [0.0, -1.0], [0.0, 0.0]], rtol=1e-12)


@pytest.mark.parametrize(
    ("length", "exponent"), [(1.0, 1), (1.99, 1), (2.0, 2), (0.5, 0), (0.0, LOWEST), (1e-200, LOWEST), (1e200, HIGHEST)]
)
def test_each_row_is_in_one_octave(length, exponent):
    found = octaves(np.array([[length, 0.0]]))
    assert found.shape == (OCTAVES,)
    assert found.sum() == found[exponent - LOWEST] == 1


def test_rows_and_scores_are_within_their_bounds():
    data, basis = rows(50, 6), np.linalg.qr(rows(6, 6))[0][:2]
    found = placed(data, basis, 1.5)
    np.testing.assert_allclose(lengths(found), np.minimum(lengths(data), 1.5), rtol=1e-12)
    np.testing.assert_allclose(found[:, :2], clip(data, 1.5) @ basis.T, rtol=1e-9, atol=1e-12)
    assert reach(noisy({3: 5000, 4: 900, 300: 650}, 20.0), 20.0) == (16.0, True)
    assert reach(noisy({3: 5000, 4: 900}, 20.0), 20.0) == (16.0, True)
    assert reach(noisy({3: 6000}, 20.0), 20.0) == (8.0, True)
    told = counts(o2=900, o3=60, o5=40)
    assert reach(told, 1.0).bound == 4.0
    assert reach(told, 1.0, noise=0.01).bound == 32.0
    assert reach(counts(o2=900, o3=60, o300=40), 1.0, noise=0.01).bound <= 8.0
    # Lengths of 4 to 8 have a mean of 4 / ln 2 where their logarithms are even, a mean square of 24 / ln 4.
    told = counts(o2=10, o3=5)
    assert abs(beyond(told, 2 - LOWEST, 1) * 4 - 5 * (4 / np.log(2) - 4)) < 1e-9
    assert abs(beyond(told, 2 - LOWEST, 2) * 16 - 5 * (24 / np.log(2) - 16)) < 1e-9


def noisy(counts, deviation, seed=0):
    told = deviation * np.random.default_rng(seed).standard_normal(OCTAVES)
    for exponent, count in counts.items():
        told[exponent - LOWEST] += count
    return told


def test_what_noise_explains_stands_out_by_nothing():
    assert sum(reach(noisy({}, 20.0, seed), 20.0).stands_out for seed in range(200)) <= 3
    assert not reach(noisy({3: 60}, 20.0), 20.0).stands_out
    step = NoisyCentre(np.array([0.1, 0.0]), 10, 1.0, of_rows=0.0, of_sum=1.0)
    assert (moved(np.ones(2), step)[0] == 1.0).all()
    clear = NoisyCentre(np.array([100.0, 0.0]), 10, 200.0, of_rows=0.0, of_sum=1.0)
    np.testing.assert_allclose(moved(np.ones(2), clear)[0], [101.0, 1.0], rtol=1e-5)
    values = descending(np.array([5.0, 7.0, 1.0, 2.0, -9.0]), 1.0)
    np.testing.assert_allclose(values, [6.0, 6.0, 1.5, 1.5, 0.5])


@pytest.mark.parametrize("length", [0.0, 0.5, 3.0])
def test_a_centre_that_moved_is_as_far_off_as_it_says(length):
    """Also where noise is larger than the step, which is then not made."""
    d, n, bound, rng = 6, 40, 4.0, np.random.default_rng(5)
    mean, before, missed = np.array([length, *np.zeros(d - 1)]), np.full(d, 7.0), 0
    for _ in range(500):
        value = clip((n * mean + 20.0 * rng.standard_normal(d))[None] / n, bound)[0]
        centre, off = moved(before, NoisyCentre(value, n, bound, of_rows=0.0, of_sum=20.0))
        missed += int(np.linalg.norm(centre - before - mean) > off)
    assert missed <= 10  # 5 are one in a hundred


def test_a_noisy_centre_moves_and_is_seen_as_far_as_it_is_off():
    """A step of length 5 with noise of 3 in it: 16 / 25 of it are kept, and the rest is how far off it may be."""
    step = NoisyCentre(np.array([3.0, 4.0]), 2, 100.0, 0.0, 3 * 2 / np.sqrt(2))
    centre, radius = moved(np.ones(2), step)
    np.testing.assert_allclose(centre, 1 + 0.64 * step.value)
    assert radius == pytest.approx(step.radius + 0.36 * 5)
    still = NoisyCentre(np.zeros(4), 10, 100.0, 0.0, 5.0)
    assert still.radius > 0.5
    assert still.seen_about(0.5) == 10 * 0.25


D = 6


def counts(**rows):
    """Numbers of rows by octave: ``o3=50`` has fifty at distances from 4 to 8."""
    told = np.zeros(OCTAVES)
    for octave, number in rows.items():
        told[int(octave[1:]) - LOWEST] = number
    return told


def test_shells_are_few_of_many_rows_and_add_what_is_above_their_edge():
    """With an edge of 1 and two components a shell has 6 rows at least; rows of 80 times that keep their length."""
    told = counts(o0=3, o1=40, o3=400, o4=5, o7=4)
    expected = [[0.0, 4.0, 0.0], [4.0, 8.0, 8.0], [8.0, 128.0, 0.0]]
    np.testing.assert_array_equal(shells_of(told, 0.1, 1.0, 2), expected)
    np.testing.assert_array_equal(shells_of(told, 0.1, 50.0, 2), one_shell(128.0))
    blurred = [[0.0, 8.0, 0.0], [8.0, 128.0, 0.0]]
    np.testing.assert_array_equal(shells_of(told, 0.1, 1.0, 2, moved=2.0)[:, :2], np.array(blurred)[:, :2])
    many = shells_of(counts(**{f"o{i}": 1e6 for i in range(12)}), 1.0, 1.0, 2)
    assert len(many) == MOST_SHELLS
    np.testing.assert_array_equal(many[1:, 0], many[:-1, 1])
    np.testing.assert_array_equal(shells_of(counts(o4=5.0), 1.0, 1.0, 2), one_shell(16.0))
    # The outer shell holds noise only, which would be sixteen times the inner one's components.
    inner, noise = np.diag([900.0, 500.0, 30.0, 0.0, 0.0, 0.0]), np.diag([0.0, 0.0, 0.0, 0.0, 60.0, 60.0])
    shells = np.array([[0.0, 4.0, 0.0], [4.0, 64.0, 0.0]])
    found = combined(np.array([pack(inner), pack(noise)]), np.array([1000.0, 100.0]), shells, D, 2, 20.0).found
    assert np.abs(found.pairs.vectors[:2]).sum() > 2 - 1e-3


def heavy():
    """Rows whose axes depend on how far they are: near ones lie along the last, far ones along the first."""
    rng = np.random.default_rng(3)
    near = rng.standard_normal((3000, D)) * [0.3, 0.3, 0.3, 0.3, 1.0, 2.0]
    return np.vstack([near, rng.standard_normal((600, D)) * [12.0, 6.0, 0.3, 0.3, 0.3, 0.3]])


def test_shells_find_the_components_of_the_covariance_where_directions_do_not():
    rows = heavy()
    shells = shells_of(counts(o1=1200, o2=1300, o3=700, o4=400), 0.1, 1.0, 2) * [1, 1, 0]
    held = {}
    for name, asked in (("shells", shells), ("one", one_shell(32.0))):
        shell, unit, length = shell_of(lengths(rows), asked), directions(rows), lengths(rows)
        sums = np.array([pack(unit[shell == i].T @ unit[shell == i]) for i in range(len(asked))])
        share = np.minimum(length / asked[shell, 1], 1.0) ** 2
        found = combined(sums, np.bincount(shell, share, minlength=len(asked)), asked, D, 2, 0.01).found
        held[name] = ((rows @ found.pairs.vectors) ** 2).sum() / (np.linalg.svd(rows)[1][:2] ** 2).sum()
    assert held["shells"] > 0.99
    assert held["one"] < 0.9
