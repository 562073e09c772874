r"""Rows that are read block by block, in the place of an array that need not fit into memory.

Everything here that takes rows takes `Rows`: an array (mapped files too), or `Blocks`, which are read anew in each pass
over them. `chunks` gives either as dense pieces of the same sizes, so a file that is read in blocks gives the same bits
as the array of its rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from fedpca_flwr.maths.arrays import Array

CACHE_ELEMENTS = 2**18
"""Elements of a chunk that is not multiplied d by d: 2 MiB as float64, which stays in a processor's cache."""

Block = Any
"""Consecutive rows (m, d): an array, or a `scipy.sparse` array in CSR format, without duplicate entries."""


@dataclass(frozen=True)
class Blocks:
    """Rows (n, d) that are had block by block.

    Parameters
    ----------
    read : callable
        Gives all blocks, from the first row on, each time it is called; each block has as many rows as suits it.
    width : int
        d.
    dtype : dtype
        That all blocks have: real numbers, or booleans.
    sparse : bool
        Whether the blocks are in CSR format.
    count : int, optional
        n, where it is known before all rows were read.
    """

    read: Callable[[], Iterable[Block]]
    width: int
    dtype: np.dtype[Any]
    sparse: bool = False
    count: int | None = None

    ndim = 2

    @property
    def shape(self) -> tuple[int, int]:
        assert self.count is not None, "rows that were not counted"
        return self.count, self.width

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, chosen: slice | NDArray[np.bool_]) -> Blocks:
        """Those rows that are chosen, by a slice or one bool a row."""
        wanted = np.zeros(len(self), dtype=bool)
        wanted[chosen] = True

        def read() -> Iterator[Block]:
            start = 0
            for block in self.read():
                own = np.flatnonzero(wanted[start : start + block.shape[0]])
                start += block.shape[0]
                if own.size:
                    yield block if own.size == block.shape[0] else block[own]

        return replace(self, read=read, count=int(wanted.sum()))

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
                    yield joined(parts)
                    parts, missing = [], rows
        if parts:
            yield joined(parts)


Rows = NDArray[Any] | Blocks


def joined(blocks: list[Block]) -> Block:
    """One block of the rows of several."""
    if len(blocks) == 1:
        return blocks[0]
    return sparse.vstack(blocks, format="csr") if sparse.issparse(blocks[0]) else np.concatenate(blocks)


def chunks(data: Rows, elements: int = CACHE_ELEMENTS) -> Iterator[NDArray[Any]]:
    """Consecutive rows of ``data`` (n, d) as dense arrays, each of about so many elements and at least 64 rows."""
    width = data.width if isinstance(data, Blocks) else data.shape[1]
    yield from pieces(data, max(64, elements // max(1, width)))


def pieces(data: Rows, rows: int) -> Iterator[NDArray[Any]]:
    """Consecutive rows of ``data`` (n, d) as dense arrays of so many rows; the last may have fewer."""
    if isinstance(data, Blocks):
        yield from map(dense, data.cut(rows))
    else:
        for start in range(0, len(data), rows):
            yield data[start : start + rows]


def dense(block: Block) -> NDArray[Any]:
    """A block as an array, in the layout of whole rows."""
    array: NDArray[Any] = block.toarray() if sparse.issparse(block) else np.ascontiguousarray(block)
    return array


def row_major(array: NDArray[Any]) -> Rows:
    """An array in the layout of whole rows, on which the last bits of sums depend; not copied where it has it already.

    A mapped file that holds columns is not read here: its rows are had block by block.
    """
    if array.ndim != 2 or array.flags.c_contiguous:
        return array
    return of_columns(array, range(array.shape[1])) if _is_mapped(array) else np.ascontiguousarray(array)


def _is_mapped(array: object) -> bool:
    while isinstance(array, np.ndarray) and not isinstance(array, np.memmap):
        array = array.base
    return isinstance(array, np.memmap)


def whole(data: Rows) -> NDArray[Any]:
    """All rows in one array: for what cannot be computed from blocks."""
    if not isinstance(data, Blocks):
        return data
    return np.concatenate([np.empty((0, data.width), data.dtype), *chunks(data)])


def of_columns(data: Rows, chosen: Sequence[int] | NDArray[np.int64]) -> Rows:
    """Some columns of ``data`` (n, d), in the order in which they are ``chosen``; of an array block by block."""
    columns = np.asarray(chosen, dtype=np.int64)
    if isinstance(data, Blocks):
        every = data.read
        return replace(data, read=lambda: (_chosen(block, columns) for block in every()), width=columns.size)
    few = max(64, CACHE_ELEMENTS // max(1, data.shape[1]))
    return Blocks(
        lambda: (_chosen(piece, columns) for piece in pieces(data, few)), columns.size, data.dtype, count=len(data)
    )


def _chosen(block: Block, columns: NDArray[np.int64]) -> Block:
    if not sparse.issparse(block):
        return np.take(block, columns, axis=1)  # in the layout of whole rows
    found = block[:, columns]
    found.sort_indices()
    return found


def sparse_rows(matrix: Any) -> Blocks:
    """The rows (n, d) of a `scipy.sparse` matrix (see `csr`)."""
    rows = csr(matrix)
    return Blocks(lambda: [rows], rows.shape[1], rows.dtype, sparse=True, count=rows.shape[0])


def csr(matrix: Any) -> Block:
    """A `scipy.sparse` matrix in CSR format, not copied where it is so already and has no duplicate entries.

    Raises
    ------
    ValueError
        Where its indices do not fit its shape.
    """
    if matrix.format in {"bsr", "csc", "csr"}:  # an index beyond the shape would be written beyond an array
        matrix.check_format(full_check=True)
    rows = sparse.csr_array(matrix)
    if not rows.has_canonical_format:
        rows = rows.copy()
        rows.sum_duplicates()
    return rows


def column_sums(data: Rows) -> Array:
    """Sums (d,) of the columns of ``data`` (n, d)."""
    total = np.zeros(data.shape[1])
    if isinstance(data, Blocks) and data.sparse:
        for block in data.read():  # whose own sum is of its dtype, whatever it is asked for
            total += np.bincount(block.indices, weights=block.data, minlength=total.size)
    else:
        for chunk in chunks(data):
            total += chunk.sum(axis=0, dtype=np.float64)
    return total


def largest_size(data: Rows) -> float:
    """The largest size of a value of ``data`` (n, d) that is not missing (NaN)."""
    values = (block.data for block in data.read()) if isinstance(data, Blocks) and data.sparse else chunks(data)
    ends = ((extreme.reduce(part, axis=None, initial=0) for extreme in (np.fmin, np.fmax)) for part in values)
    return max((max(-float(low), float(high)) for low, high in ends), default=0.0)
