"""Sums of bounded rows in whole numbers: what is made private, so that its noise can be whole too.

Rows are shortened, measured in steps of ``bound / STEPS`` and rounded *as vectors*: to the nearest whole numbers, which
makes a row longer by ``sqrt(d) / 2`` steps at most, and by so much less than the bound they were left. None is longer
than the bound then, and so no sum over them becomes more sensitive, as it would if the sum were rounded. Sums of rows
are whole numbers of steps, and sums of products whole numbers of squared steps. (Rounding toward zero would need no
such margin, but it makes all variances smaller: by 2 % where the bound is ten times the rows' length.)
"""

from __future__ import annotations

import math

import numpy as np
from scipy.linalg import blas

from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.blocks import Rows, chunks
from fedpca_flwr.maths.moments import CHUNK_ELEMENTS, pack

STEPS = 2**13
"""Of the bound. On MNIST 2^10 and 2^16 give the same components behind the noise of epsilon 2."""

MOST_ROWS = 2**26
"""Of one party: their sums of products, and noise, are whole numbers that float64 holds."""

INSIDE = 1 - 1e-12
"""A clipped row is this much shorter than the bound, so that no rounding of floating point makes it longer."""


def clip(rows: Array, bound: float) -> Array:
    """Rows (n, d), each longer than ``bound`` shortened to it."""
    lengths = np.maximum(np.sqrt(np.einsum("ij,ij->i", rows, rows)), bound)
    clipped: Array = rows / lengths[:, None] * (bound * INSIDE)
    return clipped


def on_grid(rows: Array, bound: float) -> Array:
    """Rows (n, d) clipped and rounded to whole numbers of ``bound / STEPS``: no longer than `STEPS`."""
    margin = math.sqrt(rows.shape[1]) / (2 * STEPS)
    return np.rint(clip(rows, bound * (1 - margin)) * (STEPS / bound))


def whole_sum(data: Rows, bound: float) -> Array:
    """Sum (d,) of clipped rows in whole steps; data are read in chunks."""
    total = np.zeros(data.shape[1])
    for chunk in chunks(data):
        total += on_grid(chunk.astype(np.float64), bound).sum(axis=0)
    return total


def whole_products(data: Rows, centre: Array, bound: float) -> Array:
    """Packed sum of ``vv'`` for ``v`` the clipped difference of a row and ``centre``; data are read in chunks.

    Parameters
    ----------
    data : ndarray of shape (n, d), n <= `MOST_ROWS`
    centre : ndarray of shape (d,)
    bound : float
        In the unit of the data.

    Returns
    -------
    ndarray of shape (d (d + 1) / 2,)
        In whole squared steps.
    """
    d = data.shape[1]
    products = np.zeros((d, d), order="F")
    for chunk in chunks(data, CHUNK_ELEMENTS):
        rows = on_grid(np.subtract(chunk, centre, dtype=np.float64), bound)
        blas.dsyrk(1.0, rows.T, beta=1.0, c=products, overwrite_c=1, lower=1)
    return pack(products)
