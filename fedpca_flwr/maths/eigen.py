"""Leading eigenpairs of a symmetric matrix, certified, with deterministic signs."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from scipy.linalg import LinAlgError, blas, eigh, lapack
from scipy.sparse.linalg import ArpackError, LinearOperator, eigsh

from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.certificate import ALIKE, frobenius, rounding, sine_theorem

LANCZOS_FROM = 384
"""Below this size a direct solver is as fast as Lanczos (measured with `simulations/benchmarks/speed.py`)."""


@dataclass(frozen=True)
class Resolution:
    """What float64 tells of eigenpairs.

    Attributes
    ----------
    floor : float
        Where an eigenvalue is not larger, its vector is noise.
    angle : float
        Bound, in degrees, on the angle by which rounding turns the leading components above the floor together; 90
        where they are tied with the next one.
    """

    floor: float
    angle: float


@dataclass(frozen=True)
class Eigenpairs:
    """The k largest eigenvalues and their vectors.

    Attributes
    ----------
    values : ndarray of shape (k,)
        Descending.
    vectors : ndarray of shape (d, k)
        Orthonormal columns; the largest absolute entry of each is positive.
    following : float
        Eigenvalue k + 1, or 0.0 where k = d: with it the reader knows how well the subspace is determined.
    rank : int or None
        At most so many eigenvalues are not zero, where that is certain from something else than the eigenvalues.
    error : float
        Bound on the spectral norm of what is wrong with the matrix besides the rounding of float64.
    resolution : Resolution or None
        Where they are not of a matrix that was formed: what float64 tells of them.
    """

    values: Array
    vectors: Array
    following: float
    rank: int | None = None
    error: float = 0.0
    resolution: Resolution | None = None

    def first(self, k: int) -> Eigenpairs:
        """The first k of them."""
        following = float(self.values[k]) if k < self.values.size else self.following
        return replace(self, values=self.values[:k], vectors=self.vectors[:, :k], following=following)

    def of_rank(self, most: int) -> Eigenpairs:
        """The same, of a matrix whose rank is certainly not larger."""
        return replace(self, rank=most if self.rank is None else min(most, self.rank))


def leading_eigenpairs(matrix: Array, k: int | float, *, total: float | None = None) -> Eigenpairs:
    """The leading eigenpairs of a symmetric positive semidefinite matrix.

    Parameters
    ----------
    matrix : ndarray of shape (d, d), Fortran order
        Only the lower triangle is read.
    k : int or float
        How many, 1 <= k <= d; or a fraction in (0, 1) of the trace that their values must exceed (scikit-learn's
        rule for ``PCA(n_components=fraction)``).
    total : float, optional
        What the fraction is taken of, instead of the trace.

    Notes
    -----
    Large matrices go through Lanczos (ARPACK on BLAS ``dsymv``), which alone might miss one of several equal
    eigenvalues. So the result is certified: ``sigma I - (A - V diag(values) V')`` with ``sigma`` between
    ``lambda_k`` and ``lambda_{k+1}`` has a Cholesky factor exactly when nothing above ``sigma`` was missed
    (Sylvester's law of inertia), and the residuals are at the level of rounding. Without certificate a direct solver
    decides.
    """
    d = matrix.shape[0]
    if isinstance(k, float):
        return _exceeding(matrix, k, total or float(np.trace(matrix)))
    if d >= LANCZOS_FROM and 4 * (k + 1) < d:
        pairs = _lanczos(matrix, k)
        if pairs is not None:
            return pairs
    wanted = min(k + 1, d)
    unit = _unit(matrix)  # LAPACK's bisection of a subset takes off-diagonal entries below 1e-154 for zero
    try:
        values, vectors = eigh(matrix / unit, driver="evr", subset_by_index=(d - wanted, d - 1), check_finite=False)
    except LinAlgError:  # LAPACK's MRRR fails on some graded matrices
        values, vectors = np.empty(0), np.empty((d, 0))
    if values.size < wanted:  # or it loses pairs of a tight cluster at the edge of a subset, and says nothing
        values, vectors = eigh(matrix / unit, driver="evd", check_finite=False)
    return _pairs(values * unit, vectors, k)


def angle_bound(error: float, pairs: Eigenpairs) -> float:
    """Bound, in degrees, on the angle to the components of a matrix that differs by ``error`` (Davis and Kahan).

    Rounding is added to the error.
    """
    return _turned(error + _rounding(pairs), float(pairs.values[-1]) - pairs.following)


def resolution(pairs: Eigenpairs) -> Resolution:
    """What float64 tells of the eigenpairs of a scatter, a covariance or of products with one.

    Its rounding is relative to the largest eigenvalue: a variance below some 1e-13 of it is noise, and so is what is
    computed from it.
    """
    if pairs.resolution is not None:
        return pairs.resolution
    d, first = len(pairs.vectors), float(pairs.values[0])
    floor = ALIKE * d * first + 2 * pairs.error
    above = int((pairs.values > floor).sum())
    if not above:
        return Resolution(floor, 90.0)
    following = float(pairs.values[above]) if above < pairs.values.size else pairs.following
    gap = float(pairs.values[above - 1]) - max(0.0, following)
    return Resolution(floor, _turned(pairs.error + _rounding(pairs), gap))


def _rounding(pairs: Eigenpairs) -> float:
    """Bound on the spectral norm of what rounding adds to a scatter."""
    return rounding(len(pairs.vectors)) * float(pairs.values[0])


def _turned(error: float, gap: float) -> float:
    """The largest angle, in degrees, by which an ``error`` turns the vectors on one side of a ``gap``."""
    return sine_theorem(error, gap - error)


def spectral_norm(matrix: Array) -> float:
    """Largest absolute eigenvalue of a symmetric matrix (d, d), of which only the lower triangle is read.

    Up to 1 % more than the true one: Lanczos finds it to a tenth of that, from below.
    """
    matrix, d = np.asfortranarray(matrix), matrix.shape[0]
    unit = float(np.abs(np.tril(matrix)).max())
    if unit == 0.0:
        return 0.0
    if d < LANCZOS_FROM:
        return float(np.abs(eigh(matrix, eigvals_only=True, check_finite=False)).max())
    operator = LinearOperator((d, d), matvec=lambda x: blas.dsymv(1 / unit, matrix, x, lower=1), dtype=np.float64)
    start = np.random.default_rng(0).standard_normal(d)
    (value,) = eigsh(operator, 1, which="LM", tol=1e-3, v0=start, return_eigenvectors=False)
    return float(abs(value)) * unit * 1.01


def fix_signs(vectors: Array) -> Array:
    """Flip columns so that the largest absolute entry of each is positive."""
    largest = np.abs(vectors).argmax(axis=0)
    signs = np.where(vectors[largest, np.arange(vectors.shape[1])] < 0, -1.0, 1.0)
    return vectors * signs


def _unit(matrix: Array) -> float:
    """The power of two in which the diagonal of a matrix is at most 1."""
    return float(2.0 ** np.frexp(np.abs(np.diagonal(matrix)).max())[1])


def _pairs(values: Array, vectors: Array, k: int) -> Eigenpairs:
    """Ascending solver output to the first k pairs, descending."""
    following = float(values[-k - 1]) if values.size > k else 0.0
    return Eigenpairs(values[::-1][:k].copy(), fix_signs(vectors[:, ::-1][:, :k]), following)


def _exceeding(matrix: Array, fraction: float, total: float) -> Eigenpairs:
    values, vectors = eigh(matrix, driver="evd", check_finite=False)
    shares = np.cumsum(values[::-1].clip(min=0.0)) / total
    k = int(np.searchsorted(shares, fraction, side="right")) + 1
    return _pairs(values, vectors, min(k, values.size))


def _lanczos(matrix: Array, k: int) -> Eigenpairs | None:
    """The leading pairs by Lanczos, or None where they cannot be certified."""
    d = matrix.shape[0]
    unit = _unit(matrix)  # ARPACK's stopping test is absolute below 1e-11
    operator = LinearOperator((d, d), matvec=lambda x: blas.dsymv(1 / unit, matrix, x, lower=1), dtype=np.float64)
    start = np.random.default_rng(0).standard_normal(d)  # a fixed start: the same input gives the same bits
    try:
        values, vectors = eigsh(operator, k + 1, tol=0, v0=start)
    except ArpackError:
        return None
    order = np.argsort(values)
    pairs = _pairs(values[order] * unit, vectors[:, order], k)
    return pairs if _certified(matrix, pairs) else None


def _certified(matrix: Array, pairs: Eigenpairs) -> bool:
    """Whether no eigenvalue above the gap was missed (see `leading_eigenpairs`) and the vectors are orthonormal."""
    last, following = pairs.values[-1], pairs.following
    identity = pairs.vectors.T @ pairs.vectors
    if last - following <= 1e-12 * pairs.values[0] or following < 0:
        return False
    if np.abs(identity - np.eye(len(identity))).max() > 1e-10:
        return False
    mixture = np.random.default_rng(1).standard_normal(len(identity))  # one product tells whether any residual is large
    product = blas.dsymv(1.0, matrix, pairs.vectors @ mixture, lower=1)
    residual = frobenius(product - pairs.vectors @ (pairs.values * mixture))
    if residual > 1e-12 * len(matrix) ** 0.5 * pairs.values[0]:
        return False
    factor = pairs.vectors * np.sqrt(pairs.values)
    remainder = blas.dsyrk(1.0, np.asfortranarray(factor), beta=-1.0, c=matrix, lower=1)
    np.einsum("ii->i", remainder)[:] += (last + following) / 2
    _, info = lapack.dpotrf(remainder, lower=1, overwrite_a=1, clean=0)
    return bool(info == 0)
