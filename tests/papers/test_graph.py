"""DSA and FAST-PCA are the iterations that Gang and Bajwa publish, on a ring of five parties."""

import hashlib

import numpy as np
import pytest

from fedpca_flwr import run
from tests.papers.partitions import PARTITIONS, ROWS

K, ITERATIONS, SEED = 3, 40, 42


def published(parts: list[np.ndarray], *, tracked: bool) -> tuple[np.ndarray, np.ndarray]:
    """Follow Sanger's rule from one random start, with a step of 0.1, and average the parties' iterates."""
    d = parts[0].shape[1]
    centred = [part - np.vstack(parts).mean(axis=0) for part in parts]
    A = np.array([rows.T @ rows for rows in centred])
    pooled = A.sum(axis=0)
    A *= len(parts) / np.trace(pooled)
    bits = np.frombuffer(hashlib.shake_256(f"{SEED}/{d}/{K}".encode()).digest(4 * d * K), "<u4") >> 9
    Q, R = np.linalg.qr(((2.0 * bits + 1) / 2**23 - 1).reshape(d, K))
    W = np.roll(np.eye(5), 1, axis=0) / 3 + np.roll(np.eye(5), -1, axis=0) / 3 + np.eye(5) / 3
    if tracked:
        W = (W + np.eye(5)) / 2
    X = np.array([Q * np.sign(np.diagonal(R))] * len(parts))
    H = T = np.array([a @ x - x @ np.triu(x.T @ a @ x) for a, x in zip(A, X, strict=True)])
    for _ in range(ITERATIONS):
        X = np.einsum("ij,jab->iab", W, X) + 0.1 * (T if tracked else H)
        before, H = H, np.array([a @ x - x @ np.triu(x.T @ a @ x) for a, x in zip(A, X, strict=True)])
        T = np.einsum("ij,jab->iab", W, T) + H - before
    orthonormal = [Q * np.sign(np.diagonal(R)) for Q, R in map(np.linalg.qr, X)]
    V = np.linalg.qr(sum(orthonormal)).Q
    energies = np.einsum("ij,ij->j", V, pooled @ V) / (len(ROWS) - 1)
    order = np.argsort(-energies)
    return V.T[order], energies[order]


@pytest.mark.parametrize("partition", PARTITIONS)
@pytest.mark.parametrize("method", ["dsa", "fast-pca"])
def test_a_run_is_the_published_iteration(method, partition):
    parts = [ROWS[part] for part in PARTITIONS[partition]]
    components, variances = published(parts, tracked=method == "fast-pca")
    model = run(method, parts, n_components=K, variant="paper", iterations=ITERATIONS, seed=SEED)
    np.testing.assert_allclose(np.abs(np.einsum("ij,ij->i", model.components_, components)), 1, rtol=1e-9)
    np.testing.assert_allclose(model.explained_variance_, variances, rtol=1e-9)
