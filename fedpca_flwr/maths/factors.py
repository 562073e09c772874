r"""Factors of scatter matrices: :math:`S = F^T F` with few rows, stacked instead of added.

Where a party has fewer rows than features, or where the scatter has low rank, a factor is smaller than the matrix.
Factors of several parties stack: the scatter of all rows has the factor that holds all :math:`F_k` and one row
:math:`\sqrt{n_k} (m_k - m)` for each party (without these the means count for nothing).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import lapack, qr, svd

from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.description import represent_by_shapes
from fedpca_flwr.maths.eigen import (
    Eigenpairs,
    Resolution,
    column_signs,
    count_to_exceed_share,
    fix_signs,
    leading_eigenpairs,
)
from fedpca_flwr.maths.moments import (
    CHUNK_ELEMENTS,
    Head,
    Moments,
    centre_rows,
    head_order,
    pool_heads,
    rows_between,
    unpack,
)
from fedpca_flwr.maths.rows import Rows, chunks

# LAPACK takes an entry beside a singular value for zero below this share of it: the 7/8th power of half an epsilon
SVD_TOLERANCE = 1.1e-14
QR_PANEL_COLUMNS = 32  # how many columns LAPACK reflects at once; more are slower, and so are fewer


@represent_by_shapes
@dataclass(frozen=True)
class Factor:
    """Count, mean and a factor R of the scatter of some rows. The scatter is R'R plus an omitted rest.

    Parameters
    ----------
    head : Head
        Count and mean.
    rows : ndarray of shape (h, d)
        ``rows.T @ rows + floor * identity`` is, or approximates, the scatter.
    trace : float
        Trace of the true scatter.
    omitted : float
        Largest eigenvalue that the rows omit; 0 if they omit nothing.
    floor : float
        Variance that is assumed in every direction that the rows omit.
    """

    head: Head
    rows: Array
    trace: float
    omitted: float = 0.0
    floor: float = 0.0

    @property
    def error(self) -> float:
        """Bound on the spectral norm of the difference between the factor's scatter and the true scatter."""
        return max(self.floor, self.omitted - self.floor)

    def diagonal(self) -> Array:
        """Compute the diagonal of the rows' scatter.

        Returns
        -------
        ndarray of shape (d,)
            Sum of squares of each feature.
        """
        return np.asarray(np.einsum("ij,ij->j", self.rows, self.rows))

    def times(self, V: Array) -> Array:
        """Multiply the factor's scatter with a block.

        Parameters
        ----------
        V : ndarray of shape (d, b)
            The block.

        Returns
        -------
        ndarray of shape (d, b)
            The product.
        """
        return self.rows.T @ (self.rows @ V) + self.floor * V

    def with_floor(self) -> Factor:
        """Return the factor with half of the first omitted eigenvalue in each omitted direction: half the error.

        The rows, from which the assumed variance is subtracted, must be orthogonal, as `truncated_factor` makes them.

        Returns
        -------
        Factor
            Factor of the same scatter with a smaller error.
        """
        floor = self.omitted / 2
        squares = np.einsum("ij,ij->i", self.rows, self.rows)
        shrink = np.sqrt((squares - floor).clip(min=0.0) / np.where(squares > 0, squares, 1.0))
        return Factor(self.head, self.rows * shrink[:, None], self.trace, self.omitted, floor)


def triangular_factor(data: Rows) -> tuple[Head, Array]:
    """Compute head and triangular factor R (min(n - 1, d), d) of centred rows (n, d): R'R is their scatter.

    The method is QR in chunks; n >= 1. The largest entry of each row of R is positive.
    """
    n, d = data.shape
    R = np.empty((0, d))
    head: Head | None = None
    for chunk in chunks(data, max(2**20, min(n, d + 1) * d)):  # the first loses a row
        chunk_head, centred = centre_rows(chunk)
        # n rows that sum to zero have the scatter of n - 1 rows: the reflection that takes the first unit vector to the
        # direction (1, ..., 1) leaves a first row of zeros. Cutting a row off the triangular factor instead would be
        # wrong: if columns depend on each other, the zero row need not be the last one.
        if len(centred) > 1:
            centred[1:] += centred[0] / (np.sqrt(len(centred)) - 1)
        rows = centred[1:] if len(centred) > 1 else centred[:0]
        if head is not None:
            pooled, deviations = pool_heads([head, chunk_head])
            centred[0] = np.sqrt(chunk_head.n * pooled.n / head.n) * deviations[1]  # the row that is free now
            rows = centred
        R = _append_rows(R, rows)
        head = chunk_head if head is None else pooled
    assert head is not None
    R *= column_signs(R.T)[:, None]  # how rows are reflected is no moment of theirs: it stays here
    return head, R


def truncated_factor(data: Rows, rank: int) -> Factor:
    """Compute the best factor of a rank, at most d, of rows (n, d); if n <= d without a (d, d) matrix."""
    n, d = data.shape
    if n <= d:
        head, R = triangular_factor(data)
        _, singular, vectors = svd(R, full_matrices=False, check_finite=False) if len(R) else (R, np.zeros(0), R)
        rows = np.zeros((rank, d))
        rows[: singular.size] = (singular[:, None] * vectors)[:rank]
        omitted = float(singular[rank] ** 2) if singular.size > rank else 0.0
        return Factor(head, rows, float((singular**2).sum()), omitted)
    return truncate_moments(Moments.from_rows(data), rank)


def truncate_moments(moments: Moments, rank: int) -> Factor:
    """Compute the best factor of a rank, at most d, of a scatter."""
    pairs = leading_eigenpairs(unpack(moments.scatter, moments.n_features), rank)
    rows = (pairs.vectors * np.sqrt(pairs.values.clip(min=0.0))).T
    return Factor(moments.head, np.ascontiguousarray(rows), float(moments.diagonal().sum()), max(0.0, pairs.following))


def stack_factors(parts: list[Factor]) -> Factor:
    """Stack the factors of several parties into a factor of the pooled scatter.

    The order follows from the values of the parts, so a permutation of the parts changes no bit.

    Parameters
    ----------
    parts : list of Factor
        Factors of the parties.

    Returns
    -------
    Factor
        Factor of all rows together.
    """
    parts = sorted(parts, key=lambda part: (*head_order(part.head), part.trace))
    pooled, between = rows_between([part.head for part in parts])
    extra = float(sum(np.vdot(row, row) for row in between))
    blocks = [*(part.rows for part in parts), between]
    d = pooled.mean.size
    rows = reduce(_append_rows, blocks, np.zeros((d, d))) if sum(map(len, blocks)) > d else np.vstack(blocks)
    trace = sum(part.trace for part in parts) + extra
    return Factor(pooled, rows, trace, sum(part.omitted for part in parts), sum(part.floor for part in parts))


def factor_eigenpairs(factor: Factor, k: int | float) -> Eigenpairs:
    """Compute the k leading eigenpairs of a factor's scatter from singular values, so that no number is squared.

    An integer k is at most the smaller side of the rows; a float is the share of the trace that the eigenvalues must
    exceed. Rows are orthogonalised first, by whichever side is shorter, so that no (d, d) matrix is formed if there are
    fewer rows than features. The features go in by descending size: then the rounding of a feature is relative to its
    own size, not to that of the largest (Barlow 2002, on bidiagonalisation of graded matrices). If there are fewer rows
    than features, the rows are first reflected among themselves: else one huge value in a row would round all features
    of that row.
    """
    rows = factor.rows
    sizes = np.sqrt(np.einsum("ij,ij->j", rows, rows))
    order = np.argsort(-sizes, kind="stable")
    s, right_vectors = _singular_values(rows, order)
    values = s**2 + factor.floor
    if isinstance(k, float):
        k = count_to_exceed_share(values, float(sizes @ sizes) + sizes.size * factor.floor, k)
    vectors = np.empty((sizes.size, k))
    vectors[order] = right_vectors(k)
    following = float(values[k]) if k < values.size else factor.floor
    return Eigenpairs(values[:k], fix_signs(vectors), following, resolution=_resolution(s, sizes, vectors))


def _singular_values(rows: Array, order: NDArray[np.int64]) -> tuple[Array, Callable[[int], Array]]:
    """Return the h = min(m, d) singular values of ``rows[:, order]``, and a function for the first k right vectors."""
    m, d = rows.shape
    if m < d:
        graded = _wide_triangle(rows, order)  # descending rows, too
        (reflectors, tau), triangle = qr(graded.T, mode="raw", overwrite_a=True, check_finite=False)
        U, s, _ = svd(triangle, overwrite_a=True, check_finite=False)

        def right_vectors(k: int) -> Array:
            padded = np.zeros((d, k), order="F")
            padded[:m] = U[:, :k]
            product: Array
            product, _, info = lapack.dormqr("L", "N", reflectors, tau, padded, 64 * max(1, k), overwrite_c=1)
            assert info == 0, info
            return product

        return s, right_vectors
    triangle = np.empty((0, d))
    for chunk in chunks(rows, max(2**20, d * d)):
        triangle = _append_rows(triangle, chunk[:, order])
    _, s, transposed = svd(triangle, overwrite_a=True, check_finite=False)
    return s, lambda k: transposed[:k].T


def _resolution(s: Array, sizes: Array, vectors: Array) -> Resolution:
    """Return the precision of the first k pairs, from all singular values ``s`` (h,) and k ``vectors`` (d, k).

    Rounding changes each feature by some 1e-15 of its own size, and LAPACK's iteration by up to `SVD_TOLERANCE`: ``E
    diag(sizes)`` with ``|E| <= error``. To first order that turns vector i towards those that follow, W, by ``(s_i |E D
    W| + s_k+1 |E D v_i|) / (s_i^2 - s_k+1^2)``. (Measured in 5,800 tables with gaps from 1e-2 to 1e-10, features over
    up to 16 decades and single huge values, against Jacobi rotations in 80 bits: the true angle is at most half of that
    if it is above 1e-11 degrees, and never more.)
    """
    rounded, k = 1e-15 * float(np.sqrt(sizes.size)), vectors.shape[1]
    floor, total, error = rounded * float(s[0]), float(sizes @ sizes), rounded + SVD_TOLERANCE
    resolved = int((s[:k] > floor).sum())
    first, following = s[:resolved], float(s[resolved]) if resolved < s.size else 0.0
    squares = sizes**2 @ vectors[:, :resolved] ** 2
    rest = np.sqrt(max(0.0, total - float(squares.sum())) + 1e-15 * total)  # two large numbers cancel
    gaps = (first - following) * (first + following)
    if not resolved or gaps.min() <= 0:
        return Resolution(floor**2, 90.0)
    sine = error * (1 + float(np.linalg.norm((first * rest + following * np.sqrt(squares)) / gaps)))
    return Resolution(floor**2, float(np.degrees(np.arcsin(min(1.0, sine)))))


def _append_rows(R: Array, rows: Array) -> Array:
    """Return the triangular factor of ``rows`` (m, d) below an earlier triangular factor ``R`` (h, d)."""
    d = rows.shape[1]
    triangle: Array
    if len(R) < d:
        stack = np.vstack([R, rows]) if len(R) else rows
        if len(stack) < d:
            return _wide_triangle(stack, np.arange(d))
        _, triangle = qr(stack, mode="raw", check_finite=False)
        return triangle
    is_dense = rows[-1:, 0].any() or np.tril(rows, -1).any()  # else the zeros of rows are spared, as those of R
    triangle, _, _, info = lapack.dtpqrt(0 if is_dense else min(rows.shape), min(QR_PANEL_COLUMNS, d), R, rows)
    assert info == 0, info
    return triangle


def _wide_triangle(rows: Array, order: NDArray[np.intp]) -> Array:
    """Return the triangular factor (m, d) of ``rows[:, order]`` (m, d) with m <= d.

    The first m columns alone fix the reflections of the rows. A product applies them to all other columns.
    """
    m, d = rows.shape
    Q, first = qr(rows[:, order[:m]], overwrite_a=True, check_finite=False)
    triangle = np.empty((m, d))
    triangle[:, :m] = first
    width = max(1, CHUNK_ELEMENTS // max(1, m))
    for start in range(m, d, width):
        triangle[:, start : start + width] = Q.T @ rows[:, order[start : start + width]]
    return triangle


def pack_trapezoid(R: Array) -> Array:
    """Pack entries (h d - h (h - 1) / 2,) of a triangular factor (h, d), h <= d, on and above the diagonal, by rows."""
    return np.concatenate([row[i:] for i, row in enumerate(R)]) if len(R) else np.empty(0)


def unpack_trapezoid(packed: Array, h: int, d: int) -> Array:
    """Unpack a triangular factor (h, d), h <= d, that `pack_trapezoid` packed."""
    R, start = np.zeros((h, d)), 0
    for i in range(h):
        R[i, i:] = packed[start : start + d - i]
        start += d - i
    return R


def trapezoid_size(n: int, d: int) -> int:
    """Count the packed entries of the triangular factor of n centred rows: never more than d (d + 1) / 2."""
    h = min(n - 1, d)
    return h * d - h * (h - 1) // 2
