r"""Sums whose values share words of 64 bits, with a few bits for each value, and corrections of the rounding.

**Digits.** A party's m values, whole multiples :math:`n_j` of a step that all parties share, travel as one number
:math:`\sum_j n_j B^j` modulo :math:`2^{64}`, with the largest base for which :math:`B^m \le 2^{64}`. Such numbers add
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
MAX_VALUES_PER_WORD = 16  # of whole numbers
MAX_EXACT_MULTIPLE = 2.0**51  # multiples of a step up to which float64 holds halves of it


class WordSharing(NamedTuple):
    """How many values of a named array ("field") are packed into a 64-bit word, and whether these are residuals."""

    values_per_word: int  # two or more
    residual: bool = False  # limits bound the sum's difference to a value that the server knows, not the sum


def digit_base(values: int) -> int:
    """Return the largest integer B with ``B**m <= 2**64``, for m values in a word, two or more."""
    base = round(2 ** (WORD_BITS / values))
    return base if base**values <= 2**WORD_BITS else base - 1


def max_residual(values: int, parties: int) -> float:
    """Return the largest sum over parties, in steps, that a digit of a word holds beside the parties' roundings."""
    # a sum's digit is at most (B - 1) / 2 in size, of which each party's rounding takes up to half a step
    return (digit_base(values) - 1) // 2 - (parties + 1) / 2


def values_per_word(largest: int, parties: int) -> int:
    """Return how many whole numbers share a word: the most, from 2 to 16, that have room for sums up to a size.

    ``largest`` is the size of a sum over parties, or of its difference to a value that the server knows. The result is
    2 also where a word has no room for two; then `ShortWords` rounds.
    """
    counts = range(MAX_VALUES_PER_WORD, 2, -1)
    return next((values for values in counts if max_residual(values, parties) >= max(largest, 1)), 2)


@dataclass(frozen=True)
class ShortWords:
    """An encoding of an array ("field") in 64-bit words of several fixed-point values, to be summed modulo 2^64."""

    limit: Array  # bound on each entry of the sum (or residual: `WordSharing`); entries of limit 0 are not sent
    sharing: WordSharing
    parties: int  # number of parties in the sum

    @cached_property
    def base(self) -> int:
        """Largest integer B with ``B**m <= 2**64``, for m values in a word."""
        return digit_base(self.sharing.values_per_word)

    @cached_property
    def step(self) -> Array:
        """Rounding step of each value, of the limits' shape. Raise ValueError if the parties' rounding fills digits."""
        room = max_residual(self.sharing.values_per_word, self.parties)
        if room < 1:
            raise ValueError(
                f"{self.sharing.values_per_word} values of {self.parties} parties have no place in a word of 64 bits"
            )
        return self.limit / room

    @cached_property
    def sent_positions(self) -> NDArray[np.intp]:
        """Flat positions of the values that are sent: those with a limit above 0."""
        return np.flatnonzero(self.step > 0)

    @property
    def size(self) -> int:
        """Number of 64-bit words that hold the field's values."""
        return -(-self.sent_positions.size // self.sharing.values_per_word)

    @property
    def error_bound(self) -> Array:
        """Bound on the rounding error of each entry of the sum: half a step for each party."""
        return self.parties / 2 * self.step

    def encode(self, value: Array, name: str) -> NDArray[np.int64]:
        """Round a party's array to multiples of the steps, and pack several values into each 64-bit word.

        Raise ValueError as `step`, or if a value is beyond its limit, or has too many steps for float64; the text has
        the field's ``name`` only.
        Shapes: value of the limits' shape -> (size,).
        """
        multiples = self._multiples(value)
        max_multiple = MAX_EXACT_MULTIPLE if self.sharing.residual else self.base / 2
        if not (np.abs(multiples) <= max_multiple).all():
            raise ValueError(f"'{name}' is beyond its public limit")
        return self._join_digits(multiples)

    def decode(self, words: NDArray[np.int64], near: Array | None = None) -> Array:
        """Unpack the sum of all parties' words (size,) to the sum of their arrays, of the limits' shape.

        ``near`` is known to be near the sum, if the limits bound the difference of the two. Raise as `step`.
        """
        # subtract the digits of ``near``; the rest has digits within B / 2, which are read off from the lowest
        offset = np.zeros(self.sent_positions.size) if near is None else self._multiples(near)
        remaining, half = words - self._join_digits(offset), self.base // 2
        digits = np.empty((self.size, self.sharing.values_per_word))
        for i in range(self.sharing.values_per_word):
            digit = (remaining + half) % self.base - half
            digits[:, i] = digit
            remaining = (remaining - digit) // self.base
        multiples = offset + digits.ravel()[: self.sent_positions.size]
        total = np.zeros(self.limit.size)
        total[self.sent_positions] = multiples * self.step.flat[self.sent_positions]
        return total.reshape(self.limit.shape)

    def _multiples(self, value: Array) -> Array:
        """Return the integer multiples of the step that are nearest to the values that are sent."""
        return np.asarray(np.rint(value.flat[self.sent_positions] / self.step.flat[self.sent_positions]))

    def _join_digits(self, numbers: Array) -> NDArray[np.int64]:
        """Pack integers as digits in base B into words, modulo 2^64: the first number of a word is its lowest digit."""
        padded = np.zeros(self.size * self.sharing.values_per_word, np.int64)
        padded[: numbers.size] = numbers
        digits, words = padded.reshape(-1, self.sharing.values_per_word), np.zeros(self.size, np.int64)
        for i in reversed(range(self.sharing.values_per_word)):  # int64 arrays wrap around
            words = words * self.base + digits[:, i]
        return words
