"""Products of a scatter matrix with a block of vectors, row chunk by row chunk: the matrix is never formed."""

from __future__ import annotations

import numpy as np

from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.blocks import Rows, chunks
from fedpca_flwr.maths.moments import Head, pool_heads


def head_and_diagonal(data: Rows) -> tuple[Head, Array]:
    """Count and mean of the rows of ``data`` (n, d), and the diagonal (d,) of their scatter."""
    heads, squares = [], np.zeros(data.shape[1])
    for chunk in chunks(data):
        mean = chunk.mean(axis=0, dtype=np.float64)
        centred = np.subtract(chunk, mean, dtype=np.float64)
        remainder = centred.mean(axis=0)
        centred -= remainder
        squares += np.einsum("ij,ij->j", centred, centred)
        heads.append(Head(len(chunk), mean, remainder))
    pooled, deviations = pool_heads(heads)
    for head, deviation in zip(heads, deviations, strict=True):
        squares += head.n * deviation**2
    return pooled, squares


def scatter_product(data: Rows, head: Head, V: Array) -> Array:
    """``S @ V`` (d, b) for the scatter S of the rows of ``data`` (n, d) about their mean; ``V`` is (d, b)."""
    product = -head.n * np.outer(head.remainder, head.remainder @ V)
    for chunk in chunks(data):
        centred = np.subtract(chunk, head.mean, dtype=np.float64)
        product += centred.T @ (centred @ V)
    return product
