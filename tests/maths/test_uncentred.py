"""Uncentred sums in two float64 numbers, against exact rational arithmetic."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpca_flwr.maths.moments import Head, packed_size
from fedpca_flwr.maths.secure import Layout
from fedpca_flwr.maths.sums import about_mean, mean_products, mean_squares, total_of, two_product, uncentred_head

NUMBERS = st.floats(-1e100, 1e100).filter(lambda x: x == 0 or abs(x) > 1e-100)


def exact(double, i=0):
    return Fraction(float(double[0][i])) + Fraction(float(double[1][i]))


def head(offset=1e8, n=12345):
    rng = np.random.default_rng(0)
    mean = rng.standard_normal(4) + offset
    return Head(n, mean, np.spacing(mean) * rng.uniform(-0.5, 0.5, 4))


@settings(max_examples=200, deadline=None)
@given(NUMBERS, NUMBERS)
def test_a_product_loses_nothing(a, b):
    assert exact(two_product(np.array([a]), np.array([b]))) == Fraction(a) * Fraction(b)


def test_sums_products_and_means_have_thirty_digits():
    h = head()
    means = [Fraction(float(m)) + Fraction(float(r)) for m, r in zip(h.mean, h.remainder, strict=True)]
    products, squares, total = mean_products(h), mean_squares(h), total_of(h)
    for place, (i, j) in enumerate(zip(*np.triu_indices(4), strict=True)):
        true = h.n * means[i] * means[j]
        assert abs(exact(products, place) / true - 1) < Fraction(1, 2**100)
        if i == j:
            assert abs(exact(squares, i) / true - 1) < Fraction(1, 2**100)
    for place, mean in enumerate(means):
        assert abs(exact(total, place) / (h.n * mean) - 1) < Fraction(1, 2**100)
    h = head()
    back = uncentred_head(h.n, total_of(h))
    assert back.n == h.n
    np.testing.assert_array_equal(back.mean + 0.0, h.mean)
    np.testing.assert_allclose(back.remainder, h.remainder, rtol=1e-9, atol=1e-24)


@pytest.mark.parametrize("offset", [0.0, 1e6, 1e12])
def test_one_sum_gives_the_scatter_between_parties_whatever_the_offset(offset):
    """float64 alone would lose every digit at an offset of 1e12."""
    heads = [Head(n, np.array([offset + shift, offset - shift]), np.zeros(2)) for n, shift in ((10, 1.0), (30, -2.0))]
    layout = Layout({"sum": np.full(2, 2.0**90), "products": np.full(packed_size(2), 2.0**140)}, words=3)
    words = np.zeros(layout.size, np.uint64)
    for h in heads:
        sums, products = total_of(h), mean_products(h)
        words += layout.encode_sum([{"sum": sums[i], "products": products[i]} for i in (0, 1)])
    parties, fields = layout.decode_double(words)
    pooled = uncentred_head(40, fields["sum"])
    between = 10 * 30 / 40 * 3.0**2
    assert parties == 2
    np.testing.assert_allclose(pooled.mean, [offset - 1.25, offset + 1.25], rtol=1e-15)
    scatter = about_mean(fields["products"], mean_products(pooled))
    np.testing.assert_allclose(scatter, [between, -between, between], rtol=1e-9)
