r"""Whole numbers from the discrete Gaussian distribution, exactly, by the operating system's randomness.

The probability of a whole number x is proportional to :math:`e^{-x^2 / 2 \sigma^2}` (Canonne, Kamath and Steinke 2020,
"The discrete Gaussian for differential privacy"). Only whole numbers are drawn, and nothing is rounded: floats that
hide a sum show it again, since they are not evenly spaced and so few of them can be reached (Mironov 2012).

With a whole :math:`\sigma`, :math:`|x| = k \sigma + j` for whole k and :math:`0 \le j < \sigma`. So a sign, k with
probability :math:`2^{-k-1}` (how often a coin falls on one side) and a uniform j are drawn, and kept with probability

.. math:: p = 2^{k-1} e^{(1 - (k + j / \sigma)^2) / 2} \le 1

(von Neumann's rejection; every second one is kept): where a uniform number below 1, of which 53 bits are drawn, is
below p. Floats know p to `UNSURE`, by far. Where that does not decide it, as many more bits of both are taken as do:
no rounding ever decides (a floating-point filter, as Shewchuk 1997 has them for geometry).

**Privacy.** Whole numbers plus this noise are as private as plus continuous normal noise of variance
:math:`\sigma^2 - 4`. From the latter one gets the former: draw a whole number x about each value y with probability
proportional to :math:`e^{-(x - y)^2 / 8}`. The sum of these weights over all x depends on y by a factor within
:math:`1 \pm 10^{-33}` (Poisson's summation: :math:`2 e^{-8 \pi^2}`), and so the result differs from the discrete
Gaussian by no more (Peikert 2010, "An efficient and parallel Gaussian sampler for lattices", theorem 3.1). What is
done with private numbers costs no privacy, so the accounting of continuous noise holds, in any dimension and without
another delta. For the same reason the sum of several parties' shares is one draw of the summed variance, up to such
factors (Kairouz, Liu and Steinke 2021, "The distributed discrete Gaussian mechanism").
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from fedpca_flwr.maths.moments import diagonal_positions, packed_size

Source = Callable[[int], bytes]
"""Gives so many random bytes."""

Integers = NDArray[np.int64]
Kept = NDArray[np.bool_]

BLOCK, SPARE = 2**14, 16
"""Numbers that are proposed at once, at most (a processor's cache holds what they need), and more than twice as many as
are missing, at least."""

COINS = 10
"""Coins that one random word has beside a sign and 53 bits."""

HEADS = np.array([COINS, *((i & -i).bit_length() - 1 for i in range(1, 2**COINS))])
"""By the bits of so many coins, how many come before the first that is 1."""

UNSURE = 2.0**-45
"""A probability of at most 1 is computed to this in float64: a hundred times what its rounding errors add up to."""

ROUNDING = 8
"""Variance by which whole noise is larger than continuous noise that protects as well; half of it is needed, so that
it suffices for entries that have half the variance too."""

LARGEST = 2**39
"""Standard deviation up to which the noise of 2^16 parties adds up in a word of 64 bits."""


def system() -> Source:
    """The operating system's randomness."""
    return os.urandom


def fixed(*seed: int) -> Source:
    """The same bytes for the same seed: not private."""
    return np.random.default_rng(seed).bytes


def whole_deviation(deviation: float) -> int:
    """The standard deviation of whole noise that protects whole numbers as continuous noise of ``deviation`` does."""
    return math.isqrt(math.ceil(deviation) ** 2 + ROUNDING) + 1


def gaussian(size: int, deviation: int, source: Source) -> Integers:
    """Independent whole numbers from the discrete Gaussian distribution, shape (size,).

    Parameters
    ----------
    size : int
    deviation : int
        1 to `LARGEST`: the :math:`\\sigma` above, of which the standard deviation is at most, and from 3 on nearly,
        this.
    source : callable

    Raises
    ------
    ValueError
    """
    if not 1 <= deviation <= LARGEST:
        raise ValueError(f"the deviation of whole noise is {deviation}, expected 1 to {LARGEST}")
    values, found = np.empty(size, np.int64), 0
    while found < size:
        drawn, kept = _proposed(min(2 * (size - found) + SPARE, BLOCK), deviation, source)
        new = drawn[kept][: size - found]
        values[found : found + new.size] = new
        found += new.size
    return values


def symmetric(d: int, deviation: int, source: Source) -> Integers:
    """Packed triangle (d (d + 1) / 2,) of whole noise for the sum of products of whole rows.

    ``deviation`` on the diagonal, and its part of :math:`\\sqrt{1/2}`, rounded up, off it, where each value stands for
    two entries: the noise of the Gaussian mechanism for the Frobenius norm.
    """
    on = diagonal_positions(d)
    noise = gaussian(packed_size(d), math.isqrt(deviation**2 // 2) + 1, source)
    noise[on] = gaussian(d, deviation, source)
    return noise


# Inside


def _proposed(size: int, deviation: int, source: Source) -> tuple[Integers, Kept]:
    """Whole numbers, and which of them are kept."""
    words = np.frombuffer(source(8 * size), "<u8")
    minus, k = (words & np.uint64(1)).astype(np.bool_), HEADS[(words >> np.uint64(1)) & np.uint64(2**COINS - 1)]
    further = np.flatnonzero(k == COINS)
    while further.size:
        k[further] += (more := HEADS[_below(2**COINS, further.size, source)])
        further = further[more == COINS]
    drawn = k * deviation + _below(deviation, size, source)
    kept = _kept(words >> np.uint64(1 + COINS), k, drawn, deviation, source)
    kept &= ~(minus & (drawn == 0))  # there is one zero, not two
    return np.where(minus, -drawn, drawn), kept


def _kept(bits: NDArray[np.uint64], k: Integers, sizes: Integers, deviation: int, source: Source) -> Kept:
    """Where uniform numbers, whose first 53 bits are given, are below the probabilities with which sizes are kept."""
    above = np.ldexp(np.exp((1 - (sizes / deviation) ** 2) / 2), k - 1) - bits * 2.0**-53
    below: Kept = above > 0
    for i in np.flatnonzero(np.abs(above) <= UNSURE):
        below[i] = _exactly_kept(int(bits[i]), int(sizes[i]), deviation, source)
    return below


def _exactly_kept(drawn: int, size: int, deviation: int, source: Source) -> bool:
    """The same for one number, by as many digits as it takes."""
    bits = 53
    while True:
        with localcontext(prec=bits):
            power = Decimal(deviation**2 - size**2) / (2 * deviation**2)
            probability = Fraction(power.exp()) * Fraction(2) ** (size // deviation - 1)
        error = Fraction(1, 10 ** (bits // 2))  # rounding makes a relative one of (2 + |power|) 10^(1 - bits)
        if Fraction(drawn + 1, 2**bits) <= probability - error:
            return True
        if Fraction(drawn, 2**bits) >= probability + error:
            return False
        drawn, bits = drawn << 64 | int.from_bytes(source(8), "little"), bits + 64


def _below(limit: int, size: int, source: Source) -> Integers:
    """Uniform whole numbers from 0 to ``limit`` - 1, shape (size,)."""
    values = np.empty(0, np.uint64)
    fair = np.uint64(2**64 // limit * limit - 1)  # up to it each remainder is equally likely
    while values.size < size:
        words = np.frombuffer(source(8 * (size - values.size)), "<u8")
        values = np.concatenate([values, words[words <= fair] % np.uint64(limit)])
    return values.astype(np.int64)
