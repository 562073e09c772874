"""A party's columns of rows that all parties share: centred and scaled at home, its part of ``X X'`` and of scores.

With X = [X_1, ..., X_p] (n, d) cut by columns, ``X X' = sum X_i X_i'`` and ``X V = sum X_i V_i``: what the parties have
to add has n rows, whoever holds which column, so results do not depend on how the columns are split. Means and
deviations of columns need nobody else.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import blas, svd

from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.blocks import Rows
from fedpca_flwr.maths.centred import centred_chunks, dense_rows, energy
from fedpca_flwr.maths.eigen import fix_signs
from fedpca_flwr.maths.moments import pack
from fedpca_flwr.maths.products import head_and_diagonal
from fedpca_flwr.maths.scaling import constant_features, safe_deviation


@dataclass(frozen=True)
class Columns:
    """A party's columns X (n, f), centred and scaled: a factor of matrix products, as an array is, chunk by chunk.

    Each product is one pass over the rows; sparse ones stay sparse.

    Parameters
    ----------
    data : rows of shape (n, f)
        As they are.
    centre : ndarray of shape (f,)
        What is subtracted.
    remainder : ndarray of shape (f,)
        What is missing in ``centre`` of what it stands for: a mean in two floats.
    scale : ndarray of shape (f,)
        What is divided by.
    zero : ndarray of shape (f,)
        Which columns are taken for zero.
    """

    data: Rows
    centre: Array
    remainder: Array
    scale: Array
    zero: NDArray[np.bool_]

    @property
    def shape(self) -> tuple[int, int]:
        return self.data.shape[0], self.data.shape[1]

    @property
    def mean(self) -> Array:
        """What is subtracted (f,), in one float."""
        return self.centre + self.remainder

    @cached_property
    def energy(self) -> float:
        """Trace of ``X X'``."""
        rounded = len(self.data) * float(np.vdot(self._left, self._left))
        return max(0.0, math.fsum(map(energy, self._chunks())) - rounded)

    @cached_property
    def X(self) -> Array:  # noqa: N802  # the notes' name
        """All of them in one array (n, f): for what compares each row with each other."""
        parts = (part - self._left for chunk in self._chunks() for part in dense_rows(chunk))
        return np.concatenate([np.empty((0, self.shape[1])), *parts])

    def __matmul__(self, V: Array) -> Array:
        product: Array = np.concatenate([np.empty((0, V.shape[1])), *(chunk @ V for chunk in self._chunks())])
        product -= self._left @ V
        return product

    @property
    def T(self) -> Transposed:  # noqa: N802  # an array's name
        return Transposed(self)

    def transposed_times(self, Q: Array) -> Array:
        """``X' Q`` (f, b)."""
        product: Array = -np.multiply.outer(self._left, Q.sum(axis=0))
        start = 0
        for chunk in self._chunks():
            rows = len(chunk)
            product += chunk.T @ Q[start : start + rows]
            start += rows
        return product

    @property
    def _left(self) -> Array:
        """What the chunks still hold of the mean (f,)."""
        left: Array = self.remainder / self._divisor
        return left

    @property
    def _divisor(self) -> Array:
        return np.where(self.zero, np.inf, self.scale)

    def _chunks(self) -> Iterator[Any]:
        return centred_chunks(self.data, self.centre, self._divisor)


class Transposed:
    """``X'``, a factor from the left."""

    def __init__(self, columns: Columns) -> None:
        self.columns = columns

    def __matmul__(self, Q: Array) -> Array:
        return self.columns.transposed_times(Q)

    @property
    def T(self) -> Columns:  # noqa: N802  # an array's name
        return self.columns


def columns_of(data: Rows, *, center: bool = True, scale: bool = False) -> Columns:
    """A party's columns ``data`` (n, f) as a run has them.

    Scaling divides by the standard deviation about the mean (divisor n), with or without centring. A column that is
    constant up to rounding becomes exactly zero when it is centred, as does one that varies too little to be scaled.
    """
    head, diagonal = head_and_diagonal(data)
    n, mean = head.n, head.mean
    deviation = safe_deviation(diagonal, n, mean) if scale else np.ones_like(mean)
    if not center:
        none = np.zeros_like(mean)
        return Columns(data, none, none, deviation, np.zeros(mean.size, dtype=bool))
    constant = diagonal <= n * (np.finfo(np.float64).eps * mean) ** 2
    return Columns(data, mean, head.remainder, deviation, constant | (scale & constant_features(diagonal, n, mean)))


def gram_product(X: Array | Columns | Transposed, Q: Array) -> Array:
    """``X X' Q`` (n, b) without the matrix (n, n); ``X`` is (n, f), ``Q`` (n, b)."""
    product: Array = X @ (X.T @ Q)
    return product


def packed_gram(X: Array) -> Array:
    """Packed triangle (n (n + 1) / 2,) of ``X X'``."""
    return pack(blas.dsyrk(1.0, X.T, trans=1, lower=1) if len(X) else np.empty((0, 0)))


def leading_directions(X: Array, rank: int) -> Array:
    """``U diag(s)`` (n, rank) for the leading singular triplets of ``X`` (n, f); zeros where there are fewer.

    The largest entry of each is positive: signs would tell what inner products do not.
    """
    U, s, _ = svd(X, full_matrices=False, check_finite=False)
    kept = min(rank, s.size)
    return np.hstack([fix_signs(U[:, :kept]) * s[:kept], np.zeros((len(X), rank - kept))])


def merged_directions(blocks: Sequence[Array], k: int) -> tuple[Array, float]:
    """An orthonormal basis (n, k) of the leading directions of all parties' `leading_directions` together.

    The number is the squared singular value after them. Exact where no party left a singular value out.
    """
    U, s, _ = svd(np.hstack(blocks), full_matrices=False, check_finite=False)
    return U[:, :k], float(s[k] ** 2) if s.size > k else 0.0


def energies(X: Array | Columns, U: Array) -> Array:
    """``|X' u|^2`` (k,) of the columns u of ``U`` (n, k)."""
    projected = X.T @ U
    squares: Array = np.einsum("ij,ij->j", projected, projected)
    return squares


def added(arrays: Sequence[Array]) -> Array:
    """The sum of equal shapes, whose bits do not depend on their order."""
    total: Array = np.sort(np.stack(arrays), axis=0).sum(axis=0)
    return total
