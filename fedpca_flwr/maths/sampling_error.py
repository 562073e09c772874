r"""How far sample eigenvalues and components are from the population's.

Of normal rows, for well separated eigenvalues and many more rows than features (Anderson 1963), with f = n - 1::

    l_i / (1 + z sqrt(2 / f))  to  l_i / (1 - z sqrt(2 / f))
    Var(v_i) = sum_{j != i} l_i l_j / (l_i - l_j)^2 v_j v_j^T / f

Of rows of any distribution with fourth moments, where the i-th scores have the kurtosis K_i (3 of normal ones), the
variance of l_i is (K_i - 1) l_i^2 / n, so the step is z sqrt((K_i - 1) / n) (Waternaux 1976).

Where features are not few beside the rows, a component r that rises over noise s2 of all features comes out larger and
turned (spiked model; Paul 2007, Benaych-Georges and Nadakuditi 2011), with ratio g = d / f::

    l = r (1 + g s2 / (r - s2)),    cos^2 = (1 - g s2^2 / (r - s2)^2) / (1 + g s2 / (r - s2))
"""

from __future__ import annotations

import numpy as np
from scipy.special import ndtri, stdtrit

from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.component_number import edge, noise_variance
from fedpca_flwr.maths.outliers import ROUNDING


def eigenvalue_intervals(values: Array, n: int, level: float) -> Array:
    """Intervals (k, 2) for the population's eigenvalues, of which ``values`` (k,) are those of n normal rows."""
    step = ndtri(0.5 + level / 2) * np.sqrt(2 / (n - 1))
    upper = values / (1 - step) if step < 1 else np.full_like(values, np.inf)
    return np.column_stack([values / (1 + step), upper])


def fourth_powers(scores: Array, variances: Array) -> Array:
    """Sums (k,) of the fourth powers of scores (n, k) in their deviations; 0 where there is no variance."""
    unit = np.where(variances > ROUNDING * variances.max(initial=0.0), variances, np.inf)
    sums: Array = np.sum((scores**2 / unit) ** 2, axis=0)
    return sums


def robust_intervals(values: Array, kurtosis: Array, n: int, level: float) -> Array:
    """The same as `eigenvalue_intervals` for rows whose scores have this kurtosis (k,)."""
    step = ndtri(0.5 + level / 2) * np.sqrt((kurtosis - 1).clip(min=0.0) / n)
    with np.errstate(divide="ignore"):
        upper = np.where(step < 1, values / (1 - step), np.inf)
    return np.column_stack([values / (1 + step), upper])


def loading_errors(values: Array, vectors: Array, k: int, n: int) -> Array:
    """Standard errors (d, k) of the loadings of n normal rows.

    Parameters
    ----------
    values, vectors : ndarray of shape (d,) and (d, d)
        All eigenpairs of the covariance. Of tied ones nothing is known: infinity.
    """
    gaps = values[:k, None] - values
    np.fill_diagonal(gaps, np.inf)
    tied = (gaps == 0).any(axis=1)
    gaps[tied] = np.inf
    errors: Array = np.sqrt(vectors**2 @ (values[:k, None] * values / gaps**2 / (n - 1)).T)
    return np.where(tied, np.inf, errors)


def spiked(values: Array, k: int, n: int) -> tuple[Array, Array]:
    """Of the first k components: the population's variances (k,), and the expected angle to its components in degrees.

    Those that noise alone may have are of its variance, at 90 degrees.

    Parameters
    ----------
    values : ndarray of shape (d,)
        All eigenvalues of the covariance, descending.
    """
    d, leading = len(values), values[:k]
    s2, ratio = noise_variance(values, n, d), d / (n - 1)
    above = leading > edge(values, n, d)
    b = leading + s2 * (1 - ratio)
    found = (b + np.sqrt((b**2 - 4 * leading * s2).clip(min=0.0))) / 2
    over = np.where(above, found - s2, 1.0)
    cosines = (1 - ratio * s2**2 / over**2) / (1 + ratio * s2 / over)
    angles = np.degrees(np.arccos(np.sqrt(cosines.clip(0.0, 1.0))))
    return np.where(above, found, s2), np.where(above, angles, 90.0)


def grouped_jackknife(whole: Array, left_out: Array, sizes: Array) -> tuple[Array, Array]:
    """Estimate and variance of a statistic, by leaving out one group after the other (Busing et al. 1999).

    Parameters
    ----------
    whole : ndarray
        The statistic of all rows.
    left_out : ndarray of shape (g, ...)
        That of all rows but those of a group.
    sizes : ndarray of shape (g,)
        Rows of each group, which need not be as many.
    """
    groups = len(sizes)
    share = (sizes / sizes.sum()).reshape(-1, *[1] * whole.ndim)
    estimate = groups * whole - np.sum((1 - share) * left_out, axis=0)
    pseudo = whole / share - (1 / share - 1) * left_out
    variance = np.mean((pseudo - estimate) ** 2 / (1 / share - 1), axis=0)
    return estimate, variance


def student_step(groups: int, level: float) -> float:
    """How many standard errors an interval reaches that was estimated from so many groups."""
    return float(stdtrit(groups - 1, 0.5 + level / 2))
