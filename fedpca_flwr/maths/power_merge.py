"""VFedPCA's mathematics: local power iteration, weighted merging, and the update of local data (Cheung et al. 2022).

``faithful`` is what the authors' program does: rows centred over a party's own columns, signs as they come, everything
merged that came since the isolated start. Otherwise columns are centred (by the caller), signs aligned, and only the
newest vectors merged. The result is an approximation in both: parties whose leading directions differ are averaged.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from scipy.linalg import norm

from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.columns import added

ROUNDING = 1e-10
"""What is left of a direction after others were taken out, relative to it, and means nothing."""


def power_iteration(product: Callable[[Array], Array], start: Array, steps: int) -> tuple[float, Array]:
    """Rayleigh quotient and unit vector (n,) after ``steps`` products from ``start`` (equations 5 and 6, put right)."""
    a = start
    for _ in range(steps):
        following = product(a)
        size = float(norm(following))  # SciPy's squares nothing that could not be squared
        if size == 0.0:
            return 0.0, np.zeros_like(a)
        a = following / size
    return float(a @ product(a)), a


def local_product(X: Array, *, faithful: bool) -> Callable[[Array], Array]:
    """Products with a party's matrix (n, n): ``X X'``, or the covariance of its rows over its own columns."""
    if not faithful:
        return lambda a: X @ (X.T @ a)
    centred = X - X.mean(axis=1)[:, None]
    return lambda a: centred @ (centred.T @ a) / max(1, X.shape[1] - 1)


def merged(values: Sequence[float], vectors: Sequence[Array], *, faithful: bool, scaled: bool) -> Array:
    """``sum w_i a_i`` (n,) with weights in proportion to the eigenvalues (equation 13).

    Parameters
    ----------
    values : sequence of float
    vectors : sequence of ndarray of shape (n,)
    faithful : bool
        Take signs as they come, and boost p // 2 of p vectors; else turn all towards the leading direction of
        ``sum w_i a_i a_i'``, and boost ceil(p / 2).
    scaled : bool
        Boost the larger weights by 1 + eta and the others by 1 - eta, eta the mean weight (equation 15).
    """
    total = math.fsum(values)
    weights = np.asarray(values) / total if total > 0 else np.full(len(values), 1 / len(values))
    if scaled:
        boosted = len(weights) // 2 if faithful else -(-len(weights) // 2)
        order, eta = np.argsort(-weights, kind="stable"), weights.mean()
        weights[order[:boosted]] *= 1 + eta
        weights[order[boosted:]] *= 1 - eta
    stacked = np.asarray(vectors)
    if not faithful:
        U, _, _ = np.linalg.svd((stacked * np.sqrt(weights.clip(min=0.0))[:, None]).T, full_matrices=False)
        leading = U[:, 0] * np.sign(U[np.abs(U[:, 0]).argmax(), 0])
        weights = np.where(stacked @ leading < 0, -weights, weights)
    return added(list(weights[:, None] * stacked))


def overwritten(X: Array, u: Array) -> Array:
    """``X m m'`` with ``m`` the direction of ``X' u`` (equation 14): of rank one ever after."""
    m = X.T @ u
    size = float(norm(m))
    return np.outer(X @ (m / size), m / size) if size > 0 else X


def direction(u: Array, found: Array) -> Array:
    """``u`` (n,) orthogonalised against the orthonormal columns of ``found`` (n, j < n), and normalised.

    Where only rounding is left of it, or it is zero (a component without variance), any direction does: it is made from
    the axis that ``found`` holds least of.
    """
    left = _without(u, found)
    if norm(left) <= ROUNDING * norm(u):
        left = _without(np.eye(1, len(u), int(np.square(found).sum(axis=1).argmin()))[0], found)
    unit: Array = left / norm(left)
    return unit


def _without(u: Array, found: Array) -> Array:
    for _ in range(2):  # once leaves rounding behind
        u = u - found @ (found.T @ u)
    return u


def deflated(X: Array, found: Array) -> Array:
    """What the directions ``found`` (n, j) leave of ``X`` (n, f)."""
    return X - found @ (found.T @ X)
