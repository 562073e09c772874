r"""Blocks of people by variants, whose calls become numbers a few variants at a time, where they are multiplied.

A call takes 2 bits in a .bed file and 8 bytes as a float64, so no block is ever decoded as a whole for a product. The
products of standardised calls with a matrix take a few variants of all people of a block, decode them by a table of
all 256 bytes, subtract each variant's mean, and multiply by BLAS. With `w` the divisors of the variants and `G` the
calls less their means, ``Z = G / w`` has ``Z V = G (V / w)`` and ``Z' Y = (G' Y) / w``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.rows import CACHE_ELEMENTS, Block, Blocks, Rows, Transposed, native_chunks, row_chunks
from fedpca_flwr.maths.sums import slices

BLOCK_CALLS = 2**24  # of a block of people: 4 MiB packed, and 64 MiB where they are read as float32
MIN_PEOPLE, MAX_PEOPLE = 64, 2048  # of a block: of more the products leave a processor's cache
COPIES = np.array([2, np.nan, 1, 0])  # of the first allele, by two bits of a .bed file (PLINK's documentation)
# by byte, the calls of its four people: the first person has the lowest two bits
CALLS_OF_BYTE = COPIES[np.arange(256)[:, None] >> np.array([0, 2, 4, 6]) & 3]
# by byte, the byte with the calls of the other allele
SWAPPED_BYTE = np.array(
    [sum({0: 3, 1: 1, 2: 2, 3: 0}[byte >> bit & 3] << bit for bit in (0, 2, 4, 6)) for byte in range(256)], np.uint8
)


class PackedCalls:
    """Calls of m selected `people` at d variants as in a .bed file, four people to a byte of `packed` (d, bytes)."""

    dtype = np.dtype(np.float32)

    def __init__(self, packed: NDArray[np.uint8], people: slice | NDArray[np.intp]) -> None:
        self.packed, self.people = packed, people
        self.shape = len(np.empty(4 * packed.shape[1], np.bool_)[people]), len(packed)

    def __len__(self) -> int:
        """Return the number of people."""
        return self.shape[0]

    def __getitem__(self, chosen: slice | NDArray[Any]) -> PackedCalls:
        """Select people by a slice, by indices or by a bool for each."""
        return PackedCalls(self.packed, np.arange(4 * self.packed.shape[1])[self.people][chosen])

    def select(self, columns: NDArray[np.int64]) -> PackedCalls:
        """Select variants by their indices, in the order of these."""
        return PackedCalls(self.packed[columns], self.people)

    def count_missing(self) -> NDArray[np.int64]:
        """Count the missing calls (d,) of each variant."""
        parts = variant_ranges(self.shape)
        return np.concatenate([np.isnan(self.variants(part)).sum(axis=1) for part in parts])

    def variants(self, part: slice) -> Array:
        """Decode some variants to an array (w, m) of copies of the first allele: 0 to 2, or NaN for a missing call."""
        packed = self.packed[part]
        return np.asarray(CALLS_OF_BYTE.take(packed, axis=0).reshape(len(packed), -1)[:, self.people])

    def toarray(self) -> NDArray[np.float32]:
        """Decode all calls (m, d), as `variants` does."""
        array = np.empty(self.shape, np.float32)
        for part in variant_ranges(self.shape):
            array[:, part] = self.variants(part).T
        return array


def people_per_block(variants: int) -> int:
    """Return the number of people of a block: a multiple of 4, so that no byte of a .bed file is in two blocks."""
    return min(max(MIN_PEOPLE, BLOCK_CALLS // variants), MAX_PEOPLE) // 4 * 4


def people_blocks(rows: Rows) -> Iterator[Block]:
    """Yield genotypes (n, d) in blocks of people (m, d), NaN for a missing call, still packed if the file is."""
    lazy = isinstance(rows, Blocks) and rows.lazy
    return native_chunks(rows) if lazy else row_chunks(rows, people_per_block(rows.shape[1]))


def variant_ranges(shape: tuple[int, int]) -> Iterator[slice]:
    """Yield slices of the variants of a block (people, variants) whose calls stay in a processor's cache."""
    return slices(shape[1], max(1, CACHE_ELEMENTS // max(1, shape[0])))


def read_variants(block: Block, part: slice) -> Array:
    """Read some variants of a block (m, d) to a new array (w, m)."""
    if isinstance(block, PackedCalls):
        return block.variants(part)
    return np.array(block[:, part].T, dtype=np.float64, order="C")


class StandardisedCalls:
    """Calls of a block of people less a centre, divided by a unit, with a constant for a missing call (NaN in `calls`).

    An infinite unit makes a variant zero. Shapes: calls (m, d), centre, unit, missing (d,).
    """

    def __init__(self, calls: Block, centre: Array, unit: Array, missing: Array) -> None:
        self.calls, self.centre, self.unit, self.missing = calls, centre, unit, missing
        self.shape: tuple[int, int] = calls.shape

    def __len__(self) -> int:
        """Return the number of people."""
        return self.shape[0]

    def __getitem__(self, chosen: slice | NDArray[Any]) -> StandardisedCalls:
        """Select people by a slice, by indices or by a bool for each."""
        return StandardisedCalls(self.calls[chosen], self.centre, self.unit, self.missing)

    def less(self, centre: Array, scale: Array | None = None) -> StandardisedCalls:
        """Return the block less a centre (d,), 0 where a variant is zero, divided by a scale (d,), 1 by default."""
        divisor = np.ones_like(self.unit) if scale is None else scale
        shift = np.where(np.isfinite(self.unit), self.unit, 0.0) * centre
        missing = (self.missing - centre) / divisor
        return StandardisedCalls(self.calls, self.centre + shift, self.unit * divisor, missing)

    def parts(self) -> Iterator[tuple[slice, Array]]:
        """Yield a few variants at a time, with their calls (w, m) less the centre, not divided by the unit."""
        missing = np.where(np.isfinite(self.unit), self.unit, 0.0) * self.missing
        for part in variant_ranges(self.shape):
            calls = read_variants(self.calls, part)
            calls -= self.centre[part, None]
            np.copyto(calls, missing[part, None], where=np.isnan(calls))
            yield part, calls

    def __matmul__(self, V: Array) -> Array:
        """Multiply the block (m, d) by a matrix V (d, b)."""
        product = np.zeros((len(self), *V.shape[1:]))
        divided = (V.T / self.unit).T
        for variants, calls in self.parts():
            product += calls.T @ divided[variants]
        return product

    @property
    def T(self) -> Transposed:  # noqa: N802  # an array's name
        """The transpose of the block, for products ``T @ Y``."""
        return Transposed(self)

    def transposed_times(self, Y: Array) -> Array:
        """Multiply the transpose of the block (m, d) by a matrix Y (m, b)."""
        product = np.empty((self.shape[1], *Y.shape[1:]))
        for variants, calls in self.parts():
            np.matmul(calls, Y, out=product[variants])
        return (product.T / self.unit).T

    def mean_and_squares(self) -> tuple[Array, Array, Array]:
        """Compute each variant's mean, in two parts to be added, and its sum of squares about the mean, each (d,)."""
        mean, remainder, squares = np.empty((3, self.shape[1]))
        for variants, calls in self.parts():
            calls /= self.unit[variants, None]
            mean[variants] = calls.mean(axis=1)
            calls -= mean[variants, None]
            remainder[variants] = calls.mean(axis=1)
            calls -= remainder[variants, None]
            squares[variants] = np.einsum("ij,ij->i", calls, calls)
        return mean, remainder, squares

    def squares(self) -> Array:
        """Sum the squares (d,) of the standardised calls of each variant."""
        sums = np.empty(self.shape[1])
        for variants, calls in self.parts():
            sums[variants] = np.einsum("ij,ij->i", calls, calls)
        return sums / self.unit**2

    def rows(self, start: int, stop: int) -> Array:
        """Return the standardised calls (stop - start, d) of the people from `start` to before `stop`."""
        return self[start:stop].toarray()

    def toarray(self) -> Array:
        """Decode and standardise all calls (m, d)."""
        array = np.empty(self.shape)
        for variants, calls in self.parts():
            array[:, variants] = calls.T
        array /= self.unit
        return array
