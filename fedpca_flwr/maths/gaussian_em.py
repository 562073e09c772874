"""EM for a Gaussian model of rows with missing values, and a way to accelerate an EM iteration.

**EM** (`GaussianEM`). With mean m and covariance S of n rows, the E-step at the parties
(`fedpca_flwr.maths.incomplete_rows`) gives the sums ``a`` of the expected deviations from m, and ``A`` of their
expected products. The M-step at the server is::

    m' = m + a / n,    T = A - a a' / n,    S' = (T + prior I) / (n + prior)

T is the expected scatter: without missing values it is the scatter of the rows, after one step. All is in units of the
observed standard deviations, in which ``prior I`` is the textbook's ridge prior (an inverse Wishart distribution;
Schafer 1997, Analysis of Incomplete Multivariate Data, section 5.2.3) that the features are uncorrelated, worth so many
rows. Without the prior, S may become singular if few rows are complete, and fits their accidents.

**SQUAREM** (`Squarem`) accelerates a fixed point iteration that converges slowly, as EM does if many values are
missing; here of m and the Cholesky factor of S. A cycle has two steps of the map G, an extrapolation along them, and a
third step that stabilises the cycle::

    r = G(x) - x,    v = (G(G(x)) - G(x)) - r,    a = |r| / |v|,    x <- G(x + 2 a r + a^2 v)

The step length a is 1 / (1 - rate) for a single linear rate, and 1 gives G(G(x)), the plain iteration (scheme S3 of
Varadhan and Roland 2008, Scandinavian Journal of Statistics 35; the sign of a is turned). An extrapolation that leaves
the valid region, or from which the map moves further than it did at the cycle's start, is given up for G(G(x)).
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.gap_groups import GappedRows
from fedpca_flwr.maths.incomplete_rows import MIN_EIGENVALUE, completed_sums, invert_covariance
from fedpca_flwr.maths.moments import pack, unpack_symmetric


class Squarem:
    """A SQUAREM acceleration of a fixed point iteration x <- g(x), whose map g the caller computes.

    `point` is the point whose image the iteration needs next; it always satisfies ``is_valid``. After the second step
    of a cycle, `steps_ahead` estimates how many such steps remain; otherwise it is None.

    Parameters
    ----------
    start : ndarray of shape (p,)
        First point.
    is_valid : callable
        Predicate that says whether a point can be mapped.
    """

    def __init__(self, start: Array, is_valid: Callable[[Array], bool]) -> None:
        self.point = start
        self.steps_ahead: float | None = None
        self._is_valid = is_valid
        self._path = [start]  # a point of the cycle and its images
        self._first_step = np.inf  # length of the cycle's first step

    def add(self, image: Array) -> None:
        """Take the image g(x) of the current point x, and choose the next point.

        Parameters
        ----------
        image : ndarray of shape (p,)
            Image of `point`.
        """
        start, *images = self._path
        self.steps_ahead = None
        if not images:
            self._path.append(image)
            self._first_step = float(np.linalg.norm(image - start))
            self.point = image
            return
        next_start = image
        if len(images) == 2:
            if float(np.linalg.norm(image - self.point)) > self._first_step:
                next_start = images[-1]  # the extrapolation went wrong
        else:
            r = images[0] - start
            v = (image - images[0]) - r
            bend = float(np.linalg.norm(v))
            self.steps_ahead = length = max(1.0, self._first_step / bend) if bend > 0 else 1.0
            candidate = start + 2 * length * r + length**2 * v
            if length > 1 and self._is_valid(candidate):
                self._path.append(image)
                self.point = candidate
                return
        self._path, self.point = [next_start], next_start


class Gaussian(NamedTuple):
    """Mean and covariance of features, in units of their observed standard deviations about their observed means.

    Parameters
    ----------
    mean : ndarray of shape (d,)
        The mean.
    covariance : ndarray of shape (d, d)
        The covariance.
    """

    mean: Array
    covariance: Array


class Expected(NamedTuple):
    """Expected sums over rows with missing values, as a step of expectation-maximisation needs.

    Parameters
    ----------
    first : ndarray of shape (d,)
        Sum of the expected deviations from the model's mean.
    second : ndarray of shape (d (d + 1) / 2,)
        Packed triangle of the sum of their expected products.
    """

    first: Array
    second: Array


def expected_sums(rows: GappedRows, model: Gaussian, centre: Array, unit: Array) -> Expected:
    """Compute the E-step: the expected sums of rows with missing values under a Gaussian model.

    Parameters
    ----------
    rows : GappedRows
        Rows with missing values.
    model : Gaussian
        Model of the rows less the centre and divided by the unit.
    centre, unit : ndarray of shape (d,)
        Centre and unit of each feature.

    Returns
    -------
    Expected
        The sums.

    Raises
    ------
    ValueError
        If the least eigenvalue of the covariance is below `MIN_EIGENVALUE`.
    """
    precision = invert_covariance(model.covariance)
    if precision is None:
        raise ValueError("the covariance is not positive definite")
    sums = completed_sums(rows, precision, centre, unit, model.mean)
    return Expected(sums.first, pack(sums.second + sums.uncertainty))


class GaussianEM:
    """An expectation-maximisation for a Gaussian model, which begins with a mean and the identity as covariance.

    Attributes: `model` is the model whose expected sums the iteration needs next; `mean` (d,) is the mean m' of the
    last step; `scatter` (d (d + 1) / 2,) is the packed triangle of T of the last step.

    Parameters
    ----------
    rows : int
        Number of rows with any value.
    start : ndarray of shape (d,)
        First mean.
    prior : float
        Number of rows that the prior is worth, above 0.
    """

    model: Gaussian
    mean: Array
    scatter: Array

    def __init__(self, rows: int, start: Array, *, prior: float) -> None:
        self.rows = rows
        self.prior = max(prior, 4 * MIN_EIGENVALUE * rows)
        self.model = Gaussian(start, np.eye(start.size))

        def has_positive_covariance(point: Array) -> bool:
            return invert_covariance(_from_vector(point, start.size).covariance) is not None

        self._squarem = Squarem(_to_vector(self.model), has_positive_covariance)

    @property
    def steps_ahead(self) -> float | None:
        """Estimated number of further steps until convergence, or None if there is no estimate yet."""
        return self._squarem.steps_ahead

    @property
    def fitted_model(self) -> Gaussian:
        """Model of the last step."""
        covariance = unpack_symmetric(self.scatter, self.mean.size)
        np.einsum("ii->i", covariance)[:] += self.prior
        return Gaussian(self.mean, covariance / (self.rows + self.prior))

    def add(self, sums: Expected) -> None:
        """Take the sums that all rows have under the current `model`, and choose the next model.

        Parameters
        ----------
        sums : Expected
            The sums.
        """
        step = sums.first / self.rows
        self.mean = self.model.mean + step
        self.scatter = sums.second - self.rows * pack(np.outer(step, step))
        self._squarem.add(_to_vector(self.fitted_model))
        self.model = _from_vector(self._squarem.point, self.mean.size)


def _to_vector(model: Gaussian) -> Array:
    """Return the mean and the Cholesky factor of the covariance as one vector, which the acceleration combines."""
    factor = np.linalg.cholesky(model.covariance)
    return np.concatenate([model.mean, factor[np.tril_indices(model.mean.size)]])


def _from_vector(point: Array, d: int) -> Gaussian:
    """Return the Gaussian of a vector of `_to_vector`."""
    factor = np.zeros((d, d))
    factor[np.tril_indices(d)] = point[d:]
    return Gaussian(point[:d], factor @ factor.T)
