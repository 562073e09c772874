"""Rows that are read block by block, in the place of an array that need not fit into memory, and rows less a centre.

Everything here that takes rows takes `Rows`: an array (mapped files too), or `Blocks`, which are read anew in each pass
over them. `chunks` gives either as dense pieces of the same sizes, so a file that is read in blocks gives the same bits
as the array of its rows.

**Rows less a centre** are made where they are dense, and implied where they are sparse (`CentredBlock`). For a CSR
block X (m, d) and a centre c, ``(X - 1c')V = XV - 1(c'V)`` and ``(X - 1c')'Y = X'Y - c(1'Y)`` need no zero of X.
Subtractions like these lose digits where |c| is large beside what is left. Here they cannot: the zeros of a feature are
|c| away from the centre, so where a share z of its entries is zero, at least z m c^2 of what is subtracted remains. A
feature with hardly a zero (`FULL`) is taken out and centred densely, as are counts of depth or ages beside genes.

**Rows that are held out** are a fifth of a party's rows: keyed digests of the rows decide, not where they stand.
"""

from __future__ import annotations

import hashlib
import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from fedpca_flwr.maths.arrays import Array

# elements of a chunk that is not multiplied d by d: 2 MiB as float64, which stays in a processor's cache
CACHE_ELEMENTS = 2**18
# a feature with a larger share of entries that are not zero is centred densely: below it, nine tenths may cancel
DENSE_SHARE = 0.9
CHUNK_ENTRIES = 2**20  # how many entries a chunk of sparse rows has: 12 MiB, and as much again where they are converted
ROW_OVERHEAD = 8  # a row counts as so many entries besides its own
Part = TypeVar("Part")
Result = TypeVar("Result")
Block = Any  # consecutive rows (m, d): an array, or a `scipy.sparse` array in CSR format, without duplicate entries


@dataclass(frozen=True)
class Blocks:
    """Rows (n, d) that are had block by block."""

    # gives all blocks, from the first row on, each time it is called; each block has as many rows as suits it
    read: Callable[[], Iterable[Block]]
    width: int  # d
    dtype: np.dtype[Any]  # that all blocks have: real numbers, or booleans
    sparse: bool = False  # whether the blocks are in CSR format
    count: int | None = None  # n, where it is known before all rows were read
    weights: Array | None = None  # (n,), numbers above 0: a row counts so often in all sums; None: once

    ndim = 2

    @property
    def shape(self) -> tuple[int, int]:
        assert self.count is not None, "rows that were not counted"
        return self.count, self.width

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, chosen: slice | NDArray[np.bool_]) -> Blocks:
        """Those rows that are chosen, by a slice or one bool a row."""
        selected = np.zeros(len(self), dtype=bool)
        selected[chosen] = True

        def read() -> Iterator[Block]:
            start = 0
            for block in self.read():
                indices = np.flatnonzero(selected[start : start + block.shape[0]])
                start += block.shape[0]
                if indices.size:
                    yield block if indices.size == block.shape[0] else block[indices]

        weights = None if self.weights is None else self.weights[selected]
        return replace(self, read=read, count=int(selected.sum()), weights=weights)

    def cut(self, rows: int) -> Iterator[Block]:
        """The same rows in blocks of so many; the last may have fewer."""
        parts: list[Block] = []
        missing = rows
        for block in self.read():
            start = 0
            while start < block.shape[0]:
                parts.append(block[start : start + missing])
                start, missing = start + missing, missing - parts[-1].shape[0]
                if not missing:
                    yield join_blocks(parts)
                    parts, missing = [], rows
        if parts:
            yield join_blocks(parts)


Rows = NDArray[Any] | Blocks


def join_blocks(blocks: list[Block]) -> Block:
    """One block of the rows of several."""
    if len(blocks) == 1:
        return blocks[0]
    return sparse.vstack(blocks, format="csr") if sparse.issparse(blocks[0]) else np.concatenate(blocks)


def chunks(data: Rows, elements: int = CACHE_ELEMENTS) -> Iterator[NDArray[Any]]:
    """Consecutive rows of ``data`` (n, d) as dense arrays, each of about so many elements and at least 64 rows."""
    width = data.width if isinstance(data, Blocks) else data.shape[1]
    yield from row_chunks(data, max(64, elements // max(1, width)))


def row_chunks(data: Rows, rows: int) -> Iterator[NDArray[Any]]:
    """Consecutive rows of ``data`` (n, d) as dense arrays of so many rows; the last may have fewer."""
    if isinstance(data, Blocks):
        yield from map(block_to_array, data.cut(rows))
    else:
        for start in range(0, len(data), rows):
            yield data[start : start + rows]


def in_order(work: Callable[[Part], Result], parts: Iterable[Part], threads: int = 1) -> Iterator[Result]:
    """What ``work`` makes of each part, in the order of the parts; ``threads`` of them are worked on at a time."""
    if threads == 1:
        yield from map(work, parts)
        return
    with ThreadPoolExecutor(threads) as pool:
        waiting: deque[Future[Result]] = deque()
        for part in parts:
            waiting.append(pool.submit(work, part))
            if len(waiting) > threads:  # one more than threads, so that none is idle while a result is taken in
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def weight_rows(data: Rows, weights: Array) -> Blocks:
    """The rows of ``data`` (n, d) whose weight (n,) is not 0, decoded where they are sparse, with these weights."""
    counts = np.asarray(weights, dtype=np.float64)
    decoded = Blocks(lambda: chunks(data), data.shape[1], data.dtype, count=len(data), weights=counts)
    return decoded[counts > 0]


def weighted_count(data: Rows) -> int | float:
    """How many rows there are, or the sum of their weights."""
    weights = row_weights(data)
    return len(data) if weights is None else math.fsum(weights)


def row_weights(data: Rows) -> Array | None:
    """The weights (n,) of rows; None where each counts once."""
    return data.weights if isinstance(data, Blocks) else None


def pair_with_weights(data: Rows, parts: Iterable[Block]) -> Iterator[tuple[Block, Array | None]]:
    """Consecutive ``parts`` of all rows of ``data``, each with its own weights."""
    weights, start = row_weights(data), 0
    for part in parts:
        stop = start + part.shape[0]
        yield part, None if weights is None else weights[start:stop]
        start = stop


def block_to_array(block: Block) -> NDArray[Any]:
    """A block as an array, in the layout of whole rows."""
    return block.toarray() if sparse.issparse(block) else np.ascontiguousarray(block)


def as_blocks(data: Rows, elements: int) -> Blocks:
    """Rows as `Blocks`; those of an array, which is not copied, have about so many elements."""
    if isinstance(data, Blocks):
        return data
    return Blocks(lambda: chunks(data, elements), data.shape[1], data.dtype, count=len(data))


def row_major(array: NDArray[Any]) -> Rows:
    """An array in the layout of whole rows, on which the last bits of sums depend; not copied where it has it already.

    A mapped file that holds columns is not read here: its rows are had block by block.
    """
    if array.ndim != 2 or array.flags.c_contiguous:
        return array
    return select_columns(array, range(array.shape[1])) if is_mapped(array) else np.ascontiguousarray(array)


def is_mapped(array: object) -> bool:
    """Whether an array is a part of a mapped file."""
    while isinstance(array, np.ndarray) and not isinstance(array, np.memmap):
        array = array.base
    return isinstance(array, np.memmap)


def to_array(data: Rows) -> NDArray[Any]:
    """All rows in one array: for what cannot be computed from blocks."""
    if not isinstance(data, Blocks):
        return data
    return np.concatenate([np.empty((0, data.width), data.dtype), *chunks(data)])


def select_columns(data: Rows, chosen: Sequence[int] | NDArray[np.int64]) -> Rows:
    """Some columns of ``data`` (n, d), in the order in which they are ``chosen``; of an array block by block."""
    columns, blocks = np.asarray(chosen, dtype=np.int64), as_blocks(data, CACHE_ELEMENTS)
    return replace(blocks, read=lambda: (_take_columns(block, columns) for block in blocks.read()), width=columns.size)


def _take_columns(block: Block, columns: NDArray[np.int64]) -> Block:
    if not sparse.issparse(block):
        return np.take(block, columns, axis=1)  # in the layout of whole rows
    taken_columns = block[:, columns]
    taken_columns.sort_indices()
    return taken_columns


def sparse_rows(matrix: Any) -> Blocks:
    """The rows (n, d) of a `scipy.sparse` matrix (see `csr`)."""
    rows = to_csr(matrix)
    return Blocks(lambda: [rows], rows.shape[1], rows.dtype, sparse=True, count=rows.shape[0])


def to_csr(matrix: Any) -> Block:
    """A `scipy.sparse` matrix in CSR format, not copied where it is so already and has no duplicate entries.

    A `ValueError` where its indices do not fit its shape.
    """
    if matrix.format in {"bsr", "csc", "csr"}:  # an index beyond the shape would be written beyond an array
        matrix.check_format(full_check=True)
    rows = sparse.csr_array(matrix)
    if not rows.has_canonical_format:
        rows = rows.copy()
        rows.sum_duplicates()
    return rows


def column_sums(data: Rows) -> Array:
    """Sums (d,) of the columns of ``data`` (n, d), of weighted rows their weighted sums."""
    total = np.zeros(data.shape[1])
    if isinstance(data, Blocks) and data.sparse:
        for block in data.read():  # whose own sum is of its dtype, whatever it is asked for
            total += np.bincount(block.indices, weights=block.data, minlength=total.size)
    else:
        for chunk, weights in pair_with_weights(data, chunks(data)):
            total += chunk.sum(axis=0, dtype=np.float64) if weights is None else weights @ chunk
    return total


def max_magnitude(data: Rows) -> float:
    """The largest size of a value of ``data`` (n, d) that is not missing (NaN)."""
    values = (block.data for block in data.read()) if isinstance(data, Blocks) and data.sparse else chunks(data)
    ends = ((extreme.reduce(part, axis=None, initial=0) for extreme in (np.fmin, np.fmax)) for part in values)
    return max((max(-float(low), float(high)) for low, high in ends), default=0.0)


class Transposed:
    """The transpose X' (d, n) of rows X that are no array, as a factor of matrix products."""

    def __init__(self, rows: Any) -> None:
        self.T = rows

    def __matmul__(self, Y: Array) -> Array:
        product: Array = self.T.transposed_times(Y)
        return product


class CentredBlock:
    """``X - 1c'`` for a CSR block X (m, d), divided by a scale (d,): a factor of matrix products, as an array is."""

    dense_columns: NDArray[np.intp]  # (f,), columns with hardly a zero
    dense: Array  # (m, f), these columns, centred
    rest: Any  # (m, d), CSR: the others, not centred, with zeros for these columns
    centre: Array  # (d,), of the others, with zeros for these columns

    def __init__(self, block: Block, centre: Array, scale: Array | None = None) -> None:
        m, d = block.shape
        self.zeros = m - np.bincount(block.indices, minlength=d)
        self.dense_columns = dense_columns = np.flatnonzero(self.zeros < (1 - DENSE_SHARE) * m)
        self.dense = np.empty((m, 0))
        values: Array = block.data.astype(np.float64)
        if dense_columns.size:
            self.dense = block[:, dense_columns].toarray() - centre[dense_columns]
            is_dense = np.zeros(d, dtype=bool)
            is_dense[dense_columns] = True
            values[is_dense[block.indices]] = 0.0
            centre = np.where(is_dense, 0.0, centre)
        if scale is not None:
            values /= scale[block.indices]
            self.dense /= scale[dense_columns]
            centre = centre / scale
        self.centre = centre
        self.rest = sparse.csr_array((values, block.indices, block.indptr), shape=block.shape)

    def __len__(self) -> int:
        rows: int = self.rest.shape[0]
        return rows

    def __matmul__(self, V: Array) -> Array:
        product: Array = self.rest @ V
        product -= self.centre @ V
        product += self.dense @ V[self.dense_columns]
        return product

    @property
    def T(self) -> Transposed:  # noqa: N802  # an array's name
        return Transposed(self)

    def transposed_times(self, Y: Array) -> Array:
        """``(X - 1c')' Y`` (d, b) for ``Y`` (m, b)."""
        product: Array = self.rest.T @ Y
        product -= np.multiply.outer(self.centre, Y.sum(axis=0))
        product[self.dense_columns] = self.dense.T @ Y
        return product

    def rows(self, start: int, stop: int) -> Array:
        """Some of the rows as an array."""
        part: Array = self.rest[start:stop].toarray()
        part -= self.centre
        part[:, self.dense_columns] = self.dense[start:stop]
        return part

    def squares(self) -> Array:
        """Sums of squares (d,) of each column."""
        rest = self.rest
        deviations: Array = rest.data - self.centre[rest.indices]
        deviations *= deviations
        sums = np.bincount(rest.indices, weights=deviations, minlength=rest.shape[1]).astype(np.float64)
        sums += self.zeros * self.centre**2
        sums[self.dense_columns] = np.einsum("ij,ij->j", self.dense, self.dense)
        return sums


def centred_chunks(data: Rows, centre: Array, scale: Array | None = None) -> Iterator[Any]:
    """Chunk by chunk, rows minus a ``centre`` (d,), divided by ``scale`` (d,): arrays, or `CentredBlock`. Weighted rows
    are multiplied by the roots of their weights, so that products of theirs are weighted sums."""
    for chunk, weights in pair_with_weights(data, native_chunks(data)):
        if sparse.issparse(chunk):
            yield CentredBlock(chunk, centre, scale)
        else:
            centred = np.subtract(chunk, centre, dtype=np.float64)
            if scale is not None:
                centred /= scale
            if weights is not None:
                centred *= np.sqrt(weights)[:, None]
            yield centred


def dense_rows(centred: Any) -> Iterator[Array]:
    """What `centred_chunks` gives as arrays, sparse rows few at a time."""
    if not isinstance(centred, CentredBlock):
        yield centred
        return
    m, d = centred.rest.shape
    step = max(1, CHUNK_ENTRIES // d)
    for start in range(0, m, step):
        yield centred.rows(start, start + step)


def chunk_energy(centred: Any) -> float:
    """The sum of the squares of what `centred_chunks` gives."""
    if isinstance(centred, CentredBlock):
        return float(centred.squares().sum())
    return float(np.vdot(centred, centred))


def native_chunks(data: Rows) -> Iterator[Block]:
    """Consecutive rows of ``data`` (n, d) as they are: `chunks`, or `sparse_chunks`."""
    return sparse_chunks(data) if isinstance(data, Blocks) and data.sparse else chunks(data)


def sparse_chunks(data: Blocks, entries: int = CHUNK_ENTRIES) -> Iterator[Block]:
    """The rows of sparse ``data`` in CSR blocks of about so many entries, however they are read."""
    parts: list[Block] = []
    pending_entries = 0
    for block in data.read():
        m = block.shape[0]
        ends: NDArray[np.int64] = block.indptr + ROW_OVERHEAD * np.arange(m + 1)
        start = 0
        while start < m:
            stop = min(m, max(start + 1, int(np.searchsorted(ends, ends[start] + entries - pending_entries))))
            parts.append(block[start:stop])
            pending_entries += int(ends[stop] - ends[start])
            start = stop
            if pending_entries >= entries:
                yield join_blocks(parts)
                parts, pending_entries = [], 0
    if parts:
        yield join_blocks(parts)


def row_lengths(rows: Array) -> Array:
    """The lengths (n,) of rows (n, d), of any size."""
    largest = np.abs(rows).max(axis=1, initial=0.0)
    unit = np.where(largest > 0, largest, 1.0)
    scaled = rows / unit[:, None]
    norms: Array = np.sqrt(np.einsum("ij,ij->i", scaled, scaled)) * unit
    return norms


def validation_rows(rows: Rows, seed: int) -> NDArray[np.bool_]:
    """Which fifth of the rows (n, d) is held out by a seed that everybody may know."""
    return first_fifth(row_digests(rows, str(seed).encode()))


def row_digests(rows: Rows, key: bytes) -> list[bytes]:
    """A keyed digest of each row; ``key`` has at most 64 bytes."""
    return [
        hashlib.blake2b((row + 0.0).tobytes(), key=key, digest_size=16).digest()
        for chunk in chunks(rows)
        for row in chunk
    ]


def first_fifth(row_digests: Sequence[bytes]) -> NDArray[np.bool_]:
    """Which fifth of them, rounded down, comes first."""
    chosen = np.zeros(len(row_digests), dtype=bool)
    chosen[sorted(range(len(row_digests)), key=row_digests.__getitem__)[: len(row_digests) // 5]] = True
    return chosen
