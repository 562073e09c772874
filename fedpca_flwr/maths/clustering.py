"""k-means and mixtures of normal distributions, computed from sums over points that parties can add up.

A step of k-means (Lloyd 1982) needs for each cell the number of points that are nearest to its centre, and their sum. A
step of the expectation-maximisation algorithm (Dempster, Laird and Rubin 1977) needs the same sums with each point
shared out by the probabilities of the components, and the sums of products. So steps on the points of all parties are
steps on the sums of their sums. From the same start they give the result of scikit-learn's `KMeans` and
`GaussianMixture` on all points.
"""

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cholesky, solve_triangular

from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.krylov import random_block

RIDGE_SHARE = 1e-6  # of the points' mean variance: it is added to the variances of each component of a mixture
MAX_LOG_DENSITY = 1e6  # largest absolute value of a point's log density; larger ones count as this value
CENTRE_TOLERANCE = 1e-9  # centres that move by less, in deviations of the points, stay where they are


def draw_starts(variances: Array, clusters: int, sets: int, seed: int) -> Array:
    """Draw sets of centres (sets, clusters, k) about zero with the points' variances (k,); a seed fixes them."""
    drawn = random_block(max(sets * clusters, variances.size + 1), variances.size, seed)[: sets * clusters]
    return (np.sqrt(3 * variances) * drawn).reshape(sets, clusters, variances.size)


def assign_to_nearest(points: Array, centres: Array) -> tuple[NDArray[np.intp], Array]:
    """Return the index of the nearest of the centres (m, k) for each point (n, k), and the squared distance to it."""
    squares = np.column_stack([np.square(points - centre).sum(axis=1) for centre in centres])
    cells = squares.argmin(axis=1)
    return cells, squares[np.arange(len(points)), cells]


@dataclass
class CellSums:
    """Count and sum of the points nearest to each of m centres, for s sets of centres, as a step of k-means needs."""

    counts: Array  # (s, m)
    sums: Array  # (s, m, k), of the points less their centre
    inertia: Array  # (s,), sums of squared distances to the nearest centre

    @classmethod
    def empty(cls, centres: Array) -> Self:
        """Create sums over no points for sets of centres (s, m, k)."""
        return cls(np.zeros(centres.shape[:2]), np.zeros(centres.shape), np.zeros(len(centres)))

    def add(self, points: Array, centres: Array) -> None:
        """Add points (n, k) to the sums of their nearest centres, in each set of centres (s, m, k)."""
        for i, centre_set in enumerate(centres):
            cells, squares = assign_to_nearest(points, centre_set)
            np.add.at(self.sums[i], cells, points - centre_set[cells])
            self.counts[i] += np.bincount(cells, minlength=len(centre_set))
            self.inertia[i] += squares.sum()

    def step(self, centres: Array) -> Array:
        """Return the centres (s, m, k) after a step of k-means: the means of their points; one without points stays."""
        return centres + self.sums / np.maximum(self.counts, 1.0)[:, :, None]


@dataclass(frozen=True)
class Mixture:
    """A mixture of m normal distributions."""

    weights: Array  # (m,), which add up to 1
    means: Array  # (m, k)
    covariances: Array  # (m, k, k), positive definite

    def log_densities(self, points: Array) -> Array:
        """Compute log densities plus log weights (n, m) at points (n, k); LinAlgError unless positive definite."""
        k, log_joint = points.shape[1], np.empty((len(points), self.weights.size))
        for j, (weight, mean, covariance) in enumerate(zip(self.weights, self.means, self.covariances, strict=True)):
            root = cholesky(covariance, lower=True, check_finite=False)
            whitened = solve_triangular(root, (points - mean).T, lower=True, check_finite=False)
            determinant = 2 * np.log(np.diag(root)).sum() + k * np.log(2 * np.pi)
            log_joint[:, j] = np.log(weight) - (np.square(whitened).sum(axis=0) + determinant) / 2
        return log_joint

    def responsibilities(self, points: Array) -> tuple[Array, Array]:
        """Return posteriors (n, m) and log densities (n,) up to `MAX_LOG_DENSITY` in size; raise as `log_densities`."""
        log_joint = self.log_densities(points)
        largest = log_joint.max(axis=1, keepdims=True)
        weights = np.exp(log_joint - largest)
        total = weights.sum(axis=1, keepdims=True)
        return weights / total, (largest + np.log(total))[:, 0].clip(-MAX_LOG_DENSITY, MAX_LOG_DENSITY)


@dataclass
class MixtureSums:
    """Sums over points weighted by their responsibilities, as a step of expectation-maximisation needs.

    Points are taken about the means of this mixture, so points far from zero lose no digits.
    """

    counts: Array  # (m,), sums of the responsibilities
    sums: Array  # (m, k), weighted, of the points less the mean
    products: Array  # (m, k, k), weighted sums of the products of these deviations
    log_density: float  # summed over the points

    @classmethod
    def empty(cls, mixture: Mixture) -> Self:
        """Create sums over no points."""
        m, k = mixture.means.shape
        return cls(np.zeros(m), np.zeros((m, k)), np.zeros((m, k, k)), 0.0)

    def add(self, points: Array, mixture: Mixture) -> None:
        """Add points (n, k) to the sums, weighted by the responsibilities of a mixture's components."""
        responsibilities, density = mixture.responsibilities(points)
        self.counts += responsibilities.sum(axis=0)
        self.log_density += float(density.sum())
        for j, mean in enumerate(mixture.means):
            deviations = points - mean
            weighted = responsibilities[:, j, None] * deviations
            self.sums[j] += weighted.sum(axis=0)
            self.products[j] += weighted.T @ deviations

    def step(self, means: Array, ridge: float) -> Mixture:
        """Return the mixture of the greatest expected likelihood given the sums (M-step).

        `means` (m, k) are those of the mixture that weighted the points; `ridge` is added to all variances.
        """
        counts = self.counts + 10 * np.finfo(np.float64).eps
        moved = self.sums / counts[:, None]
        covariances = self.products / counts[:, None, None] - moved[:, :, None] * moved[:, None]
        return Mixture(counts / counts.sum(), means + moved, covariances + ridge * np.eye(means.shape[1]))
