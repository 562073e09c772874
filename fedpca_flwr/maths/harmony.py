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

CLUSTER_WIDTH = 0.1
"""Of a cluster, in squared chords between unit vectors (sigma of the paper)."""

DIVERSITY = 2.0
"""How strongly a batch is kept from clusters that hold more than its part (theta)."""

RIDGE = 1.0
"""Rows of no effect that are added to each batch in each cluster (lambda)."""


@dataclass(frozen=True)
class Steps:
    """The correction steps of Harmony so far: centres and penalties of m clusters, and moves for each of B batches.

    The last step may have no ``moves`` yet: rows are then shared out by this step, and not moved.

    Parameters
    ----------
    centres : ndarray of shape (t, m, k)
        Centres of unit length.
    penalties : ndarray of shape (t, m, B)
        Number added to the logarithm of a row's share, by its batch.
    moves : ndarray of shape (t or t - 1, m, B, k)
        Offsets subtracted from a row's scores, by its cluster and batch.
    """

    centres: Array
    penalties: Array
    moves: Array

    @classmethod
    def empty(cls, clusters: int, batches: int, k: int) -> Self:
        """Create corrections without any step.

        Parameters
        ----------
        clusters, batches, k : int
            Number of clusters, of batches and of scores.

        Returns
        -------
        Steps
            No steps.
        """
        return cls(np.empty((0, clusters, k)), np.empty((0, clusters, batches)), np.empty((0, clusters, batches, k)))

    def begin_step(self, centres: Array, penalty: Array) -> "Steps":
        """Append a step, in which rows are assigned to clusters by new centres and penalties.

        Parameters
        ----------
        centres : ndarray of shape (m, k)
            Centres of the step.
        penalty : ndarray of shape (m, B)
            Penalties of the step.

        Returns
        -------
        Steps
            The longer corrections.
        """
        return Steps(np.append(self.centres, [centres], 0), np.append(self.penalties, [penalty], 0), self.moves)

    def finish_step(self, moves: Array) -> "Steps":
        """Set the moves of the last step.

        Parameters
        ----------
        moves : ndarray of shape (m, B, k)
            Offsets of the step.

        Returns
        -------
        Steps
            The completed corrections.
        """
        return Steps(self.centres, self.penalties, np.append(self.moves, [moves], 0))

    def correct(self, points: Array, batch: int) -> Array:
        """Apply all finished steps to the scores of a batch.

        Parameters
        ----------
        points : ndarray of shape (n, k)
            Scores of rows of the batch.
        batch : int
            Number of the batch.

        Returns
        -------
        ndarray of shape (n, k)
            Corrected scores.
        """
        corrected = points
        for centres, penalty, moves in zip(self.centres, self.penalties[:, :, batch], self.moves, strict=False):
            corrected = points - cluster_shares(normalise_rows(corrected), centres, penalty)[0] @ moves[:, batch]
        return corrected

    def correct_parts(self, parts: Iterator[Array], batch: int) -> Iterator[Array]:
        """Apply all finished steps to chunks of scores.

        Parameters
        ----------
        parts : iterator of ndarray
            Scores of rows of the batch.
        batch : int
            Number of the batch.

        Returns
        -------
        iterator of ndarray
            Corrected scores.
        """
        return (self.correct(points, batch) for points in parts)


def normalise_rows(vectors: Array) -> Array:
    """Divide each row by its length; rows of zeros stay.

    Parameters
    ----------
    vectors : ndarray of shape (n, k)
        The rows.

    Returns
    -------
    ndarray of shape (n, k)
        Rows of length 1.
    """
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.asarray(vectors / np.where(lengths > 0, lengths, 1.0))


def cluster_shares(units: Array, centres: Array, penalty: Array) -> tuple[Array, Array]:
    """Compute the soft assignment of unit vectors to clusters: each row's shares sum to 1.

    Parameters
    ----------
    units : ndarray of shape (n, k)
        Unit vectors.
    centres : ndarray of shape (m, k)
        Centres of the clusters.
    penalty : ndarray of shape (m,)
        Number added to the logarithm of the shares.

    Returns
    -------
    shares : ndarray of shape (n, m)
        Shares in the clusters.
    objective : ndarray of shape (n,)
        Terms of the objective.
    """
    chords = 2 * (1 - units @ centres.T)
    logits = penalty - chords / CLUSTER_WIDTH
    logits -= logits.max(axis=1, keepdims=True)
    memberships = np.exp(logits)
    memberships /= memberships.sum(axis=1, keepdims=True)
    logs = np.log(memberships, out=np.zeros_like(memberships), where=memberships > 0)
    return memberships, (memberships * (chords + CLUSTER_WIDTH * logs)).sum(axis=1)


@dataclass
class BatchSums:
    """Sums over the rows of a batch, weighted by their shares in the clusters of the last step.

    Parameters
    ----------
    counts : ndarray of shape (m,)
        Sums of the shares.
    units : ndarray of shape (m, k)
        Sums of unit vectors.
    sums : ndarray of shape (m, k)
        Sums of the scores before any step.
    objective : float
        The batch's part of the objective.
    """

    counts: Array
    units: Array
    sums: Array
    objective: float

    @classmethod
    def from_scores(cls, steps: Steps, parts: Iterator[Array], batch: int) -> Self:
        """Compute the sums over chunks of a batch's scores.

        Parameters
        ----------
        steps : Steps
            The corrections so far.
        parts : iterator of ndarray
            Scores of rows of the batch.
        batch : int
            Number of the batch.

        Returns
        -------
        BatchSums
            The sums.
        """
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
    """Compute the logarithms of observed over expected numbers of rows, for each batch in each cluster.

    Parameters
    ----------
    counts : ndarray of shape (m, B)
        Rows of each batch in each cluster.

    Returns
    -------
    ndarray of shape (m, B)
        The logarithms.
    """
    expected = counts.sum(axis=1, keepdims=True) * counts.sum(axis=0) / counts.sum()
    return np.asarray(np.log((counts + 1) / (expected + 1)))


def ridge_moves(counts: Array, sums: Array) -> Array:
    """Estimate the offset of each batch within each cluster by ridge regression; scores move by its negative.

    The intercept is not shrunk, and stays.

    Parameters
    ----------
    counts : ndarray of shape (m, B)
        Rows of each batch in each cluster.
    sums : ndarray of shape (m, B, k)
        Sums of their scores.

    Returns
    -------
    ndarray of shape (m, B, k)
        The offsets.
    """
    m, batches, k = sums.shape
    moves = np.empty((m, batches, k))
    for j, (batch_counts, total) in enumerate(zip(counts, sums, strict=True)):
        gram = np.diag(np.append(batch_counts.sum(), batch_counts + RIDGE))
        gram[0, 1:] = gram[1:, 0] = batch_counts
        moves[j] = np.linalg.solve(gram, np.vstack([total.sum(axis=0), total]))[1:]
    return moves
