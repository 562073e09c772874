r"""Rows minus a centre: made where they are dense, implied where they are sparse.

For a CSR block X (m, d) and a centre c, ``(X - 1c')V = XV - 1(c'V)`` and ``(X - 1c')'Y = X'Y - c(1'Y)`` need no zero of
X. Subtractions like these lose digits where |c| is large beside what is left. Here they cannot: the zeros of a feature
are |c| away from the centre, so where a share z of its entries is zero, at least z m c^2 of what is subtracted remains.
A feature with hardly a zero (`FULL`) is taken out and centred densely, as are counts of depth or ages beside genes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.blocks import Block, Blocks, Rows, chunks, joined

FULL = 0.9
"""Share of entries that are not zero above which a feature is centred densely: below it, nine tenths may cancel."""

ENTRIES = 2**20
"""Of a chunk of sparse rows: 12 MiB, and as much again where they are converted."""

EMPTY_ROW = 8
"""Entries for which a row counts besides its own."""


class CentredBlock:
    """``X - 1c'`` for a CSR block X (m, d), divided by a scale: a factor of matrix products, as an array is.

    Parameters
    ----------
    block : CSR array of shape (m, d)
    centre : ndarray of shape (d,)
    scale : ndarray of shape (d,), optional

    Attributes
    ----------
    full : ndarray of shape (f,)
        Columns with hardly a zero.
    dense : ndarray of shape (m, f)
        These columns, centred.
    rest : CSR array of shape (m, d)
        The others, not centred, with zeros for these columns.
    centre : ndarray of shape (d,)
        Of the others, with zeros for these columns.
    """

    def __init__(self, block: Block, centre: Array, scale: Array | None = None) -> None:
        m, d = block.shape
        self.zeros = m - np.bincount(block.indices, minlength=d)
        self.full = full = np.flatnonzero(self.zeros < (1 - FULL) * m)
        self.dense = np.empty((m, 0))
        values: Array = block.data.astype(np.float64)
        if full.size:
            self.dense = block[:, full].toarray() - centre[full]
            taken = np.zeros(d, dtype=bool)
            taken[full] = True
            values[taken[block.indices]] = 0.0
            centre = np.where(taken, 0.0, centre)
        if scale is not None:
            values /= scale[block.indices]
            self.dense /= scale[full]
            centre = centre / scale
        self.centre = centre
        self.rest = sparse.csr_array((values, block.indices, block.indptr), shape=block.shape)

    def __len__(self) -> int:
        rows: int = self.rest.shape[0]
        return rows

    def __matmul__(self, V: Array) -> Array:
        product: Array = self.rest @ V
        product -= self.centre @ V
        product += self.dense @ V[self.full]
        return product

    @property
    def T(self) -> Transposed:  # noqa: N802  # an array's name
        return Transposed(self)

    def rows(self, start: int, stop: int) -> Array:
        """Some of the rows as an array."""
        found: Array = self.rest[start:stop].toarray()
        found -= self.centre
        found[:, self.full] = self.dense[start:stop]
        return found

    def squares(self) -> Array:
        """Sums of squares (d,) of each column."""
        rest = self.rest
        deviations: Array = rest.data - self.centre[rest.indices]
        deviations *= deviations
        sums = np.bincount(rest.indices, weights=deviations, minlength=rest.shape[1]).astype(np.float64)
        sums += self.zeros * self.centre**2
        sums[self.full] = np.einsum("ij,ij->j", self.dense, self.dense)
        return sums


class Transposed:
    """``(X - 1c')'``, a factor from the left."""

    def __init__(self, block: CentredBlock) -> None:
        self.block = block

    def __matmul__(self, Y: Array) -> Array:
        block = self.block
        product: Array = block.rest.T @ Y
        product -= np.multiply.outer(block.centre, Y.sum(axis=0))
        product[block.full] = block.dense.T @ Y
        return product


def centred_chunks(data: Rows, centre: Array, scale: Array | None = None) -> Iterator[Any]:
    """Chunk by chunk, rows minus a ``centre`` (d,), divided by ``scale`` (d,): arrays, or `CentredBlock`."""
    for chunk in own_chunks(data):
        if sparse.issparse(chunk):
            yield CentredBlock(chunk, centre, scale)
        else:
            centred = np.subtract(chunk, centre, dtype=np.float64)
            if scale is not None:
                centred /= scale
            yield centred


def dense_rows(centred: Any) -> Iterator[Array]:
    """What `centred_chunks` gives as arrays, sparse rows few at a time."""
    if not isinstance(centred, CentredBlock):
        yield centred
        return
    m, d = centred.rest.shape
    step = max(1, ENTRIES // d)
    for start in range(0, m, step):
        yield centred.rows(start, start + step)


def energy(centred: Any) -> float:
    """The sum of the squares of what `centred_chunks` gives."""
    if isinstance(centred, CentredBlock):
        return float(centred.squares().sum())
    return float(np.vdot(centred, centred))


def own_chunks(data: Rows) -> Iterator[Block]:
    """Consecutive rows of ``data`` (n, d) as they are: `chunks`, or `sparse_chunks`."""
    return sparse_chunks(data) if isinstance(data, Blocks) and data.sparse else chunks(data)


def sparse_chunks(data: Blocks, entries: int = ENTRIES) -> Iterator[Block]:
    """The rows of sparse ``data`` in CSR blocks of about so many entries, however they are read."""
    parts: list[Block] = []
    held = 0
    for block in data.read():
        m = block.shape[0]
        ends: NDArray[np.int64] = block.indptr + EMPTY_ROW * np.arange(m + 1)
        start = 0
        while start < m:
            stop = min(m, max(start + 1, int(np.searchsorted(ends, ends[start] + entries - held))))
            parts.append(block[start:stop])
            held += int(ends[stop] - ends[start])
            start = stop
            if held >= entries:
                yield joined(parts)
                parts, held = [], 0
    if parts:
        yield joined(parts)
