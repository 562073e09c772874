r"""The edge of noise among the eigenvalues of a covariance or scatter.

Noise of variance :math:`s^2` in every feature has the law of Marchenko and Pastur (1967): with f degrees of freedom of
the rows and d features, no eigenvalue of its scatter is above :math:`s^2 (\sqrt f + \sqrt d)^2`, but for a fluctuation
of known law (Johnstone 2001).

If all eigenvalues are known, :math:`s^2` is the median of the non-zero eigenvalues over that of the law (`noise_edge`;
Gavish and Donoho 2014). If only the first and the trace are known, :math:`s^2` follows from the variance that the
components before leave (`MarchenkoPastur`).

If there are fewer rows than features, correlated features (neighbouring genotypes) lift noise above that edge. Its
eigenvalues then still lie close to each other, so the differences between those that follow tell which difference is a
gap: Onatski's (2010) estimator of the number of factors (`largest_gap`).
"""

from dataclasses import dataclass

import numpy as np

from fedpca_flwr.maths.angle_bounds import AngleBounds
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.krylov import Ritz

TRACY_WIDOM_95 = 0.9793  # the 95th percentile of the law of Tracy and Widom for real rows
SPACING_EIGENVALUES = 5  # number of eigenvalues, after the components, from which the spacing of noise is told


def noise_variance(values: Array, n: int, d: int) -> float:
    """Estimate the noise variance of each feature from the median eigenvalue (Gavish and Donoho 2014).

    It is the median of the non-zero among all covariance eigenvalues (d,), descending, over that for unit noise.
    """
    return float(np.median(values[: min(n - 1, d)])) / law_median(d / (n - 1))


def law_median(ratio: float) -> float:
    """Compute the median of the Marchenko-Pastur law, for unit noise with ``ratio`` features a degree of freedom."""
    # x = 1 + ratio - 2 sqrt(ratio) cos(angle) turns the density sqrt((b - x)(x - a)) / x dx into sin^2 / x d(angle)
    angle = np.linspace(0, np.pi, 20001)
    x = 1 + ratio - 2 * np.sqrt(ratio) * np.cos(angle)
    mass = np.divide(np.sin(angle) ** 2, x, out=np.ones_like(x), where=x > 0)  # of 0 / 0 at ratio 1 the limit is 1
    below = np.concatenate([[0], np.cumsum(mass[1:] + mass[:-1])])
    return float(np.interp(below[-1] / 2, below, x))


def noise_edge(values: Array, n: int, d: int) -> float:
    """Compute the largest covariance eigenvalue of pure noise in the limit, ``s2 (1 + sqrt(d / (n - 1)))^2``.

    The noise variance ``s2`` is estimated from all eigenvalues (d,), descending, of n rows (`noise_variance`).
    """
    return noise_variance(values, n, d) * float(1 + np.sqrt(d / (n - 1))) ** 2


def optimal_threshold(values: Array, n: int, d: int) -> float:
    """Compute the eigenvalue (of all (d,), descending) above which a component denoises (Gavish and Donoho 2014)."""
    # equation 11 of the paper, squared, for singular values, over the median of their law
    beta = min(d, n - 1) / max(d, n - 1)
    squared = 2 * (beta + 1) + 8 * beta / (beta + 1 + np.sqrt(beta**2 + 14 * beta + 1))
    return float(squared / law_median(beta) * np.median(values[: min(n - 1, d)]))


@dataclass(frozen=True)
class MarchenkoPastur:
    """Upper edge of noise eigenvalues (Marchenko-Pastur) in a scatter, from its first eigenvalues and its trace."""

    freedom: float  # degrees of freedom: the number of rows, less 1 if their mean was subtracted
    features: int  # number of features

    def edge(self, remaining_trace: float, j: int) -> float:
        """Compute the 95th percentile of the largest noise eigenvalue after j components; infinity without noise."""
        f, d = self.freedom - j, self.features - j
        if min(f, d) < 1:
            return np.inf
        # Johnstone (2001): centre (sqrt f + sqrt d)^2 and scale of the Tracy-Widom law, times the noise variance
        roots = float(np.sqrt(f) + np.sqrt(d))
        spread = roots * float(f**-0.5 + d**-0.5) ** (1 / 3)
        return float(remaining_trace / (f * d) * (roots**2 + TRACY_WIDOM_95 * spread))

    def count_above(self, values: Array, trace: float, k: int) -> int:
        """Count the leading of descending eigenvalues, at most k, above the `edge` that earlier ones leave."""
        remaining_traces = trace - np.concatenate([[0.0], np.cumsum(values[:k])])
        j = 0
        while j < min(k, values.size) and values[j] > self.edge(float(remaining_traces[j]), j):
            j += 1
        return j

    def count_certified(self, ritz: Ritz, trace: float, k: int, angles: AngleBounds, tolerance: float) -> int:
        """Count the components above the noise, fewer than k, once an iteration certifies their number and accuracy.

        Return 0 as long as either is not certain; ``tolerance`` is the largest angle in degrees to the exact
        components. A residual bounds how far a Ritz value is from an eigenvalue, and the bound on the first omitted
        eigenvalue says that no eigenvalue was missed.
        """
        values = ritz.values
        if values.size < k + SPACING_EIGENVALUES + 1:
            return 0
        above = self.count_above(values, trace, k)
        gap, spacing = (above, 0.0) if self.freedom > self.features else largest_gap(values, k)
        j = min(above, gap)
        if not 0 < j < k or not angles.certifies(j, tolerance):
            return 0
        if above <= gap:
            edge = self.edge(trace - float(values[:j].sum()), j)
            return j if angles.eigenvalue(j, edge - 2 * ritz.error) <= edge else 0
        # certain only if no eigenvalue within its error could open a wider gap after the j-th
        largest = angles.eigenvalue(j, float(values[j + 1]) + spacing / 2)
        errors = np.linalg.norm(ritz.leading_residuals(k + 1)[:, j:], axis=0) + ritz.error
        highest = np.append(largest, values[j + 1 : k] + errors[1 : k - j])
        settled = errors.max() <= spacing / 4 and (highest - values[j + 1 : k + 1] < spacing).all()
        return j if settled else 0


def largest_gap(values: Array, max_count: int) -> tuple[int, float]:
    """Find the last gap between eigenvalues wider than the spacing of noise eigenvalues (Onatski 2010).

    Of ``values``, descending and more than ``max_count`` + `SPACING_EIGENVALUES`, return how many come before the gap
    (``max_count`` if the search does not settle), and the difference from which on it counts as a gap.
    """
    # Onatski: regress the eigenvalues after the gap on (index - 1)^(2/3); twice the slope bounds the spacing of noise
    position, spacing = max_count, 0.0
    for _ in range(20):
        first = position + 1
        abscissae = np.arange(first - 1, first + SPACING_EIGENVALUES - 1) ** (2 / 3)
        slope = np.polyfit(abscissae, values[first - 1 : first + SPACING_EIGENVALUES - 1], 1)[0]
        spacing = 2 * abs(float(slope))
        wide_gaps = np.flatnonzero(-np.diff(values[: max_count + 1]) >= spacing)
        next_position = int(wide_gaps[-1]) + 1 if wide_gaps.size else 0
        if next_position == position:
            return position, spacing
        position = next_position
    return max_count, spacing
