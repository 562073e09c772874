"""A party's columns of rows that all parties share: centred and scaled at home, its part of ``X X'`` and of scores.

With X = [X_1, ..., X_p] (n, d) cut by columns, ``X X' = sum X_i X_i'`` and ``X V = sum X_i V_i``: what the parties have
to add has n rows, whoever holds which column, so results do not depend on how the columns are split. Means and
deviations of columns need nobody else.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.linalg import blas, svd

from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.blocks import Rows, whole
from fedpca_flwr.maths.moments import pack
from fedpca_flwr.maths.scaling import constant_features, safe_deviation


class Block(NamedTuple):
    """What a party computes with.

    Attributes
    ----------
    X : ndarray of shape (n, f)
        Centred and scaled.
    mean, scale : ndarray of shape (f,)
        What was subtracted (0 without centring), and what was divided by (1 without scaling).
    """

    X: Array
    mean: Array
    scale: Array

    @property
    def energy(self) -> float:
        """Trace of ``X X'``."""
        return float(np.vdot(self.X, self.X))


def block_of(data: Rows, *, center: bool = True, scale: bool = False) -> Block:
    """A party's block from its columns ``data`` (n, f).

    Scaling divides by the standard deviation about the mean (divisor n), with or without centring. A column that is
    constant up to rounding becomes exactly zero when it is centred, as does one that varies too little to be scaled.
    """
    X = np.asarray(whole(data), dtype=np.float64)
    n, mean = len(X), X.mean(axis=0)
    centred = X - mean
    remainder = centred.mean(axis=0)
    centred -= remainder
    diagonal = np.einsum("ij,ij->j", centred, centred)
    constant = diagonal <= n * (np.finfo(np.float64).eps * mean) ** 2
    centred[:, constant | (scale & constant_features(diagonal, n, mean))] = 0.0
    deviation = safe_deviation(diagonal, n, mean) if scale else np.ones_like(mean)
    if not center:
        return Block(X / deviation, np.zeros_like(mean), deviation)
    return Block(centred / deviation, mean + remainder, deviation)


def gram_product(X: Array, Q: Array) -> Array:
    """``X X' Q`` (n, b) without the matrix (n, n); ``X`` is (n, f), ``Q`` (n, b)."""
    return X @ (X.T @ Q)


def packed_gram(X: Array) -> Array:
    """Packed triangle (n (n + 1) / 2,) of ``X X'``."""
    return pack(blas.dsyrk(1.0, X.T, trans=1, lower=1) if len(X) else np.empty((0, 0)))


def leading_directions(X: Array, rank: int) -> Array:
    """``U diag(s)`` (n, rank) for the leading singular triplets of ``X`` (n, f); zeros where there are fewer."""
    U, s, _ = svd(X, full_matrices=False, check_finite=False)
    kept = min(rank, s.size)
    return np.hstack([U[:, :kept] * s[:kept], np.zeros((len(X), rank - kept))])


def merged_directions(blocks: Sequence[Array], k: int) -> tuple[Array, float]:
    """An orthonormal basis (n, k) of the leading directions of all parties' `leading_directions` together.

    The number is the squared singular value after them. Exact where no party left a singular value out.
    """
    U, s, _ = svd(np.hstack(blocks), full_matrices=False, check_finite=False)
    return U[:, :k], float(s[k] ** 2) if s.size > k else 0.0


def energies(X: Array, U: Array) -> Array:
    """``|X' u|^2`` (k,) of the columns u of ``U`` (n, k)."""
    projected = X.T @ U
    squares: Array = np.einsum("ij,ij->j", projected, projected)
    return squares


def added(arrays: Sequence[Array]) -> Array:
    """The sum of equal shapes, whose bits do not depend on their order."""
    total: Array = np.sort(np.stack(arrays), axis=0).sum(axis=0)
    return total
