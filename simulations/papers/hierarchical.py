"""The model of Ozkara et al. 2023, parties about a common V, and the compared solvers, for all parties at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.eigen import polar_factor
from fedpca_flwr.strategies.personalised import mixing as personalised
from fedpca_flwr.strategies.personalised import stiefel
from fedpca_flwr.strategies.personalised.mixing import objective, penalty_strength

NOISE = 0.5  # variance of the noise in all of the paper's experiments; that of the latent variables is 1
# how parties are drawn about V, with variance 1: as in the paper, within bounds, and with outliers (t of 4)
PRIORS: dict[str, Callable[[np.random.Generator, tuple[int, ...]], Array]] = {
    "gaussian": lambda rng, shape: rng.standard_normal(shape),
    "uniform": lambda rng, shape: rng.uniform(-np.sqrt(3), np.sqrt(3), shape),
    "student": lambda rng, shape: rng.standard_t(4, shape) / np.sqrt(2),
}


@dataclass(frozen=True)
class Federation:
    """Data of the hierarchical model: rows (m, n, d) of m parties, and true components (m, d, r) about a common V."""

    rows: Array
    truth: Array
    spread: float

    @classmethod
    def draw(cls, *, d: int, r: int, m: int, n: int, spread: float, seed: int, prior: str = "gaussian") -> Federation:
        """Draw V (d, r), components of m parties about V with a variance ``spread``, and n noisy rows of each."""
        rng = np.random.default_rng(seed)
        V = polar_factor(rng.standard_normal((d, r)))
        party_components = V + np.sqrt(spread) * PRIORS[prior](rng, (m, d, r))
        truth = stiefel.retract(V, stiefel.tangent_projection(V, party_components))
        latent, errors = rng.standard_normal((m, r, n)), rng.standard_normal((m, d, n))
        return cls(stiefel.transpose(truth @ latent + np.sqrt(NOISE) * errors), truth, spread)

    @property
    def penalty_strength(self) -> float:
        """Weight mu of the penalty on distances to V that fits the noise and spread of the data."""
        return penalty_strength(NOISE, self.spread)

    def test_ratio(self, U: Array) -> float:
        """Return the expected error of U (m, d, r) on new rows over the true components' error; 1 is as good."""
        d, r = self.truth.shape[1:]
        captured = np.square(stiefel.transpose(U) @ self.truth).sum(axis=(-1, -2)).mean()
        return float(1 + (r - captured) / ((d - r) * NOISE))

    def train_ratio(self, U: Array) -> float:
        """Return the error of U (m, d, r) on the drawn rows over the true components' expected error; 1 is as good."""
        d, r = self.truth.shape[1:]
        lost = np.square(self.rows).sum() - np.square(self.rows @ U).sum()
        return float(lost / (self.rows.shape[0] * self.rows.shape[1]) / ((d - r) * NOISE))

    def objective(self, U: Array, V: Array) -> float:
        """Return the objective (equation (4)) of components U (m, d, r) about V (d, r), mean over parties."""
        return float(objective(self.rows, U, V, noise=NOISE, spread=self.spread).mean())

    def pooled(self) -> Array:
        """Return the leading r right singular vectors (d, r) of all parties' rows together."""
        pooled_rows = self.rows.reshape(-1, self.rows.shape[-1])
        _, _, vectors = np.linalg.svd(pooled_rows, full_matrices=False)
        return vectors[: self.truth.shape[-1]].T

    def local(self, fill: Array) -> Array:
        """Return the leading components (m, d, r) of each party's rows; ``fill`` (d, r) completes those of few rows."""
        return np.array([personalised.local_components(rows, fill) for rows in self.rows])

    def random_start(self, seed: int, *sizes: int) -> Array:
        """Draw orthonormal components (sizes..., d, r), uniform on the Stiefel manifold."""
        rng = np.random.default_rng([seed, 1])
        return polar_factor(rng.standard_normal((*sizes, *self.truth.shape[1:])))


def closed_form(data: Federation, V: Array, *, times: float = 1.0) -> Array:
    """Alternate updates of the parties' components U (m, d, r) and the common V, up to 100 times, and return U."""
    U = np.broadcast_to(V, data.truth.shape)
    for _ in range(100):
        U = personalised.personal_components(data.rows, V, times * data.penalty_strength, U)
        next_V = np.linalg.qr(personalised.project_components(U, V).mean(axis=0)).Q
        distance, V = float(personalised.subspace_distance(next_V, V)), next_V
        if distance < 1e-7:
            break
    return U


def algorithm_1(
    data: Federation, U: Array, V: Array, iterations: int, *, local: int = 1
) -> Iterator[tuple[Array, Array]]:
    """Yield U (m, d, r) and V (d, r) after each iteration of Algorithm 1, of ``local`` largest stable steps each."""
    largest = np.linalg.norm(data.rows, 2, axis=(-2, -1)) ** 2
    for _ in range(iterations):
        for _ in range(local):
            c = data.penalty_strength
            U, versions = personalised.gradient_step(data.rows, U, V, c, 1 / (largest + c), 1 / c)
        V = stiefel.retract(V, versions.mean(axis=0) - V)
        yield U, V


def ascend(rows: Array, U: Array, iterations: int) -> Iterator[Array]:
    """Yield U (m, d, r), or of pooled rows (d, r), after each gradient step on the likelihood without a penalty."""
    step = 1 / np.linalg.norm(rows, 2, axis=(-2, -1))[..., None, None] ** 2
    for _ in range(iterations):
        U = stiefel.retract(U, -step * stiefel.tangent_projection(U, personalised.local_gradient(rows, U, U, 0.0)))
        yield U


def best_perpca(data: Federation, start: Array) -> float:
    """Return PerPCA's least test ratio of runs from ``start`` (d, r) that share 1/4, 1/2 or 3/4 of the components."""
    r = data.truth.shape[-1]
    counts = sorted({max(1, r // 4), r // 2, 3 * r // 4})
    return min(data.test_ratio(personalised.perpca(data.rows, start, count)) for count in counts)


def iterations_needed(values: list[float]) -> int:
    """Return the iteration, from 1, since which a decreasing sequence stays within 3 % of its last value."""
    allowed = values[-1] + 0.03 * abs(values[-1])
    return max((i for i, value in enumerate(values, start=1) if value > allowed), default=0) + 1
