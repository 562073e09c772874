"""Sums whose values share words of 64 bits: a few bits each, and corrections of what they round off.

**Digits.** A party's m values, whole multiples :math:`n_j` of a step that all parties share, travel as one number
:math:`\\sum_j n_j B^j` modulo :math:`2^{64}`, with the largest base for which :math:`B^m \\le 2^{64}`. Such numbers add
up like their digits. So where each digit of the *sum over all parties* is smaller than B / 2 in size, the sum says them
all, the lowest first, however large a party's own digits are. Each party rounds by half a step at most.

**Residuals.** Where the server knows a value near each sum, it subtracts the digits of that value first; only what is
left must be small (modular sums with side information: Davies et al., New bounds for distributed mean estimation and
variance reduction, ICLR 2021; Kairouz, Liu and Steinke, The distributed discrete Gaussian mechanism, ICML 2021).
"""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedpca_flwr.maths.arrays import Array

WORD_BITS = 64
MAX_EXACT_MULTIPLE = 2.0**51
"""Multiples of a step up to which float64 holds halves of it."""


class WordSharing(NamedTuple):
    """How the values of a field share words."""

    values_per_word: int  # values in a word, two or more
    residual: bool = False  # whether the limits are those of the sum less what the server knows


@dataclass(frozen=True)
class ShortWords:
    """The words of one field in the sum of so many ``parties``.

    ``limit`` bounds each entry of the sum, or of what it adds to what the server knows; those of limit 0 do not travel.
    """

    limit: Array
    sharing: WordSharing
    parties: int

    @cached_property
    def base(self) -> int:
        """B, the largest whole number of which this power fits into a word."""
        found = round(2 ** (WORD_BITS / self.sharing.values_per_word))
        return found if found**self.sharing.values_per_word <= 2**WORD_BITS else found - 1

    @cached_property
    def step(self) -> Array:
        """Of which the values are multiples, as the limits; a `ValueError` where the parties' rounding fills a word."""
        room = (self.base - 1) // 2 - (self.parties + 1) / 2
        if room < 1:
            raise ValueError(
                f"{self.sharing.values_per_word} values of {self.parties} parties have no place in a word of 64 bits"
            )
        return self.limit / room

    @cached_property
    def sent_positions(self) -> NDArray[np.intp]:
        """Places of the values that travel."""
        return np.flatnonzero(self.step > 0)

    @property
    def size(self) -> int:
        """Words of the field."""
        return -(-self.sent_positions.size // self.sharing.values_per_word)

    @property
    def error_bound(self) -> Array:
        """Bound on what rounding costs each entry of the sum."""
        return self.parties / 2 * self.step

    def round_value(self, value: Array) -> Array:
        """What a party's ``value`` is in the sum."""
        found = np.zeros(self.limit.size)
        found[self.sent_positions] = self._multiples(value) * self.step.flat[self.sent_positions]
        return found.reshape(self.limit.shape)

    def encode(self, value: Array, name: str) -> NDArray[np.int64]:
        """One party's words (size,); a `ValueError`, which holds no more than the field's ``name``, where a value is
        beyond its limit, or has too many steps for float64."""
        multiples = self._multiples(value)
        max_multiple = MAX_EXACT_MULTIPLE if self.sharing.residual else self.base / 2
        if not (np.abs(multiples) <= max_multiple).all():
            raise ValueError(f"'{name}' is beyond its public limit")
        return self._join_digits(multiples)

    def decode(self, words: NDArray[np.int64], near: Array | None = None) -> Array:
        """The sum of values, from the sum of words modulo 2^64 and what the server knows to be ``near`` it."""
        offset = np.zeros(self.sent_positions.size) if near is None else self._multiples(near)
        remaining, digits, half = (
            words - self._join_digits(offset),
            np.empty((self.size, self.sharing.values_per_word)),
            self.base // 2,
        )
        for i in range(self.sharing.values_per_word):
            digit = (remaining + half) % self.base - half
            digits[:, i] = digit
            remaining = (remaining - digit) // self.base
        total = np.zeros(self.limit.size)
        total[self.sent_positions] = (offset + digits.ravel()[: self.sent_positions.size]) * self.step.flat[
            self.sent_positions
        ]
        return total.reshape(self.limit.shape)

    def _multiples(self, value: Array) -> Array:
        """The whole multiples of the step that are nearest to the values that travel."""
        return np.asarray(np.rint(value.flat[self.sent_positions] / self.step.flat[self.sent_positions]))

    def _join_digits(self, numbers: Array) -> NDArray[np.int64]:
        """Whole numbers as the digits of words, modulo 2^64."""
        padded = np.zeros(self.size * self.sharing.values_per_word, np.int64)
        padded[: numbers.size] = numbers
        digits, words = padded.reshape(-1, self.sharing.values_per_word), np.zeros(self.size, np.int64)
        for i in reversed(range(self.sharing.values_per_word)):  # int64 arrays wrap around
            words = words * self.base + digits[:, i]
        return words
