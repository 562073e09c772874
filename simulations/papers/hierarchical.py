"""The model of Ozkara et al. 2023, parties about a common V, and the solvers that it compares, for all parties at once.

Rows are stacks (m, n, d) of m parties, components (m, d, r). Errors are ratios to the true components' error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from fedpca_flwr.maths import personalised, stiefel
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.personalised import objective, penalty_strength

NOISE = 0.5
"""Variance of the noise in all of the paper's experiments; that of the latent variables is 1."""
PRIORS: dict[str, Callable[[np.random.Generator, tuple[int, ...]], Array]] = {
    "gaussian": lambda rng, shape: rng.standard_normal(shape),
    "uniform": lambda rng, shape: rng.uniform(-np.sqrt(3), np.sqrt(3), shape),
    "student": lambda rng, shape: rng.standard_t(4, shape) / np.sqrt(2),
}
"""How parties are drawn about V, with variance 1: as in the paper, within bounds, and with outliers (t of 4)."""


@dataclass(frozen=True)
class Federation:
    """Data drawn from the model (section V of the paper), with the parties' true components and their variance about V.

    Rows have the shape (m, n, d), the components (m, d, r).
    """

    rows: Array
    truth: Array
    spread: float
    noise: float = NOISE

    @classmethod
    def draw(
        cls, *, d: int, r: int, m: int, n: int, spread: float, seed: int, noise: float = NOISE, prior: str = "gaussian"
    ) -> Federation:
        rng = np.random.default_rng(seed)
        V = stiefel.polar_factor(rng.standard_normal((d, r)))
        around = V + np.sqrt(spread) * PRIORS[prior](rng, (m, d, r))
        truth = stiefel.retract(V, stiefel.tangent_projection(V, around))
        latent, errors = rng.standard_normal((m, r, n)), rng.standard_normal((m, d, n))
        return cls(stiefel.transpose(truth @ latent + np.sqrt(noise) * errors), truth, spread, noise)

    @property
    def strength(self) -> float:
        return penalty_strength(self.noise, self.spread)

    def test_ratio(self, U: Array) -> float:
        """Expected error on new rows over that of the true components."""
        d, r = self.truth.shape[1:]
        kept = np.square(stiefel.transpose(U) @ self.truth).sum(axis=(-1, -2)).mean()
        return float(1 + (r - kept) / ((d - r) * self.noise))

    def train_ratio(self, U: Array) -> float:
        """Error on these rows over the expected error of the true components."""
        d, r = self.truth.shape[1:]
        left = np.square(self.rows).sum() - np.square(self.rows @ U).sum()
        return float(left / (self.rows.shape[0] * self.rows.shape[1]) / ((d - r) * self.noise))

    def objective(self, U: Array, V: Array) -> float:
        """Equation (4) of the paper."""
        return float(objective(self.rows, U, V, noise=self.noise, spread=self.spread).mean())

    def pooled(self) -> Array:
        """The PCA of all rows (d, r): global averaging in closed form."""
        together = self.rows.reshape(-1, self.rows.shape[-1])
        _, _, vectors = np.linalg.svd(together, full_matrices=False)
        return vectors[: self.truth.shape[-1]].T

    def local(self, fill: Array) -> Array:
        """Each party's own PCA; ``fill`` (d, r) where its rows have fewer dimensions."""
        return np.array([personalised.local_components(own, fill) for own in self.rows])

    def random_start(self, seed: int, *sizes: int) -> Array:
        """Components drawn uniformly (sizes..., d, r)."""
        rng = np.random.default_rng([seed, 1])
        return stiefel.polar_factor(rng.standard_normal((*sizes, *self.truth.shape[1:])))


def closed_form(data: Federation, V: Array, *, times: float = 1.0, iterations: int = 100) -> tuple[Array, Array]:
    """The parties' components and V by the closed-form rounds, at ``times`` the model's strength."""
    U = np.broadcast_to(V, data.truth.shape)
    for _ in range(iterations):
        U = personalised.personal_components(data.rows, V, times * data.strength, U)
        found = np.linalg.qr(personalised.project_components(U, V).mean(axis=0)).Q
        moved, V = float(personalised.subspace_distance(found, V)), found
        if moved < 1e-7:
            break
    return U, V


def algorithm_1(
    data: Federation, U: Array, V: Array, iterations: int, *, local: int = 1, alpha: float = 1.0, beta: float = 1.0
) -> Iterator[tuple[Array, Array]]:
    """The parties' components and V after each iteration of the paper's Algorithm 1.

    Parties take ``local`` steps in each. ``alpha`` and ``beta`` are the paper's rates in units of those up to which the
    steps are stable.
    """
    largest = np.linalg.norm(data.rows, 2, axis=(-2, -1)) ** 2
    slower = (largest + data.strength) / alpha - data.strength
    for _ in range(iterations):
        for _ in range(local):
            U, versions = personalised.gradient_step(data.rows, U, V, data.strength, slower)
        V = stiefel.retract(V, beta * (versions.mean(axis=0) - V))
        yield U, V


def ascended(rows: Array, U: Array, iterations: int) -> Iterator[Array]:
    """Stiefel gradient steps on the likelihood alone: local training of stacks, or of all rows with one U."""
    step = 1 / np.linalg.norm(rows, 2, axis=(-2, -1))[..., None, None] ** 2
    for _ in range(iterations):
        U = stiefel.retract(U, -step * stiefel.tangent_projection(U, personalised.local_gradient(rows, U, U, 0.0)))
        yield U


def best_perpca(data: Federation, start: Array) -> float:
    """The least test ratio of PerPCA, over a quarter, a half and three quarters of the components shared."""
    r = data.truth.shape[-1]
    counts = sorted({max(1, r // 4), r // 2, 3 * r // 4})
    return min(data.test_ratio(personalised.perpca(data.rows, start, count)) for count in counts)


def iterations_needed(values: list[float], *, within: float = 0.03) -> int:
    """The first iteration from which a decreasing sequence stays within a share of its last value."""
    allowed = values[-1] + within * abs(values[-1])
    return max((i for i, value in enumerate(values, start=1) if value > allowed), default=0) + 1
