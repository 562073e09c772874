r"""Uncentred sums that lose nothing: what lets one sum over parties give the scatter about a mean that nobody knew.

Means of parties do not add up, and the textbook's :math:`\sum x x^T - N m m^T` cancels: at a mean of 1e6 deviations
all digits of float64 are gone. Here both terms are unevaluated sums of two float64 numbers, ``high + low`` (about 32
digits; Dekker 1971), and the first is added up exactly in fixed point. A party's rows need no more than float64::

    sum x x^T = S_k + n_k m_k m_k^T,    m_k = mean + remainder as in `fedpca_flwr.maths.moments`

with its centred scatter S_k. Only the second term is large, and it alone is made of two numbers.
"""

from __future__ import annotations

import numpy as np

from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.moments import Head, packed_size, two_sum

Double = tuple[Array, Array]
"""high + low."""

SPLIT = 2.0**27 + 1


def two_product(a: Array, b: Array | float) -> Double:
    """``p + e == a * b`` exactly, with ``p`` the rounded product (Dekker 1971), within a part of float64's range."""
    product = a * b
    a_high, b_high = (SPLIT * x - (SPLIT * x - x) for x in (a, b))
    a_low, b_low = a - a_high, b - b_high
    return product, ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low


def total_of(head: Head) -> Double:
    """``n m`` (d,): the sum of the rows."""
    high, low = two_product(head.mean, float(head.n))
    return two_sum(high, low + head.n * head.remainder)


def uncentred_head(rows: int, total: Double) -> Head:
    """Count and mean of rows, from their sum."""
    mean = total[0] / rows
    high, low = two_product(mean, float(rows))
    return Head(rows, *two_sum(mean, ((total[0] - high) - low + total[1]) / rows))


def mean_products(head: Head) -> Double:
    """``n m m^T``, a packed triangle (d (d + 1) / 2,)."""
    d, start = head.mean.size, 0
    high, low = np.empty(packed_size(d)), np.empty(packed_size(d))
    for i in range(d):
        end = start + d - i
        high[start:end], low[start:end] = _products(head, head.mean[i], head.remainder[i], slice(i, d))
        start = end
    return high, low


def mean_squares(head: Head) -> Double:
    """The diagonal (d,) of `mean_products`."""
    return _products(head, head.mean, head.remainder, slice(None))


def about_mean(sums: Double, products: Double) -> Array:
    """The scatter about the mean: uncentred ``sums`` less the ``products`` of the mean."""
    return (sums[0] - products[0]) + (sums[1] - products[1])


def _products(head: Head, mean: Array | np.float64, remainder: Array | np.float64, columns: slice) -> Double:
    others, lost = head.mean[columns], head.remainder[columns]
    product, error = two_product(others, mean)
    high, low = two_product(product, float(head.n))
    return two_sum(high, low + head.n * (error + mean * lost + remainder * others))
