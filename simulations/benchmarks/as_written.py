"""Algorithms of the design notes (docs/published.md) as written, faults included, in NumPy, for `front`.

Written anew from the notes and from what is known of their program; a docstring says what the algorithm gets wrong.
Each takes the rows of the clients and the number of components. Everything is in one process, without messages.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedpca_flwr.maths.arrays import Array

Rows = list[NDArray[Any]]


class Result(NamedTuple):
    """Components (k, d), variances (k,), rounds in which clients send something, and bytes that each client sends."""

    components: Array
    variances: Array
    rounds: int
    up: float


def p_cov(parts: Rows, k: int) -> Result:
    """Compute P-COV (note 000, section 8.1): right, with full matrices and all d eigenvectors."""
    mean = np.vstack(parts).mean(axis=0)
    pooled = sum(n * (C + np.outer(m - mean, m - mean)) for n, m, C in map(_moments, parts))
    return _leading(np.asarray(pooled) / sum(map(len, parts)), k)


def ap_cov(parts: Rows, k: int) -> Result:
    """Compute AP-COV, the mean of the covariances: the variance between the clients is missing."""
    stats = [_moments(X) for X in parts]
    return _leading(np.average([C for _, _, C in stats], axis=0, weights=[n for n, _, _ in stats]), k)


def sub_it(parts: Rows, k: int, iterations: int = 100) -> Result:
    """Compute SUB-IT: k columns, however close the eigenvalues are, and no test of convergence.

    Takes ``diag(R)**2 / N`` for the eigenvalues, which is N times their square.
    """
    total = sum(map(len, parts))
    mean = np.sum([X.sum(axis=0, dtype=np.float64) for X in parts], axis=0) / total
    centred = [X - mean for X in parts]
    V = np.linalg.qr(np.random.default_rng(42).standard_normal((mean.size, k)))[0]
    for _ in range(iterations):
        V, R = np.linalg.qr(np.sum([X.T @ (X @ V) for X in centred], axis=0))
    up = 8 * (mean.size + 1) + 8 * mean.size * k * iterations
    return Result(V.T, np.diag(R) ** 2 / total, 1 + iterations, up)


def qr_pca(parts: Rows, k: int) -> Result:
    """Compute QR-PCA of factors cut to 2k rows, times ``sqrt(n / N)`` as well: the rows n count twice."""
    total = sum(map(len, parts))
    means = [X.mean(axis=0) for X in parts]
    mean = np.average(means, axis=0, weights=[len(X) for X in parts])
    stack = []
    for X, m in zip(parts, means, strict=True):
        _, s, Vt = np.linalg.svd(np.linalg.qr(X - m, mode="r"), full_matrices=False)
        rows = np.vstack([s[: 2 * k, None] * Vt[: 2 * k], np.sqrt(len(X)) * (m - mean)])
        stack.append(np.sqrt(len(X) / total) * rows)
    return _stacked(stack, k, total, up=8 * (2 * k * mean.size + mean.size + 1))


def ap_stack(parts: Rows, k: int) -> Result:
    """Compute AP-STACK of eigenvectors times the roots of eigenvalues: row counts and means are not used."""
    stack = []
    for _, _, C in map(_moments, parts):
        values, vectors = np.linalg.eigh(C)
        stack.append((vectors[:, -k:] * np.sqrt(values[-k:].clip(min=0.0))).T)
    return _stacked(stack, k, len(parts), up=8 * (k * parts[0].shape[1] + k))


def _moments(X: NDArray[Any]) -> tuple[int, Array, Array]:
    return len(X), X.mean(axis=0), np.cov(X, rowvar=False, ddof=0)


def _leading(C: Array, k: int) -> Result:
    values, vectors = np.linalg.eigh(C)
    return Result(vectors[:, ::-1][:, :k].T, values[::-1][:k], 1, 8 * (C.size + len(C) + 1))


def _stacked(parts: Rows, k: int, divisor: int, *, up: float) -> Result:
    _, s, Vt = np.linalg.svd(np.vstack(parts), full_matrices=False)
    return Result(Vt[:k], s[:k] ** 2 / divisor, 1, up)
