r"""Sanger's rule (1989): a direction that leads to the leading eigenvectors themselves, not only to their span.

For a symmetric ``A`` (d x d) and ``X`` (d x k)::

    H(X) = A X - X triu(X' A X)

Column j is Oja's rule for the matrix without the columns before it, so that ``X + alpha H(X)`` converges to the first k
eigenvectors in order. ``H`` is linear in ``A``: at a common ``X`` the mean of the parties' directions is the direction
of the mean of their matrices. `A` is known only through the product ``A X``.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedpca_flwr.maths.arrays import Array


def sanger_direction(AX: Array, X: Array) -> Array:
    """``H(X)`` (d, k) from ``A @ X`` and ``X``, both (d, k)."""
    return AX - X @ np.triu(X.T @ AX)


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
