r"""EM for the Gaussian model of incomplete rows: the server's half, from sums of what the rows are expected to be.

With mean m and covariance S of n rows, the E-step (`fedpca_flwr.maths.incomplete`) gives the sums ``a`` of the expected
deviations from m, and ``A`` of their expected products. The M-step is::

    m' = m + a / n,    T = A - a a' / n,    S' = (T + prior I) / (n + prior)

T is the expected scatter: without missing values that of the rows, after one step. All is in units of the observed
standard deviations, in which ``prior I`` is the textbook's ridge prior (an inverse Wishart distribution; Schafer 1997,
Analysis of Incomplete Multivariate Data, section 5.2.3) that the features are uncorrelated, worth so many rows. Without
it S may become singular where few rows are complete, and fits their accidents.

SQUAREM (`fedpca_flwr.maths.squarem`) extrapolates m and the Cholesky factor of S.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.gap_groups import GappedRows
from fedpca_flwr.maths.incomplete import FLOOR, completed_sums, precision_of
from fedpca_flwr.maths.moments import pack, symmetric
from fedpca_flwr.maths.squarem import Squarem


class Gaussian(NamedTuple):
    """Mean (d,) and covariance (d, d), in units of the observed standard deviations about the observed means."""

    mean: Array
    covariance: Array


class Expected(NamedTuple):
    """Sums over rows.

    Attributes
    ----------
    first : ndarray of shape (d,)
        Of the expected deviations from the model's mean.
    second : ndarray of shape (d (d + 1) / 2,)
        Packed triangle: of their expected products.
    """

    first: Array
    second: Array


def expected_sums(rows: GappedRows, model: Gaussian, centre: Array, unit: Array) -> Expected:
    """The E-step over rows that are less a centre and divided by a unit, (d,) each.

    Raises
    ------
    ValueError
        Where the least eigenvalue of S is below `FLOOR`.
    """
    precision = precision_of(model.covariance)
    if precision is None:
        raise ValueError("the covariance is not positive definite")
    found = completed_sums(rows, precision, centre, unit, model.mean)
    return Expected(found.first, pack(found.second + found.unsure))


class GaussianEM:
    """The iteration.

    Parameters
    ----------
    rows : int
        n, those with any value.
    start : ndarray of shape (d,)
        The mean to begin with; the covariance begins with the identity.
    prior : float
        How many rows the prior is worth; more than 0.

    Attributes
    ----------
    model : Gaussian
        Of which the expected sums are wanted next.
    mean : ndarray of shape (d,)
        m' of the last step.
    scatter : ndarray of shape (d (d + 1) / 2,)
        T of the last step, a packed triangle.
    """

    mean: Array
    scatter: Array

    def __init__(self, rows: int, start: Array, *, prior: float) -> None:
        self.rows = rows
        self.prior = max(prior, 4 * FLOOR * rows)
        self.model = Gaussian(start, np.eye(start.size))
        self._squarem = Squarem(_vector(self.model), lambda point: _allowed(point, start.size))

    @property
    def ahead(self) -> float | None:
        """As `Squarem.ahead`."""
        return self._squarem.ahead

    @property
    def fitted(self) -> Gaussian:
        """The model of the last step."""
        covariance = symmetric(self.scatter, self.mean.size)
        np.einsum("ii->i", covariance)[:] += self.prior
        return Gaussian(self.mean, covariance / (self.rows + self.prior))

    def add(self, sums: Expected) -> None:
        """Take the sums of all rows that `model` gives."""
        step = sums.first / self.rows
        self.mean = self.model.mean + step
        self.scatter = sums.second - self.rows * pack(np.outer(step, step))
        self._squarem.add(_vector(self.fitted))
        self.model = _gaussian(self._squarem.point, self.mean.size)


def _vector(model: Gaussian) -> Array:
    factor = np.linalg.cholesky(model.covariance)
    return np.concatenate([model.mean, factor[np.tril_indices(model.mean.size)]])


def _gaussian(point: Array, d: int) -> Gaussian:
    factor = np.zeros((d, d))
    factor[np.tril_indices(d)] = point[d:]
    return Gaussian(point[:d], factor @ factor.T)


def _allowed(point: Array, d: int) -> bool:
    return precision_of(_gaussian(point, d).covariance) is not None
