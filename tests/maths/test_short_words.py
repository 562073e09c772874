"""Several values in a word of 64 bits: a sum of such words says each sum, or by how much it is off what is known."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpca_flwr.maths.short_words import Short, ShortWords
from tests.refusals import refused, unnamed


def summed(words, shares):
    with np.errstate(over="ignore"):
        return np.add.reduce([words.encode(share, "x") for share in shares])


def signs(rng, size):
    return rng.choice([-1.0, 1.0], size)


@settings(max_examples=100, deadline=None)
@given(st.integers(2, 6), st.integers(1, 200), st.integers(1, 20), st.integers(0, 2**32))
def test_no_sum_at_its_limit_wraps(each, parties, size, seed):
    rng = np.random.default_rng(seed)
    limit = 10.0 ** rng.uniform(-9, 9, size)
    words = ShortWords(limit, Short(each), parties)
    shares = [signs(rng, size) * limit / parties] + [
        limit / parties * rng.uniform(-1, 1, size) for _ in range(parties - 1)
    ]
    assert (np.abs(words.decode(summed(words, shares)) - sum(shares)) <= words.missed * (1 + 1e-9)).all()
    alike = [signs(rng, size) * limit / parties] * parties
    assert (np.abs(words.decode(summed(words, alike)) - sum(alike)) <= words.missed * (1 + 1e-9)).all()


@settings(max_examples=100, deadline=None)
@given(st.integers(2, 5), st.integers(1, 50), st.integers(1, 20), st.integers(0, 2**32))
def test_a_sum_far_larger_than_its_words_is_known_where_its_residual_is_small(each, parties, size, seed):
    rng = np.random.default_rng(seed)
    limit = 10.0 ** rng.uniform(-3, 3, size)
    words = ShortWords(limit, Short(each, residual=True), parties)
    shares = [1e4 * limit * rng.standard_normal(size) for _ in range(parties)]
    near = sum(shares) + limit * signs(rng, size) * rng.choice([0.0, 0.5, 1.0], size)
    assert (np.abs(words.decode(summed(words, shares), near) - sum(shares)) <= words.missed * (1 + 1e-6)).all()


def test_words_say_what_is_rounded_to_and_nothing_of_limit_zero():
    rng = np.random.default_rng(0)
    words = ShortWords(np.full((5, 4), 2.0), Short(4), 1)
    value = rng.uniform(-1, 1, (5, 4))
    assert words.rounded(value).tobytes() == words.decode(words.encode(value, "x")).tobytes()
    assert np.abs(words.rounded(value) - value).max() > 1e-6
    words = ShortWords(np.array([1.0, 0.0, 0.0, 1.0, 1.0]), Short(4), 2)
    assert words.size == 1
    np.testing.assert_allclose(words.decode(summed(words, [np.full(5, 0.25)] * 2)), [0.5, 0, 0, 0.5, 0.5], atol=1e-4)
    with refused(ValueError, 16, 20):
        ShortWords(np.ones(1), Short(16), 20).missed  # noqa: B018


@pytest.mark.parametrize(("how", "value"), [(Short(4), 1.5), (Short(3, residual=True), 1e13)])
def test_a_value_beyond_its_limit_is_refused_by_its_field_alone(how, value):
    words = ShortWords(np.ones(2), how, 3)
    with refused(ValueError, "'x'") as caught:
        words.encode(np.array([0.5, value]), "x")
    assert unnamed(str(caught.value), value) == [value]
