"""Eigenpairs of symmetric matrices: certified, with deterministic signs, and the angles between their subspaces.

All methods take from here what a certificate is: the sine theorem of Davis and Kahan, the rounding that the theorem
takes in, and the constants that go with it.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from decimal import ROUND_CEILING, Context
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import LinAlgError, blas, eigh, lapack, subspace_angles

from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.description import represent_by_shapes

EXACT_ANGLE_DEGREES = 1e-6  # in degrees: a model is called exact where no angle to the exact components can be larger
# eigenvalues of a matrix (d, d) that differ by less than this share of d times the largest are alike in float64
TIE_TOLERANCE = 1e-13
# below this size a direct solver is as fast as Lanczos (measured with `simulations/benchmarks/speed.py`)
MIN_LANCZOS_SIZE = 384
# share of the largest eigenvalue, for each feature, up to which an eigenvalue of a scatter is rounding. Then the
# features are collinear, and nothing is regressed on that direction.
COLLINEAR_SHARE = 1e-12
TRANSPOSED_COLUMNS = 64  # columns of a triangle that are transposed at once
# entries of a vector whose sizes differ by a smaller share are alike: rounding, and so how rows are split among
# parties, decides which of them is larger
SIGN_TIE_TOLERANCE = 1e-6
MIN_REMAINDER_SHARE = 1e-10  # of the variance: where components leave less, it is rounding and has no directions


def rounding_bound(d: int) -> float:
    """Bound the float64 error of a scatter (d, d), or of its product with unit vectors, over its largest eigenvalue.

    The error is a spectral norm. Measured: at most 38 machine epsilons, 8e-15, in a scatter (spectra over 1 to 7
    decades, 5 to 200 features, against singular vectors of the rows), and 9 in a product (100 to 200,000 rows, 12 to
    1,000 features, in 80 bits); half the time a hundredth of that.
    """
    return 1e-15 * (10 + float(np.sqrt(d)))


def frobenius_norm(M: Array) -> float:
    """Compute the Frobenius norm of a matrix whose entries' squares may overflow or underflow."""
    return float(blas.dnrm2(np.ravel(M))) if np.size(M) else 0.0


def sine_theorem(residual: float, gap: float) -> float:
    """Bound the largest angle between a subspace and an eigenspace in degrees (Davis and Kahan); 90 is no bound.

    `residual` is the spectral norm of ``A U - U T`` with an orthonormal U, and `gap` the distance from the least
    eigenvalue of T down to the largest of A that does not belong to the eigenspace.
    """
    return float(np.degrees(np.arcsin(min(1.0, residual / gap)))) if gap > 0 else 90.0


def format_upper_bound(bound: float, *, digits: int = 2) -> str:
    """Format an upper bound in few significant digits, rounded upwards."""
    text = f"{bound:.{digits}g}"
    if float(text) >= bound:
        return text
    return f"{float(Context(prec=digits, rounding=ROUND_CEILING).create_decimal(bound)):.{digits}g}"


def certificate_text(degrees: float, *, first: int | None = None) -> str:
    """Return a certified angle as text, "no bound" from 90 degrees on; for the ``first`` components, or all if None."""
    if degrees >= 90:
        return "no bound"
    components = "" if first is None else f", of the first {first} components"
    return f"{format_upper_bound(degrees)} degrees at most{components}"


def principal_angles(a: Array, b: Array) -> Array:
    """Compute the principal angles in degrees, largest first, between spans of columns (d, k), (d, m): (min(k, m),)."""
    return np.asarray(np.degrees(subspace_angles(a, b)))


def projector_distance(a: Array, b: Array) -> float:
    """Compute the spectral norm of two projectors' difference: the sine of the largest angle of spans a, b (d, k)."""
    return float(np.sin(np.radians(principal_angles(a, b).max())))


@dataclass(frozen=True)
class Resolution:
    """Precision with which float64 determines eigenvalues and eigenvectors of a rounded matrix.

    `angle` bounds how far rounding turns the components above the floor, in degrees: 90 if they are tied with others.
    """

    floor: float  # eigenvalues up to this number have vectors that are noise
    angle: float


@represent_by_shapes
@dataclass(frozen=True)
class Eigenpairs:
    """The k largest eigenvalues of a matrix and their eigenvectors.

    Parameters
    ----------
    values : ndarray of shape (k,)
        Eigenvalues, descending.
    vectors : ndarray of shape (d, k)
        Orthonormal columns, with the signs of `fix_signs`.
    following : float
        Eigenvalue k + 1, which shows how well the subspace is determined; 0.0 if k = d.
    rank : int, optional
        Bound on the rank of the matrix, if it is known from more than the eigenvalues.
    error : float
        Bound on the spectral norm of the matrix's error besides the rounding of float64.
    resolution : Resolution, optional
        Precision of the pairs if the matrix was never formed; otherwise it follows from the eigenvalues.
    """

    values: Array
    vectors: Array
    following: float
    rank: int | None = None
    error: float = 0.0
    resolution: Resolution | None = None

    def leading(self, k: int) -> Eigenpairs:
        """Return the first k pairs.

        Parameters
        ----------
        k : int
            Number of pairs.

        Returns
        -------
        Eigenpairs
            The first k pairs.
        """
        following = float(self.values[k]) if k < self.values.size else self.following
        return replace(self, values=self.values[:k], vectors=self.vectors[:, :k], following=following)

    def with_rank_bound(self, max_rank: int) -> Eigenpairs:
        """Return the pairs with a bound on the rank of the matrix.

        Parameters
        ----------
        max_rank : int
            Bound on the rank.

        Returns
        -------
        Eigenpairs
            Equal pairs with the smaller of both bounds.
        """
        return replace(self, rank=max_rank if self.rank is None else min(max_rank, self.rank))

    def residual_directions(self, matrix: Array) -> float | None:
        """Compute the effective number of directions of the variance that the pairs omit; None without any.

        It is (sum of the omitted eigenvalues)^2 over the sum of their squares.

        Parameters
        ----------
        matrix : ndarray of shape (d, d)
            The scatter in Fortran order. Its lower triangle is read, and the matrix is overwritten.

        Returns
        -------
        float or None
        """
        total = float(np.trace(matrix))
        if total <= 0:
            return None
        factor = np.asfortranarray(self.vectors * np.sqrt(self.values.clip(min=0.0)))
        rest = blas.dsyrk(-1.0, factor, beta=1.0, c=matrix, lower=1, overwrite_c=1)
        for column in range(1, len(rest)):
            rest[:column, column] = 0.0
        rest /= total  # its squares are fourth powers of the data's unit
        lower, diagonal = rest.ravel(order="K"), np.diagonal(rest)
        first = float(diagonal.sum())
        if first <= MIN_REMAINDER_SHARE:
            return None
        return first**2 / float(2 * (lower @ lower) - diagonal @ diagonal)


def leading_eigenpairs(
    matrix: Array, k: int | float, *, total: float | None = None, overwrite_upper: bool = False
) -> Eigenpairs:
    """Compute the leading eigenpairs of a symmetric positive semidefinite matrix.

    Large matrices go through Lanczos (ARPACK on BLAS ``dsymv``), which alone might miss one of several equal
    eigenvalues. So the result is certified: ``sigma I - (A - V diag(values) V')`` with ``sigma`` between ``lambda_k``
    and ``lambda_{k+1}`` has a Cholesky factor exactly when nothing above ``sigma`` was missed (Sylvester's law of
    inertia), and the residuals are at the level of rounding. Without certificate a direct solver decides.

    Parameters
    ----------
    matrix : ndarray of shape (d, d)
        The matrix in Fortran order, of which the lower triangle is read.
    k : int or float
        Number of pairs, from 1 to d. A float in (0, 1) is the share of the trace that their values must exceed
        (scikit-learn's rule for ``PCA(n_components=fraction)``).
    total : float, optional
        Number that replaces the trace.
    overwrite_upper : bool, optional
        Whether the upper triangle, without the diagonal, may be overwritten, which saves a copy of the matrix.

    Returns
    -------
    Eigenpairs
        The leading pairs.
    """
    d = matrix.shape[0]
    if isinstance(k, float):
        values, vectors = eigh(matrix, driver="evd", check_finite=False)
        total = total or float(np.trace(matrix))
        above_rounding = int((values > rounding_bound(d) * values[-1]).sum())  # no others hold variance
        count = min(count_to_exceed_share(values[::-1].clip(min=0.0), total, k), max(1, above_rounding))
        return _leading_pairs(values, vectors, count)
    if d >= MIN_LANCZOS_SIZE and 4 * (k + 1) < d:
        pairs = _lanczos(matrix, k, overwrite_upper=overwrite_upper)
        if pairs is not None:
            return pairs
    count = min(k + 1, d)
    unit = _power_of_two_unit(matrix)  # LAPACK's bisection of a subset takes off-diagonal entries below 1e-154 for zero
    try:
        ends = d - count, d - 1
        values, vectors = eigh(matrix / unit, overwrite_a=True, driver="evr", subset_by_index=ends, check_finite=False)
    except LinAlgError:  # LAPACK's MRRR fails on some graded matrices
        values, vectors = np.empty(0), np.empty((d, 0))
    if values.size < count:  # or it loses pairs of a tight cluster at the edge of a subset, and says nothing
        values, vectors = eigh(matrix / unit, overwrite_a=True, driver="evd", check_finite=False)
    return _leading_pairs(values * unit, vectors, k)


def count_to_exceed_share(values: Array, total: float, share: float) -> int:
    """Return the least number of leading values (d,) whose sum exceeds a share of the total, not by rounding only."""
    shares = np.cumsum(values) / total
    return min(values.size, int(np.searchsorted(shares, share + 4 * rounding_bound(values.size), side="right")) + 1)


def angle_bound(error: float, pairs: Eigenpairs) -> float:
    """Bound the angle (degrees) to the eigenvectors of a matrix that is ``error`` away, in norm; 90 is no bound."""
    error += rounding_bound(len(pairs.vectors)) * float(pairs.values[0])
    return sine_theorem(error, float(pairs.values[-1]) - pairs.following - error)


def resolution(pairs: Eigenpairs) -> Resolution:
    """Compute the precision with which float64 determines the eigenpairs of a scatter, covariance or Gram matrix.

    Rounding is relative to the largest eigenvalue: a variance below some 1e-13 of it is noise, and so is its component.
    """
    if pairs.resolution is not None:
        return pairs.resolution
    d, first = len(pairs.vectors), float(pairs.values[0])
    floor = TIE_TOLERANCE * d * first + 2 * pairs.error
    resolved = int((pairs.values > floor).sum())
    if not resolved:
        return Resolution(floor, 90.0)
    following = float(pairs.values[resolved]) if resolved < pairs.values.size else pairs.following
    gap = float(pairs.values[resolved - 1]) - max(0.0, following)
    error = pairs.error + rounding_bound(d) * first
    return Resolution(floor, sine_theorem(error, gap - error))


def largest_eigenpair(matrix: Array) -> tuple[float, Array]:
    """Compute the largest eigenvalue of a symmetric matrix, and an eigenvector (d,) with its largest entry positive.

    Both triangles of the matrix (d, d) are read. A large matrix goes through Lanczos. Of several equal largest
    eigenvalues any one will do, so nothing checks that none was missed, as `leading_eigenpairs` does.
    """
    from scipy.sparse.linalg import ArpackError

    unit = _power_of_two_unit(matrix)
    if len(matrix) >= MIN_LANCZOS_SIZE:
        with suppress(ArpackError):
            values, vectors = _eigsh(np.asfortranarray(matrix.T), unit, 1, which="LA", tol=0)
            return float(values[0]) * unit, fix_signs(vectors)[:, 0]
    values, vectors = eigh(matrix, check_finite=False)
    return float(values[-1]), fix_signs(vectors[:, -1:])[:, 0]


def spectral_norm(matrix: Array) -> float:
    """Compute the largest absolute eigenvalue of a symmetric matrix, at most 1 % too large and never too small.

    The matrix (d, d) may have zeros above the diagonal: the lower triangle counts. Lanczos finds a large matrix's norm
    to a tenth of that, from below, in float32.
    """
    d = matrix.shape[0]
    unit = float(max(matrix.max(), -matrix.min()))
    if unit == 0.0:
        return 0.0
    if d < MIN_LANCZOS_SIZE:
        return float(np.abs(eigh(matrix, eigvals_only=True, check_finite=False)).max())
    small = (np.asfortranarray(matrix) / unit).astype(np.float32)
    (value,) = _eigsh(small, 1.0, 1, which="LM", tol=1e-3, return_eigenvectors=False)
    return float(abs(value)) * unit * 1.01


def _eigsh(matrix: NDArray[np.floating], unit: float, count: int, **options: Any) -> Any:
    """Run SciPy's Lanczos solver on a symmetric matrix divided by ``unit``, from a fixed start, so that bits repeat."""
    from scipy.sparse.linalg import LinearOperator, eigsh  # not at the start of a site's process, which needs none

    symv = blas.ssymv if matrix.dtype == np.float32 else blas.dsymv
    operator = LinearOperator(matrix.shape, matvec=lambda x: symv(1 / unit, matrix, x, lower=1), dtype=matrix.dtype)
    start = np.random.default_rng(0).standard_normal(len(matrix)).astype(matrix.dtype)
    return eigsh(operator, count, v0=start, **options)


def pseudo_inverse(S: Array) -> tuple[Array, Array]:
    """Compute the pseudo-inverse (p, p) of a positive semidefinite S, and a basis (p, m) of the directions it drops."""
    values, vectors = eigh(S)
    varying = _is_varying(values)
    basis = vectors[:, varying]
    return (basis / values[varying]) @ basis.T, vectors[:, ~varying]


def count_varying_directions(S: Array) -> int:
    """Count the eigenvalues of a scatter (p, p) that are larger than its rounding error (`COLLINEAR_SHARE`)."""
    return int(_is_varying(eigh(S, eigvals_only=True)).sum())


def whitening_matrix(S: Array) -> Array:
    """Compute a matrix W (p, rank) with ``W' S W = I`` for a scatter S (p, p) of features in any units."""
    unit = diagonal_roots(S)
    values, vectors = eigh(S / unit / unit[:, None])
    varying = _is_varying(values)
    return np.asarray(vectors[:, varying] / np.sqrt(values[varying]) / unit[:, None])


def polar_factor(M: Array) -> Array:
    """Compute the orthonormal columns nearest to matrices M (..., d, r) of full rank (polar decomposition)."""
    left_vectors, _, right_vectors = np.linalg.svd(M, full_matrices=False)
    return np.asarray(left_vectors @ right_vectors)


def diagonal_roots(S: Array) -> Array:
    """Compute the square roots (d,) of a scatter's diagonal, 1 instead of 0, by which features become comparable."""
    roots = np.sqrt(np.diagonal(S).clip(min=0.0))
    return np.where(roots > 0, roots, 1.0)


def _is_varying(values: Array) -> NDArray[np.bool_]:
    """Return which of a scatter's ascending eigenvalues are larger than its rounding error."""
    return np.asarray(values > COLLINEAR_SHARE * len(values) * max(values[-1], 0.0))


def largest_singular_value(X: Array) -> float:
    """Compute the largest singular value of a tall matrix (d, b) from its Gram matrix, which is much faster."""
    largest = float(np.abs(X).max(initial=0.0))
    if not 0 < largest < np.inf:
        return largest
    near = X / largest
    return largest * float(np.sqrt(np.linalg.eigvalsh(near.T @ near)[-1]))


def project_out(V: Array, Q: Array) -> Array:
    """Subtract, twice against rounding, from V (d,) or (d, b) its projection on orthonormal columns Q (d, m)."""
    for _ in range(2):
        V = V - Q @ (Q.T @ V)
    return V


def column_signs(vectors: Array) -> Array:
    """Return the sign (k,), 1 or -1, of each column's largest entry, the first of those within `SIGN_TIE_TOLERANCE`."""
    sizes = np.abs(vectors)
    largest = (sizes >= (1 - SIGN_TIE_TOLERANCE) * sizes.max(axis=0)).argmax(axis=0)
    return np.where(vectors[largest, np.arange(vectors.shape[1])] < 0, -1.0, 1.0)


def fix_signs(vectors: Array) -> Array:
    """Flip columns so that their largest absolute entry is positive; among equal entries the first decides.

    Parameters
    ----------
    vectors : ndarray of shape (d, k)
        The columns.

    Returns
    -------
    ndarray of shape (d, k)
        The flipped columns.
    """
    return vectors * column_signs(vectors)


def _power_of_two_unit(matrix: Array) -> float:
    """Return the power of two in which the diagonal of a matrix is at most 1."""
    return float(2.0 ** np.frexp(np.abs(np.diagonal(matrix)).max())[1])


def _leading_pairs(values: Array, vectors: Array, k: int) -> Eigenpairs:
    """Return the first k pairs from a solver's eigenvalues in ascending order."""
    following = float(values[-k - 1]) if values.size > k else 0.0
    return Eigenpairs(values[::-1][:k].copy(), fix_signs(vectors[:, ::-1][:, :k]), following)


def _lanczos(matrix: Array, k: int, *, overwrite_upper: bool = False) -> Eigenpairs | None:
    """Compute the leading pairs by Lanczos, or return None if no check can show that none was missed."""
    from scipy.sparse.linalg import ArpackError

    unit = _power_of_two_unit(matrix)  # ARPACK's stopping test is absolute below 1e-11
    try:
        values, vectors = _eigsh(matrix, unit, k + 1, tol=0)
    except ArpackError:
        return None
    order = np.argsort(values)
    pairs = _leading_pairs(values[order] * unit, vectors[:, order], k)
    complete = _is_complete(matrix if overwrite_upper else np.array(matrix, order="F"), pairs)
    return pairs if complete else None


def _is_complete(matrix: Array, pairs: Eigenpairs) -> bool:
    """Return whether the vectors are orthonormal and no larger eigenvalue was missed, by a Cholesky factorisation.

    The factor is computed in the upper triangle of the matrix (d, d), which is overwritten; the lower one is read.
    """
    last, following = pairs.values[-1], pairs.following
    identity = pairs.vectors.T @ pairs.vectors
    if last - following <= 1e-12 * pairs.values[0] or following < 0:
        return False
    if np.abs(identity - np.eye(len(identity))).max() > 1e-10:
        return False
    mixture = np.random.default_rng(1).standard_normal(len(identity))  # one product tells whether any residual is large
    product = blas.dsymv(1.0, matrix, pairs.vectors @ mixture, lower=1)
    residual = frobenius_norm(product - pairs.vectors @ (pairs.values * mixture))
    if residual > 1e-12 * len(matrix) ** 0.5 * pairs.values[0]:
        return False
    diagonal = np.diagonal(matrix).copy()
    for start in range(0, len(matrix), TRANSPOSED_COLUMNS):
        columns = slice(start, start + TRANSPOSED_COLUMNS)
        lower = np.tril(matrix[columns, columns])
        matrix[:start, columns] = matrix[columns, :start].T
        matrix[columns, columns] = lower + np.tril(lower, -1).T
    factor = np.asfortranarray(pairs.vectors * np.sqrt(pairs.values))
    remainder = blas.dsyrk(1.0, factor, beta=-1.0, c=matrix, lower=0, overwrite_c=1)
    np.einsum("ii->i", remainder)[:] += (last + following) / 2
    _, info = lapack.dpotrf(remainder, lower=0, overwrite_a=1, clean=0)
    np.einsum("ii->i", matrix)[:] = diagonal
    return bool(info == 0)
