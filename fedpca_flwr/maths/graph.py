"""Undirected graphs of parties, and the weights with which neighbours average.

A graph is its adjacency matrix: booleans (K, K), symmetric, False on the diagonal.
"""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray
from scipy.sparse.csgraph import shortest_path

from fedpca_flwr.maths.arrays import Array

Adjacency = NDArray[np.bool_]
DRAWS = 1000
"""Erdős-Rényi graphs that are drawn before the edge probability is called too small."""


def graph_of(kind: str, parties: int, *, probability: float = 0.5, seed: int = 0) -> Adjacency:
    """A connected graph of so many parties, the same wherever it is made.

    Parameters
    ----------
    kind : {"ring", "star", "complete", "erdos-renyi"}
        A star's centre is party 0. An Erdős-Rényi graph has each of the K (K - 1) / 2 edges with ``probability``,
        independently, and is drawn again until it is connected.
    parties : int
        K, at least 1.
    probability, seed : float, int
        Only for Erdős-Rényi graphs.

    Raises
    ------
    ValueError
        When no connected graph was drawn.
    """
    first, second = np.triu_indices(parties, 1)
    if kind != "erdos-renyi":
        among = {
            "ring": (second - first == 1) | (second - first == parties - 1),
            "star": first == 0,
            "complete": np.ones(first.size, dtype=bool),
        }
        return _joined(parties, first, second, among[kind])
    for draw in range(DRAWS):
        graph = _joined(parties, first, second, _uniform(f"{seed}/{parties}/{draw}", first.size) < probability)
        if np.isfinite(_hops(graph)).all():
            return graph
    raise ValueError(f"none of {DRAWS} graphs of {parties} parties was connected")


def diameter(graph: Adjacency) -> int:
    """Edges between the two parties that are farthest apart: so many rounds bring news from anyone to everyone."""
    return int(_hops(graph).max())


def metropolis_weights(graph: Adjacency) -> Array:
    """Weights (K, K), symmetric, with rows that sum to one: ``1 / (1 + the larger of both degrees)`` for an edge.

    Every party can tell its own from its neighbours' degrees (Xiao, Boyd, Kim 2007).
    """
    degrees = graph.sum(axis=0)
    weights = np.where(graph, 1 / (1 + np.maximum.outer(degrees, degrees)), 0.0)
    np.fill_diagonal(weights, 1 - weights.sum(axis=1))
    return weights


def mixing_rate(weights: Array) -> float:
    """What one averaging leaves of the parties' disagreement at worst: the second largest ``|eigenvalue|``."""
    sizes = np.sort(np.abs(np.linalg.eigvalsh(weights)))
    return float(sizes[-2]) if sizes.size > 1 else 0.0


def _joined(parties: int, first: NDArray[np.intp], second: NDArray[np.intp], present: NDArray[np.bool_]) -> Adjacency:
    graph = np.zeros((parties, parties), dtype=bool)
    graph[first, second] = present
    return graph | graph.T


def _uniform(text: str, size: int) -> Array:
    """Numbers in [0, 1) that every party can make; why not from a random generator: see `krylov.random_block`."""
    return np.frombuffer(hashlib.shake_256(text.encode()).digest(4 * size), "<u4") / 2.0**32


def _hops(graph: Adjacency) -> Array:
    hops: Array = shortest_path(graph.astype(np.float64), directed=False, unweighted=True)
    return hops
