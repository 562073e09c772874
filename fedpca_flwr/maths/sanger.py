r"""Sanger's rule (1989): a direction that leads to the leading eigenvectors themselves, not only to their span.

For a symmetric ``A`` (d x d) and ``X`` (d x k)::

    H(X) = A X - X triu(X' A X)

Column j is Oja's rule for the matrix without the columns before it, so that ``X + alpha H(X)`` converges to the first k
eigenvectors in order. ``H`` is linear in ``A``: at a common ``X`` the mean of the parties' directions is the direction
of the mean of their matrices. `A` is known only through the product ``A X``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.krylov import random_block

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
