r"""Sums whose bits do not depend on the order in which the addends come (Demmel and Nguyen 2015).

Each entry has a grid of its own, which the largest addend so far sets: a power of two ``unit``, the same for all
addends of a size. An addend x is taken apart into whole multiples of ``unit``, ``unit 2^-36`` and ``unit 2^-72``; these
are small whole numbers, which add up in float64 without rounding. When a larger addend comes, the grid moves up by
whole steps of 36 bits, and what was below its last word is left out, as it would have been had that addend come first.

So an entry is the sum of its addends, each rounded to ``2^-73`` of the largest at most, and is rounded to float64 once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.moments import two_sum

STEP, WORDS = 36, 3
"""Bits of a word, and words of an entry."""

MOST = 2.0**STEP
"""No addend has more of the first word's unit."""

ADDENDS = 2**16
"""So many at most: float64 holds whole numbers up to 2^53 = 2^36 2^17."""

FINEST = 2.0 ** (-28 * STEP)
"""The unit where all addends are zero so far."""

CHUNK = 2**14
"""Entries that are worked on at once: with all temporary arrays they fit into a core's cache."""


class ReproducibleSum:
    """A running sum of arrays of one shape.

    Parameters
    ----------
    shape : tuple of int
    """

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape = shape
        size = int(np.prod(shape, dtype=np.int64))
        self._unit = np.full(size, FINEST)
        self._words = np.zeros((WORDS, size))
        self._addends = 0

    def add(self, addend: NDArray[Any]) -> None:
        """Add an array of finite numbers.

        Raises
        ------
        ValueError
            Where its shape is another.
        OverflowError
            Where there were `ADDENDS` before.
        """
        if addend.shape != self.shape:
            raise ValueError(f"the array has shape {addend.shape}, expected {self.shape}")
        if self._addends == ADDENDS:
            raise OverflowError(f"no more than {ADDENDS} arrays can be added up")
        self._addends += 1
        flat, between = addend.reshape(-1), np.empty((2, min(CHUNK, addend.size)))
        for start in range(0, flat.size, CHUNK):
            part = slice(start, min(start + CHUNK, flat.size))
            _add(self._unit[part], self._words[:, part], flat[part], *between[:, : part.stop - start])

    def total(self) -> Array:
        """The sum, rounded to float64."""
        total = np.empty(self._unit.size)
        for start in range(0, total.size, CHUNK):
            part = slice(start, start + CHUNK)
            total[part] = _total(self._unit[part], self._words[:, part])
        return total.reshape(self.shape)


def reproducible_sum(addends: Sequence[NDArray[Any]]) -> Array:
    """The same of arrays that are all at hand, with no more memory than its result."""
    total = np.empty(addends[0].shape)
    flat, parts = total.reshape(-1), [addend.reshape(-1) for addend in addends]
    for start in range(0, flat.size, CHUNK):
        part = slice(start, start + CHUNK)
        running = ReproducibleSum(flat[part].shape)
        for addend in parts:
            running.add(addend[part])
        flat[part] = running.total()
    return total


def _add(unit: Array, words: Array, addend: NDArray[Any], left: Array, whole: Array) -> None:
    """Add to ``words`` (3, n) of ``unit`` (n,), both in place; two more arrays (n,) are for what comes between."""
    with np.errstate(over="ignore"):  # beyond float64 is beyond the grid, too
        np.divide(addend, unit, out=left)
    if np.abs(left, out=whole).max() > MOST:
        _raise_grid(unit, words, addend, np.flatnonzero(whole > MOST))
        np.divide(addend, unit, out=left)
    for word in words[:-1]:
        word += np.rint(left, out=whole)
        left -= whole
        left *= MOST
    words[-1] += np.rint(left, out=left)


def _raise_grid(unit: Array, words: Array, addend: NDArray[Any], where: NDArray[np.intp]) -> None:
    """Move the grid of the entries ``where`` up by whole steps, so that it holds their addends."""
    _, above = np.frexp(addend[where].astype(np.float64))
    _, before = np.frexp(unit[where])  # 2^(before - 1)
    after = -(-above // STEP) * STEP - STEP
    steps = (after - (before - 1)) // STEP
    unit[where] = np.ldexp(1.0, after)
    if not words[:, where].any():
        return
    source = np.arange(WORDS)[:, None] - steps
    moved = np.take_along_axis(words[:, where], np.maximum(source, 0), axis=0)
    words[:, where] = np.where(source >= 0, moved, 0.0)


def _total(unit: Array, words: Array) -> Array:
    """The sum that words say: first carried, so that what they say is written in one way only."""
    first, second, third = words
    carried = np.floor(third / MOST)
    third, second = third - carried * MOST, second + carried
    carried = np.floor(second / MOST)
    second, first = second - carried * MOST, first + carried
    high, low = two_sum(first, second / MOST)
    with np.errstate(over="ignore"):
        total: Array = (high + (low + third / MOST**2)) * unit
    return total
