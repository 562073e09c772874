r"""Harmony (Korsunsky et al. 2019): scores of several batches brought together, by sums over the rows of each batch.

A row is shared out over clusters by the angle between its scores and their centres, and away from clusters that hold
more of its batch than of the others. A ridge regression within each cluster then says by how much its batches lie
apart, and a row's scores lose its clusters' parts of that. Centres, the regression and how much of each batch a cluster
holds follow from sums over the rows of each batch.

The authors' program counts again after each twentieth of the rows. Here all rows are shared out at once, and what keeps
a batch from a cluster goes half the way to what the last count says, so that both come to rest at the same shares.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

import numpy as np

from fedpca_flwr.maths.arrays import Array

CLUSTER_WIDTH = 0.1
"""Of a cluster, in squared chords between unit vectors (sigma of the paper)."""

DIVERSITY = 2.0
"""How strongly a batch is kept from clusters that hold more than its part (theta)."""

RIDGE = 1.0
"""Rows of no effect that are added to each batch in each cluster (lambda)."""


@dataclass(frozen=True)
class Steps:
    """The corrections of Harmony one after the other, for m clusters of k scores in B batches.

    The last step may have no ``moves`` yet: rows are shared out by it, and not moved.
    """

    centres: Array  # (t, m, k), of unit length
    penalties: Array  # (t, m, B), what is added to the logarithm of a row's share, by its batch
    moves: Array  # (t or t - 1, m, B, k), what is taken off a row's scores, by its cluster and batch

    @classmethod
    def empty(cls, clusters: int, batches: int, k: int) -> Self:
        return cls(np.empty((0, clusters, k)), np.empty((0, clusters, batches)), np.empty((0, clusters, batches, k)))

    def begin_step(self, centres: Array, penalty: Array) -> "Steps":
        """One more step, which shares rows out."""
        return Steps(np.append(self.centres, [centres], 0), np.append(self.penalties, [penalty], 0), self.moves)

    def finish_step(self, moves: Array) -> "Steps":
        """The last step with what it takes off."""
        return Steps(self.centres, self.penalties, np.append(self.moves, [moves], 0))

    def correct(self, points: Array, batch: int) -> Array:
        """Scores (n, k) of rows of one batch after all steps that move them."""
        found = points
        for centres, penalty, moves in zip(self.centres, self.penalties[:, :, batch], self.moves, strict=False):
            found = points - cluster_shares(normalise_rows(found), centres, penalty)[0] @ moves[:, batch]
        return found

    def correct_parts(self, parts: Iterator[Array], batch: int) -> Iterator[Array]:
        """The same of rows that come some at a time."""
        return (self.correct(points, batch) for points in parts)


def normalise_rows(vectors: Array) -> Array:
    """The rows of ``vectors``, each of length 1; zeros stay."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.asarray(vectors / np.where(lengths > 0, lengths, 1.0))


def cluster_shares(units: Array, centres: Array, penalty: Array) -> tuple[Array, Array]:
    """Of unit vectors (n, k) the shares (n, m) in clusters, and what the objective adds up: (n,)."""
    chords = 2 * (1 - units @ centres.T)
    logits = penalty - chords / CLUSTER_WIDTH
    logits -= logits.max(axis=1, keepdims=True)
    memberships = np.exp(logits)
    memberships /= memberships.sum(axis=1, keepdims=True)
    logs = np.log(memberships, out=np.zeros_like(memberships), where=memberships > 0)
    return memberships, (memberships * (chords + CLUSTER_WIDTH * logs)).sum(axis=1)


@dataclass
class BatchSums:
    """Sums over the rows of a batch that are shared out by the last of some steps."""

    counts: Array  # (m,)
    units: Array  # (m, k), of unit vectors
    sums: Array  # (m, k), of the scores before any step
    objective: float

    @classmethod
    def from_scores(cls, steps: Steps, parts: Iterator[Array], batch: int) -> Self:
        """The sums over rows whose scores come some at a time."""
        centres, penalty = steps.centres[-1], steps.penalties[-1, :, batch]
        batch_sums = cls(np.zeros(len(centres)), np.zeros(centres.shape), np.zeros(centres.shape), 0.0)
        for points in parts:
            units = normalise_rows(steps.correct(points, batch))
            memberships, objective = cluster_shares(units, centres, penalty)
            batch_sums.counts += memberships.sum(axis=0)
            batch_sums.units += memberships.T @ units
            batch_sums.sums += memberships.T @ points
            batch_sums.objective += float(objective.sum())
        return batch_sums


def log_excess(counts: Array) -> Array:
    """Logarithms of how many rows of each batch clusters hold, ``counts`` (m, B), over its part of all rows."""
    expected = counts.sum(axis=1, keepdims=True) * counts.sum(axis=0) / counts.sum()
    return np.asarray(np.log((counts + 1) / (expected + 1)))


def ridge_moves(counts: Array, sums: Array) -> Array:
    """What a ridge regression within each cluster says of its batches (m, B, k).

    From the ``counts`` (m, B) and the ``sums`` (m, B, k) of scores. The intercept is not shrunk, and stays.
    """
    m, batches, k = sums.shape
    moves = np.empty((m, batches, k))
    for j, (batch_counts, total) in enumerate(zip(counts, sums, strict=True)):
        gram = np.diag(np.append(batch_counts.sum(), batch_counts + RIDGE))
        gram[0, 1:] = gram[1:, 0] = batch_counts
        moves[j] = np.linalg.solve(gram, np.vstack([total.sum(axis=0), total]))[1:]
    return moves
