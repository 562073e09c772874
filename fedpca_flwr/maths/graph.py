r"""Sanger's rule (1989): a direction that leads to the leading eigenvectors themselves, not only to their span.

For a symmetric ``A`` (d x d) and ``X`` (d x k)::

    H(X) = A X - X triu(X' A X)

Column j is Oja's rule for the matrix without the columns before it, so that ``X + alpha H(X)`` converges to the first k
eigenvectors in order. ``H`` is linear in ``A``: at a common ``X`` the mean of the parties' directions is the direction
of the mean of their matrices. `A` is known only through the product ``A X``.

Undirected graphs of parties, and the weights with which neighbours average.

A graph is its adjacency matrix: booleans (K, K), symmetric, False on the diagonal.

How a linearly convergent iteration would go on, as far as the sizes of its steps show.

If steps shrink by a factor r < 1 in each iteration, what is left of the way after a step s is ``s r / (1 - r)``, and
after m more iterations ``r^m`` times that. It is an extrapolation: a mode that is hidden yet may be slower, and near a
saddle point steps shrink before they grow again.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.sparse.csgraph import shortest_path

from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.krylov import random_block

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


POWERS, PROBES = 10, 4
"""Products, and columns of each, by which a party finds the largest eigenvalue of its scatter."""


def sanger_direction(AX: Array, X: Array) -> Array:
    """``H(X)`` (d, k) from ``A @ X`` and ``X``, both (d, k)."""
    return AX - X @ np.triu(X.T @ AX)


def largest_eigenvalue(times: Callable[[Array], Array], d: int) -> float:
    """That of a positive semidefinite matrix (d x d) known by its products with blocks; from below, by a few percent.

    Block power steps from a block that everybody has alike: where they have not converged, it is because the leading
    eigenvalues are close together, and then the value is close, too.
    """
    block = orthonormalised(random_block(d, min(d, PROBES), seed=0))
    for _ in range(POWERS - 1):
        block = orthonormalised(times(block))
    return max(0.0, float(np.linalg.eigvalsh(block.T @ times(block))[-1]))


def safe_step(largest: float, mixing: float) -> float:
    """A step size with which parties that follow Sanger's rule over a graph converge as a rule.

    At a solution a single party's iteration contracts along the solution itself by ``1 - 2 alpha L``, with the largest
    eigenvalue ``L`` of its matrix: it is stable for ``alpha L < 1`` and fastest at a half, also where parties follow
    each other's directions. Where they differ, what an exchange leaves of their disagreement adds up over some
    ``1 / (1 - mixing)`` exchanges, and the step is smaller, by the root of that. There is no proof of it for all
    parties and graphs.

    Parameters
    ----------
    largest : float
        Of any party's matrix.
    mixing : float
        `graph.mixing_rate` of the weights, 0 to 1.
    """
    return min(0.5, math.sqrt(1 - mixing)) / largest


def mixed(own: Array, others: Sequence[Array], weights: Array) -> Array:
    """The weighted mean of a party's own array and its neighbours': one row of ``W @ arrays``.

    The products are sorted before they are added: in which order the neighbours come changes no bit.

    Parameters
    ----------
    own : ndarray
    others : sequence of ndarray
        The neighbours', in the shape of ``own``.
    weights : ndarray of shape (len(others),)
        Of the neighbours; the party's own weight is what these leave of one.
    """
    products = [(1 - weights.sum()) * own, *(weight * other for weight, other in zip(weights, others, strict=True))]
    total: Array = np.sort(products, axis=0).sum(axis=0)
    return total


def orthonormalised(X: Array) -> Array:
    """Orthonormal columns (d, k) whose first j span what the first j of ``X`` span, and point the same way."""
    Q, R = np.linalg.qr(X)
    return Q * np.where(np.diagonal(R) < 0, -1.0, 1.0)


FEWEST = 16
"""Steps from which a rate can be told."""


def linear_rate(steps: Sequence[float]) -> float | None:
    """The factor r by which positive steps shrink in an iteration; None where they do not shrink steadily.

    Their logarithms fall by straight lines in the third and in the last quarter, and the slopes agree up to a factor 2.
    """
    if len(steps) < FEWEST or min(steps) <= 0:
        return None
    quarter = len(steps) // 4
    logs = np.log(steps[-2 * quarter :])
    before, after = (np.polyfit(np.arange(quarter), part, 1)[0] for part in (logs[:quarter], logs[quarter:]))
    if not (before < 0 and after < 0 and 0.5 < before / after < 2):
        return None
    return float(np.exp(after))


def way_left(steps: Sequence[float]) -> float | None:
    """How far it still is after the last step, in its unit; None where no rate can be seen."""
    rate = linear_rate(steps)
    return None if rate is None else steps[-1] * rate / (1 - rate)


def iterations_left(steps: Sequence[float], goal: float) -> int | None:
    """How many more iterations bring what is left of the way below ``goal``; None where no rate can be seen."""
    rate, left = linear_rate(steps), way_left(steps)
    if rate is None or left is None:
        return None
    return max(0, math.ceil(math.log(left / goal) / -math.log(rate)))
