r"""Factors of scatter matrices: :math:`S = F^T F` with few rows, stacked instead of added.

Where a party has fewer rows than features, or where the scatter has low rank, a factor is smaller than the matrix.
Factors of several parties stack: the scatter of all rows has the factor that holds all :math:`F_k` and one row
:math:`\sqrt{n_k} (m_k - m)` for each party (note 001; the mean rows are missing in public implementations).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import blas, qr

from fedpca_flwr.maths.eigen import Eigenpairs, fix_signs, leading_eigenpairs
from fedpca_flwr.maths.moments import Head, Moments, chunks, pool_heads, unpack

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Factor:
    """Count, mean and a factor of the scatter of some rows.

    Attributes
    ----------
    head : Head
        Count and mean.
    rows : ndarray of shape (h, d)
        ``rows.T @ rows + floor * identity`` is, or approximates, the scatter.
    floor : float
        What is assumed in every direction that ``rows`` leaves out.
    trace : float
        Trace of the true scatter.
    omitted : float
        Largest eigenvalue that the rows leave out; 0 where they leave nothing out.
    """

    head: Head
    rows: Array
    trace: float
    omitted: float = 0.0
    floor: float = 0.0

    @property
    def error(self) -> float:
        """Bound on the spectral norm of the difference to the true scatter."""
        return max(self.floor, self.omitted - self.floor)

    def diagonal(self) -> Array:
        """Diagonal (d,) of the scatter that the rows hold."""
        return np.einsum("ij,ij->j", self.rows, self.rows)

    def filled(self) -> Factor:
        """The same rows, with half of the first omitted eigenvalue assumed in every direction left out.

        The eigenvalues left out lie between zero and that one, so this halves the error bound, at no bytes: what is
        assumed everywhere is taken off the rows. The rows must be orthogonal, as `truncated` makes them.
        """
        floor = self.omitted / 2
        squares = np.einsum("ij,ij->i", self.rows, self.rows)
        shrink = np.sqrt((squares - floor).clip(min=0.0) / np.where(squares > 0, squares, 1.0))
        return Factor(self.head, self.rows * shrink[:, None], self.trace, self.omitted, floor)


def triangular(data: NDArray) -> tuple[Head, Array]:
    """Head, and the triangular factor (min(n - 1, d), d) of the centred rows of ``data`` (n, d), in chunks."""
    R = np.empty((0, data.shape[1]))
    head: Head | None = None
    for chunk in chunks(data, 2**22):
        mean = chunk.mean(axis=0, dtype=np.float64)
        centred = np.subtract(chunk, mean, dtype=np.float64)
        remainder = centred.mean(axis=0)
        centred -= remainder
        own = Head(len(chunk), mean, remainder)
        between = []
        if head is not None:
            pooled, deviations = pool_heads([head, own])
            between = [np.sqrt(own.n * pooled.n / head.n) * deviations[1]]
        R = _triangle(np.vstack([R, contrasts(centred), *between]))
        head = own if head is None else pooled
    assert head is not None
    return head, R


def contrasts(centred: Array) -> Array:
    """n - 1 rows with the scatter of ``centred``, n rows that sum to zero; ``centred`` is overwritten.

    The reflection that takes the first unit vector to the direction (1, ..., 1) leaves a first row of zeros, which is
    left out. Cutting a row off a triangular factor instead would be wrong: where columns depend on each other, the zero
    row need not be the last one.
    """
    if len(centred) == 1:
        return centred[:0]
    centred[1:] += centred[0] / (np.sqrt(len(centred)) - 1)
    return centred[1:]


def truncated(moments: Moments, rank: int) -> Factor:
    """The best factor of ``rank <= d`` rows of a scatter matrix: its leading eigenvectors, orthogonal rows."""
    pairs = leading_eigenpairs(unpack(moments.scatter, moments.n_features), rank)
    rows = (pairs.vectors * np.sqrt(pairs.values.clip(min=0.0))).T
    return Factor(moments.head, np.ascontiguousarray(rows), float(moments.diagonal().sum()), max(0.0, pairs.following))


def stack(parts: list[Factor]) -> Factor:
    """The factor of all rows together.

    The order is fixed by the parts themselves, so permuting them changes no bit.
    """
    parts = sorted(parts, key=lambda p: (p.head.n, p.head.mean.tobytes(), p.head.remainder.tobytes(), p.trace))
    pooled, deviations = pool_heads([part.head for part in parts])
    between = [np.sqrt(part.head.n) * deviation for part, deviation in zip(parts, deviations, strict=True)]
    extra = float(sum(np.vdot(row, row) for row in between))
    rows = np.vstack([*(part.rows for part in parts), *(row[None] for row in between)])
    trace = sum(part.trace for part in parts) + extra
    return Factor(pooled, rows, trace, sum(part.omitted for part in parts), sum(part.floor for part in parts))


def leading_of_factor(factor: Factor, k: int | float) -> Eigenpairs:
    """Leading eigenpairs of ``rows.T @ rows + floor * identity``, through the smaller of the two Gram matrices.

    With fewer rows than features no (d, d) matrix is formed.
    """
    rows, d = factor.rows, factor.rows.shape[1]
    if len(rows) >= d:
        gram = blas.dsyrk(1.0, np.ascontiguousarray(rows).T, lower=1)
        np.einsum("ii->i", gram)[:] += factor.floor
        return leading_eigenpairs(gram, k)
    gram = blas.dsyrk(1.0, np.asfortranarray(rows), lower=1)
    pairs = leading_eigenpairs(gram, k if isinstance(k, float) else min(k, len(rows)))
    return _lift(rows, pairs, factor.floor, k)


def _lift(rows: Array, pairs: Eigenpairs, floor: float, k: int | float) -> Eigenpairs:
    """Eigenpairs of ``rows.T @ rows`` from those of ``rows @ rows.T``; directions without variance are completed."""
    count = pairs.values.size if isinstance(k, float) else k
    safe = pairs.values > 1e-13 * pairs.values[0]
    vectors = rows.T @ (pairs.vectors[:, safe] / np.sqrt(pairs.values[safe]))
    missing = count - int(safe.sum())
    if missing:
        filler = np.random.default_rng(0).standard_normal((rows.shape[1], missing))
        filler -= rows.T @ np.linalg.lstsq(rows @ rows.T, rows @ filler, rcond=1e-13)[0]
        vectors = np.hstack([vectors, filler])
    vectors, triangle = qr(vectors, mode="economic")  # the lift loses orthogonality in small components
    vectors = vectors * np.where(np.diag(triangle) < 0, -1.0, 1.0)
    values = np.concatenate([pairs.values[safe], np.zeros(missing)]) + floor
    return Eigenpairs(values, fix_signs(vectors), (pairs.following if not missing else 0.0) + floor)


def _triangle(rows: Array) -> Array:
    (triangle,) = qr(rows, mode="r", overwrite_a=True, check_finite=False)
    return triangle[: min(rows.shape)]


def pack_trapezoid(R: Array) -> Array:
    """The entries on and above the diagonal of ``R`` (h, d), h <= d, row by row."""
    return R[np.triu_indices(len(R), 0, R.shape[1])]


def unpack_trapezoid(packed: Array, h: int, d: int) -> Array:
    R = np.zeros((h, d))
    R[np.triu_indices(h, 0, d)] = packed
    return R


def trapezoid_size(n: int, d: int) -> int:
    """Entries of the triangular factor of n centred rows: never more than the packed triangle d (d + 1) / 2."""
    h = min(n - 1, d)
    return h * d - h * (h - 1) // 2
