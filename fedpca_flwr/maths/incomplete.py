r"""What is expected of rows with missing values, under a Gaussian model: the E-step of EM, and scores of such rows.

For a row whose features u are missing and o observed, with deviations x from the mean and P the inverse covariance::

    E[x_u | x_o] = -C P_uo x_o,    C = cov[x_u | x_o] = (P_uu)^-1

Rows are taken by their pattern of missing features, so that each pattern is factored once, at the cost of what is
missing in it. Expected sums over the rows of several parties add up to those of all rows: the patterns stay at home.

Source: Dempster, Laird and Rubin 1977; Little and Rubin, Statistical Analysis with Missing Data, section 11.2.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import lapack

from fedpca_flwr.maths.arrays import Array

FLOOR = 2.0**-40
"""No eigenvalue of a covariance of standardised features is smaller: what rows foretell of each other stays finite."""


def precision_of(covariance: Array) -> Array | None:
    """The inverse of a covariance (d, d) of standardised features; None where an eigenvalue is below `FLOOR`."""
    lowered = np.asfortranarray(covariance).copy(order="F")
    np.einsum("ii->i", lowered)[:] -= FLOOR
    _, below = lapack.dpotrf(lowered, lower=1, overwrite_a=1, clean=0)
    factor, failed = lapack.dpotrf(np.asfortranarray(covariance), lower=1, clean=0)
    if below or failed:
        return None
    return _symmetric(lapack.dpotri(factor, lower=1, overwrite_c=1)[0])


def completed(deviations: Array, precision: Array) -> tuple[Array, Array]:
    """Rows with their missing values filled by what is expected of them.

    Parameters
    ----------
    deviations : ndarray of shape (n, d)
        From the mean; NaN where a value is missing.
    precision : ndarray of shape (d, d)
        The inverse of the covariance.

    Returns
    -------
    filled : ndarray of shape (n, d)
    unsure : ndarray of shape (d, d)
        The sum over the rows of the conditional covariance of what was missing, zero elsewhere: added to the scatter
        of ``filled`` it gives the expected scatter. NaN where a pattern's part cannot be inverted.
    """
    missing = np.isnan(deviations)
    filled = np.where(missing, 0.0, deviations)
    unsure = np.zeros_like(precision)
    pull = filled @ precision
    for u, rows in _patterns(missing):
        covariance = _inverse(precision[np.ix_(u, u)])
        filled[np.ix_(rows, u)] = -pull[np.ix_(rows, u)] @ covariance
        unsure[np.ix_(u, u)] += len(rows) * covariance
    return filled, unsure


def filled(centred: Array, covariance: Array) -> Array:
    """Rows (n, d) less their mean, NaN where a value is missing, filled by what is expected of them.

    Parameters
    ----------
    centred : ndarray of shape (n, d)
    covariance : ndarray of shape (d, d)
        In the unit of the rows; positive definite but for features without variance.

    Raises
    ------
    ValueError
        Where it is not.
    """
    unit = np.sqrt(np.diagonal(covariance).clip(min=0.0))
    unit = np.where(unit > 0, unit, 1.0)
    correlation = covariance / unit / unit[:, None]
    np.einsum("ii->i", correlation)[:] = 1.0
    precision = precision_of(correlation)
    if precision is None:
        raise ValueError("the covariance is not positive definite")
    return completed(centred / unit, precision)[0] * unit


def _patterns(missing: NDArray[np.bool_]) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Of each pattern with something missing: the missing features, and the rows that have it."""
    concerned = np.flatnonzero(missing.any(axis=1))
    if not concerned.size:
        return
    packed = np.packbits(missing[concerned], axis=1)
    _, first, pattern = np.unique(packed, axis=0, return_index=True, return_inverse=True)
    order = np.argsort(pattern.ravel(), kind="stable")
    ends = np.cumsum(np.bincount(pattern.ravel()))
    for place, rows in zip(first, np.split(concerned[order], ends[:-1]), strict=True):
        yield np.flatnonzero(missing[concerned[place]]), rows


def _inverse(matrix: Array) -> Array:
    """NaN where there is none in float64."""
    try:
        return np.asarray(np.linalg.inv(matrix), dtype=np.float64)
    except np.linalg.LinAlgError:
        return np.full_like(matrix, np.nan)


def _symmetric(lower: NDArray[Any]) -> Array:
    """The symmetric matrix of which the lower triangle is filled."""
    half = np.tril(lower, -1)
    whole: Array = half + half.T
    np.einsum("ii->i", whole)[:] = np.einsum("ii->i", lower)
    return whole
