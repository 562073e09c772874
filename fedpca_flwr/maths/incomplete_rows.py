"""Rows with missing values: patterns of gaps, expected values by a covariance or few factors, and least squares.

For a row whose features u are missing and o observed, with deviations x from the mean and P the inverse covariance::

    E[x_u | x_o] = -C P_uo x_o,    C = cov[x_u | x_o] = (P_uu)^-1

Rows are taken by their pattern of missing features, so that each pattern is factored once, at the cost of its missing
features.

Without a covariance a row's scores are the least squares on what is seen: with L the loadings of its seen features and
G = L' L they are G^-1 L' x_o. With noise of variance s2 in each feature, they differ from the scores of the same row
without gaps by s2 (G^-1 - I), a covariance.

Source: Dempster, Laird and Rubin 1977; Little and Rubin, Statistical Analysis with Missing Data, section 11.2.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import lapack

from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.eigen import diagonal_roots
from fedpca_flwr.maths.rows import Rows, chunks

MIN_EIGENVALUE = 2.0**-40  # of a covariance of standardised features, so that predictions stay finite
MAX_ELEMENTS = 2**22  # how many elements of rows are held at once
MIN_SEEN_FEATURES = 2  # per component, to compute a row's scores
MAX_CONDITION = 100.0  # of the loadings of a row's seen features, to compute its scores


class Patterns(NamedTuple):
    """Patterns of missing values: which features are missing together, and which rows have which pattern."""

    missing: NDArray[np.bool_]  # (p, d)
    of: NDArray[np.int64]  # (n,), pattern of each row

    @classmethod
    def from_rows(cls, rows: Rows) -> Patterns:
        """Create the patterns of rows (n, d) with NaN for missing values."""
        d = rows.shape[1]
        packed = np.concatenate([np.packbits(np.isnan(chunk), axis=1) for chunk in chunks(rows, MAX_ELEMENTS)])
        texts = packed.view(f"S{packed.shape[1]}").ravel()  # which are sorted much faster than rows of bytes
        _, first, of = np.unique(texts, return_index=True, return_inverse=True)
        return cls(np.unpackbits(packed[first], axis=1, count=d).astype(bool), of)

    @property
    def counts(self) -> NDArray[np.int64]:
        """Number of rows of each pattern (p,)."""
        return np.bincount(self.of, minlength=len(self.missing))

    @property
    def without_values(self) -> NDArray[np.bool_]:
        """Mask of the patterns (p,) in which every feature is missing."""
        return np.asarray(self.missing.all(axis=1))

    def common_rows(self, min_rows: int, multiple: int) -> NDArray[np.bool_]:
        """Return a mask (n,) of a multiple of rows whose pattern `min_rows` rows share, or that have no values.

        Rows in excess are the last of the largest group, or the whole group if too few would remain.
        """
        counts, rare = self.counts, ~self.without_values
        rare &= counts < min_rows
        selected = ~rare[self.of]
        while excess := int(selected.sum()) % multiple:
            remaining = np.where(self.without_values, 0, np.bincount(self.of[selected], minlength=len(self.missing)))
            in_largest = selected & (self.of == remaining.argmax()) if remaining.any() else selected
            largest = np.flatnonzero(in_largest)
            selected[largest[-excess:] if largest.size >= min_rows + excess else largest] = False
        return selected


def rows_by_gaps(rows: Rows) -> Iterator[tuple[bytes, Rows]]:
    """Yield all rows (n, d) without a name, and the rows of each pattern that has values, by the pattern's bits."""
    yield b"", rows
    patterns = Patterns.from_rows(rows)
    for pattern in np.flatnonzero(~patterns.without_values):
        yield np.packbits(patterns.missing[pattern]).tobytes(), rows[patterns.of == pattern]


def invert_covariance(covariance: Array) -> Array | None:
    """Invert a covariance (d, d) of standardised features; None if an eigenvalue is below `MIN_EIGENVALUE`."""
    factor, failed = lapack.dpotrf(np.asfortranarray(covariance), lower=1, clean=0)
    if failed:
        return None
    lower: Array = np.tril(lapack.dpotri(factor, lower=1, overwrite_c=1)[0])
    if np.trace(lower) > 1 / (2 * MIN_EIGENVALUE):  # else no eigenvalue of the inverse is larger
        # no Cholesky factor of S - c I: an eigenvalue of S is below the bound c
        lowered = np.array(covariance, order="F")
        np.einsum("ii->i", lowered)[:] -= MIN_EIGENVALUE
        if lapack.dpotrf(lowered, lower=1, overwrite_a=1, clean=0)[1]:
            return None
    return lower + np.tril(lower, -1).T


def complete_deviations(deviations: Array, precision: Array) -> Array:
    """Fill the NaN of deviations (n, d) by their expectation given the row's other values and a precision (d, d)."""
    missing = np.isnan(deviations)
    deviations_filled = np.where(missing, 0.0, deviations)
    pull = deviations_filled @ precision
    # E[x_u] = -(P x)_u (P_uu)^-1 with the missing part of x set to 0
    for u, rows in _gap_patterns(missing):
        deviations_filled[np.ix_(rows, u)] = -pull[np.ix_(rows, u)] @ inverses(precision[np.ix_(u, u)][None])[0]
    return deviations_filled


def unit_and_precision(covariance: Array) -> tuple[Array, Array]:
    """Compute deviations (d,), 1 for 0, and the inverse (d, d) of correlations; ValueError as `invert_covariance`."""
    unit = diagonal_roots(covariance)
    correlation = covariance / unit / unit[:, None]
    np.einsum("ii->i", correlation)[:] = 1.0
    precision = invert_covariance(correlation)
    if precision is None:
        raise ValueError("the covariance is not positive definite")
    return unit, precision


def fill_by_covariance(centred: Array, covariance: Array) -> Array:
    """Fill the NaN of centred rows (n, d) by a Gaussian covariance (d, d); raise ValueError as `unit_and_precision`."""
    unit, precision = unit_and_precision(covariance)
    return complete_deviations(centred / unit, precision) * unit


def _gap_patterns(missing: NDArray[np.bool_]) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Yield the missing features and the row indices of each pattern of missing values that occurs in rows."""
    incomplete = np.flatnonzero(missing.any(axis=1))
    if not incomplete.size:
        return
    packed = np.packbits(missing[incomplete], axis=1)
    _, first, pattern = np.unique(packed, axis=0, return_index=True, return_inverse=True)
    order = np.argsort(pattern.ravel(), kind="stable")
    ends = np.cumsum(np.bincount(pattern.ravel()))
    for i, rows in zip(first, np.split(incomplete[order], ends[:-1]), strict=True):
        yield np.flatnonzero(missing[incomplete[i]]), rows


def inverses(matrices: Array) -> Array:
    """Return inverses of positive definite matrices (m, u, u); all NaN if any is not so in float64."""
    i, j = triangle_indices(matrices.shape[-1])
    triangles = matrices[:, i, j]
    invert_triangles(triangles, np.zeros(matrices.shape[:2]))
    return symmetric_matrices(triangles, matrices.shape[-1])


def invert_triangles(triangles: Array, values: Array) -> None:
    """Overwrite positive definite matrices by their inverses C, and vectors v by C v; all NaN if any is not definite.

    Shapes: triangles (m, u (u + 1) / 2), as `triangle_indices`, values (m, u).
    """
    u = values.shape[1]
    for triangle, value in zip(triangles, values, strict=True):  # with half the work of `np.linalg.inv`
        factor, failed = lapack.dpftrf(u, triangle, uplo="L", overwrite_a=1)
        if failed:
            triangles[:], values[:] = np.nan, np.nan
            return
        value[:] = lapack.dpftrs(u, factor, value, uplo="L")[0].ravel()
        triangle[:] = lapack.dpftri(u, factor, uplo="L", overwrite_a=1)[0]


def triangle_indices(u: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return rows i <= columns j of a triangle's entries, in the order in which LAPACK factors it (format ``TF``)."""
    numbers, _ = lapack.dtrttf(np.arange(float(u * u)).reshape(u, u), uplo="L")
    j, i = np.divmod(numbers.astype(np.int64), u)
    return i, j


def fill_by_factors(centred: Array, factors: Array) -> Array:
    """Fill the NaN of rows (n, d) less their mean by their expectation under a model of few factors (q + 1, d).

    Factors are W' and, in the last row, the variance of each feature's noise, above 0, in the unit of the rows.
    """
    unit = np.sqrt(factors[-1])
    W, missing = (factors[:-1] / unit).T, np.isnan(centred)
    deviations = np.where(missing, 0.0, centred / unit)
    _, _, expected_factors = factor_posterior(deviations, missing, W, 1.0)
    return np.where(missing, (expected_factors @ W.T) * unit, centred)


def fill_rows(centred: Array, covariance: Array | None, factors: Array | None) -> Array:
    """Fill the NaN of centred rows (n, d) by factors, else by a covariance (d, d); without both return the rows."""
    if factors is not None:
        return fill_by_factors(centred, factors)
    return centred if covariance is None else fill_by_covariance(centred, covariance)


def factor_posterior(deviations: Array, missing: NDArray[np.bool_], W: Array, s: float) -> tuple[Array, Array, Array]:
    """Return each row's factor posterior: covariance (n, q (q + 1) / 2), minus its log determinant, mean (n, q)."""
    q = W.shape[1]
    i, j = triangle_indices(q)
    grams = selected_grams((~missing).astype(np.float64), W) / s + np.eye(q)
    A: Array = np.asarray(np.linalg.inv(grams), dtype=np.float64)
    logarithms: Array = np.asarray(np.linalg.slogdet(grams)[1], dtype=np.float64)
    return A[:, i, j], logarithms, np.einsum("nij,nj->ni", A, deviations @ W) / s


def selected_grams(chosen: Array, W: Array) -> Array:
    """Return for each row of 0 and 1 (n, d) the Gram matrix (q, q) of the loadings of its features with a 1."""
    i, j = triangle_indices(W.shape[1])
    return symmetric_matrices(chosen @ (W[:, i] * W[:, j]), W.shape[1])


def symmetric_matrices(triangles: Array, q: int) -> Array:
    """Return symmetric matrices (n, q, q) from their triangles (n, q (q + 1) / 2)."""
    i, j = triangle_indices(q)
    matrices = np.empty((len(triangles), q, q))
    matrices[:, i, j] = matrices[:, j, i] = triangles
    return matrices


def least_squares_scores(centred: Array, components: Array) -> tuple[Array, Array]:
    """Return the least-squares scores (n, k) of rows (n, d) with NaN for gaps, and their standard errors (n, k).

    The components are orthonormal. The residuals of a row give the variance of its noise. A row with gaps has NaN if it
    has fewer than `MIN_SEEN_FEATURES` features with loadings for each component, or loadings beyond `MAX_CONDITION`.
    """
    loaded, k = components.any(axis=0), len(components)
    rows, L = np.compress(loaded, centred, axis=1), components[:, loaded].T
    missing, of = Patterns.from_rows(rows)
    complete, counts, step = ~missing.any(axis=1), (~missing).sum(axis=1), max(1, MAX_ELEMENTS // k**2)
    grams = np.zeros((len(missing), k, k))
    for part in (slice(start, start + step) for start in range(0, len(L), step)):
        grams += selected_grams((~missing[:, part]).astype(np.float64), L[part])
    eigenvalues = np.linalg.eigvalsh(grams)
    solvable = (counts >= MIN_SEEN_FEATURES * k) & (eigenvalues[:, 0] * MAX_CONDITION**2 >= eigenvalues[:, -1])
    grams[complete | ~solvable] = np.eye(k)
    inverse = np.where((complete | solvable)[:, None, None], inverses(grams), np.nan)
    seen = np.nan_to_num(rows)
    products = seen @ L
    scores = np.einsum("nij,nj->ni", inverse[of], products)
    residual = np.einsum("ij,ij->i", seen, seen) - np.einsum("ij,ij->i", scores, products)
    noise = residual.clip(min=0.0) / np.maximum(counts - k, 1)[of]
    return scores, np.sqrt(noise[:, None] * (np.einsum("nii->ni", inverse) - 1).clip(min=0.0)[of])
