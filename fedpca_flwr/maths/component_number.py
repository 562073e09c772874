r"""How many components stand out: rules on the eigenvalues :math:`l_1 \ge l_2 \ge ...` of a covariance (divisor n - 1).

With f = n - 1 degrees of freedom, at most min(f, d) eigenvalues are not zero. Noise alone, of variance :math:`s^2` in
every feature, has the law of Marchenko and Pastur (1967) with ratio :math:`\gamma = d / f`.
"""

from __future__ import annotations

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray
from scipy.linalg import svdvals
from scipy.special import gammaln

from fedpca_flwr.maths.arrays import Array

PERCENTILE = 95.0
"""Of the null eigenvalues that `parallel_analysis` compares with."""


def leading_run(above: NDArray[np.bool_]) -> int:
    """How many entries are true before the first that is not."""
    return int(np.append(above, False).argmin())


def noise_variance(values: Array, n: int, d: int) -> float:
    """Variance of the noise: the median of the non-zero eigenvalues over that of the law (Gavish and Donoho 2014)."""
    return float(np.median(values[: min(n - 1, d)])) / law_median(d / (n - 1))


def law_median(ratio: float) -> float:
    """Median of the non-zero eigenvalues of noise of variance 1."""
    angle = np.linspace(0, np.pi, 20001)
    x = 1 + ratio - 2 * np.sqrt(ratio) * np.cos(angle)
    mass = np.divide(np.sin(angle) ** 2, x, out=np.zeros_like(x), where=x > 0)
    below = np.concatenate([[0], np.cumsum(mass[1:] + mass[:-1])])
    return float(np.interp(below[-1] / 2, below, x))


def edge(values: Array, n: int, d: int) -> float:
    """The largest eigenvalue that noise has, for many rows and features: ``s2 (1 + sqrt(d / (n - 1)))^2``."""
    return noise_variance(values, n, d) * float(1 + np.sqrt(d / (n - 1))) ** 2


def optimal_threshold(values: Array, n: int, d: int) -> float:
    """Above which a component helps to reconstruct the rows without their noise (Gavish and Donoho 2014)."""
    beta = min(d, n - 1) / max(d, n - 1)
    squared = 2 * (beta + 1) + 8 * beta / (beta + 1 + np.sqrt(beta**2 + 14 * beta + 1))
    return float(squared / law_median(beta) * np.median(values[: min(n - 1, d)]))


def null_eigenvalues(variances: Array, n: int, draws: int, rng: Generator) -> Array:
    """Eigenvalues (draws, min(n - 1, d)) of covariances of n rows of independent normal features.

    Bartlett (1933): the rows' scatter has a triangular factor whose entries are independent, normal below the diagonal
    and chi on it, so that no rows are drawn.

    Parameters
    ----------
    variances : ndarray of shape (d,)
        Of the features.
    """
    d, freedom = len(variances), n - 1
    most = min(d, freedom)
    found = np.empty((draws, most))
    for i in range(draws):
        factor = np.tril(rng.standard_normal((d, most)), -1)
        factor[np.arange(most), np.arange(most)] = np.sqrt(rng.chisquare(freedom - np.arange(most)))
        found[i] = svdvals(np.sqrt(variances)[:, None] * factor) ** 2 / freedom
    return found


def null_band(variances: Array, n: int, draws: int = 100, seed: int = 0) -> Array:
    """The 95th percentiles (min(n - 1, d),) of `null_eigenvalues`, which decide in Horn's parallel analysis (1965)."""
    drawn = null_eigenvalues(variances, n, draws, np.random.default_rng(seed))
    band: Array = np.percentile(drawn, PERCENTILE, axis=0)
    return band


def parallel_analysis(values: Array, band: Array) -> int:
    """How many of the first eigenvalues are above the null ones of the same rank."""
    return leading_run(values[: len(band)] > band)


def broken_stick(values: Array) -> int:
    """How many of the first are above the pieces of a stick that breaks at random (Jackson 1993)."""
    d = len(values)
    pieces = np.cumsum(1 / np.arange(d, 0, -1))[::-1] / d
    return leading_run(values > pieces * values.sum())


def fraction(values: Array, share: float) -> int:
    """How many hold more than a share of the variance."""
    return int(np.searchsorted(np.cumsum(values) / values.sum(), share, side="right")) + 1


def minka(values: Array, n: int) -> int | None:
    """The dimension of greatest evidence (Minka 2000), as scikit-learn's ``n_components="mle"``; None for n < d."""
    d = len(values)
    if n < d:
        return None
    evidence = [_evidence(values, k, n) for k in range(1, d)]
    return 1 + int(np.argmax(evidence)) if evidence else 1


def _evidence(values: Array, k: int, n: int) -> float:
    """Laplace's approximation of the log evidence of dimension k: equation 77 of Minka's report."""
    d, i = len(values), np.arange(1, k + 1)
    rounding = d * np.finfo(np.float64).eps * float(values[0])
    if values[k - 1] <= rounding:
        return -np.inf
    noise = max(rounding, float(values[k:].sum()) / (d - k))
    free = d * k - k * (k + 1) / 2
    directions = -k * np.log(2) + np.sum(gammaln((d - i + 1) / 2) - np.log(np.pi) * (d - i + 1) / 2)
    likelihood = -n / 2 * (np.log(values[:k]).sum() + (d - k) * np.log(noise))
    smoothed = np.concatenate([values[:k], np.full(d - k, noise)])
    pairs = np.triu_indices(d, 1)
    pairs = pairs[0][pairs[0] < k], pairs[1][pairs[0] < k]
    gaps = (values[pairs[0]] - values[pairs[1]]) * (1 / smoothed[pairs[1]] - 1 / smoothed[pairs[0]])
    with np.errstate(divide="ignore"):
        curvature = float(np.sum(np.log(gaps) + np.log(n)))
    return float(directions + likelihood + np.log(2 * np.pi) * (free + k) / 2 - curvature / 2 - k * np.log(n) / 2)
