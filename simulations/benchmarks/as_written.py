"""The algorithms of the design notes (docs/published.md) as written and in their program, faults included, in NumPy.

For `front` and for the papers' notes. Written anew from the notes and from what is known of the program:
what each gets wrong stands in its docstring. Everything is in one process, float64 and without messages.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedpca_flwr.maths.arrays import Array

Rows = list[NDArray[Any]]
ADAPTIVE_BORDER = 0.35


class Result(NamedTuple):
    """Components (k, d), variances (k,), the rounds in which clients send something, and the bytes that each sends."""

    components: Array
    variances: Array
    rounds: int
    up: float


def p_cov(parts: Rows, k: int) -> Result:
    """Note 000, section 8.1: right, with full matrices, a loop of outer products and all d eigenvectors."""
    return _pooled([_moments(X) for X in parts], k)


def ap_cov(parts: Rows, k: int) -> Result:
    """The mean of the covariances: the variance between the clients is missing."""
    stats = [_moments(X) for X in parts]
    d = parts[0].shape[1]
    return _leading(np.average([C for _, _, C in stats], axis=0, weights=[n for n, _, _ in stats]), k, d)


def sub_it(parts: Rows, k: int, iterations: int = 100) -> Result:
    """Plain iteration with k columns, however close the eigenvalues are, and no test of convergence.

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
    """Factors cut to 2k rows, times ``sqrt(n / N)`` though singular values have the rows in them: n counts twice."""
    total = sum(map(len, parts))
    means = [X.mean(axis=0) for X in parts]
    mean = np.average(means, axis=0, weights=[len(X) for X in parts])
    stack = []
    for X, m in zip(parts, means, strict=True):
        R = np.linalg.qr(X - m, mode="r")
        _, s, Vt = np.linalg.svd(R, full_matrices=False)
        rows = np.vstack([s[: 2 * k, None] * Vt[: 2 * k], np.sqrt(len(X)) * (m - mean)])
        stack.append(np.sqrt(len(X) / total) * rows)
    return _stacked(stack, k, total, up=8 * (2 * k * mean.size + mean.size + 1))


def ap_stack(parts: Rows, k: int) -> Result:
    """Eigenvectors times the roots of the covariance's eigenvalues: neither the row counts nor the means are used."""
    stack = []
    for X in parts:
        values, vectors = np.linalg.eigh(_moments(X)[2])
        stack.append((vectors[:, -k:] * np.sqrt(values[-k:].clip(min=0.0))).T)
    d = parts[0].shape[1]
    return _stacked(stack, k, len(parts), up=8 * (k * d + k))


def heterogeneity(parts: Rows) -> float:
    """The mean, over clients, of the divergence of means, covariances, spectra (Kullback-Leibler) and total variances.

    The note does not say how it scales and weighs them: here each is relative to the average covariance, at most 1, and
    counts a quarter.
    """
    stats = [_moments(X) for X in parts]
    weights = [n for n, _, _ in stats]
    mean, average = (np.average([one[i] for one in stats], axis=0, weights=weights) for i in (1, 2))
    total, spectrum = np.trace(average), _shares(average)
    scores = []
    for _, m, C in stats:
        own = _shares(C)
        apart = (
            float(np.linalg.norm(m - mean) / np.sqrt(total)),
            float(np.linalg.norm(C - average) / np.linalg.norm(average)),
        )
        scores.append([*apart, float(own @ np.log(own / spectrum)), abs(float(np.trace(C) / total) - 1)])
    return float(np.minimum(scores, 1).mean())


def _moments(X: NDArray[Any]) -> tuple[int, Array, Array]:
    return len(X), X.mean(axis=0), np.cov(X, rowvar=False, ddof=0)


def _shares(C: Array) -> Array:
    values = np.linalg.eigvalsh(C).clip(min=0.0) + 1e-12 * np.trace(C)
    return np.asarray(values / values.sum())


def _pooled(stats: list[tuple[int, Array, Array]], k: int) -> Result:
    weights = [n for n, _, _ in stats]
    mean = np.average([m for _, m, _ in stats], axis=0, weights=weights)
    pooled = np.zeros((mean.size, mean.size))
    for n, m, C in stats:
        pooled += n * (C + np.outer(m - mean, m - mean))
    return _leading(pooled / sum(weights), k, mean.size)


def _leading(C: Array, k: int, d: int) -> Result:
    values, vectors = np.linalg.eigh(C)
    return Result(vectors[:, ::-1][:, :k].T, values[::-1][:k], 1, 8 * (d * d + d + 1))


def _stacked(parts: Rows, k: int, divisor: int, *, up: float) -> Result:
    _, s, Vt = np.linalg.svd(np.vstack(parts), full_matrices=False)
    return Result(Vt[:k], s[:k] ** 2 / divisor, 1, up)
