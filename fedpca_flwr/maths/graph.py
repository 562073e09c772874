"""Parties on a graph without a server: averaging, Sanger's rule, and an extrapolation of the remaining distance.

*The graph* is its adjacency matrix: booleans (K, K), symmetric, False on the diagonal. Neighbours average with
Metropolis weights (`metropolis_weights`), and pass on a table of all parties' means (`MeanTable`).

*Sanger's rule* (1989) is a direction that leads to the leading eigenvectors themselves, not only to their span. For a
symmetric ``A`` (d x d) and ``X`` (d x k)::

    H(X) = A X - X triu(X' A X)

Column j is Oja's rule for the matrix without the columns before it, so that ``X + alpha H(X)`` converges to the first k
eigenvectors in order. ``H`` is linear in ``A``: at a common ``X`` the mean of the parties' directions is the direction
of the mean of their matrices. ``A`` is known only through the product ``A X``.

*The remaining distance*: if steps shrink by a factor r < 1 in each iteration, the distance to the limit after a step s
is ``s r / (1 - r)``, and after m more iterations ``r^m`` times that. It is an extrapolation: a mode that is still
hidden may be slower, and near a saddle point steps shrink before they grow again.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse.csgraph import shortest_path

from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.krylov import random_block
from fedpca_flwr.maths.moments import Head, head_order, pool_heads

Adjacency = NDArray[np.bool_]

MAX_DRAWS = 1000  # so many Erdős-Rényi graphs are drawn before the edge probability is called too small
POWER_STEPS, PROBE_COLUMNS = 10, 4  # of the iteration by which a party finds the largest eigenvalue of its scatter
MIN_RATE_STEPS = 16  # a rate can be told from so many steps
MIN_SLOPE = 1e-9  # a slope of the steps' logarithms below this is rounding, not a rate


def make_graph(kind: str, parties: int, *, probability: float = 0.5, seed: int = 0) -> Adjacency:
    """Make the adjacency matrix (K, K) of a connected graph of parties, the same at every party.

    The graph is a "ring", a "star" about party 0, "complete", a "grid" (nearly a square, whose last line may be
    shorter), or "erdos-renyi", which has each of the K (K - 1) / 2 edges with a probability, independently, and is
    drawn again until it is connected. Raise ValueError if none of `MAX_DRAWS` graphs is.
    """
    first, second = np.triu_indices(parties, 1)
    if kind != "erdos-renyi":
        grid_width = math.ceil(math.sqrt(parties))
        edges = {
            "grid": (second - first == grid_width) | ((second - first == 1) & (second % grid_width > 0)),
            "ring": (second - first == 1) | (second - first == parties - 1),
            "star": first == 0,
            "complete": np.ones(first.size, dtype=bool),
        }
        return _adjacency(parties, first, second, edges[kind])
    for draw in range(MAX_DRAWS):
        drawn = hashlib.shake_256(f"{seed}/{parties}/{draw}".encode()).digest(4 * first.size)
        uniform = np.frombuffer(drawn, "<u4") / 2.0**32  # which every party can make, as `krylov.random_block`
        graph = _adjacency(parties, first, second, uniform < probability)
        if np.isfinite(_hops(graph)).all():
            return graph
    raise ValueError(f"none of {MAX_DRAWS} graphs of {parties} parties was connected")


def diameter(graph: Adjacency) -> int:
    """Count the edges of the shortest path between the two parties of a connected graph (K, K) farthest apart."""
    return int(_hops(graph).max())


def metropolis_weights(graph: Adjacency) -> Array:
    """Compute Metropolis weights (K, K) for averaging: ``1 / (1 + the larger degree of both ends)`` for each edge.

    Each row sums to 1. Every party can compute its own from its neighbours' degrees (Xiao, Boyd, Kim 2007).
    """
    degrees = graph.sum(axis=0)
    weights = np.where(graph, 1 / (1 + np.maximum.outer(degrees, degrees)), 0.0)
    np.fill_diagonal(weights, 1 - weights.sum(axis=1))
    return weights


def mixing_rate(weights: Array) -> float:
    """Compute the share of deviations that weights (K, K) may leave: the second ``|eigenvalue|``; 0 for one party."""
    sizes = np.sort(np.abs(np.linalg.eigvalsh(weights)))
    return float(sizes[-2]) if sizes.size > 1 else 0.0


def _adjacency(
    parties: int, first: NDArray[np.intp], second: NDArray[np.intp], present: NDArray[np.bool_]
) -> Adjacency:
    """Return the symmetric adjacency matrix with the edges ``first[i]`` to ``second[i]`` where ``present[i]``."""
    graph = np.zeros((parties, parties), dtype=bool)
    graph[first, second] = present
    return graph | graph.T


def _hops(graph: Adjacency) -> Array:
    """Return the numbers of edges (K, K) on the shortest paths between all parties; infinite without a path."""
    return np.asarray(shortest_path(graph.astype(np.float64), directed=False, unweighted=True))


class MeanTable(NamedTuple):
    """Row count, mean, and trace and largest eigenvalue of the scatter of every party, as a party knows the values.

    The entries of a party that is not known yet are zero; exchanges of tables between neighbours fill them.
    """

    counts: NDArray[np.int64]  # (K,), rows
    traces: Array  # (K,), of the scatter of each party's rows about their own mean
    tops: Array  # (K,), largest eigenvalue of that scatter, from below (`largest_eigenvalue`)
    means: Array  # (K, d)
    remainders: Array  # (K, d), as in `fedpca_flwr.maths.moments.Head`

    @classmethod
    def for_party(cls, party: int, parties: int, head: Head, trace: float, top: float) -> MeanTable:
        """Create the table that a party has before any exchange, from count, mean, trace and largest eigenvalue."""
        alone, vectors = np.zeros(parties), np.zeros((parties, head.mean.size))
        table = cls(np.zeros(parties, np.int64), alone, alone.copy(), vectors, vectors.copy())
        table.counts[party], table.traces[party], table.tops[party] = head.n, trace, top
        table.means[party], table.remainders[party] = head.mean, head.remainder
        return table

    def filled_from(self, other: MeanTable) -> MeanTable:
        """Return this table with the entries of parties unknown here from a neighbour's table."""
        new = (self.counts == 0) & (other.counts > 0)
        columns = zip(self, other, strict=True)
        return MeanTable(
            *(np.where(new if local.ndim == 1 else new[:, None], received, local) for local, received in columns)
        )

    def pooled(self) -> tuple[Head, float, Array, Array]:
        """Return head and trace of all rows, and each party's trace (K,) and deviation (K, d) about the pooled mean.

        The sums are taken in an order of the values: permuting the parties changes no bit of the pooled head and trace.
        """
        heads = [Head(int(n), m, r) for n, m, r in zip(self.counts, self.means, self.remainders, strict=True)]
        order = sorted(range(len(heads)), key=lambda i: head_order(heads[i]))
        pooled, ordered = pool_heads([heads[i] for i in order])
        deviations = np.array(ordered)[np.argsort(order)]
        traces = self.traces + self.counts * np.einsum("ij,ij->i", deviations, deviations)
        return pooled, math.fsum(traces), traces, deviations

    def max_eigenvalue_share(self) -> float:
        """Bound K times the largest eigenvalue of a party's scatter about the pooled mean, over the pooled trace.

        A party's shifted scatter adds its rows times |mean - pooled mean|^2 in one direction to its own scatter. The
        bound is too small by as much as `tops` are.
        """
        _, total, traces, _ = self.pooled()
        return float(len(self.counts) * (traces - self.traces + self.tops).max() / total)


def sanger_direction(AX: Array, X: Array) -> Array:
    """Compute Sanger's direction ``A X - X triu(X' A X)`` towards the leading eigenvectors of A; all (d, k)."""
    return AX - X @ np.triu(X.T @ AX)


def largest_eigenvalue(product: Callable[[Array], Array], d: int) -> float:
    """Estimate the largest eigenvalue of a positive semidefinite matrix by a few power steps, from below.

    `product` multiplies the matrix (d, d) with a block (d, c). Block power steps start from a block that all parties
    share. If they have not converged, the leading eigenvalues are close together, and then the value is too small by a
    few percent, as a rule.
    """
    # largest Rayleigh-Ritz value of the block after the power steps
    block = orthonormalise(random_block(d, min(d, PROBE_COLUMNS), seed=0))
    for _ in range(POWER_STEPS - 1):
        block = orthonormalise(product(block))
    return max(0.0, float(np.linalg.eigvalsh(block.T @ product(block))[-1]))


def safe_step(largest: float, mixing: float) -> float:
    """Choose a step size alpha with which parties that follow Sanger's rule over a graph usually converge.

    At a solution a single party's iteration contracts along the solution itself by ``1 - 2 alpha L``, with the largest
    eigenvalue ``L`` of its matrix: it is stable for ``alpha L < 1`` and fastest at a half, also if parties follow each
    other's directions. If the parties differ, the disagreement that an exchange leaves adds up over some ``1 / (1 -
    mixing)`` exchanges (by the `mixing_rate`), and the step is smaller, by the root of that. There is no proof of it
    for all parties and graphs.
    """
    return min(0.5, math.sqrt(1 - mixing)) / largest


def mix(local: Array, neighbours: Sequence[Array], weights: Array) -> Array:
    """Compute the weighted mean of a party's array and its neighbours' arrays, one weight for each neighbour.

    The party's own weight is what is left of 1. The order of the neighbours changes no bit: the products are sorted.
    """
    weighted = [weight * neighbour for weight, neighbour in zip(weights, neighbours, strict=True)]
    return np.asarray(np.sort([(1 - weights.sum()) * local, *weighted], axis=0).sum(axis=0))


def orthonormalise(X: Array) -> Array:
    """Return the factor Q of the QR decomposition of X (d, k) in which the factor R has no negative diagonal."""
    Q, R = np.linalg.qr(X)
    return Q * np.where(np.diagonal(R) < 0, -1.0, 1.0)


def linear_rate(steps: Sequence[float]) -> float | None:
    """Estimate the factor by which the lengths of an iteration's steps shrink; None if they do not do so steadily.

    The logarithms of the steps must fall by straight lines in the third and in the last quarter and from one quarter's
    mean to the other's, and the slopes must agree up to a factor 2. (The means of a cycle do not fall.)
    """
    if len(steps) < MIN_RATE_STEPS or min(steps) <= 0:
        return None
    quarter = len(steps) // 4
    logs = np.log(steps[-2 * quarter :]).reshape(2, quarter)
    before, after = np.polyfit(np.arange(quarter), logs.T, 1)[0]
    slopes = before, after, np.diff(logs.mean(axis=1))[0] / quarter
    if max(slopes) > -MIN_SLOPE or max(slopes) / min(slopes) <= 0.5:
        return None
    return float(np.exp(after))


def remaining_distance(steps: Sequence[float]) -> float | None:
    """Extrapolate the distance to the limit after the last step by a geometric series; None without `linear_rate`."""
    rate = linear_rate(steps)
    return None if rate is None else steps[-1] * rate / (1 - rate)


def remaining_iterations(steps: Sequence[float], goal: float) -> int | None:
    """Estimate the iterations until the distance to the limit is at most a goal; None without `linear_rate`."""
    rate, distance = linear_rate(steps), remaining_distance(steps)
    if rate is None or distance is None:
        return None
    # least m with distance * rate^m <= goal
    return max(0, math.ceil(math.log(distance / goal) / -math.log(rate)))
