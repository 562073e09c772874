"""Rows that are read block by block, in the place of an array that need not fit into memory, and rows less a centre.

Functions that take rows take `Rows`: an array (mapped files too), or `Blocks`, which are read anew in each pass over
them. `chunks` gives either as dense pieces of the same sizes, so a file that is read in blocks gives the same bits as
the array of its rows.

**Rows less a centre** are made if they are dense, and implied if they are sparse (`CentredBlock`). For a CSR block X
(m, d) and a centre c, ``(X - 1c')V = XV - 1(c'V)`` and ``(X - 1c')'Y = X'Y - c(1'Y)`` need no zero of X. Subtractions
like these lose digits if |c| is large beside the result. Here they cannot: the zeros of a feature are |c| away from the
centre, so if a share z of its entries is zero, at least z m c^2 of the subtracted number remains. A feature with hardly
a zero (`DENSE_SHARE`) is taken out and centred densely, as are counts of depth or ages beside genes.

**Validation rows** are a fifth of a party's rows: keyed digests of the rows decide, not their position.
"""

from __future__ import annotations

import hashlib
import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.description import represent_by_shapes

CACHE_ELEMENTS = 2**18  # of a chunk that is not multiplied d by d: 2 MiB as float64 stay in a processor's cache
# a feature with a larger share of nonzero entries is centred densely; below it, at least a tenth of the subtracted
# squares remains
DENSE_SHARE = 0.9
CHUNK_ENTRIES = 2**20  # how many entries a chunk of sparse rows has: 12 MiB, and as much again where they are converted
MIN_SQUARE = 2.0**-900  # a sum of squares above this has lost nothing by underflow
ROW_OVERHEAD = 8  # the cost of each sparse row, in entries, beside its own entries
Part = TypeVar("Part")
Result = TypeVar("Result")
# consecutive rows (m, d): an array, a `scipy.sparse` array in CSR format, without duplicate entries, or of `lazy` rows
# an object of `fedpca_flwr.genetics.calls`
Block = Any


@represent_by_shapes
@dataclass(frozen=True)
class Blocks:
    """Rows (n, d) that are read block by block, anew in each pass, in place of an array that need not fit memory."""

    read: Callable[[], Iterable[Block]]  # all blocks (m, d) of consecutive rows, from the first row on, of any sizes
    width: int  # number of columns d
    dtype: np.dtype[Any]  # of all blocks: real numbers, or booleans
    sparse: bool = False  # whether the blocks are in CSR format
    count: int | None = None  # number of rows n, if it is known before all rows were read
    weights: Array | None = None  # (n,), above 0: weight of each row in all sums; None for 1
    lazy: bool = False  # blocks are packed, and decode themselves in products (`fedpca_flwr.genetics.calls`)

    ndim = 2

    @property
    def shape(self) -> tuple[int, int]:
        """Number of rows, which must be known, and of columns."""
        assert self.count is not None, "rows that were not counted"
        return self.count, self.width

    def __len__(self) -> int:
        """Return the number of rows."""
        return self.shape[0]

    def __getitem__(self, chosen: slice | NDArray[np.bool_]) -> Blocks:
        """Select rows by a slice or by a bool for each row; they are read lazily, block by block."""
        selected = np.zeros(len(self), dtype=bool)
        selected[chosen] = True

        def read() -> Iterator[Block]:
            """Yield the selected rows of each block that has any."""
            start = 0
            for block in self.read():
                indices = np.flatnonzero(selected[start : start + block.shape[0]])
                start += block.shape[0]
                if indices.size:
                    yield block if indices.size == block.shape[0] else block[indices]

        weights = None if self.weights is None else self.weights[selected]
        return replace(self, read=read, count=int(selected.sum()), weights=weights)

    def cut(self, rows: int) -> Iterator[Block]:
        """Read the rows in blocks of equally many rows (the last with the rest), split and joined from the source's."""
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
    """Stack blocks of rows, all CSR or none, to a single block."""
    if len(blocks) == 1:
        return blocks[0]
    if sparse.issparse(blocks[0]):
        return sparse.vstack(blocks, format="csr")
    return np.concatenate([block_to_array(block) for block in blocks])


def chunks(data: Rows, elements: int = CACHE_ELEMENTS) -> Iterator[NDArray[Any]]:
    """Read rows as dense arrays (m, d) of consecutive rows, with about ``elements`` values, but at least 64 rows."""
    width = data.width if isinstance(data, Blocks) else data.shape[1]
    return row_chunks(data, max(64, elements // max(1, width)))


def row_chunks(data: Rows, rows: int) -> Iterator[NDArray[Any]]:
    """Read rows as dense arrays (rows, d) of equally many consecutive rows; the last may have fewer."""
    if isinstance(data, Blocks):
        yield from map(block_to_array, data.cut(rows))
    else:
        for start in range(0, len(data), rows):
            yield data[start : start + rows]


def in_order(work: Callable[[Part], Result], parts: Iterable[Part], threads: int = 1) -> Iterator[Result]:
    """Apply a function to each item, in several threads, and iterate over the results in the items' order."""
    return map(work, parts) if threads == 1 else _in_threads(work, parts, threads)


def _in_threads(work: Callable[[Part], Result], parts: Iterable[Part], threads: int) -> Iterator[Result]:
    """Yield the results of `in_order`."""
    with ThreadPoolExecutor(threads) as pool:
        waiting: deque[Future[Result]] = deque()
        for part in parts:
            waiting.append(pool.submit(work, part))
            if len(waiting) > threads:  # one more task than threads, so that no thread idles while the caller works
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def weight_rows(data: Rows, weights: Array) -> Blocks:
    """Attach weights (n,), at least 0, to rows (n, d); rows of weight 0 are left out, and sparse rows become dense."""
    counts = np.asarray(weights, dtype=np.float64)
    return Blocks(lambda: chunks(data), data.shape[1], data.dtype, count=len(data), weights=counts)[counts > 0]


def weighted_count(data: Rows) -> int | float:
    """Count the rows (int), or sum their weights if they have any (float)."""
    weights = row_weights(data)
    return len(data) if weights is None else math.fsum(weights)


def row_weights(data: Rows) -> Array | None:
    """Return the weights (n,) of rows, or None if each row counts once."""
    return data.weights if isinstance(data, Blocks) else None


def pair_with_weights(data: Rows, parts: Iterable[Block]) -> Iterator[tuple[Block, Array | None]]:
    """Pair each block (``parts`` are all rows) with the weights of its rows, or with None if each row counts once."""
    weights, start = row_weights(data), 0
    for part in parts:
        stop = start + part.shape[0]
        yield part, None if weights is None else weights[start:stop]
        start = stop


def block_to_array(block: Block) -> NDArray[Any]:
    """Return a block of rows, dense, CSR or packed, as a dense array in row-major layout."""
    return np.ascontiguousarray(block if isinstance(block, np.ndarray) else block.toarray())


def as_blocks(data: Rows, elements: int) -> Blocks:
    """Return rows as `Blocks`, unless they are; an array is not copied, its blocks have about ``elements`` values."""
    if isinstance(data, Blocks):
        return data
    return Blocks(lambda: chunks(data, elements), data.shape[1], data.dtype, count=len(data))


def row_major(array: NDArray[Any]) -> Rows:
    """Return an array in row-major layout, on which the last bits of sums depend; a mapped file is read by blocks."""
    if array.ndim != 2 or array.flags.c_contiguous:
        return array
    return select_columns(array, range(array.shape[1])) if is_mapped(array) else np.ascontiguousarray(array)


def is_mapped(array: object) -> bool:
    """Return whether an array is a memory-mapped file or a view of such a file."""
    while isinstance(array, np.ndarray) and not isinstance(array, np.memmap):
        array = array.base
    return isinstance(array, np.memmap)


def to_array(data: Rows) -> NDArray[Any]:
    """Read all rows into an array (n, d), for computations that cannot work on blocks; an array stays as it is."""
    if not isinstance(data, Blocks):
        return data
    return np.concatenate([np.empty((0, data.width), data.dtype), *chunks(data)])


def select_columns(data: Rows, chosen: Sequence[int] | NDArray[np.int64]) -> Rows:
    """Select columns of rows by index, in the order of the indices, lazily: as `Blocks` that select them when read."""
    columns, blocks = np.asarray(chosen, dtype=np.int64), as_blocks(data, CACHE_ELEMENTS)
    return replace(blocks, read=lambda: (_take_columns(block, columns) for block in blocks.read()), width=columns.size)


def _take_columns(block: Block, columns: NDArray[np.int64]) -> Block:
    """Select columns of a block of rows, dense, CSR or packed, in the given order."""
    if isinstance(block, np.ndarray):
        return np.take(block, columns, axis=1)  # in the layout of whole rows
    if not sparse.issparse(block):
        return block.select(columns)
    taken_columns = block[:, columns]
    taken_columns.sort_indices()
    return taken_columns


def sparse_rows(matrix: Any) -> Blocks:
    """Return the rows of a `scipy.sparse` matrix as `Blocks` of one CSR block; raise ValueError like `to_csr`."""
    rows = to_csr(matrix)
    return Blocks(lambda: [rows], rows.shape[1], rows.dtype, sparse=True, count=rows.shape[0])


def to_csr(matrix: Any) -> Block:
    """Return a `scipy.sparse` matrix as CSR without duplicates, or raise ValueError if indices do not fit its shape."""
    if matrix.format in {"bsr", "csc", "csr"}:  # an index beyond the shape would be written beyond an array
        matrix.check_format(full_check=True)
    rows = sparse.csr_array(matrix)
    if not rows.has_canonical_format:
        rows = rows.copy()
        rows.sum_duplicates()
    return rows


def column_sums(data: Rows) -> Array:
    """Sum each column of rows (n, d), weighted if the rows have weights."""
    total = np.zeros(data.shape[1])
    if isinstance(data, Blocks) and data.sparse:
        for block in data.read():  # whose own sum is of its dtype, whatever it is asked for
            total += np.bincount(block.indices, weights=block.data, minlength=total.size)
    else:
        for chunk, weights in pair_with_weights(data, chunks(data)):
            total += chunk.sum(axis=0, dtype=np.float64) if weights is None else weights @ chunk
    return total


def max_magnitude(data: Rows) -> float:
    """Find the largest absolute value among all entries of rows, without missing ones (NaN); 0 if there are none."""
    values = (block.data for block in data.read()) if isinstance(data, Blocks) and data.sparse else chunks(data)
    ends = ((extreme.reduce(part, axis=None, initial=0) for extreme in (np.fmin, np.fmax)) for part in values)
    return max((max(-float(low), float(high)) for low, high in ends), default=0.0)


class Transposed:
    """The transpose X' (d, n) of rows X (n, d) that are not stored as an array, for products ``X' @ Y``."""

    def __init__(self, rows: Any) -> None:
        self.T = rows

    def __matmul__(self, Y: Array) -> Array:
        """Multiply the transposed rows by a matrix: ``X' Y``."""
        return np.asarray(self.T.transposed_times(Y))


class CentredBlock:
    """Sparse rows less a centre, divided by a scale, for products with matrices: ``X - 1c'`` for a CSR block X (m, d).

    The centre c and the scale, by default 1, are of shape (d,). Attributes: `dense_columns` (f,) are the columns with
    hardly a zero; `dense` (m, f) are these columns, centred; `rest` (m, d) is the CSR array of the others, not centred,
    with zeros for the dense columns; `centre` (d,) is the centre of the others, with zeros for the dense columns.
    """

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

    @property
    def shape(self) -> tuple[int, int]:
        """Number of rows and of columns."""
        return self.rest.shape[0], self.rest.shape[1]

    def __len__(self) -> int:
        """Return the number of rows."""
        return self.shape[0]

    def __matmul__(self, V: Array) -> Array:
        """Multiply the centred and scaled rows by a matrix V (d, b): ``(X - 1c') V``, without a dense copy of X."""
        product: Array = self.rest @ V
        product -= self.centre @ V
        product += self.dense @ V[self.dense_columns]
        return product

    @property
    def T(self) -> Transposed:  # noqa: N802  # an array's name
        """The transpose of the centred rows, for products ``T @ Y``."""
        return Transposed(self)

    def transposed_times(self, Y: Array) -> Array:
        """Multiply the transpose of the centred and scaled rows by a matrix Y (m, b): ``(X - 1c')' Y``."""
        product: Array = self.rest.T @ Y
        product -= np.multiply.outer(self.centre, Y.sum(axis=0))
        product[self.dense_columns] = self.dense.T @ Y
        return product

    def rows(self, start: int, stop: int) -> Array:
        """Return the centred and scaled rows from ``start`` to before ``stop`` as a dense array (stop - start, d)."""
        part: Array = self.rest[start:stop].toarray()
        part -= self.centre
        part[:, self.dense_columns] = self.dense[start:stop]
        return part

    def squares(self) -> Array:
        """Sum the squares of the centred and scaled rows for each column (d,)."""
        rest = self.rest
        # a stored entry x contributes (x - c)^2, and each zero of its column c^2
        deviations: Array = rest.data - self.centre[rest.indices]
        deviations *= deviations
        sums = np.bincount(rest.indices, weights=deviations, minlength=rest.shape[1]).astype(np.float64)
        sums += self.zeros * self.centre**2
        sums[self.dense_columns] = np.einsum("ij,ij->j", self.dense, self.dense)
        return sums


def centred_chunks(data: Rows, centre: Array, scale: Array | None = None) -> Iterator[Any]:
    """Read rows in blocks (dense, sparse or packed), less a centre (d,), divided by a scale (d,).

    They are multiplied by the roots of their weights: products ``X' X`` are weighted sums.
    """
    for chunk, weights in pair_with_weights(data, native_chunks(data)):
        if sparse.issparse(chunk):
            yield CentredBlock(chunk, centre, scale)
        elif not isinstance(chunk, np.ndarray):
            yield chunk.less(centre, scale)
        else:
            centred = np.subtract(chunk, centre, dtype=np.float64)
            if scale is not None:
                centred /= scale
            if weights is not None:
                centred *= np.sqrt(weights)[:, None]
            yield centred


def dense_rows(centred: Any) -> Iterator[Array]:
    """Read a block (n, d) of centred rows as dense arrays, of about `CHUNK_ENTRIES` values unless it is dense."""
    if isinstance(centred, np.ndarray):
        yield centred
        return
    m, d = centred.shape
    step = max(1, CHUNK_ENTRIES // d)
    for start in range(0, m, step):
        yield centred.rows(start, start + step)


def chunk_energy(centred: Any) -> float:
    """Sum the squares of all entries of a block of centred rows, dense, sparse or packed."""
    return float(np.vdot(centred, centred) if isinstance(centred, np.ndarray) else centred.squares().sum())


def native_chunks(data: Rows) -> Iterator[Block]:
    """Read consecutive rows in blocks: dense arrays of about equal size, CSR blocks of sparse rows, or packed ones."""
    if isinstance(data, Blocks) and data.lazy:
        return iter(data.read())
    return sparse_chunks(data) if isinstance(data, Blocks) and data.sparse else chunks(data)


def sparse_chunks(data: Blocks, entries: int = CHUNK_ENTRIES) -> Iterator[Block]:
    """Read sparse rows in CSR blocks of about equally many entries, with `ROW_OVERHEAD` more for each row."""
    parts: list[Block] = []
    pending_entries = 0
    for block in data.read():
        m = block.shape[0]
        # cumulative cost of the rows, in entries
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
    """Compute the Euclidean length of each of the rows (n, d), without overflow or underflow of the squares."""
    with np.errstate(over="ignore", under="ignore"):
        squares = np.einsum("ij,ij->i", rows, rows)
    extreme = ~((squares > MIN_SQUARE) & (squares < np.inf))
    largest = np.abs(rows[extreme]).max(axis=1, initial=0.0)
    unit = np.where(largest > 0, largest, 1.0)
    scaled = rows[extreme] / unit[:, None]
    lengths: Array = np.sqrt(squares)
    lengths[extreme] = np.sqrt(np.einsum("ij,ij->i", scaled, scaled)) * unit
    return lengths


def validation_rows(rows: Rows, seed: int) -> NDArray[np.bool_]:
    """Choose the fifth of the rows held out for validation, as a mask (n,): the smallest digests keyed by a seed."""
    return first_fifth(row_digests(rows, str(seed).encode()))


def row_digests(rows: Rows, key: bytes) -> list[bytes]:
    """Compute a BLAKE2b digest (16 bytes) of each row's bytes, -0.0 as 0.0; ValueError for a key of over 64 bytes.

    A power of two as unit changes no digest: the table's largest exponent is taken out of all rows.
    """
    exponent = np.frexp(max_magnitude(rows))[1]
    scaled_rows = (np.ldexp(row + 0.0, -exponent) for row in chain.from_iterable(chunks(rows)))
    return [hashlib.blake2b(row.tobytes(), key=key, digest_size=16).digest() for row in scaled_rows]


def first_fifth(row_digests: Sequence[bytes]) -> NDArray[np.bool_]:
    """Choose the fifth of the rows, rounded down, whose digests come first in byte order, as a mask (n,)."""
    chosen = np.zeros(len(row_digests), dtype=bool)
    chosen[sorted(range(len(row_digests)), key=row_digests.__getitem__)[: len(row_digests) // 5]] = True
    return chosen
