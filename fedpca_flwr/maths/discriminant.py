r"""Linear discriminant analysis from moments of features and of columns that are 1 for the rows of a class, else 0.

The mean of such a column is the class's share, and its scatter with the features the class's sum::

    n_c = n m_c,    mu_c = m + S_xc / n_c,    S_w = S_xx - sum_c S_xc S_xc^T / n_c

Reference: Hastie, Tibshirani and Friedman 2009, section 4.3, with the maximum likelihood estimate of the
covariance (divisor n); solved as scikit-learn's ``solver="svd"``.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.linalg import eigh, svd

from fedpca_flwr.maths.arrays import Array

TOLERANCE = 1e-4
"""Singular values below are no direction, as scikit-learn's ``tol``."""


class Discriminants(NamedTuple):
    """Decision values of rows are ``X @ slopes + intercepts``, one column for each of the c classes.

    ``directions`` (d, at most c - 1) span what tells the classes apart, the first one best.
    """

    slopes: Array
    intercepts: Array
    directions: Array


def discriminants(rows: int, mean: Array, S_xx: Array, S_xc: Array, shares: Array) -> Discriminants:
    """The linear discriminants of c classes.

    Parameters
    ----------
    rows : int
    mean : ndarray of shape (d,)
    S_xx : ndarray of shape (d, d)
    S_xc : ndarray of shape (d, c)
    shares : ndarray of shape (c,)
        Of the classes, all above 0: the priors.
    """
    classes = len(shares)
    deviations = S_xc / (rows * shares)  # of the classes' means from the mean of all
    within = S_xx - (deviations * (rows * shares)) @ deviations.T
    unit = _units(np.diagonal(within), np.diagonal(S_xx), rows)
    values, vectors = eigh(within / unit / unit[:, None] / rows)
    kept = np.sqrt(values.clip(min=0.0)) > TOLERANCE
    sphere = vectors[:, kept] / unit[:, None] / np.sqrt(values[kept])
    between = (np.sqrt(rows * shares / max(1, classes - 1)) * deviations).T @ sphere
    _, strengths, directions = svd(between, full_matrices=False)
    directions = sphere @ directions[strengths > TOLERANCE * strengths[0]].T
    scores = deviations.T @ directions
    slopes = directions @ scores.T
    intercepts = np.log(shares) - 0.5 * np.sum(scores**2, axis=1) - mean @ slopes
    return Discriminants(slopes, intercepts, directions)


def _units(within: Array, whole: Array, rows: int) -> Array:
    """The features' deviations within classes; 1 where there is none but rounding."""
    rounding = 4 * np.finfo(np.float64).eps * np.sqrt(rows) * whole
    return np.where(within <= rounding, 1.0, np.sqrt(within.clip(min=0.0) / rows))
