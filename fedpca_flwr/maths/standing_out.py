r"""Which of the leading eigenvalues of a scatter stand out of noise, told from the first of them and the trace.

Noise of variance :math:`s^2` in every feature has no eigenvalue above :math:`s^2 (\sqrt f + \sqrt d)^2` (Marchenko and
Pastur 1967) but for a fluctuation of known law (Johnstone 2001); :math:`f` are the degrees of freedom of the rows, d
the features, and :math:`s^2` is had from the variance that the components before leave.

Where there are fewer rows than features, features that go together (neighbouring genotypes) lift noise above that edge.
Its eigenvalues then still lie close to each other, so the differences between those that follow tell which one is a
gap: Onatski's (2010) estimator of the number of factors.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedpca_flwr.maths.angle_bounds import AngleBounds
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.krylov import Ritz

LAW_95 = 0.9793
"""95th percentile of the law of Tracy and Widom for real rows."""

FOLLOWING = 5
"""Eigenvalues behind the components that show how far apart those of noise are."""


@dataclass(frozen=True)
class Noise:
    """Noise in rows.

    Parameters
    ----------
    freedom : int
        Rows, less one where they are about their mean.
    features : int
    """

    freedom: int
    features: int

    def edge(self, left: float, j: int) -> float:
        """The 95th percentile of the largest eigenvalue of noise that has what j components leave of the trace."""
        f, d = self.freedom - j, self.features - j
        if min(f, d) < 1:
            return np.inf
        roots = float(np.sqrt(f) + np.sqrt(d))
        spread = roots * float(f**-0.5 + d**-0.5) ** (1 / 3)
        return float(left / (f * d) * (roots**2 + LAW_95 * spread))

    def above_edge(self, values: Array, trace: float, k: int) -> int:
        """How many of the first k eigenvalues are above the edge of what those before leave."""
        left = trace - np.concatenate([[0.0], np.cumsum(values[:k])])
        j = 0
        while j < min(k, values.size) and values[j] > self.edge(float(left[j]), j):
            j += 1
        return j

    def certified(self, ritz: Ritz, trace: float, k: int, angles: AngleBounds, tolerance: float) -> int:
        """How many of the first k components stand out, where they are certified and the others surely do not; else 0.

        A Ritz value is never above its eigenvalue, and its residual bounds how far it is from one; the bound on the
        first eigenvalue that is left out says that none was missed.
        """
        values = ritz.values
        if values.size < k + FOLLOWING + 1:
            return 0
        above = self.above_edge(values, trace, k)
        gap, spacing = (above, 0.0) if self.freedom > self.features else largest_gap(values, k)
        j = min(above, gap)
        if not 0 < j < k or not angles.certifies(j, tolerance):
            return 0
        if above <= gap:
            edge = self.edge(trace - float(values[:j].sum()), j)
            return j if angles.eigenvalue(j, edge - 2 * ritz.error) <= edge else 0
        largest = angles.eigenvalue(j, float(values[j + 1]) + spacing / 2)
        errors = np.linalg.norm(ritz.residuals[:, j : k + 1], axis=0) + ritz.error
        highest = np.append(largest, values[j + 1 : k] + errors[1 : k - j])
        settled = errors.max() <= spacing / 4 and (highest - values[j + 1 : k + 1] < spacing).all()
        return j if settled else 0


def largest_gap(values: Array, most: int) -> tuple[int, float]:
    """After how many eigenvalues, ``most`` at most, the last gap stands out of the differences behind; and from what.

    Parameters
    ----------
    values : ndarray of shape (m,)
        Descending; m > most + `FOLLOWING`.

    Returns
    -------
    int, float
        All of ``most`` where the search finds no end.
    """
    found, spacing = most, 0.0
    for _ in range(20):
        first = found + 1
        abscissae = np.arange(first - 1, first + FOLLOWING - 1) ** (2 / 3)
        slope = np.polyfit(abscissae, values[first - 1 : first + FOLLOWING - 1], 1)[0]
        spacing = 2 * abs(float(slope))
        wide = np.flatnonzero(-np.diff(values[: most + 1]) >= spacing)
        again = int(wide[-1]) + 1 if wide.size else 0
        if again == found:
            return found, spacing
        found = again
    return most, spacing
