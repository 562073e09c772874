r"""k-means and mixtures of normal distributions from sums over points, as the parties of a run can add them up.

A step of k-means (Lloyd 1982) needs of each cell how many points are nearest to its centre, and their sum; one of the
expectation-maximisation algorithm (Dempster, Laird and Rubin 1977) the same with each point shared out by the
probabilities of the components, and their products. So steps on the points of all parties are steps on the sums of
their sums, and from the same start they give what scikit-learn's `KMeans` and `GaussianMixture` give of all points.
"""

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cholesky, solve_triangular

from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.krylov import random_block

RIDGE_SHARE = 1e-6
"""Share of the mean variance of the points that is added to the variances of each component of a mixture."""

MAX_LOG_DENSITY = 1e6
"""Points of which a mixture knows less than minus this, or more than this, count as it."""

CENTRE_TOLERANCE = 1e-9
"""Centres that move by less, in deviations of the points, stay where they are."""


def draw_starts(variances: Array, clusters: int, sets: int, seed: int) -> Array:
    """So many sets of centres (number, clusters, k), drawn about zero with the ``variances`` (k,) of the points."""
    drawn = random_block(max(sets * clusters, variances.size + 1), variances.size, seed)[: sets * clusters]
    return (np.sqrt(3 * variances) * drawn).reshape(sets, clusters, variances.size)


def assign_to_nearest(points: Array, centres: Array) -> tuple[NDArray[np.intp], Array]:
    """Of points (n, k) the number of the nearest of the centres (m, k), and the squared distance to it, (n,) each."""
    squares = np.column_stack([np.square(points - centre).sum(axis=1) for centre in centres])
    cells = squares.argmin(axis=1)
    return cells, squares[np.arange(len(points)), cells]


@dataclass
class CellSums:
    """Sums over the points in each cell of several sets of centres: what a step of k-means needs."""

    counts: Array  # (s, m)
    sums: Array  # (s, m, k), of points less their centre
    inertia: Array  # (s,), of squared distances to the nearest centre

    @classmethod
    def empty(cls, centres: Array) -> Self:
        """No points yet, and centres (s, m, k)."""
        return cls(np.zeros(centres.shape[:2]), np.zeros(centres.shape), np.zeros(len(centres)))

    def add(self, points: Array, centres: Array) -> None:
        """Take points (n, k)."""
        for i, centre_set in enumerate(centres):
            cells, squares = assign_to_nearest(points, centre_set)
            np.add.at(self.sums[i], cells, points - centre_set[cells])
            self.counts[i] += np.bincount(cells, minlength=len(centre_set))
            self.inertia[i] += squares.sum()

    def step(self, centres: Array) -> Array:
        """The means of the cells; a centre without points stays where it is."""
        return centres + self.sums / np.maximum(self.counts, 1.0)[:, :, None]


@dataclass(frozen=True)
class Mixture:
    """A mixture of normal distributions."""

    weights: Array  # (m,), which add up to 1
    means: Array  # (m, k)
    covariances: Array  # (m, k, k)

    def log_densities(self, points: Array) -> Array:
        """Of points (n, k) the logarithm of the density of each component, times its weight: (n, m)."""
        k, log_joint = points.shape[1], np.empty((len(points), self.weights.size))
        for j, (weight, mean, covariance) in enumerate(zip(self.weights, self.means, self.covariances, strict=True)):
            root = cholesky(covariance, lower=True, check_finite=False)
            whitened = solve_triangular(root, (points - mean).T, lower=True, check_finite=False)
            determinant = 2 * np.log(np.diag(root)).sum() + k * np.log(2 * np.pi)
            log_joint[:, j] = np.log(weight) - (np.square(whitened).sum(axis=0) + determinant) / 2
        return log_joint

    def responsibilities(self, points: Array) -> tuple[Array, Array]:
        """Of points (n, k) the probabilities (n, m) of the components, and the logarithm (n,) of the density."""
        log_joint = self.log_densities(points)
        largest = log_joint.max(axis=1, keepdims=True)
        weights = np.exp(log_joint - largest)
        total = weights.sum(axis=1, keepdims=True)
        return weights / total, (largest + np.log(total))[:, 0].clip(-MAX_LOG_DENSITY, MAX_LOG_DENSITY)


@dataclass
class MixtureSums:
    """Sums over points that are shared out: what a step of expectation-maximisation needs.

    Points are about the means of the mixture that shares them out: of those that lie far from zero no digit is lost.
    """

    counts: Array  # (m,)
    sums: Array  # (m, k)
    products: Array  # (m, k, k)
    log_density: float

    @classmethod
    def empty(cls, mixture: Mixture) -> Self:
        """No points yet."""
        m, k = mixture.means.shape
        return cls(np.zeros(m), np.zeros((m, k)), np.zeros((m, k, k)), 0.0)

    def add(self, points: Array, mixture: Mixture) -> None:
        """Take points (n, k)."""
        responsibilities, density = mixture.responsibilities(points)
        self.counts += responsibilities.sum(axis=0)
        self.log_density += float(density.sum())
        for j, mean in enumerate(mixture.means):
            deviations = points - mean
            weighted = responsibilities[:, j, None] * deviations
            self.sums[j] += weighted.sum(axis=0)
            self.products[j] += weighted.T @ deviations

    def step(self, means: Array, ridge: float) -> Mixture:
        """The mixture that these sums, about ``means`` (m, k), are most likely of; ``regular`` is added to its
        variances."""
        counts = self.counts + 10 * np.finfo(np.float64).eps
        moved = self.sums / counts[:, None]
        covariances = self.products / counts[:, None, None] - moved[:, :, None] * moved[:, None]
        return Mixture(counts / counts.sum(), means + moved, covariances + ridge * np.eye(means.shape[1]))
