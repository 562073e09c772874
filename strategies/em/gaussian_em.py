"""EM for a Gaussian model of rows with missing values.

With mean m and covariance S of n rows, the E-step at the parties (`expected_sums`) gives the sums
``a`` of the expected deviations from m, and ``A`` of their expected products. The M-step at the server is::

    m' = m + a / n,    T = A - a a' / n,    S' = (T + prior I) / (n + prior)

T is the expected scatter: without missing values it is the scatter of the rows, after one step. All is in units of the
observed standard deviations, in which ``prior I`` is the textbook's ridge prior (an inverse Wishart distribution;
Schafer 1997, Analysis of Incomplete Multivariate Data, section 5.2.3) that the features are uncorrelated, worth so many
rows. Without the prior, S may become singular if few rows are complete, and fits their accidents.

The iteration converges slowly where many values are missing, or where a few rows decide about a feature and some of
these have gaps. So it is accelerated (`fedpca_flwr.maths.anderson`), on m and the logarithm of S: variances that shrink
by a constant factor in each step are a straight path there, and every point has a positive definite S.
"""

import math
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import blas, eigh

from fedpca_flwr.maths.anderson import Anderson
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.incomplete_rows import (
    MIN_EIGENVALUE,
    invert_covariance,
    invert_triangles,
    symmetric_matrices,
    triangle_indices,
    unit_and_precision,
)
from fedpca_flwr.maths.moments import pack, unpack_symmetric
from fedpca_flwr.strategies.em.gap_groups import GappedRows, Groups

MAX_MATRIX_ELEMENTS = 2**16  # number of elements of the matrices that are inverted at once, in a processor's cache


class Gaussian(NamedTuple):
    """Mean and covariance of a Gaussian model of rows that were standardised by their observed values."""

    mean: Array  # (d,), less the observed mean, in observed standard deviations
    covariance: Array  # (d, d), in the same units


class Expected(NamedTuple):
    """Sums over rows of their expected deviations and products, given the observed values."""

    first: Array  # (d,), of the deviations from the model's mean
    second: Array  # (d (d + 1) / 2,), packed, of the outer products of these deviations


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
    sums = *np.zeros((2, *precision.shape)), slice(None)
    first, *halves = _upper_sums(rows, precision, centre, unit, mean, *sums)
    return CompletedSums(first, *(np.triu(half) + np.triu(half, 1).T for half in halves))


def _upper_sums(
    rows: GappedRows,
    precision: Array,
    centre: Array,
    unit: Array,
    mean: Array,
    second: Array,
    uncertainty: Array,
    columns: slice | NDArray[np.int64],
) -> CompletedSums:
    """Compute `completed_sums` in the upper halves of two matrices (d, d) of zeros, or of one that gets their sum.

    The model, the unit and the sums are of d ``columns`` of the rows.
    """
    total = CompletedSums(np.zeros_like(mean), second, uncertainty)
    offset = (rows.reference[columns] - centre) / unit - mean
    for groups in rows.groups():
        _add_groups(total, groups.select(columns), precision, offset, unit)
    return total


def _add_groups(total: CompletedSums, groups: Groups, precision: Array, offset: Array, unit: Array) -> None:
    """Add groups of rows with equal missing features to the upper halves of sums over filled rows, in place."""
    d, has_scatter, within, second = offset.size, groups.has_scatter, np.zeros((offset.size,) * 2), total.second
    # E[x_u] = -C (P x)_u with the missing part of x set to 0, P the precision and C = (P_uu)^-1
    means = groups.means / unit
    means += offset
    means[groups.missing] = 0.0
    pull, flat = means @ precision, precision.ravel("K")  # symmetric: in either order
    for group in np.flatnonzero(has_scatter & ~groups.missing.any(axis=1)):
        within += groups.scatter(int(group))
    for indices, u in _batches_by_missing_count(groups.missing):
        i, j = triangle_indices(u.shape[1])
        positions = (u * d).take(i, axis=1) + u.take(j, axis=1)
        covariances, values = flat[positions], pull[indices[:, None], u]
        invert_triangles(covariances, values)
        means[indices[:, None], u] = -values
        for index in np.flatnonzero(has_scatter[indices]):
            scatter, missing = groups.scatter(int(indices[index])), u[index]
            covariance = symmetric_matrices(covariances[[index]], missing.size)[0]
            # with the scatter S of the observed: -C P_uo S of missing by observed, C P_uo S P_ou C among the missing
            expected = covariance @ ((precision[missing] / unit) @ scatter) / -unit
            within += scatter
            second[missing] += expected
            second[:, missing] += expected.T
            second[np.ix_(missing, missing)] -= expected @ precision[:, missing] @ covariance
        covariances *= groups.counts[indices, None]
        np.add.at(total.uncertainty.reshape(-1), positions.ravel(), covariances.ravel())
    total.first[:] += groups.counts @ means
    if has_scatter.any():
        within /= unit
        within /= unit[:, None]
        second += within
        means *= np.sqrt(groups.counts)[:, None]
    blas.dsyrk(1.0, means.T, beta=1.0, c=second.T, lower=1, overwrite_c=1)


def _batches_by_missing_count(missing: NDArray[np.bool_]) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Yield batches: indices (g,) of groups that miss u features each, and the features (g, u).

    The g matrices (u, u) of a batch have about `MAX_MATRIX_ELEMENTS` at most, or g is 1.
    """
    numbers = missing.sum(axis=1)
    for u in np.unique(numbers[numbers > 0]):
        members = np.flatnonzero(numbers == u)
        for indices in np.array_split(members, -(-members.size * int(u) ** 2 // MAX_MATRIX_ELEMENTS)):
            if indices.size:
                yield indices, np.flatnonzero(missing[indices]).reshape(indices.size, u) % missing.shape[1]


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


def expected_sums(rows: GappedRows, model: Gaussian, centre: Array, spread: Array) -> Expected:
    """Compute the E-step of EM for rows with missing values: sums of expected deviations and products.

    ``centre`` and ``spread`` (d,) are the observed means and standard deviations. A feature without spread is constant
    in all rows, and has no part in the model: its sums are 0. Raise ValueError if the covariance of the other features
    has an eigenvalue below `MIN_EIGENVALUE`.
    """
    varying, first, products = np.flatnonzero(spread), np.zeros_like(spread), np.zeros((spread.size,) * 2)
    block = np.ix_(varying, varying)
    precision = _precision(model.covariance[block].tobytes())
    if precision is None:
        raise ValueError("the covariance is not positive definite")
    upper, unit = np.zeros(precision.shape), spread[varying]
    sums = _upper_sums(rows, precision, centre[varying], unit, model.mean[varying], upper, upper, varying)
    first[varying], products[block] = sums.first, upper
    return Expected(first, pack(products.T))


@lru_cache(maxsize=1)  # parties that share a process, with the server too, have the same covariance
def _precision(covariance: bytes) -> Array | None:
    """Return the inverse of a covariance (d, d), given by its float64 values, or None as `invert_covariance`."""
    values = np.frombuffer(covariance)
    return invert_covariance(values.reshape(math.isqrt(values.size), -1))


class GaussianEM:
    """Server side of EM for a Gaussian model, which starts at a given mean (d,) and the identity covariance.

    `rows` is the number of rows with any observed value, and `prior`, above 0, the weight, in rows, of the prior that
    the features are uncorrelated. Features whose ``spread`` (d,) is 0 keep mean 0 and covariance 1 in each model.
    """

    model: Gaussian  # the model whose expected sums the iteration needs next
    mean: Array  # m' (d,) of the last step
    scatter: Array  # (d (d + 1) / 2,), packed: the expected scatter about m'

    def __init__(self, rows: int, start: Array, spread: Array, *, prior: float) -> None:
        self.rows, self._varying = rows, np.flatnonzero(spread)
        self._block = np.ix_(self._varying, self._varying)
        # (T + prior I) / (rows + prior) then has eigenvalues well above the least that the E-step accepts
        self.prior = max(prior, 4 * MIN_EIGENVALUE * rows)
        self.model = Gaussian(start, np.eye(start.size))
        self._candidate = self._to_vector(self.model), self.model
        self._anderson = Anderson(self._candidate[0], self._has_positive_covariance)

    def _has_positive_covariance(self, point: Array) -> bool:
        """Return whether a vector of a mean and a logarithm gives an invertible covariance; store its model."""
        self._candidate = point, self._from_vector(point)
        covariance = self._candidate[1].covariance[self._block]
        return bool(np.isfinite(covariance).all()) and _precision(covariance.tobytes()) is not None

    @property
    def steps_ahead(self) -> float | None:
        """Estimated number of EM steps of the last one's size that remain, or None without a history of steps."""
        return self._anderson.steps_ahead

    def scatter_of(self, model: Gaussian) -> Array:
        """Compute the scatter (d, d), without the prior, from which an M-step would make a model's covariance."""
        return (self.rows + self.prior) * model.covariance - self.prior * np.eye(self.mean.size)

    @property
    def fitted_model(self) -> Gaussian:
        """Model after the last M-step: its mean, and the expected scatter with the ridge prior."""
        covariance = unpack_symmetric(self.scatter, self.mean.size)
        np.einsum("ii->i", covariance)[:] += self.prior  # adds to the diagonal in place
        return Gaussian(self.mean, covariance / (self.rows + self.prior))

    def add(self, sums: Expected) -> None:
        """Take the M-step on all parties' sums under `model`, and choose the next; ValueError if no rows have these."""
        step = sums.first / self.rows
        self.mean = self.model.mean + step
        self.scatter = sums.second - self.rows * pack(np.outer(step, step))
        self._anderson.add(self._to_vector(self.fitted_model))
        (candidate, model), point = self._candidate, self._anderson.point
        self.model = model if point is candidate else self._from_vector(point)

    def _to_vector(self, model: Gaussian) -> Array:
        """Return mean and packed logarithm of the covariance in a vector; raise ValueError if it is not definite."""
        values, vectors = eigh(model.covariance[self._block], check_finite=False)
        if not values[0] > 0:  # of NaN, too
            raise ValueError("the expected scatter is not positive semidefinite")
        return np.concatenate([model.mean[self._varying], pack((vectors * np.log(values)) @ vectors.T)])

    def _from_vector(self, point: Array) -> Gaussian:
        """Return the Gaussian model of a vector that holds means and then the packed logarithm of a covariance."""
        d, v = self.model.mean.size, self._varying.size
        values, vectors = eigh(unpack_symmetric(point[v:], v), check_finite=False)
        root, mean, covariance = vectors * np.exp(values / 2), np.zeros(d), np.eye(d)
        mean[self._varying], covariance[self._block] = point[:v], root @ root.T  # NumPy computes half of the product
        return Gaussian(mean, covariance)
