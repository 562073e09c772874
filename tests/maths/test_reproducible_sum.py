"""Sums are the same bits in any order, and as exact as float64 can say."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpca_flwr.maths import sums as module
from fedpca_flwr.maths.sums import ADDENDS, ReproducibleSum, reproducible_sum
from tests.refusals import refused


def running(addends):
    total = ReproducibleSum(addends[0].shape)
    for addend in addends:
        total.add(addend)
    return total.total()


def exact(addends):
    columns = np.array(addends).T.tolist()
    return np.array([float(sum(map(Fraction, column), Fraction(0))) for column in columns])


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 12), st.integers(0, 2**32), st.sampled_from([0, 3, 40, 300]), st.booleans())
def test_no_order_changes_a_bit(parties, seed, spread, coarse):
    rng = np.random.default_rng(seed)
    numbers = rng.standard_normal((parties, 50))
    if coarse:  # so that halves of the last word come up, whose rounding could depend on what is there already
        numbers = np.round(4 * numbers) / 4
    addends = list(np.ldexp(numbers, rng.integers(-spread, spread + 1, numbers.shape)))
    found = {running([addends[i] for i in rng.permutation(parties)]).tobytes() for _ in range(5)}
    assert found == {reproducible_sum(addends).tobytes()}


def test_words_round_the_same_way_far_below_the_error_of_float64():
    last = 2.0 ** -(3 * module.STEP)
    addends = [np.array([1.0]), *(np.array([sign * part * last]) for sign in (1, -1) for part in (0.5, 1.5, 0.5))]
    rng = np.random.default_rng(0)
    found = {running([addends[i] for i in rng.permutation(len(addends))]).tobytes() for _ in range(40)}
    assert len(found) == 1
    rng = np.random.default_rng(2)
    addends = [np.ldexp(rng.standard_normal(200), rng.integers(-60, 60, 200)) for _ in range(50)]
    largest = np.abs(addends).max(axis=0)
    truth = exact(addends)
    assert (np.abs(running(addends) - truth) <= 50 * 2.0**-73 * largest + np.spacing(np.abs(truth))).all()


@pytest.mark.parametrize("unit", [1e-290, 1.0, 1e300])
def test_what_cancels_leaves_what_is_left(unit):
    rng = np.random.default_rng(1)
    parts = [unit * rng.standard_normal(100) for _ in range(9)]
    addends = [*parts, *(-part for part in parts[1:]), 1e-9 * parts[0]]
    np.testing.assert_allclose(running(addends), exact(addends), rtol=3e-16)


@pytest.mark.parametrize("value", [0.0, 5e-324, -1e-310, 1 / 3, -1.7e308])
def test_one_number_is_itself(value):
    np.testing.assert_array_equal(running([np.array([value, 0.0])]), [value, 0.0])


def test_more_entries_than_a_chunk_and_any_shape(monkeypatch):
    monkeypatch.setattr(module, "CHUNK", 7)
    addends = [np.random.default_rng(i).standard_normal((5, 8)) for i in range(4)]
    np.testing.assert_allclose(running(addends), np.sum(addends, axis=0), rtol=1e-14, atol=1e-15)
    assert running(addends).tobytes() == reproducible_sum(addends).tobytes()
    assert running([np.asarray(3), np.asarray(4)]) == 7  # a count


def test_other_shapes_and_more_than_words_can_hold_are_refused():
    total = ReproducibleSum((2,))
    total.add(np.array([1.0, 2.0]))
    with refused(ValueError, "(3,)", "(2,)"):
        total.add(np.zeros(3))
    np.testing.assert_array_equal(total.total(), [1.0, 2.0])
    total = ReproducibleSum((1,))
    one = np.array([2.0**module.STEP])
    for _ in range(ADDENDS):
        total.add(one)
    assert total.total() == ADDENDS * 2.0**module.STEP
    with pytest.raises(OverflowError):
        total.add(one)


@pytest.mark.parametrize("edge", [2.0**module.STEP, 1.5 * 2.0**module.STEP])
def test_an_addend_on_the_edge_of_the_grid_moves_it_whoever_came_first(edge):
    """What is below the grid of the largest addend is left out, also where smaller ones came before it."""
    addends = [np.array([value]) for value in (1.0, edge, 2.0**-40, -edge)]
    assert running(addends) == running([addends[i] for i in (1, 0, 2, 3)]) == 1.0
