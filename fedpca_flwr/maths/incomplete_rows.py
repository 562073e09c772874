"""Rows with missing values under a Gaussian model: expected values, the E-step of EM, and scores of such rows.

For a row whose features u are missing and o observed, with deviations x from the mean and P the inverse covariance::

    E[x_u | x_o] = -C P_uo x_o,    C = cov[x_u | x_o] = (P_uu)^-1

Rows are taken by their pattern of missing features, so that each pattern is factored once, at the cost of its missing
features. Expected sums follow from the moments of the rows of each pattern (`gap_groups`), and the sums of several
parties add up to those of all rows: the patterns stay at home.

Source: Dempster, Laird and Rubin 1977; Little and Rubin, Statistical Analysis with Missing Data, section 11.2.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import lapack

from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.eigen import diagonal_roots
from fedpca_flwr.maths.gap_groups import GappedRows, Groups

MIN_EIGENVALUE = 2.0**-40  # of a covariance of standardised features, so that predictions stay finite
MAX_MATRIX_ELEMENTS = 2**20  # number of elements of the matrices that are inverted at once


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


class CompletedSums(NamedTuple):
    """Sums over rows whose missing values are filled by their expectation given the observed values.

    `uncertainty` (d, d) is the sum of the conditional covariances of missing values, zero elsewhere. Added to `second`
    it gives the expected products. NaN if the precision's part of a pattern of missing features cannot be inverted.
    """

    first: Array  # (d,), of the filled rows
    second: Array  # (d, d), of their outer products with themselves
    uncertainty: Array


def completed_sums(rows: GappedRows, precision: Array, centre: Array, unit: Array, mean: Array) -> CompletedSums:
    """Compute the sum and the second moments of rows whose missing values are filled by a Gaussian model.

    The model, mean and precision (inverse covariance), is of the rows less ``centre``, divided by ``unit``; the sums
    are of deviations from the mean.
    Shapes: precision (d, d), centre, unit, mean (d,).
    """
    total = CompletedSums(np.zeros_like(mean), np.zeros_like(precision), np.zeros_like(precision))
    within, across = np.zeros_like(precision), np.zeros_like(precision)
    offset = (rows.reference - centre) / unit - mean
    for groups in rows.groups():
        _add_groups(total, within, across, groups, precision, offset, unit)
    within /= unit
    within /= unit[:, None]
    total.second[:] += within + across + across.T
    return total


def _add_groups(
    total: CompletedSums, within: Array, across: Array, groups: Groups, precision: Array, offset: Array, unit: Array
) -> None:
    """Add groups of rows with equal missing features to sums over filled rows, in place.

    The groups' filled means go to ``total``; the scatters of observed values about them to ``within`` (d x d), in the
    data's unit; the scatters of filled with observed values to ``across`` (d x d), to be added with its transpose.
    """
    d = offset.size
    # E[x_u] = -C (P x)_u with the missing part of x set to 0, P the precision and C = (P_uu)^-1
    means = np.where(groups.missing, 0.0, groups.means / unit + offset)
    pull, scaled, flat = means @ precision, precision / unit, precision.ravel("K")  # symmetric: in either order
    for group in np.flatnonzero(groups.has_scatter & ~groups.missing.any(axis=1)):
        within += groups.scatter(int(group))
    for indices, u in _batches_by_missing_count(groups.missing):
        positions = u[:, :, None] * d + u[:, None, :]
        covariances = _inverses(flat[positions])
        means[indices[:, None], u] = -(covariances @ pull[indices[:, None], u][:, :, None])[:, :, 0]
        weights = groups.counts[indices, None, None] * covariances
        np.add.at(total.uncertainty.reshape(-1), positions.ravel(), weights.ravel())
        for i in np.flatnonzero(groups.has_scatter[indices]):
            scatter, missing, covariance = groups.scatter(int(indices[i])), u[i], covariances[i]
            # with the scatter S of the observed: -C P_uo S of missing by observed, C P_uo S P_ou C among the missing
            expected = covariance @ (scaled[missing] @ scatter) / -unit
            quadratic = expected @ precision[:, missing] @ covariance
            within += scatter
            across[missing] += expected
            across[np.ix_(missing, missing)] -= quadratic / 2
    total.first[:] += groups.counts @ means
    weighted = np.sqrt(groups.counts)[:, None] * means  # of one array NumPy computes half of the symmetric product
    total.second[:] += weighted.T @ weighted


def complete_deviations(deviations: Array, precision: Array) -> Array:
    """Fill the NaN of deviations (n, d) by their expectation given the row's other values and a precision (d, d)."""
    missing = np.isnan(deviations)
    deviations_filled = np.where(missing, 0.0, deviations)
    pull = deviations_filled @ precision
    # E[x_u] = -(P x)_u (P_uu)^-1 with the missing part of x set to 0
    for u, rows in _gap_patterns(missing):
        deviations_filled[np.ix_(rows, u)] = -pull[np.ix_(rows, u)] @ _inverses(precision[np.ix_(u, u)])
    return deviations_filled


def unit_and_precision(covariance: Array) -> tuple[Array, Array]:
    """Compute standard deviations (d,), 1 instead of 0, and the inverse (d, d) of the correlation matrix.

    Raise ValueError if an eigenvalue of the correlation matrix is below `MIN_EIGENVALUE`.
    """
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


def squared_error_by_covariance(
    rows: GappedRows, covariance: Array, mean: Array, scale: Array, components: Array
) -> float:
    """Compute the sum of squares that components leave of rows whose missing values a covariance fills.

    Filled rows are centred and scaled before orthonormal components meet them. Raise ValueError as `unit_and_precision`
    does.
    Shapes: covariance (d, d), mean, scale (d,), components (k, d).
    """
    unit, precision = unit_and_precision(covariance)
    second = completed_sums(rows, precision, mean, unit, np.zeros_like(mean)).second
    factor = unit / scale
    second *= factor
    second *= factor[:, None]
    return float(np.trace(second) - np.vdot(components, components @ second))


def _batches_by_missing_count(missing: NDArray[np.bool_]) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Yield batches: indices (g,) of groups that miss u features each, and the features (g, u).

    The g matrices (u, u) of a batch have about `MAX_MATRIX_ELEMENTS` at most, or g is 1.
    """
    numbers = missing.sum(axis=1)
    for u in np.unique(numbers[numbers > 0]):
        members = np.flatnonzero(numbers == u)
        for indices in np.array_split(members, -(-members.size * int(u) ** 2 // MAX_MATRIX_ELEMENTS)):
            if indices.size:
                yield indices, np.nonzero(missing[indices])[1].reshape(indices.size, u)


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


def _inverses(matrices: Array) -> Array:
    """Return the inverses of matrices of shape (..., u, u); all NaN if any is singular in float64."""
    try:
        return np.asarray(np.linalg.inv(matrices), dtype=np.float64)
    except np.linalg.LinAlgError:
        return np.full_like(matrices, np.nan)
