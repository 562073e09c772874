"""Sums of integers with a linear tag in a prime field."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpca_flwr.blind.tagged_sums import (
    PRIME,
    combine_elements,
    elements_from_bytes,
    elements_to_bytes,
    linear_tag,
    scaled_integer,
    secret_elements,
    signed_integer,
)

KEY = bytes(range(32))
INTEGERS = st.integers(-(2**500), 2**500)


def test_elements_fill_the_field():
    elements = secret_elements(KEY, 2000)
    assert all(0 <= element < PRIME for element in elements)
    shares = np.array([element / PRIME for element in elements])
    assert abs(shares.mean() - 0.5) < 0.03
    assert abs(shares.var() - 1 / 12) < 0.01


@given(st.lists(INTEGERS, min_size=1, max_size=5), st.lists(INTEGERS, min_size=1, max_size=5))
def test_tags_of_sums_are_sums_of_tags(first, second):
    n = min(len(first), len(second))
    first, second = first[:n], second[:n]
    total = combine_elements(first, second)
    assert linear_tag(KEY, total) == (linear_tag(KEY, first) + linear_tag(KEY, second)) % PRIME
    assert list(map(signed_integer, total)) == [a + b for a, b in zip(first, second, strict=True)]
    assert combine_elements(total, second, -1) == [a % PRIME for a in first]


@pytest.mark.parametrize("change", [1, -1, 2**61 - 1, 2**256, 2**320, PRIME - 1, 2**520])
@pytest.mark.parametrize("place", [0, 2])
def test_a_changed_integer_changes_the_tag(change, place):
    """Also by numbers that a tag over 2^61 - 1, or words of a power of two, would not see."""
    integers = [5, -7, 2**300]
    changed = list(integers)
    changed[place] += change
    assert linear_tag(KEY, changed) != linear_tag(KEY, integers)


def test_every_element_has_one_way_to_be_written():
    elements = [0, 1, PRIME - 1]
    assert elements_from_bytes(elements_to_bytes(elements)) == elements
    for beyond in (PRIME, PRIME + 1, 2**528 - 1):
        with pytest.raises(ValueError, match="prime"):
            elements_from_bytes(elements_to_bytes([beyond]))


@given(st.lists(st.floats(-1e100, 1e100), max_size=6), st.integers(-300, 900))
def test_scaled_integers_are_exact_sums_rounded_once(parts, bits):
    exact = sum(map(Fraction, parts), Fraction(0)) * Fraction(2) ** bits
    assert abs(scaled_integer(parts, bits) - exact) <= Fraction(1, 2)


def test_sums_that_cancel_keep_their_last_digits():
    assert scaled_integer([1e300, 2.0**-900, -1e300], 900) == 1
    assert scaled_integer([math.ulp(0.0)], 900) == 0
