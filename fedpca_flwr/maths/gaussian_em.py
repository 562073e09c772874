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
    """Accelerated fixed-point iteration (SQUAREM) whose map is evaluated by the caller.

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
        self._path = [start]  # the cycle's first point x, then its images G(x) and G(G(x)) under the map G
        self._first_step = np.inf  # length of the cycle's first step

    def add(self, image: Array) -> None:
        """Take the map's value at `point`, and choose the next point by the SQUAREM extrapolation.

        Parameters
        ----------
        image : ndarray of shape (p,)
            Value of the fixed-point map at `point`.
        """
        start, *images = self._path
        self.steps_ahead = None
        if not images:
            self._path.append(image)
            self._first_step = float(np.linalg.norm(image - start))
            self.point = image
            return
        next_start = image  # of a new cycle
        if len(images) == 2:
            # `point` was extrapolated: refuse it if the map moves it further than the start of the cycle
            if float(np.linalg.norm(image - self.point)) > self._first_step:
                next_start = images[-1]  # G(G(x)), the plain iteration
        else:
            # r = G(x) - x, v = (G(G(x)) - G(x)) - r, length = |r| / |v| (scheme S3 of Varadhan and Roland 2008)
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
    """Mean and covariance of a Gaussian model of rows that were standardised by their observed values.

    Parameters
    ----------
    mean : ndarray of shape (d,)
        Mean of each feature, less its observed mean, in units of its observed standard deviation.
    covariance : ndarray of shape (d, d)
        Covariance of the features in the same units.
    """

    mean: Array
    covariance: Array


class Expected(NamedTuple):
    """Sums over rows of their expected deviations and products, given the observed values.

    Parameters
    ----------
    first : ndarray of shape (d,)
        Sum of the expected deviations from the model's mean.
    second : ndarray of shape (d (d + 1) / 2,)
        Packed triangle of the sum of the expected outer products of these deviations.
    """

    first: Array
    second: Array


def expected_sums(rows: GappedRows, model: Gaussian, centre: Array, unit: Array) -> Expected:
    """Compute the E-step of EM for rows with missing values: sums of expected deviations and products.

    Parameters
    ----------
    rows : GappedRows
        Rows with missing values.
    model : Gaussian
        Model of the rows after subtraction of the centre and division by the unit.
    centre, unit : ndarray of shape (d,)
        Observed mean and standard deviation of each feature.

    Returns
    -------
    Expected
        Sums over these rows.

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
    """Server side of EM for a Gaussian model, which starts at a given mean and the identity covariance.

    Attributes: `model` is the model whose expected sums the iteration needs next; `mean` (d,) is the mean m' of the
    last step; `scatter` (d (d + 1) / 2,) is the packed triangle of its expected scatter about m'.

    Parameters
    ----------
    rows : int
        Number of rows with at least one observed value.
    start : ndarray of shape (d,)
        Mean of each feature in the first model.
    prior : float
        Weight, in rows, of the prior that the features are uncorrelated; above 0.
    """

    model: Gaussian
    mean: Array
    scatter: Array

    def __init__(self, rows: int, start: Array, *, prior: float) -> None:
        self.rows = rows
        # (T + prior I) / (rows + prior) then has eigenvalues well above the least that the E-step accepts
        self.prior = max(prior, 4 * MIN_EIGENVALUE * rows)
        self.model = Gaussian(start, np.eye(start.size))

        def has_positive_covariance(point: Array) -> bool:
            """Return whether a vector of a mean and a Cholesky factor gives an invertible covariance."""
            return invert_covariance(_from_vector(point, start.size).covariance) is not None

        self._squarem = Squarem(_to_vector(self.model), has_positive_covariance)

    @property
    def steps_ahead(self) -> float | None:
        """Estimated number of EM steps that remain, or None within a cycle of the acceleration."""
        return self._squarem.steps_ahead

    @property
    def fitted_model(self) -> Gaussian:
        """Model after the last M-step: its mean, and the expected scatter with the ridge prior."""
        covariance = unpack_symmetric(self.scatter, self.mean.size)
        np.einsum("ii->i", covariance)[:] += self.prior  # adds to the diagonal in place
        return Gaussian(self.mean, covariance / (self.rows + self.prior))

    def add(self, sums: Expected) -> None:
        """Take the M-step on the expected sums of all parties, and choose the next `model`.

        Parameters
        ----------
        sums : Expected
            Sums over all rows of the E-step under `model`.
        """
        step = sums.first / self.rows
        self.mean = self.model.mean + step
        self.scatter = sums.second - self.rows * pack(np.outer(step, step))
        self._squarem.add(_to_vector(self.fitted_model))
        self.model = _from_vector(self._squarem.point, self.mean.size)


def _to_vector(model: Gaussian) -> Array:
    """Concatenate the mean and the lower triangle of the covariance's Cholesky factor in a vector."""
    factor = np.linalg.cholesky(model.covariance)
    return np.concatenate([model.mean, factor[np.tril_indices(model.mean.size)]])


def _from_vector(point: Array, d: int) -> Gaussian:
    """Return the Gaussian model of a vector that holds d means and then a triangular Cholesky factor."""
    factor = np.zeros((d, d))
    factor[np.tril_indices(d)] = point[d:]
    return Gaussian(point[:d], factor @ factor.T)
