r"""Moments of sparse rows, which stay sparse: :math:`X^TX - n m m^T`, where that loses no digits.

Features with zeros lose none, nor to the mean's rounding; the others are taken out (`fedpca_flwr.maths.centred`). The
sparse product goes strip by strip, and of each computes what is on and below the diagonal.
"""

from __future__ import annotations

import numpy as np
from scipy.linalg import blas

from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.blocks import Block
from fedpca_flwr.maths.centred import CentredBlock

STRIP = 2**19
"""Entries of the scatter that are computed at once."""


def mean_of(block: Block) -> tuple[Array, Array]:
    """Mean and remainder (d,) of the rows of a CSR block (m, d)."""
    m, d = block.shape
    values = block.data.astype(np.float64)
    mean: Array = np.bincount(block.indices, weights=values, minlength=d) / m
    values -= mean[block.indices]
    zeros = m - np.bincount(block.indices, minlength=d)
    remainder: Array = (np.bincount(block.indices, weights=values, minlength=d) - zeros * mean) / m
    return mean, remainder


def squares_of(block: Block, mean: Array, remainder: Array) -> Array:
    """Diagonal (d,) of the scatter of a CSR block about its mean."""
    return _about_mean(block, mean, remainder).squares()


def add_scatter(scatter: Array, block: Block, mean: Array, remainder: Array) -> None:
    """Add the scatter of a CSR block about its mean to the lower triangle of ``scatter`` (d, d), in Fortran order."""
    m, d = block.shape
    centred = _about_mean(block, mean, remainder)
    rest = centred.rest.tocsc()
    width = max(16, STRIP // d)
    for start in range(0, d, width):
        strip = rest[:, start : start + width].tocsr()
        scatter[start:, start : start + width] += (rest[:, start:].T @ strip).toarray()
    blas.dsyr(-float(m), centred.centre, lower=1, a=scatter, overwrite_a=1)
    _add_full(scatter, centred)


def _about_mean(block: Block, mean: Array, remainder: Array) -> CentredBlock:
    """With what the mean's rounding lost taken off the dense columns, so that a constant one has no scatter."""
    centred = CentredBlock(block, mean)
    centred.dense -= remainder[centred.full]
    return centred


def _add_full(scatter: Array, centred: CentredBlock) -> None:
    """Rows and columns of the scatter that belong to the dense columns."""
    with_rest: Array = centred.rest.T @ centred.dense
    among = centred.dense.T @ centred.dense
    for i, j in enumerate(centred.full):
        scatter[j, :j] += with_rest[:j, i]
        with_rest[centred.full, i] = among[:, i]
        scatter[j:, j] += with_rest[j:, i]
