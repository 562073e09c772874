r"""How far new normal rows lie from a model, from the model's own variances.

Components are turned towards the fitted rows, so new rows have smaller scores and larger residuals. With f = n - 1 and
omitted variances of mean s over p directions, a component of variance l belongs to one of the population of variance r,
and new rows have the variance D along it, or D = s if it does not stand out (spiked model; `score_shrinkage`)::

    l = r (1 + p s / (r - s) / f),    D = r / (1 + p s / (r - s) / (f - k - 1)),    1 / p = 1 / h - 1 / (f - k)

Here h are the directions of the omitted sample eigenvalues, and p is at most d - k. The total variance is unbiased, so
the squared residual (SPE) has the mean ``A = total - sum D``, known to the share sqrt(2 / H / (f - k)). SPE is nearly
chi-squared, with the mean A, the variance of H directions (the p, and r + s - D for each component), and the skewness
of variances that fall as a power of their rank. T squared has the distribution of Hotelling times the mean of
D / l, with f over that mean as degrees of freedom. The table in docs/statistics.md says how well all this holds.
"""

from typing import NamedTuple

import numpy as np
import scipy  # `scipy.special` and `scipy.optimize` are loaded when they are used

from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.inference import population_variances

MIN_MODEL_ROWS, ROWS_PER_COMPONENT = 50, 5  # with fewer no limits are known
ITERATIONS = 30  # for the mean of the omitted variances, each of which makes its error five times smaller
CORRECTION_ERROR = 0.05  # relative error of the difference between the residuals of new and of fitted rows
MAX_DECAY = 60.0  # power of the rank with which omitted variances fall so that only the first is left


class NewRows(NamedTuple):
    """Distribution of T squared and SPE of new normal rows about a model."""

    rows: float  # n
    t_squared: tuple[float, float, float]  # unit and degrees of freedom of T squared's distribution F
    mean_spe: float
    mean_error: float  # error of the mean of SPE beside that of sampling
    freedom: float  # degrees of freedom of the omitted variance, for each of its directions
    directions: float  # H
    skew_directions: float  # number of equal variances with the skewness of SPE

    def t_squared_limit(self, level: float) -> float:
        """Compute the limit that T squared of a new row exceeds with probability 1 - ``level``."""
        unit, *freedom = self.t_squared
        return float((1 + 1 / self.rows) * unit * scipy.special.fdtri(*freedom, level))

    def spe_limit(self, level: float) -> float:
        """Compute the limit that SPE of a new row exceeds with probability 1 - ``level``."""
        skew = self.skew_directions
        step = (2 * scipy.special.gammaincinv(skew / 2, level) - skew) / np.sqrt(skew)
        return float(self.mean_spe * (1 + step * np.sqrt((1 + 1 / self.freedom) / self.directions)))

    def shift_probability(self, distance: float) -> float:
        """Compute the probability of a larger T squared of the mean of m new rows, divided by 1 / m + 1 / n."""
        unit, *freedom = self.t_squared
        return float(scipy.special.fdtrc(*freedom, distance / unit))

    def spread_probability(self, spe: Array) -> float:
        """Compute the probability of a larger mean than that of new rows' SPE (m,), by Student's t."""
        error = np.hypot(spe.std(ddof=1) * np.sqrt(1 / spe.size + 1 / self.freedom), self.mean_error)
        return float(scipy.special.stdtr(spe.size - 1, (self.mean_spe - spe.mean()) / error))


def new_rows(variances: Array, omitted: float, directions: float, n: float, d: int) -> NewRows | None:
    """Estimate the distribution of new rows from the variances (k,) of n rows' components; None if it is not known.

    The variance ``omitted`` is spread over ``directions`` (`Eigenpairs.residual_directions`), and d features vary.
    """
    k, f = variances.size, n - 1
    if n < max(MIN_MODEL_ROWS, k * ROWS_PER_COMPONENT) or d < max(k + 2, 4 * k / 3):
        return None
    p = max(1.0, 1 / max(1 / directions - 1 / (f - k), 1 / (d - k)))
    noise, population = omitted / p * f / (f - k), variances
    for _ in range(ITERATIONS):
        population = population_variances(variances, noise, p / f)
        noise = (omitted + float(np.sum(variances - np.nan_to_num(population)))) / (p + np.isnan(population).sum())
    stands_out = np.isfinite(population)
    leak = p / (f - stands_out.sum() - 1) * noise / np.where(stands_out, population - noise, np.inf)
    scores = np.where(stands_out, population / (1 + leak), noise)
    mean = omitted + float(np.sum(variances - scores))
    turned = np.where(stands_out, (population - scores) / noise + 1, 1.0)
    spread = (mean / noise) ** 2 / (p + float(np.sum(turned**2 - 1)))
    # a component within the noise, whose variance is that of the largest of many directions, counts half
    ratios, weights = scores / variances, (1 + stands_out) / 2
    total, freedom = float(ratios.sum()), f * float(ratios.sum() / (ratios**2 @ weights))
    t_squared = total * freedom / (freedom - k + 1), total**2 / float(ratios @ ratios), freedom - k + 1
    error, skew = CORRECTION_ERROR * (mean - omitted), _skew_directions(p, d - k) * spread / p
    return NewRows(n, t_squared, mean * (1 + 1 / n), error, f - k, spread, skew)


def _skew_directions(p: float, count: int) -> float:
    """Return the number of equal variances as skew as ``count`` falling as a power of their rank, over p directions."""

    def sums(power: float) -> Array:
        return np.array([np.sum(np.arange(1.0, count + 1) ** (-power * i)) for i in (1, 2, 3)])

    def excess(power: float) -> float:
        first, second, _ = sums(power)
        return float(first**2 / second) - p

    _, second, third = sums(scipy.optimize.brentq(excess, 0.0, MAX_DECAY) if excess(0.0) > 0 else 0.0)
    return float(second**3 / third**2)
