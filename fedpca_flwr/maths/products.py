"""Products of a scatter matrix with a block of vectors, row chunk by row chunk: the matrix is never formed."""

from __future__ import annotations

import numpy as np
from scipy import sparse

from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.blocks import Block, Rows
from fedpca_flwr.maths.centred import centred_chunks, own_chunks
from fedpca_flwr.maths.moments import Head, pool_heads
from fedpca_flwr.maths.sparse_moments import mean_of, squares_of


def head_and_diagonal(data: Rows) -> tuple[Head, Array]:
    """Count and mean of the rows of ``data`` (n, d), and the diagonal (d,) of their scatter."""
    heads, squares = [], np.zeros(data.shape[1])
    for chunk in own_chunks(data):
        head, own = _measured(chunk)
        heads.append(head)
        squares += own
    pooled, deviations = pool_heads(heads)
    for head, deviation in zip(heads, deviations, strict=True):
        squares += head.n * deviation**2
    return pooled, squares


def _measured(chunk: Block) -> tuple[Head, Array]:
    if sparse.issparse(chunk):
        mean, remainder = mean_of(chunk)
        return Head(chunk.shape[0], mean, remainder), squares_of(chunk, mean, remainder)
    mean = chunk.mean(axis=0, dtype=np.float64)
    centred = np.subtract(chunk, mean, dtype=np.float64)
    remainder = centred.mean(axis=0)
    centred -= remainder
    return Head(len(chunk), mean, remainder), np.einsum("ij,ij->j", centred, centred)


def scatter_product(data: Rows, head: Head, V: Array) -> Array:
    """``S @ V`` (d, b) for the scatter S of the rows of ``data`` (n, d) about their mean; ``V`` is (d, b)."""
    product = -head.n * np.outer(head.remainder, head.remainder @ V)
    for centred in centred_chunks(data, head.mean):
        product += centred.T @ (centred @ V)
    return product
