"""Sums are the same bits in any order, and as exact as float64, or two of them, can say."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpca_flwr.maths import sums as module
from fedpca_flwr.maths.moments import Head, packed_size
from fedpca_flwr.maths.secure import Layout
from fedpca_flwr.maths.sums import ADDENDS, ReproducibleSum, mean_products, reproducible_sum, total_of
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


def test_words_round_the_same_way_far_below_the_error_of_float64_and_what_cancels_leaves_the_rest():
    last, rng = 2.0 ** -(3 * module.STEP), np.random.default_rng(0)
    addends = [np.array([1.0]), *(np.array([sign * part * last]) for sign in (1, -1) for part in (0.5, 1.5, 0.5))]
    assert len({running([addends[i] for i in rng.permutation(len(addends))]).tobytes() for _ in range(40)}) == 1
    addends = [np.ldexp(rng.standard_normal(200), rng.integers(-60, 60, 200)) for _ in range(50)]
    largest, truth = np.abs(addends).max(axis=0), exact(addends)
    assert (np.abs(running(addends) - truth) <= 50 * 2.0**-73 * largest + np.spacing(np.abs(truth))).all()
    for unit in (1e-290, 1.0, 1e300):
        parts = list(unit * np.random.default_rng(1).standard_normal((9, 100)))
        addends = [*parts, *(-part for part in parts[1:]), 1e-9 * parts[0]]
        np.testing.assert_allclose(running(addends), exact(addends), rtol=3e-16)
    # What is below the grid of the largest addend is left out, also where smaller ones came before it.
    for edge in (2.0**module.STEP, 1.5 * 2.0**module.STEP):
        addends = [np.array([value]) for value in (1.0, edge, 2.0**-40, -edge)]
        assert running(addends) == running([addends[i] for i in (1, 0, 2, 3)]) == 1.0


@pytest.mark.engine
def test_arrays_have_any_shape_and_more_than_a_chunk_but_no_other_shape_and_no_more_than_words_hold(monkeypatch):
    for value in (0.0, 5e-324, -1e-310, 1 / 3, -1.7e308):
        np.testing.assert_array_equal(running([np.array([value, 0.0])]), [value, 0.0])
    monkeypatch.setattr(module, "CHUNK", 7)
    addends = list(np.random.default_rng(0).standard_normal((4, 5, 8)))
    np.testing.assert_allclose(running(addends), np.sum(addends, axis=0), rtol=1e-14, atol=1e-15)
    assert running(addends).tobytes() == reproducible_sum(addends).tobytes()
    assert running([np.asarray(3), np.asarray(4)]) == 7  # a count
    values = -np.arange(20.0)
    assert [module.exceeds(values, np.where(values == last, -last, 19.0)) for last in (-19.0, 0.0)] == [False, False]
    assert module.exceeds(values, np.full(20, 18.5))
    # Other shapes and more than words can hold are refused.
    total = ReproducibleSum((2,))
    total.add(np.array([1.0, 2.0]))
    with refused(ValueError, "(3,)", "(2,)"):
        total.add(np.zeros(3))
    np.testing.assert_array_equal(total.total(), [1.0, 2.0])
    total, one = ReproducibleSum((1,)), np.array([2.0**module.STEP])
    for _ in range(ADDENDS):
        total.add(one)
    assert total.total() == ADDENDS * 2.0**module.STEP
    with pytest.raises(OverflowError):
        total.add(one)


# Uncentred sums in two float64 numbers

NUMBERS = st.floats(-1e100, 1e100).filter(lambda x: x == 0 or abs(x) > 1e-100)


def held(double, i=0):
    return Fraction(float(double[0][i])) + Fraction(float(double[1][i]))


@settings(max_examples=100, deadline=None)
@given(NUMBERS, NUMBERS)
def test_a_product_loses_nothing(a, b):
    assert held(module.two_product(np.array([a]), np.array([b]))) == Fraction(a) * Fraction(b)


def test_sums_products_and_means_have_thirty_digits():
    rng = np.random.default_rng(0)
    mean = rng.standard_normal(4) + 1e8
    head = Head(12345, mean, np.spacing(mean) * rng.uniform(-0.5, 0.5, 4))
    means = [Fraction(float(m)) + Fraction(float(r)) for m, r in zip(head.mean, head.remainder, strict=True)]
    products, squares, total = mean_products(head), module.mean_squares(head), total_of(head)
    off = [held(squares, i) / (head.n * mean**2) - 1 for i, mean in enumerate(means)]
    off += [held(total, i) / (head.n * mean) - 1 for i, mean in enumerate(means)]
    for place, (i, j) in enumerate(zip(*np.triu_indices(4), strict=True)):
        off.append(held(products, place) / (head.n * means[i] * means[j]) - 1)
    assert max(map(abs, off)) < Fraction(1, 2**100)
    back = module.uncentred_head(head.n, total)
    assert back.n == head.n
    np.testing.assert_array_equal(back.mean + 0.0, head.mean)
    np.testing.assert_allclose(back.remainder, head.remainder, rtol=1e-9, atol=1e-24)


@pytest.mark.parametrize("offset", [0.0, 1e6, 1e12])
def test_one_sum_gives_the_scatter_between_parties_whatever_the_offset(offset):
    """float64 alone would lose every digit at an offset of 1e12."""
    heads = [Head(n, np.array([offset + shift, offset - shift]), np.zeros(2)) for n, shift in ((10, 1.0), (30, -2.0))]
    layout = Layout({"sum": np.full(2, 2.0**90), "products": np.full(packed_size(2), 2.0**140)}, words=3)
    words = np.zeros(layout.size, np.uint64)
    for head in heads:
        sums, products = total_of(head), mean_products(head)
        words += layout.encode_sum([{"sum": sums[i], "products": products[i]} for i in (0, 1)])
    parties, fields = layout.decode_double(words)
    pooled, between = module.uncentred_head(40, fields["sum"]), 10 * 30 / 40 * 3.0**2
    assert parties == 2
    np.testing.assert_allclose(pooled.mean, [offset - 1.25, offset + 1.25], rtol=1e-15)
    scatter = module.about_mean(fields["products"], mean_products(pooled))
    np.testing.assert_allclose(scatter, [between, -between, between], rtol=1e-9)
