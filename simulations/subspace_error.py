r"""The expected distance between the components of a sample of rows and the population's, from the sample alone.

The distance is the Frobenius norm of the sines of the principal angles between both k-dimensional subspaces, the root
of their summed squares. With variances :math:`l_i` of the components of n rows, scores :math:`x_i` and
:math:`m_{ji} = E[x_j^2 x_i^2]`, the mean squared distance is to first order (any distribution, n well above d)

    t_1 + ... + t_k,    t_j = sum over i > k of m_ji / (l_j - l_i)^2 / n

Sample variances lie too far apart, and a sine is at most 1. Both are corrected by the relative shift of a variance,
:math:`b_j = \sum_{i > k} m_{ji} / (l_j (l_j - l_i)) / n`::

    sine_j^2 (n) = t_j / (1 + b_j + t_j)
    sine_j^2 (N) = r T_j / (1 + r b_j),    T_j = t_j (1 + b_j) / (1 + b_j + t_j),    r = n / N

Where the rows are normal (m_ji = l_j l_i) this is, for d comparable with n or much larger, the limit of spiked
covariances with any spectrum of noise (Bai and Yao 2012) and, where noise is equal in all features, that of Paul
(2007): :math:`l_j / (1 + b_j)` is then the population's variance, consistently, and its limit at N rows follows without
the population's spectrum, since :math:`b_j` falls as 1 / N. So one formula holds from few features to many. For N rows
of a population of M rows without replacement, and for the distance between the components of N rows and of M rows that
hold them, :math:`1 / N - 1 / M` stands in place of :math:`1 / N`.

The squared distance is distributed nearly as a mean of chi-squares of nu directions (Satterthwaite), with nu from the
inner products of the rows' influences on the subspace; the logarithm of its estimate has a variance 2 / mu, by the
influence of each row on it (infinitesimal jackknife), first and most on the gaps. So the interval is the estimate times
quantiles of the distribution F(nu, mu): it holds the distance itself, not only its mean.

Components of features divided by their standard deviations have the influence
:math:`x_j x_i - (l_j + l_i) / 2 \sum_f v_{jf} v_{if} z_f^2` in place of :math:`x_j x_i`.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import scipy  # `scipy.special` is loaded when it is used
from scipy.linalg import eigh

from fedpca_flwr.errors import DataError
from fedpca_flwr.maths.arrays import Array

LEVEL = 0.9  # coverage of intervals
MIN_ROWS = 30  # with fewer, fourth moments tell nothing
MIN_VARIANCE_SHARE = 1e-12  # share of the first variance below which another is rounding
MAX_SQUARED_SINE = 0.25  # 30 degrees, beyond which a component is not told from the omitted ones,
MAX_SPREAD_SINE, MAX_PAIR = 0.5, 0.1  # or 45, where no single omitted component has more than this part in t_j
LARGEST_ROWS = 0.01  # share of the rows that may give no more of the fourth moment than
MAX_LARGEST_SHARE = 2.0  # so many times their share in normal rows of the same variances
TAIL_ERROR = 0.5  # relative error of the fourth moment, times the excess of this number over 1
NORMAL_DRAWS = 10  # draws of normal rows, of which the mean share is taken
MAX_PAIRED_ROWS = 600  # rows, drawn once, whose inner products tell the number of directions


class Distance(NamedTuple):
    """Forecast of a distance between subspaces (root of the summed squared sines): median, and a 90 % interval."""

    median: float
    low: float
    high: float


@dataclass(frozen=True)
class SubspaceError:
    """Expected distance of a sample's leading components from the population's, as a function of the rows."""

    n_rows: int  # number of rows n of the sample
    slopes: Array  # (k,), T of each component: its squared sine at n rows, to first order
    shifts: Array  # (k,), b of each component: the relative shift of its variance at n rows
    directions: float  # nu: number of directions over which the error is spread
    freedom: float  # mu: degrees of freedom of the estimate
    limit: float  # largest possible distance

    def distance(self, rows: float, population: float = np.inf) -> Distance:
        """Forecast how far the components of ``rows`` rows are from those of the population that holds the rows."""
        ratio = self.n_rows * (1 / rows - 1 / population)
        squared = float(np.sum(ratio * self.slopes / (1 + ratio * self.shifts)))
        quantiles = np.array([0.5, 0.5 - LEVEL / 2, 0.5 + LEVEL / 2])
        factors = scipy.special.fdtri(self.directions, self.freedom, quantiles)
        return Distance(*np.sqrt(squared * factors).clip(max=self.limit).tolist())


def estimate_subspace_error(X: Array, k: int, *, scale: bool = False) -> SubspaceError:
    """Estimate from n independent rows (n, d) how far their k leading components are from the population's.

    With ``scale``, features are divided by their deviations. Raise DataError below `MIN_ROWS` rows, if the rows do not
    resolve the k-th gap, or few of them give most of the fourth moment (`_tail_ratio`).
    """
    n = len(X)
    if n < MIN_ROWS:
        raise DataError(f"{n} rows are too few for a forecast; at least {MIN_ROWS} are needed")
    values, V, S, Z2 = _scores(X, scale=scale)
    if not 1 <= k < values.size:
        advice = f"ask for 1 to {values.size - 1} components"
        raise DataError(f"k is {k}, but the {n} rows vary in {values.size} directions: {advice}")
    gaps = values[:k, None] - values[k:]
    fourth, energy = np.empty_like(gaps), np.zeros(n)
    sample = np.random.default_rng(0).permutation(n)[:MAX_PAIRED_ROWS]
    products = np.zeros((sample.size, sample.size))
    with np.errstate(divide="ignore", invalid="ignore"):  # equal variances, which are refused below
        for j in range(k):
            influence = S[:, j, None] * S[:, k:]
            if Z2 is not None:
                influence -= (values[j] + values[k:]) / 2 * (Z2 @ (V[:, j, None] * V[:, k:]))
            influence /= gaps[j]
            products += influence[sample] @ influence[sample].T
            influence **= 2
            fourth[j] = influence.mean(axis=0)  # over the squared gap
            energy += influence.sum(axis=1)
        turns = fourth.sum(axis=1) / n
        shifts = (fourth * gaps).sum(axis=1) / values[:k] / n
        squared_sines = turns / (1 + shifts + turns)
        largest = np.where(fourth.max(axis=1) / n <= MAX_PAIR, MAX_SPREAD_SINE, MAX_SQUARED_SINE)
    unresolved = np.flatnonzero(~(squared_sines <= largest))
    if unresolved.size:
        raise DataError(
            f"component {unresolved[0] + 1} of {k} is not resolved: {n} rows cannot tell it from those after component "
            f"{k}, so there is no forecast; choose another number of components, or more rows"
        )
    tails = _tail_ratio(energy, values, gaps)
    deviations = S**2 - values if Z2 is None else S**2 - values * (Z2 @ V**2)
    slope = 2 * fourth / gaps
    influence = energy - energy.mean() - deviations[:, :k] @ slope.sum(axis=1) + deviations[:, k:] @ slope.sum(axis=0)
    pairs = sample.size * (sample.size - 1)
    spread = float(np.sum(products**2) - np.sum(np.diagonal(products) ** 2)) / pairs
    squared_mean = float(energy.mean()) ** 2
    return SubspaceError(
        n,
        turns * (1 + shifts) / (1 + shifts + turns),
        shifts,
        squared_mean / spread,
        2 / (float(influence.var()) / n / squared_mean + (TAIL_ERROR * max(0.0, tails - 1)) ** 2),
        float(np.sqrt(min(k, X.shape[1] - k))),
    )


def _tail_ratio(energy: Array, values: Array, gaps: Array) -> float:
    """Return the largest rows' share in the fourth moment (n,) over that of normal rows; DataError if too large."""
    n, k = energy.size, len(gaps)
    largest, rng = math.ceil(LARGEST_ROWS * n), np.random.default_rng(0)

    def share(parts: Array) -> float:
        return float(np.sort(parts)[-largest:].sum() / parts.sum())

    squares = (rng.standard_normal((n, values.size)) ** 2 * values for _ in range(NORMAL_DRAWS))
    normal = float(np.mean([share(np.sum(x[:, :k] * (x[:, k:] @ gaps.T**-2.0), axis=1)) for x in squares]))
    ratio = share(energy) / normal
    if ratio > MAX_LARGEST_SHARE:
        raise DataError(
            f"the largest {LARGEST_ROWS:.0%} of {n} rows give {share(energy):.0%} of the fourth moment that tells the "
            f"error, at most {MAX_LARGEST_SHARE * normal:.0%} allowed ({MAX_LARGEST_SHARE:g} times the share of normal "
            "rows): tails are too heavy for a forecast; correct faulty values, or take logarithms of counts"
        )
    return ratio


def _scores(X: Array, *, scale: bool) -> tuple[Array, Array, Array, Array | None]:
    """Return variances (r,), components (d, r), scores (n, r) and, of scaled rows, their squares (n, d)."""
    Z = X - X.mean(axis=0)
    if scale:
        deviations = Z.std(axis=0, ddof=1)
        Z /= np.where(deviations > 0, deviations, 1.0)
    n, d = Z.shape
    values, vectors = eigh((Z.T @ Z if d < n else Z @ Z.T) / (n - 1))
    rank = int((values > MIN_VARIANCE_SHARE * values[-1]).sum())
    values, vectors = values[::-1][:rank], vectors[:, ::-1][:, :rank]
    if d < n:
        V, S = vectors, Z @ vectors
    else:
        S = vectors * np.sqrt(values * (n - 1))
        V = Z.T @ (S / (values * (n - 1)))
    return values, V, S, Z**2 if scale else None
