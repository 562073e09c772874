"""What noise may hide, in closed form: distances of a noisy centre, edges of a spectrum, intervals of variances."""

import numpy as np
import pytest

from fedpca_flwr.maths.eigen import Eigenpairs
from fedpca_flwr.maths.moments import pack
from fedpca_flwr.maths.private_scatter import (
    LOWEST,
    OCTAVES,
    Denoised,
    NoisyCentre,
    _Among,
    denoised,
    largest_of_noise,
    reach,
    without_noise,
)
from fedpca_flwr.maths.shells import Combined, combined, cut_off, shells_of, variance_intervals


def counts(numbers):
    """Numbers of rows by octave: 3 is that of distances from 4 to 8."""
    told = np.zeros(OCTAVES)
    told[np.array(list(numbers)) - LOWEST] = list(numbers.values())
    return told


def test_a_noisy_centre_is_off_by_its_noise_and_that_of_the_number_of_rows():
    """With |c| = 5, d = 4: noise of the sum up to 3 (2 + 3.04), of the number of rows up to 2 * 3.04."""
    z, g = 3 * (2 + 3.04), 2 * 3.04
    centre = NoisyCentre(np.array([3.0, 4.0, 0.0, 0.0]), 100, 10.0, of_rows=2.0, of_sum=3.0)
    off = (z + 5 * g) / (100 - g)
    assert centre.radius == pytest.approx(off)
    assert centre.seen_about(1.0) == pytest.approx((100 + g) * off**2)
    assert centre.seen_about(0.1) == pytest.approx((100 + g) * 0.1**2)
    assert centre.seen_by_subtraction() == pytest.approx(100 * off * (5 + off + off / 2) + g * (5 + off) ** 2)
    assert centre._replace(bound=5.0).radius == pytest.approx((z + 5 * g) / 100)
    assert centre._replace(rows=5, bound=5.0).radius == pytest.approx((z + 5 * g) / 5)
    assert centre._replace(rows=5, bound=0.1, of_rows=1e9).radius == 0.2
    assert centre._replace(bound=5.0).seen_by_subtraction() == pytest.approx(
        100 * (z + 5 * g) / 100 * (5 + (z + 5 * g) / 200) + g * 5**2
    )


def test_what_noise_alone_has_and_what_is_behind_an_eigenvalue():
    """Of 8 features with noise of deviation 3 the edge is 6, and 8^(-2/3) a quarter."""
    assert largest_of_noise(8, 3.0) == pytest.approx(2 * 6 + 2.02 * 6 / 4)
    of_spike = 12 * (1 + 0.25) + 2.02 * 6 / 4 + 2.33 * 3 * np.sqrt(0.75)
    assert largest_of_noise(8, 3.0, excess=12.0) == pytest.approx(of_spike)
    assert largest_of_noise(8, 0.0) == 0.0
    np.testing.assert_allclose(without_noise(np.array([12 + 3, 12.0, 4.0, -1.0]), 6.0), [12.0, 6.0, 2.0, 0.0])
    # Of 2 features the edge is the deviation: 3 + 1 / 3 shows of 3, and 2 + 1 / 2 of 2.
    found = denoised(pack(np.diag([10 / 3, 2.5])), 2, 1, 1.0)
    assert (found.pairs.values[0], found.pairs.following) == (pytest.approx(3.0), pytest.approx(2.0))
    assert (found.total, found.kept) == (pytest.approx(10 / 3 + 2.5), 2)
    negative = denoised(pack(np.diag([10 / 3, -5.0])), 2, 1, 1.0)
    assert negative.total == negative.pairs.values[0] > 3
    # A noisy vector holds 1 - (edge / spike)^2 of what its own does; one spike counts for so much at most.
    among = _Among(np.arange(2), Eigenpairs(np.array([10 / 3, 2.5]), np.eye(2), 0.0), 1.0)
    assert among.held(np.inf) == pytest.approx(3 * (1 - 1 / 9) + 2 * (1 - 1 / 4))
    assert among.held(2.5) == pytest.approx(2.5 * (1 - 1 / 9) + 2 * (1 - 1 / 4))


def test_a_bound_grows_only_where_its_noise_is_slight():
    """Of 1,000 rows, 60 of which are eight times as far: their noise would be 8 times as large, and is to be 50."""
    told = counts({2: 900, 3: 40, 5: 60})
    assert reach(told, 1.0, noise=6.0) == (32.0, True)
    assert reach(told, 1.0, noise=7.0).bound < 32.0
    # 500 rows from 4 to 8 are beyond 4 by 500 (1 / ln 2 - 1) times 4; to 8 the noise would be twice as large.
    told, same = counts({2: 9000, 3: 500}), 500 * (1 / np.log(2) - 1) / np.sqrt(3)
    assert [reach(told, 1.0, noise=times * same).bound for times in (0.99, 1.01)] == [8.0, 4.0]


def test_shells_weigh_by_distances_and_lose_their_noise_first():
    """Two features with noise of deviation 1 have an edge of 2: an eigenvalue of 10 becomes the root of 96."""
    shells = np.array([[0.0, 4.0, 0.0], [4.0, 8.0, 8.0]])
    sums = np.array([pack(np.diag([10.0, 1.0])), pack(np.diag([1.0, 5.0]))])
    found = combined(sums, np.array([11 / 4, 6.0]), shells, 2, 2, 1.0)
    np.testing.assert_allclose(found.squares, [4.0, 64 * 0.375 / np.log(2)])
    np.testing.assert_allclose(found.traces, [11.0, 6.0])
    np.testing.assert_allclose(found.noisy, [[10.0, 1.0], [5.0, 1.0]])
    inner, outer = 4.0, 64.0
    least = 1e-6 * (inner * np.array([10.0, 1.0]) + outer * np.array([1.0, 5.0]))
    expected = np.array([inner * np.sqrt(96), outer * np.sqrt(21)]) + least
    np.testing.assert_allclose(found.found.pairs.values, expected[::-1])
    assert found.found.total == pytest.approx(expected.sum())


@pytest.mark.parametrize("shells", [1, 2])
def test_intervals_of_variances_take_in_noise_mixing_and_what_is_cut_off(shells):
    """With an edge of 2, of a component at 8 (2 / 8)^2 are lost and 1 / 8 mixed; of one below the edge, all of it."""
    pairs = Eigenpairs(np.array([130.0, 40.0]), np.eye(8)[:, :2], 0.0)
    found = Denoised(pairs, 0.0, 2, 8, np.array([8.0, 1.0]))
    of_all = Combined(found, np.array([[8.0, 1.0]] * shells), np.ones(shells), np.ones(shells), 1.0)
    intervals = variance_intervals(of_all, np.array([100.0, 50.0]), 2.0, 7.0)
    around = 1.645 * 2 + 100 * (1 / 16 + 1 / 8), 1.645 * 2 + 50 * 2
    highest = 130.0 if shells == 2 else 100 + around[0] + 7
    np.testing.assert_allclose(intervals, [[100 - around[0], highest], [0.0, 50 + around[1] + 7]])


def test_what_a_bound_cuts_off_of_squares_has_room_for_rows_that_noise_hides():
    """Squares of 4 to 8 have a mean of 24 / ln 2; in the octave after them two deviations of rows may be hidden."""
    seen, hidden = 50 * (24 / np.log(2) - 16), 2 * (96 / np.log(2) - 16)
    assert cut_off(counts({3: 50}), 1.0, 4.0) == pytest.approx(seen + hidden)
    assert cut_off(counts({3: 50, 4: 5}), 1.0, 4.0) == pytest.approx(seen + 7 * (96 / np.log(2) - 16))  # 6 stand out


def test_rows_of_a_shell_keep_their_length_where_many_are_as_far_as_the_centre_moved():
    told = counts({0: 3, 1: 40, 3: 400})
    assert shells_of(told, 0.1, 1.0, 2)[:, 2].tolist() == [0.0, 8.0]
    assert shells_of(told, 0.1, 1.0, 2, moved=1.9)[-1].tolist() == [0.0, 8.0, 8.0]
    assert shells_of(told, 0.1, 1.0, 2, moved=2.1)[-1].tolist() == [0.0, 8.0, 0.0]
