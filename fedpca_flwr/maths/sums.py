r"""Sums over parties: in any order with the same bits, and uncentred without a loss of digits.

**Reproducible sums** (Demmel and Nguyen 2015). Each entry has a grid of its own, which the largest addend so far sets:
a power of two ``unit``, the same for all addends of a size. An addend x is taken apart into integer multiples of
``unit``, ``unit 2^-36`` and ``unit 2^-72``; these are small integers, which add up in float64 without rounding. When a
larger addend comes, the grid moves up by full steps of 36 bits, and digits below its last word are omitted, as they
would have been had that addend come first. So an entry is the sum of its addends, each rounded to ``2^-72`` of the
largest at most, and is rounded to float64 once.

**Pooled moments** of rows that several parties hold (Chan, Golub and LeVeque 1983). Scatters are added as they come,
and only counts and means are stored until all have come, since the scatter between the means needs the mean of all.

**Uncentred sums** let one sum over parties give the scatter about a mean that no party knew. Means of parties do not
add up, and the textbook's :math:`\sum x x^T - N m m^T` cancels: at a mean of 1e6 deviations all digits of float64 are
gone. Here both terms are unevaluated sums of two float64 numbers, ``high + low`` (about 32 digits; Dekker 1971), and
the first is added up exactly in fixed point. A party's rows need no more than float64::

    sum x x^T = S_k + n_k m_k m_k^T,    m_k = mean + remainder as in `fedpca_flwr.maths.moments`

with its centred scatter S_k. Only the second term is large, and it alone is made of two numbers. Nothing at all is
rounded in the diagonal, by which features are scaled and constant ones are found: its parts are those of error-free
products, and the difference is one of fractions.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import blas

from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.moments import (
    Head,
    Moments,
    diagonal_positions,
    empty_packed,
    head_order,
    packed_size,
    pool_heads,
    two_sum,
)

DIGIT_BITS, DIGITS = 36, 3  # bits of a word (an integer stored as float64), and words of each entry
WORD_RATIO = 2.0**DIGIT_BITS  # of the units of two neighbouring words
HALF_WORD = WORD_RATIO / 2  # an addend is below this, in the unit of its first word
MAX_ADDENDS = 2**16  # the largest number of addends: float64 holds whole numbers up to 2^53 = 2^35 2^18
MIN_UNIT = 2.0 ** (-28 * DIGIT_BITS)  # the unit while all addends are zero
CHUNK_SIZE = 2**14  # entries that are worked on at once: with all temporary arrays they fit into a core's cache
QUOTIENT_BITS = 160  # bits after the point of a quotient, of which float64 does not hold so many
STRIPE_ROWS = 16  # rows of a triangle that are worked on at once
Double = tuple[Array, Array]  # A number or array as an unevaluated sum: high + low
ExactNumbers = tuple[NDArray[np.object_], NDArray[np.int32]]  # whole numbers n (d,) and exponents e (d,), for n 2^-e
SPLIT_FACTOR = 2.0**27 + 1  # Dekker's factor, which splits a float64 into two halves of its digits


def slices(size: int, step: int) -> Iterator[slice]:
    """Yield consecutive slices of ``step`` entries, the last with the rest, of an array of ``size`` entries."""
    return map(slice, range(0, size, step), [*range(step, size, step), size])


class ReproducibleSum:
    """A running sum of arrays of equal shape, whose bits do not depend on the order of the addends.

    Each entry is three integers ("words"), in multiples of ``unit``, a power of two, and of 2^-36 and 2^-72 of it.
    """

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape = shape
        size = int(np.prod(shape, dtype=np.int64))
        self._unit = np.full(size, MIN_UNIT)
        self._words = np.zeros((DIGITS, size))
        self._addends = 0

    def add(self, addend: NDArray[Any]) -> None:
        """Add finite numbers; raise ValueError for another shape, OverflowError after `MAX_ADDENDS` arrays."""
        if addend.shape != self.shape:
            raise ValueError(f"the array has shape {addend.shape}, expected {self.shape}")
        if self._addends == MAX_ADDENDS:
            raise OverflowError(f"no more than {MAX_ADDENDS} arrays can be added up")
        self._addends += 1
        flat, between = addend.reshape(-1), np.empty((2, min(CHUNK_SIZE, addend.size)))
        for part in slices(flat.size, CHUNK_SIZE):
            _add(self._unit[part], self._words[:, part], flat[part], *between[:, : part.stop - part.start])

    def total(self) -> Array:
        """Return the running sum, rounded to float64."""
        total = np.empty(self._unit.size)
        for part in slices(total.size, CHUNK_SIZE):
            total[part] = _total(self._unit[part], self._words[:, part])
        return total.reshape(self.shape)


def reproducible_sum(addends: Sequence[NDArray[Any]], out: Array | None = None) -> Array:
    """Sum arrays of one shape with bits that do not depend on their order, with no more memory than the result.

    The sum is written to ``out``, if given. Raise OverflowError for more than `MAX_ADDENDS` arrays.
    """
    total = np.empty(addends[0].shape) if out is None else out
    flat, parts = total.reshape(-1), [addend.reshape(-1) for addend in addends]
    for part in slices(flat.size, CHUNK_SIZE):
        running = ReproducibleSum(flat[part].shape)
        for addend in parts:
            running.add(addend[part])
        flat[part] = running.total()
    return total


def exceeds(values: NDArray[Any], bound: Array) -> bool:
    """Return whether any entry is larger in size than its own limit (NaN is not), with little temporary memory."""
    sizes, limits = values.reshape(-1), bound.reshape(-1)
    return any(bool((np.abs(sizes[part]) > limits[part]).any()) for part in slices(sizes.size, CHUNK_SIZE))


def _add(unit: Array, words: Array, addend: NDArray[Any], remaining: Array, rounded: Array) -> None:
    """Add ``addend`` (n,) to ``words`` (3, n) in grid steps of ``unit`` (n,), in place; the rest is scratch space."""
    with np.errstate(over="ignore"):  # an infinite quotient is beyond the grid, which is then raised
        np.divide(addend, unit, out=remaining)
    if np.abs(remaining, out=rounded).max() >= HALF_WORD:
        _raise_grid(unit, words, addend, np.flatnonzero(rounded >= HALF_WORD))
        np.divide(addend, unit, out=remaining)
    for word in words[:-1]:
        word += np.rint(remaining, out=rounded)
        remaining -= rounded
        remaining *= WORD_RATIO
    words[-1] += np.rint(remaining, out=remaining)


def _raise_grid(unit: Array, words: Array, addend: NDArray[Any], where: NDArray[np.intp]) -> None:
    """Enlarge the unit of the entries ``where`` by powers of 2^36, so that their addends fit; move their words along.

    Words below the last are dropped. An addend's word is at most half a unit of the word above, so that what remains is
    the addend rounded to the remaining words.
    """
    addends, raised = addend[where].astype(np.float64), unit[where] * WORD_RATIO
    with np.errstate(over="ignore"):
        one_step = bool((np.abs(addends) < raised * HALF_WORD).all())
    if one_step:  # the frequent case, which is faster without exponents
        unit[where] = raised
        for upper, lower in ((1, 2), (0, 1)):
            words[lower, where] = words[upper, where]
        words[0, where] = 0.0
        return
    _, above = np.frexp(addends)
    _, before = np.frexp(unit[where])  # 2^(before - 1)
    # the new unit is the least power of 2^36 in which the addend is below 2^35; words move down by the steps it rose
    after = -(-(above - DIGIT_BITS + 1) // DIGIT_BITS) * DIGIT_BITS
    steps = (after - (before - 1)) // DIGIT_BITS
    unit[where] = np.ldexp(1.0, after)
    if not words[:, where].any():
        return
    source = np.arange(DIGITS)[:, None] - steps
    moved = np.take_along_axis(words[:, where], np.maximum(source, 0), axis=0)
    words[:, where] = np.where(source >= 0, moved, 0.0)


def _total(unit: Array, words: Array) -> Array:
    """Round ``words`` (3, n), multiples of ``unit``, to float64 (n,), carried first: equal sums have equal bits."""
    first, second, third = words
    carried = np.floor(third / WORD_RATIO)
    third, second = third - carried * WORD_RATIO, second + carried
    carried = np.floor(second / WORD_RATIO)
    second, first = second - carried * WORD_RATIO, first + carried
    high, low = two_sum(first, second / WORD_RATIO)
    with np.errstate(over="ignore"):
        return np.asarray((high + (low + third / WORD_RATIO**2)) * unit)


class MomentsSum:
    """Running moments of all parties' rows (count, mean, scatter about it), with bits independent of the order."""

    def __init__(self, d: int) -> None:
        self.heads: list[Head] = []
        self._scatter = ReproducibleSum((d * (d + 1) // 2,))

    def add(self, part: Moments) -> None:
        """Add moments of rows; raise ValueError for another number of features, OverflowError after `MAX_ADDENDS`."""
        self._scatter.add(part.scatter)
        self.heads.append(part.head)

    def pooled(self, *, within: bool = False) -> Moments:
        """Return the moments of all rows so far; ``within`` leaves out the scatter between the parts' means."""
        return _pooled(self.heads, self._scatter.total(), within=within)


def pool(parts: Iterable[Moments], *, within: bool = False) -> Moments:
    """Combine count, mean and scatter of several sets of rows into those of all rows, in any order with the same bits.

    With ``within``, the scatter is only the sum of the sets' scatters, without that of the means (as AP-COV takes). It
    can be unpacked in its own memory (`empty_packed`). Raise OverflowError for more than `MAX_ADDENDS` sets.
    """
    parts = list(parts)
    scatter = reproducible_sum([part.scatter for part in parts], out=empty_packed(parts[0].n_features))
    return _pooled([part.head for part in parts], scatter, within=within)


def _pooled(heads: Sequence[Head], scatter: Array, *, within: bool) -> Moments:
    """Return all rows' moments from the parts' counts and means and the sum of their scatters, which is overwritten."""
    ordered = sorted(heads, key=head_order)
    pooled, deviations = pool_heads(ordered)
    if not within:
        for head, deviation in zip(ordered, deviations, strict=True):
            scatter = blas.dspr(deviation.size, float(head.n), deviation, scatter, lower=1, overwrite_ap=1)
    return Moments(*pooled, scatter=scatter)


def two_product(a: Array, b: Array | float) -> Double:
    """Multiply arrays exactly as rounded product p and error e: ``p + e == a * b``, within float64's range (Dekker)."""
    product, (a_high, a_low), (b_high, b_low) = a * b, _halves(a), _halves(b)
    return product, ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low


def _halves(x: Array | float) -> tuple[Any, Any]:
    """Split float64 numbers into two parts of half the digits each, which add up to ``x`` (Dekker 1971)."""
    high = SPLIT_FACTOR * x - (SPLIT_FACTOR * x - x)
    return high, x - high


def uncentred_parts(head: Head) -> tuple[list[Array], list[Array]]:
    """Compute, for n rows of mean m, lists of arrays (d,) that add up exactly to n m, and to n m^2 by feature."""
    n, mean, rest = float(head.n), head.mean, head.remainder
    squares = [*two_product(mean, mean), *two_product(2 * mean, rest), *two_product(rest, rest)]
    sums = [part for value in (mean, rest) for part in two_product(value, n)]
    return sums, [part for value in squares for part in two_product(value, n)]


def shift_head(head: Head, centre: Array) -> Head:
    """Return the count and mean of the same rows after a centre (d,) is subtracted, to twice the digits of float64."""
    mean, lost = two_sum(head.mean, -centre)
    return Head(head.n, *two_sum(mean, lost + head.remainder))


def pooled_head(rows: float, total: ExactNumbers) -> Head:
    """Compute the mean of rows to twice float64's digits from their exact sum, integers n (d,) for n 2^-e."""
    over, under = float(rows).as_integer_ratio()  # rows = over / under, exactly
    mean = np.empty((2, len(total[0])))
    for i, number in enumerate(total[0]):
        first = number * under / over
        rest = (number * under << QUOTIENT_BITS) - int(math.ldexp(first, QUOTIENT_BITS)) * over
        mean[:, i] = first, math.ldexp(rest / over, -QUOTIENT_BITS)
    return Head(rows, *two_sum(*np.ldexp(mean, -total[1])))


def pooled_diagonal(rows: float, total: ExactNumbers, squares: ExactNumbers) -> Array:
    """Compute each feature's sum of squares about the mean (d,) from exact sums about zero, without cancellation.

    It is ``sum x^2 - (sum x)^2 / rows``, for ``rows`` rows or the sum of their weights, in integers.
    """
    over, under = float(rows).as_integer_ratio()  # rows = over / under, exactly
    diagonal, exponents = np.empty(len(total[0])), np.maximum(2 * total[1], squares[1])
    shifts = exponents - squares[1], exponents - 2 * total[1]
    for i, (number, square, finer, coarser) in enumerate(zip(total[0], squares[0], *shifts, strict=True)):
        diagonal[i] = ((square * over << int(finer)) - (number**2 * under << int(coarser))) / over
    return np.ldexp(diagonal, -exponents)


class MeanProducts:
    """The matrix ``n m m'``, for the count n and mean m of rows, computed in stripes where its entries are read.

    Each entry is an unevaluated sum of two float64 numbers: the rounded product, and its rounding error. Attributes
    `high` and `low` are packed triangles (d (d + 1) / 2,) of these, to be read by slices.
    """

    def __init__(self, head: Head) -> None:
        self._mean, self._remainder = head.mean, head.remainder
        total = two_product(head.mean, float(head.n))
        self._total = two_sum(total[0], total[1] + head.n * head.remainder)
        self._halves, self._mean_halves = _halves(self._total[0]), _halves(head.mean)
        self.size = packed_size(head.mean.size)  # number of entries
        self._starts = np.append(diagonal_positions(head.mean.size)[::STRIPE_ROWS], self.size)
        self._stripe_number, self._stripe = -1, np.empty((2, 0))
        self._place, self._block = (0, 0), np.empty((2, 0))  # of the last call
        self.high, self.low = PackedHalf(self, 0), PackedHalf(self, 1)

    def block(self, start: int, stop: int) -> Array:
        """Return entries (2, stop - start), products and rounding errors; cheap if they follow the last call's."""
        if (start, stop) == self._place:
            return self._block
        parts = []
        for number in range(int(np.searchsorted(self._starts, start, side="right")) - 1, self._starts.size - 1):
            first = int(self._starts[number])
            if first >= stop:
                break
            if number != self._stripe_number:
                self._stripe_number, self._stripe = number, self._compute(number * STRIPE_ROWS)
            parts.append(self._stripe[:, max(start - first, 0) : stop - first])
        self._place, self._block = (start, stop), parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)
        return self._block

    def _compute(self, start: int) -> Array:
        """Return the entries (2, m) of `STRIPE_ROWS` rows of the triangle, from row ``start``."""
        stop = min(start + STRIPE_ROWS, self._mean.size)
        (a, b), (c, e) = (half[start:stop, None] for half in self._halves), (half[start:] for half in self._mean_halves)
        high, low = (part[start:stop, None] for part in self._total)
        product = high * self._mean[start:]
        # as in `two_product`; then the terms of the remainders
        error = ((a * c - product) + a * e + b * c) + b * e
        error += high * self._remainder[start:]
        error += low * self._mean[start:]
        entries, position = np.empty((2, packed_size(product.shape[1]) - packed_size(self._mean.size - stop))), 0
        for i in range(stop - start):
            end = position + product.shape[1] - i
            entries[0, position:end], entries[1, position:end] = product[i, i:], error[i, i:]
            position = end
        return entries


class PackedHalf:
    """Rounded products (``row`` 0), or their rounding errors (1), of `MeanProducts`: an array read by slices."""

    dtype = np.dtype(np.float64)

    def __init__(self, products: MeanProducts, row: int) -> None:
        self._products, self._row = products, row
        self.shape = (products.size,)

    def __getitem__(self, part: slice) -> Array:
        """Return consecutive entries."""
        start, stop, _ = part.indices(self.shape[0])
        return np.asarray(self._products.block(start, stop)[self._row])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        """Return all entries as an array."""
        return np.asarray(self[:], dtype=dtype)


def centre_scatter(sums: Double, head: Head) -> Array:
    """Subtract from the sum of products about zero the products of the mean, and return the scatter about the mean.

    ``sums`` is the sum ``high + low`` of ``x x'`` over all rows x, of which ``high`` is overwritten, and ``head`` their
    count and mean. No digits are lost by cancellation.
    Shapes: high, low, packed (d (d + 1) / 2,) -> (d (d + 1) / 2,).
    """
    scatter, products = sums[0], MeanProducts(head)
    for part in slices(scatter.size, CHUNK_SIZE):
        high, low = products.block(part.start, part.stop)
        scatter[part] = (scatter[part] - high) + (sums[1][part] - low)
    return scatter
