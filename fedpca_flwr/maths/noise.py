r"""Whole numbers from the discrete Gaussian distribution, exactly, by the operating system's randomness.

The probability of a whole number x is proportional to :math:`e^{-x^2 / 2 \sigma^2}` (Canonne, Kamath and Steinke 2020,
"The discrete Gaussian for differential privacy"). Only whole numbers are drawn, and nothing is rounded: floats that
hide a sum show it again, since they are not evenly spaced and so few of them can be reached (Mironov 2012).

With a whole :math:`\sigma`, :math:`|x| = k \sigma + j` for whole k and :math:`0 \le j < \sigma`, so that with
:math:`y = j / \sigma`

.. math:: e^{-x^2 / 2 \sigma^2} = e^{-k^2 / 2} \; e^{-k y} \; e^{-y^2 / 2}.

So k is drawn with probability proportional to :math:`e^{-k^2/2}` and j uniformly, and both are kept with the
probability of the other two factors (Karney 2016, "Sampling exactly from the normal distribution", algorithm D). Each
factor is an event of probability :math:`e^{-p}`: ask for events of probability p, p/2, p/3, ... until one does not
happen; it is that of an odd number with probability :math:`e^{-p}` (von Neumann 1951). Events of probability j / sigma
and 1 / i need nothing but uniform whole numbers. How long it takes depends on the numbers.

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

import numpy as np
from numpy.typing import NDArray

from fedpca_flwr.maths.moments import diagonal_positions, packed_size

Source = Callable[[int], bytes]
"""Gives so many random bytes."""

Integers = NDArray[np.int64]
Places = NDArray[np.intp]
Happened = NDArray[np.bool_]
Event = Callable[[int, Places], Happened]
"""Whether an event of probability p / i happens, from i and the places that it is drawn for."""

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
    values, missing = np.zeros(size, np.int64), np.arange(size)
    while missing.size:
        drawn, kept = _proposed(missing.size, deviation, source)
        values[missing[kept]] = drawn[kept]
        missing = missing[~kept]
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


# Inside. Uniform whole numbers, and events that happen with a probability known exactly.


def _proposed(size: int, deviation: int, source: Source) -> tuple[Integers, Happened]:
    """Whole numbers, and which of them are kept."""
    k, j = _half_normal(size, source), _below(deviation, size, source)

    def linear(i: int, at: Places) -> Happened:
        return _ratio(j[at], deviation, source) & _one_in(i, at.size, source)

    def square(i: int, at: Places) -> Happened:
        return _ratio(j[at], deviation, source) & _ratio(j[at], deviation, source) & _one_in(2 * i, at.size, source)

    minus = _one_in(2, size, source)
    kept = ~(minus & (k == 0) & (j == 0))  # there is one zero, not two
    kept &= _several(k, linear)
    kept &= _happens(np.arange(size), square)
    drawn = k * deviation + j
    return np.where(minus, -drawn, drawn), kept


def _half_normal(size: int, source: Source) -> Integers:
    """Whole k >= 0 with probability proportional to :math:`e^{-k^2 / 2}`."""

    def half(i: int, at: Places) -> Happened:
        return _one_in(2 * i, at.size, source)

    values, missing = np.zeros(size, np.int64), np.arange(size)
    while missing.size:
        k, going = np.zeros(missing.size, np.int64), np.arange(missing.size)
        while going.size:  # one more with probability e^(-1/2)
            going = going[_happens(going, half)]
            k[going] += 1
        kept = _several(k * (k - 1), half)
        values[missing[kept]] = k[kept]
        missing = missing[~kept]
    return values


def _several(counts: Integers, event: Event) -> Happened:
    """At each place, whether ``counts`` events of probability :math:`e^{-p}` all happen."""
    all_of, done = np.ones(counts.size, np.bool_), 0
    while (at := np.flatnonzero(all_of & (counts > done))).size:
        all_of[at] = _happens(at, event)
        done += 1
    return all_of


def _happens(places: Places, event: Event) -> Happened:
    """At each of these places, an event of probability :math:`e^{-p}`, 0 <= p <= 1; ``event`` gives those of p / i."""
    odd, going, i = np.ones(places.size, np.bool_), np.arange(places.size), 1
    while going.size:
        going = going[event(i, places[going])]
        odd[going] ^= True
        i += 1
    return odd


def _ratio(part: Integers, whole: int, source: Source) -> Happened:
    """Events of probability ``part / whole``."""
    happened: Happened = _below(whole, part.size, source) < part
    return happened


def _one_in(i: int, size: int, source: Source) -> Happened:
    """Events of probability 1 / i."""
    happened: Happened = _below(i, size, source) == 0
    return happened


def _below(limit: int, size: int, source: Source) -> Integers:
    """Uniform whole numbers from 0 to ``limit`` - 1, shape (size,)."""
    values = np.empty(0, np.uint64)
    fair = np.uint64(2**64 // limit * limit - 1)  # up to it each remainder is equally likely
    while values.size < size:
        words = np.frombuffer(source(8 * (size - values.size)), "<u8")
        values = np.concatenate([values, words[words <= fair] % np.uint64(limit)])
    return values.astype(np.int64)
