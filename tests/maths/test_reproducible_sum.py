"""Sums are the same bits in any order, and as exact as float64, or two of them, can say."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fedpca_flwr.maths import sums as module
from fedpca_flwr.maths.moments import Head, packed_size
from fedpca_flwr.maths.secure import Layout
from fedpca_flwr.maths.sums import MAX_ADDENDS, MeanProducts, ReproducibleSum, reproducible_sum
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
@example(7, 10952934, 40, True)  # a small addend came first, above half of the last word of the grid that followed
def test_no_order_changes_a_bit(parties, seed, spread, coarse):
    rng = np.random.default_rng(seed)
    numbers = rng.standard_normal((parties, 50))
    if coarse:  # so that halves of the last word come up, whose rounding could depend on what is there already
        numbers = np.round(4 * numbers) / 4
    addends = list(np.ldexp(numbers, rng.integers(-spread, spread + 1, numbers.shape)))
    found = {running([addends[i] for i in rng.permutation(parties)]).tobytes() for _ in range(5)}
    assert found == {reproducible_sum(addends).tobytes()}


def test_words_round_far_below_float64():
    last, rng = 2.0 ** -(3 * module.DIGIT_BITS), np.random.default_rng(0)
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
    for edge in (2.0**module.DIGIT_BITS, 1.5 * 2.0**module.DIGIT_BITS):
        addends = [np.array([value]) for value in (1.0, edge, 2.0**-40, -edge)]
        assert running(addends) == running([addends[i] for i in (1, 0, 2, 3)]) == 1.0


def test_exact_sums_take_any_shape(monkeypatch):
    for value in (0.0, 5e-324, -1e-310, 1 / 3, -1.7e308):
        np.testing.assert_array_equal(running([np.array([value, 0.0])]), [value, 0.0])
    monkeypatch.setattr(module, "CHUNK_SIZE", 7)
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


@pytest.mark.parametrize("most", [2**9, pytest.param(MAX_ADDENDS, marks=pytest.mark.nightly)])
def test_words_hold_as_many_addends_as_are_allowed(most, monkeypatch):
    monkeypatch.setattr(module, "MAX_ADDENDS", most)
    total, one = ReproducibleSum((1,)), np.array([2.0**module.DIGIT_BITS])
    for _ in range(most):
        total.add(one)
    assert total.total() == most * 2.0**module.DIGIT_BITS
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


def whole(numbers, exponent=400):
    """Return exact sums, as fixed point has them."""
    exact = [sum(Fraction(float(part)) for part in parts) * 2**exponent for parts in zip(*numbers, strict=True)]
    assert all(number.denominator == 1 for number in exact)
    return np.array([int(number) for number in exact], object), np.full(len(exact), exponent, np.int32)


def test_products_of_means_have_thirty_digits_and_sums_all():
    rng = np.random.default_rng(0)
    mean = rng.standard_normal(40) + 1e8
    head = Head(12345, mean, np.spacing(mean) * rng.uniform(-0.5, 0.5, 40))
    means = [Fraction(float(m)) + Fraction(float(r)) for m, r in zip(head.mean, head.remainder, strict=True)]
    products, off = np.array(MeanProducts(head).block(0, packed_size(40))), []
    for place, (i, j) in enumerate(zip(*np.triu_indices(40), strict=True)):
        off.append(held(products, place) / (head.n * means[i] * means[j]) - 1)
    assert max(map(abs, off)) < Fraction(1, 2**100)
    totals, squares = map(whole, module.uncentred_parts(head))
    for place, exact in enumerate(means):
        assert Fraction(int(totals[0][place])) / 2**400 == head.n * exact
        assert Fraction(int(squares[0][place])) / 2**400 == head.n * exact**2
    back = module.pooled_head(head.n, totals)
    assert back.n == head.n
    np.testing.assert_array_equal(back.mean, head.mean)
    np.testing.assert_array_equal(back.remainder, head.remainder)


def test_products_of_means_are_the_same_in_blocks_of_any_size():
    head = Head(7, np.random.default_rng(1).standard_normal(50), np.full(50, 1e-20))
    whole_triangle = MeanProducts(head).block(0, packed_size(50))
    products = MeanProducts(head)
    for size in (1, 7, 700, 10_000):
        starts = range(0, packed_size(50), size)
        blocks = [products.block(start, min(start + size, packed_size(50))) for start in starts]
        np.testing.assert_array_equal(np.concatenate(blocks, axis=1), whole_triangle)
    np.testing.assert_array_equal([products.high, products.low], whole_triangle)


@pytest.mark.parametrize("offset", [0.0, 1e6, 1e12])
def test_one_sum_gives_the_scatter_between_parties(offset):
    """float64 alone would lose every digit at an offset of 1e12; a constant has no variance at all."""
    shifts, means = ((10, 1.0), (30, -2.0)), np.array([offset, offset, offset + 0.1])
    heads = [Head(n, means + [shift, -shift, 0.0], np.zeros(3)) for n, shift in shifts]
    layout = Layout({"products": np.full(packed_size(3), 2.0**140)}, words=3)
    words, totals, squares = np.zeros(layout.size, np.uint64), [], []
    for head in heads:
        products = MeanProducts(head)
        words += layout.encode({"products": products.high}, {"products": products.low})
        for every, parts in zip((totals, squares), module.uncentred_parts(head), strict=True):
            every += parts
    pooled, between = module.pooled_head(40, whole(totals)), 10 * 30 / 40 * 3.0**2
    np.testing.assert_allclose(pooled.mean, means + [-1.25, 1.25, 0.0], rtol=1e-15)
    sums, rest = layout.decode(words)
    scatter = module.centre_scatter((sums["products"], rest["products"]), pooled)
    np.testing.assert_allclose(scatter[[0, 1, 3]], [between, -between, between], rtol=1e-9)
    diagonal = module.pooled_diagonal(40, whole(totals), whole(squares))
    np.testing.assert_allclose(diagonal, [between, between, 0.0], rtol=1e-14, atol=0)
