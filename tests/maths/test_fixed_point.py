"""Fixed point: sums within the limit are exact to its resolution, and none that is allowed overflows."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fedpca_flwr.maths.secure import Layout
from tests.refusals import refused

LIMITS = st.floats(1e-200, 1e250)


def summed(layout, parties):
    return layout.decode(np.add.reduce([layout.encode({"x": values}) for values in parties]))


@settings(max_examples=200, deadline=None)
@given(LIMITS, st.integers(1, 1000), st.integers(1, 4), st.sampled_from([-1.0, 1.0]), st.booleans())
def test_no_sum_at_its_limit_overflows(limit, parties, words, sign, alone):
    """Equal shares, or all of it at one party."""
    layout = Layout({"x": np.array([limit])}, words)
    share = np.array([sign * limit * (1.0 if alone else 1 / parties * (1 - 2**-50))])
    values = [share] + [share * (not alone)] * (parties - 1)
    count, fields = summed(layout, values)
    assert count == parties
    exact = float(sum(Fraction(float(value[0])) for value in values))
    np.testing.assert_allclose(fields["x"], exact, rtol=5e-16, atol=parties * layout.resolution * limit)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.floats(-1, 1), min_size=1, max_size=50), LIMITS, st.integers(1, 4), st.floats(-20, 0))
def test_the_error_is_at_most_half_a_step_a_party(shares, limit, words, magnitude):
    """Values far below their limit keep an absolute error; with each further word it is 2^46 times smaller."""
    layout = Layout({"x": np.array([limit])}, words)
    values = [np.array([share * limit / len(shares) * 10.0**magnitude]) for share in shares]
    _, fields = summed(layout, values)
    exact = sum(Fraction(float(value[0])) for value in values)
    rounding = len(values) * layout.resolution * limit + abs(float(exact)) * 2**-51
    assert abs(Fraction(float(fields["x"][0])) - exact) <= rounding


def test_values_are_rounded_to_the_nearest_step():
    _, fields = summed(Layout({"x": np.array([2.0**61])}), [np.array([0.75])] * 3)  # a step of 1
    assert fields["x"] == 3.0


def test_the_order_of_the_parties_changes_no_bit():
    rng = np.random.default_rng(0)
    layout = Layout({"x": np.full((3, 4), 100.0)})
    values = [rng.standard_normal((3, 4)) for _ in range(20)]
    assert summed(layout, values)[1]["x"].tobytes() == summed(layout, values[::-1])[1]["x"].tobytes()


def test_fields_keep_their_shapes_and_counts_are_whole():
    layout = Layout({"count": np.array(2.0**40), "sum": np.full(5, 3.0), "block": np.ones((2, 3))}, words=2)
    fields = {"count": np.array(12345), "sum": np.arange(5) / 5, "block": np.eye(2, 3)}
    vector = layout.encode(fields)
    assert vector.shape == (layout.size,)
    assert vector.dtype == np.uint64
    parties, back = layout.decode(vector)
    assert parties == 1
    assert back["count"] == 12345
    for name, values in fields.items():
        np.testing.assert_array_equal(back[name], values)


@pytest.mark.parametrize("value", [1.0 + 1e-15, -1.1, np.nan, np.inf])
def test_a_value_beyond_its_limit_is_refused_without_being_told(value):
    with refused(ValueError, "'x'"):
        Layout({"x": np.ones(2)}).encode({"x": np.array([0.0, value])})


def test_another_shape_is_refused():
    with refused(ValueError, "'x'"):
        Layout({"x": np.ones(2)}).encode({"x": np.zeros(3)})


@settings(max_examples=300, deadline=None)
@given(st.lists(st.integers(-(2**62), 2**62), min_size=1, max_size=4), st.integers(-3, 3))
@example([0, 211139005235020, -676671907300, 38719], -3)
def test_two_floats_hold_what_the_words_do(further, first):
    """The fault: halves rounded down made 2^32 - 1 and -2^32 steps of -1; what followed was rounded off beside them."""
    layout = Layout({"x": np.array(1.0)}, len(further) + 1)
    numbers = [first, *further]
    exponents = (62 - 1 + 46 * word for word in range(len(numbers)))
    terms = [Fraction(number) / 2**exponent for number, exponent in zip(numbers, exponents, strict=True)]
    _, fields = layout.decode_double(np.array([1, *numbers]).view(np.uint64))
    high, low = (Fraction(float(part)) for part in fields["x"])
    assert abs(high + low - sum(terms)) <= max(map(abs, terms)) / 2**100


def test_no_word_overflows():
    """Words that do not open are any: they become numbers, without a warning."""
    layout = Layout({"x": np.array(1.0)}, 2)
    layout.decode_double(np.array([1, 2**63 - 1, -(2**63)]).view(np.uint64))
