"""What the sizes of steps tell of an iteration, and where they tell nothing."""

from __future__ import annotations

import numpy as np
import pytest

from fedpca_flwr.maths.graph import iterations_left, linear_rate, way_left


@pytest.mark.parametrize("rate", [0.5, 0.9, 0.999])
def test_a_steady_rate_is_found_and_foretells_the_end(rate):
    errors = 7.0 * rate ** np.arange(60)
    steps = errors[:-1] - errors[1:]
    assert linear_rate(steps) == pytest.approx(rate, rel=1e-9)
    left = iterations_left(steps, 1e-30)
    assert errors[-1] * rate**left <= 1e-30 < errors[-1] * rate ** (left - 2)
    assert iterations_left(steps, 8.0) == 0


@pytest.mark.parametrize(
    "steps",
    [
        0.5 ** np.arange(8),
        np.ones(40),
        1.1 ** np.arange(40),
        np.append(0.5 ** np.arange(40), 0.0),
        0.5 ** np.minimum(np.arange(40), 30),
        np.abs(np.sin(np.arange(40.0))),
    ],
    ids=["few", "constant", "growing", "zero", "a floor", "to and fro"],
)
def test_no_rate_is_read_into_other_steps(steps):
    assert linear_rate(steps) is None
    assert iterations_left(steps, 1e-6) is None


def test_what_is_left_of_a_way_of_halves_is_the_last_step():
    assert way_left(0.5 ** np.arange(32)) == pytest.approx(0.5**31)
