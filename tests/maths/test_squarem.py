"""SQUAREM and Anderson acceleration on maps whose fixed points are known."""

from __future__ import annotations

import numpy as np

from fedpca_flwr.maths.gaussian_em import Anderson, Squarem

ANYWHERE = lambda point: True  # noqa: E731


def steps(mapping, start, target, least=1e-9, most=1000, allowed=ANYWHERE):
    """Maps until the image is that near to the fixed point."""
    iteration = Squarem(start, allowed)
    for count in range(1, most + 1):
        image = mapping(iteration.point)
        if np.linalg.norm(image - target) < least:
            return count
        iteration.add(image)
    return most


def test_one_linear_rate_is_over_after_one_cycle():
    assert steps(lambda x: 0.99 * x + 1.0, np.zeros(3), np.full(3, 100.0)) == 3


def test_many_rates_take_far_fewer_steps_than_the_plain_iteration():
    rates = np.array([0.1, 0.5, 0.9, 0.99])
    ours = steps(lambda x: rates * x, np.ones(4), np.zeros(4))
    plain = np.log(1e-9) / np.log(0.99)
    assert ours < plain / 10


def test_what_is_ahead_is_the_sum_of_the_steps_to_come():
    iteration = Squarem(np.ones(1), ANYWHERE)
    for _ in range(2):
        assert iteration.ahead is None
        iteration.add(0.9 * iteration.point)
    np.testing.assert_allclose(iteration.ahead, 10.0)


def test_a_point_that_is_not_allowed_is_not_gone_to():
    seen = []

    def mapping(x):
        seen.append(float(x[0]))
        return 0.9 * x + 1.0

    steps(mapping, np.zeros(1), np.full(1, 10.0), most=20, allowed=lambda point: bool(point[0] < 6.0))
    np.testing.assert_allclose(seen, 10.0 * (1 - 0.9 ** np.arange(20)))  # the plain iteration, and no step is wasted


def test_an_extrapolation_after_which_the_map_moves_further_is_given_up():
    """Slow near the start, wild beyond 5: from there on the plain iteration's point is taken."""

    def mapping(x):
        return np.where(x < 5.0, 0.99 * x + 0.1, x + 1000.0)

    iteration = Squarem(np.zeros(1), ANYWHERE)
    points = []
    for _ in range(4):
        points.append(float(iteration.point[0]))
        iteration.add(mapping(iteration.point))
    np.testing.assert_allclose(points, [0.0, 0.1, 10.0, 0.199])


def test_a_map_that_rests_stays():
    squarem, anderson = Squarem(np.ones(2), ANYWHERE), Anderson(np.ones(2), ANYWHERE)
    for _ in range(5):
        squarem.add(np.ones(2))
        anderson.add(np.ones(2), 0.0)
        np.testing.assert_array_equal([squarem.point, anderson.point], np.ones((2, 2)))


def half_way(x):
    return 0.5 * x + 1  # to 2


def test_anderson_finds_the_fixed_point_of_a_line_from_two_images():
    found = Anderson(np.zeros(1), ANYWHERE)
    for height in (0.0, 1.0):
        found.add(half_way(found.point), height)
    np.testing.assert_allclose(found.point, [2.0])


def test_anderson_gives_up_a_lower_point_and_all_that_it_remembers():
    found = Anderson(np.zeros(1), ANYWHERE)
    found.add(half_way(found.point), 0.0)
    found.add(np.array([5.0]), -1.0)
    np.testing.assert_array_equal(found.point, [1.0])
    found.add(half_way(found.point), 0.0)
    np.testing.assert_array_equal(found.point, [1.5])
