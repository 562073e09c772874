"""Directions and lengths of rows of any size, and what noisy numbers of them tell."""

from __future__ import annotations

import numpy as np
import pytest

from fedpca_flwr.maths.privacy import clip
from fedpca_flwr.maths.private_scatter import (
    HIGHEST,
    LOWEST,
    OCTAVES,
    NoisyCentre,
    descending,
    directions,
    lengths,
    moved,
    octaves,
    placed,
    reach,
)
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


def test_scores_and_what_they_leave_have_the_length_of_the_row_up_to_the_bound():
    data, basis = rows(50, 6), np.linalg.qr(rows(6, 6))[0][:2]
    found = placed(data, basis, 1.5)
    np.testing.assert_allclose(lengths(found), np.minimum(lengths(data), 1.5), rtol=1e-12)
    np.testing.assert_allclose(found[:, :2], clip(data, 1.5) @ basis.T, rtol=1e-9, atol=1e-12)


def noisy(counts, deviation, seed=0):
    told = deviation * np.random.default_rng(seed).standard_normal(OCTAVES)
    for exponent, count in counts.items():
        told[exponent - LOWEST] += count
    return told


def test_most_rows_are_within_the_bound_whatever_the_others_are():
    assert reach(noisy({3: 5000, 4: 900, 300: 650}, 20.0), 20.0) == (16.0, True)
    assert reach(noisy({3: 5000, 4: 900}, 20.0), 20.0) == (16.0, True)
    assert reach(noisy({3: 6000}, 20.0), 20.0) == (8.0, True)


def test_numbers_that_noise_explains_do_not_stand_out():
    assert sum(reach(noisy({}, 20.0, seed), 20.0).stands_out for seed in range(200)) <= 3
    assert not reach(noisy({3: 60}, 20.0), 20.0).stands_out


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


def test_a_step_that_noise_explains_is_not_made_and_a_clear_one_is():
    step = NoisyCentre(np.array([0.1, 0.0]), 10, 1.0, of_rows=0.0, of_sum=1.0)
    assert (moved(np.ones(2), step)[0] == 1.0).all()
    clear = NoisyCentre(np.array([100.0, 0.0]), 10, 200.0, of_rows=0.0, of_sum=1.0)
    np.testing.assert_allclose(moved(np.ones(2), clear)[0], [101.0, 1.0], rtol=1e-5)


def test_variances_descend_and_are_never_below_the_noise():
    values = descending(np.array([5.0, 7.0, 1.0, 2.0, -9.0]), 1.0)
    np.testing.assert_allclose(values, [6.0, 6.0, 1.5, 1.5, 0.5])


def test_a_centre_moves_as_far_as_noise_does_not_explain_it():
    """A step of length 5 with noise of 3 in it: 16 / 25 of it are kept, and the rest is how far off it may be."""
    step = NoisyCentre(np.array([3.0, 4.0]), 2, 100.0, 0.0, 3 * 2 / np.sqrt(2))
    centre, radius = moved(np.ones(2), step)
    np.testing.assert_allclose(centre, 1 + 0.64 * step.value)
    assert radius == pytest.approx(step.radius + 0.36 * 5)


def test_rows_about_a_noisy_centre_are_seen_by_the_square_of_its_distance():
    centre = NoisyCentre(np.zeros(4), 10, 100.0, 0.0, 5.0)
    assert centre.radius > 0.5
    assert centre.seen_about(0.5) == 10 * 0.25
