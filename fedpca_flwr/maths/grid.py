"""Sums of bounded rows in whole numbers: what is made private, so that its noise can be whole too.

Rows are shortened, measured in steps of ``bound / STEPS`` and rounded *as vectors*: to the nearest whole numbers, which
makes a row longer by ``sqrt(d) / 2`` steps at most, and by so much less than the bound they were left. None is longer
than the bound then, and so no sum over them becomes more sensitive, as it would if the sum were rounded. Sums of rows
are whole numbers of steps, and sums of products whole numbers of squared steps. (Rounding toward zero would need no
such margin, but it makes all variances smaller: by 2 % where the bound is ten times the rows' length.)
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import numpy as np
from scipy.linalg import blas

from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.blocks import Rows, chunks
from fedpca_flwr.maths.moments import CHUNK_ELEMENTS, pack
from fedpca_flwr.maths.spherical import directions, octaves, placed

STEPS = 2**13
"""Of the bound. On MNIST 2^10 and 2^16 give the same components behind the noise of epsilon 2."""

MOST_ROWS = 2**26
"""Of one party: their sums of products, and noise, are whole numbers that float64 holds."""

INSIDE = 1 - 1e-12
"""A clipped row is this much shorter than the bound, so that no rounding of floating point makes it longer."""


def clip(rows: Array, bound: float) -> Array:
    """Rows (n, d), each longer than ``bound`` shortened to it."""
    lengths = np.maximum(np.sqrt(np.einsum("ij,ij->i", rows, rows)), bound)
    clipped: Array = rows / lengths[:, None]
    clipped *= bound * INSIDE
    return clipped


def on_grid(rows: Array, bound: float) -> Array:
    """Rows (n, d) clipped and rounded to whole numbers of ``bound / STEPS``: no longer than `STEPS`."""
    margin = math.sqrt(rows.shape[1]) / (2 * STEPS)
    steps = clip(rows, bound * (1 - margin))
    steps *= STEPS / bound
    return np.rint(steps, out=steps)


def whole_sum(data: Rows, centre: Array, bound: float) -> Array:
    """Sum (d,) of the clipped differences of rows and ``centre``, in whole steps."""
    total = np.zeros(data.shape[1])
    for rows in _about(data, centre):
        total += on_grid(rows, bound).sum(axis=0)
    return total


def whole_products(data: Rows, centre: Array, bound: float) -> Array:
    """Packed sum of ``vv'`` for ``v`` the clipped difference of a row and ``centre``.

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
    return _products((on_grid(rows, bound) for rows in _about(data, centre)), data.shape[1])


def whole_directions(data: Rows, centre: Array) -> Array:
    """The same of the directions in which rows are from ``centre``: of length 1, whatever the unit of the data."""
    return _products((on_grid(directions(rows), 1.0) for rows in _about(data, centre)), data.shape[1])


def whole_octaves(data: Rows, centre: Array) -> Array:
    """How many rows are how far from ``centre`` (`fedpca_flwr.maths.spherical.octaves`), in steps."""
    counts: Array = np.sum([octaves(rows) for rows in _about(data, centre)], axis=0)
    return STEPS * counts


def whole_squares(data: Rows, centre: Array, components: Array, bound: float) -> Array:
    """Sums (k + 1,) of squared scores of the clipped differences on components (k, d), and of what these leave.

    In whole squared steps. The squares of one row are no longer, as a vector, than the square of its length.
    """
    total = np.zeros(len(components) + 1)
    for rows in _about(data, centre):
        total += (on_grid(placed(rows, components, bound), bound) ** 2).sum(axis=0)
    return total


def _about(data: Rows, centre: Array) -> Iterator[Array]:
    """Differences of rows and ``centre``; data are read in chunks, which a processor's cache holds."""
    for chunk in chunks(data):
        yield np.subtract(chunk, centre, dtype=np.float64)


def _products(placed: Iterable[Array], d: int) -> Array:
    total = np.zeros((d, d), order="F")
    for rows in _joined(placed):
        blas.dsyrk(1.0, rows.T, beta=1.0, c=total, overwrite_c=1, lower=1)
    return pack(total)


def _joined(placed: Iterable[Array]) -> Iterator[Array]:
    """The same rows in larger chunks, of which syrk makes more."""
    few: list[Array] = []
    for rows in placed:
        few.append(rows)
        if sum(map(np.size, few)) >= CHUNK_ELEMENTS:
            yield np.vstack(few)
            few = []
    if few:
        yield np.vstack(few)
