"""Harmony (Korsunsky et al. 2019): alignment of the scores of several batches, by sums over the rows of each batch.

A row is shared out over clusters by the angle between its scores and their centres, and away from clusters that hold
more of its batch than of the others. A ridge regression within each cluster then gives the offset of each batch, and a
row's scores lose the offsets of its clusters. Centres, the regression and the number of each batch's rows in a cluster
follow from sums over the rows of each batch.

The authors' program counts again after each twentieth of the rows. Here all rows are shared out at once, and the
penalty that keeps a batch from a cluster moves half the way to the value of the last count, so that both programs come
to rest at the same shares.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

import numpy as np

from fedpca_flwr.maths.arrays import Array

CLUSTER_WIDTH = 0.1  # in squared chords between unit vectors (sigma of the paper)
DIVERSITY = 2.0  # how strongly a batch is kept from clusters that hold more than its part (theta)
RIDGE = 1.0  # rows of no effect that are added to each batch in each cluster (lambda)


@dataclass(frozen=True)
class Steps:
    """Batch corrections of Harmony, step by step, for m soft clusters of rows with k scores from B batches.

    The last step may have no ``moves`` yet: it then only gives the memberships of rows in clusters.
    """

    centres: Array  # (t, m, k), cluster centres of unit length in each of t steps
    penalties: Array  # (t, m, B), added to the logarithm of a row's membership, by its batch
    moves: Array  # (t or t - 1, m, B, k), offsets subtracted from scores, by cluster (weighted by membership) and batch

    @classmethod
    def empty(cls, clusters: int, batches: int, k: int) -> Self:
        """Create corrections without any step."""
        return cls(np.empty((0, clusters, k)), np.empty((0, clusters, batches)), np.empty((0, clusters, batches, k)))

    def begin_step(self, centres: Array, penalty: Array) -> "Steps":
        """Return the corrections with a further step: cluster centres (m, k), penalties (m, B), and no offsets yet."""
        return Steps(np.append(self.centres, [centres], 0), np.append(self.penalties, [penalty], 0), self.moves)

    def finish_step(self, moves: Array) -> "Steps":
        """Return the corrections with the offsets (m, B, k) of the last step."""
        return Steps(self.centres, self.penalties, np.append(self.moves, [moves], 0))

    def correct(self, points: Array, batch: int) -> Array:
        """Correct the scores (n, k) of rows of a batch by all steps that have offsets.

        Each step finds the memberships by the scores corrected so far, and subtracts its offsets from the given scores.
        """
        corrected = points
        for centres, penalty, moves in zip(self.centres, self.penalties[:, :, batch], self.moves, strict=False):
            corrected = points - cluster_shares(normalise_rows(corrected), centres, penalty)[0] @ moves[:, batch]
        return corrected


def normalise_rows(vectors: Array) -> Array:
    """Divide rows (n, k) by their Euclidean lengths; a zero row stays zero."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.asarray(vectors / np.where(lengths > 0, lengths, 1.0))


def cluster_shares(units: Array, centres: Array, penalty: Array) -> tuple[Array, Array]:
    """Compute the memberships of unit vectors in clusters: a softmax of penalised distances to the centres.

    Return the memberships, which sum to 1 in each row, and each row's term of Harmony's objective: its mean squared
    distance less the weighted entropy.
    Shapes: units (n, k), centres (m, k), penalty (m,) -> (n, m), (n,).
    """
    chords = 2 * (1 - units @ centres.T)  # squared distances
    logits = penalty - chords / CLUSTER_WIDTH
    logits -= logits.max(axis=1, keepdims=True)  # so that no exponential overflows
    memberships = np.exp(logits)
    memberships /= memberships.sum(axis=1, keepdims=True)
    logs = np.log(memberships, out=np.zeros_like(memberships), where=memberships > 0)
    return memberships, (memberships * (chords + CLUSTER_WIDTH * logs)).sum(axis=1)


@dataclass
class BatchSums:
    """Sums over the rows of a batch, weighted by their memberships in the clusters of the last step."""

    counts: Array  # (m,), sum of the memberships
    units: Array  # (m, k), of the corrected scores, each row scaled to length 1
    sums: Array  # (m, k), of the uncorrected scores
    objective: float  # sum of the rows' terms (`cluster_shares`)

    @classmethod
    def from_scores(cls, steps: Steps, parts: Iterator[Array], batch: int) -> Self:
        """Compute the sums over the rows of a batch whose uncorrected scores (n, k) come in parts."""
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
    """Compute log((observed + 1) / (expected + 1)) for rows (m, B) by cluster and batch, if these were independent."""
    expected = counts.sum(axis=1, keepdims=True) * counts.sum(axis=0) / counts.sum()
    return np.asarray(np.log((counts + 1) / (expected + 1)))


def ridge_moves(counts: Array, sums: Array) -> Array:
    """Estimate the offset (m, B, k) of each batch in each cluster by a ridge regression of scores on the batch.

    `counts` (m, B) sum the memberships of each batch's rows, and `sums` (m, B, k) their scores, weighted so. The
    intercept of a cluster has no ridge penalty, and is no part of the offsets. Raise LinAlgError for a cluster without
    rows.
    """
    m, batches, k = sums.shape
    moves = np.empty((m, batches, k))
    for j, (batch_counts, total) in enumerate(zip(counts, sums, strict=True)):
        # normal equations for an intercept (first) and one indicator of each batch
        gram = np.diag(np.append(batch_counts.sum(), batch_counts + RIDGE))
        gram[0, 1:] = gram[1:, 0] = batch_counts
        moves[j] = np.linalg.solve(gram, np.vstack([total.sum(axis=0), total]))[1:]
    return moves
