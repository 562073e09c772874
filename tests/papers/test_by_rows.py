"""Gang and Bajwa's iterations on a ring, Grammenos et al. 2019 to the letter, and Algorithm 1 of Ozkara et al. 2023."""

import hashlib

import numpy as np
import pytest
from scipy.linalg import sqrtm

from fedpca_flwr import run
from tests.papers.partitions import PARTITIONS, ROWS

K, ITERATIONS, SEED = 3, 40, 42


def published(parts: list[np.ndarray], *, tracked: bool) -> tuple[np.ndarray, np.ndarray]:
    """Follow Sanger's rule from one random start, with a step of 0.1, and average the parties' iterates."""
    d = parts[0].shape[1]
    A = np.array([rows.T @ rows for rows in [part - np.vstack(parts).mean(axis=0) for part in parts]])
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
    V = np.linalg.qr(sum(Q * np.sign(np.diagonal(R)) for Q, R in map(np.linalg.qr, X))).Q
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


BLOCK, BETA = 50, 0.10


def merge_subspaces(first, second, r):
    """Algorithm 2 without forgetting."""
    (U1, s1), (U2, s2) = first, second
    Z = U1.T @ U2
    Up, Rp = np.linalg.qr(U2 - U1 @ Z)
    below = np.hstack([np.zeros((len(Rp), len(s1))), Rp * s2])
    UR, s, _ = np.linalg.svd(np.vstack([np.hstack([np.diag(s1), Z * s2]), below]))
    return (np.hstack([U1, Up]) @ UR)[:, :r], s[:r]


def local_update(Y, r, adaptive, alpha):
    """Algorithm 3; a rank that grows keeps the next triplet of the small SVD, where the document has e_r."""
    U = None
    for start in range(0, Y.shape[1], BLOCK):
        block = Y[:, start : start + BLOCK]
        if U is None:
            U, s, _ = np.linalg.svd(block, full_matrices=False)
        else:
            Z = U.T @ block
            Q, R = np.linalg.qr(block - U @ Z)
            P, s, _ = np.linalg.svd(np.vstack([np.hstack([np.diag(s), Z]), np.hstack([np.zeros((len(R), r)), R])]))
            U = np.hstack([U, Q]) @ P
        share = s[r - 1] / s[:r].sum()
        r += int(adaptive and share > BETA) - int(adaptive and share < alpha)
        U, s = U[:, :r], s[:r]
    return U, s


def merge_all(level, keep):
    """Phase II of algorithm 1: neighbours are merged in pairs, then the results; ``keep`` gives the rank."""
    while len(level) > 1:
        pairs = [level[i : i + 2] for i in range(0, len(level), 2)]
        level = [merge_subspaces(pair[0], pair[1], keep(pair)) if pair[1:] else pair[0] for pair in pairs]
    return level[0]


@pytest.mark.parametrize("partition", PARTITIONS)
@pytest.mark.parametrize(("method", "r", "alpha"), [("spca", 4, 0.01), ("sapca", 2, 0.01), ("sapca", 12, 0.03)])
def test_the_variant_is_the_documents_recursion(method, r, alpha, partition):
    """Faults that this catches: directions beyond the rank, centred rows, hysteresis, and another order of merges."""
    parties, options = [ROWS[rows] for rows in PARTITIONS[partition]], {"variant": "paper", "n_components": r}
    options |= {"share_low": alpha} if method == "sapca" else {}
    leaves = [local_update(rows.T, r, method == "sapca", alpha) for rows in parties]
    ranks = [len(s) for _, s in leaves]
    assert np.sign(np.subtract(ranks, r)).tolist() == [0 if method == "spca" else 1 if r == 2 else -1] * 5
    for topology in ("tree", "star"):  # a node of a tree knows the ranks of its own, the server those of all
        every = [leaves] if topology == "star" else []
        U, s = merge_all(leaves, lambda pair, every=every: max(len(s) for _, s in (*every, pair)[0]))
        model = run(method, parties, topology=topology, **options)
        assert model.n_components_ == len(s)
        signs = np.sign((model.components_ * U.T).sum(axis=1))
        np.testing.assert_allclose(model.components_, (U * signs).T, rtol=0, atol=1e-9)
        np.testing.assert_allclose(model.explained_variance_, s**2 / (len(ROWS) - 1), rtol=1e-9)
        assert not model.mean_.any()


UNIT = 64  # the paper's scores have variance 1: its step sizes are stable for rows of about that size


def projected(U, X):
    return X - U @ (U.T @ X + X.T @ U) / 2


def orthonormal(M):
    left, _, right = np.linalg.svd(M, full_matrices=False)
    return left @ right


def retracted(U, X):
    # the formula's result is orthonormal up to rounding, which the next gradient would multiply
    return orthonormal((U + X) @ np.linalg.inv(sqrtm(np.eye(U.shape[1]) + X.T @ X)))


def algorithm_1(parties, k, *, alpha=0.04, beta=0.04, spread=0.2, noise=0.5, seed=42, half=0.5, iterations=8):
    """Return each party's components U and the shared V, (d, k), after so many iterations."""
    d = parties[0].shape[1]
    V = orthonormal(np.random.default_rng(seed).standard_normal((d, k)))  # uniform on the Stiefel manifold
    own = [V] * len(parties)
    for _ in range(iterations):
        versions = []
        for i, Y in enumerate(parties):
            U, n = own[i], len(Y)
            S, inverse = Y.T @ Y / n, np.linalg.inv(U @ U.T + noise * np.eye(d))
            slope = -n * half * (inverse @ S @ inverse @ U - inverse @ U) + projected(V, U) / spread  # fact 1
            own[i] = U = retracted(U, -alpha * projected(U, slope))
            versions.append(V - beta * projected(V, -projected(V, U) @ (U.T @ V + V.T @ U) / (2 * spread)))
        V = retracted(V, np.mean(versions, axis=0) - V)
    return own, V


def projectors(model):
    """Return the projector of each party's components, which the model orders by their variance."""
    return [U.T @ U for U in model.own_components_.values()]


@pytest.mark.parametrize("indices", PARTITIONS.values(), ids=PARTITIONS)
def test_the_papers_variant_is_algorithm_1(indices):
    parties = [ROWS[part] / UNIT for part in indices]
    own, V = algorithm_1(parties, 3)
    model = run("personalised", parties, n_components=3, variant="paper", iterations=8)
    np.testing.assert_allclose(projectors(model), [U @ U.T for U in own], atol=1e-9)
    values, rotation = np.linalg.eigh(V.T @ np.vstack(parties).T @ np.vstack(parties) @ V)
    np.testing.assert_allclose(np.abs(model.components_ @ V @ rotation[:, ::-1]), np.eye(3), atol=1e-9)
    np.testing.assert_allclose(model.explained_variance_, values[::-1] / (len(ROWS) - 1), rtol=1e-9)
    assert not model.mean_.any()


def test_options_are_the_symbols_of_the_paper():
    parties = [ROWS[part] / UNIT for part in PARTITIONS["shards"]]
    own, _ = algorithm_1(parties, 3, alpha=0.01, beta=0.02, spread=0.01, noise=0.36, seed=7, half=1.0)
    steps = {"local_step": 0.01, "server_step": 0.02, "sigma_u": 0.1, "sigma_eps": 0.6, "seed": 7, "solver": "stiefel"}
    model = run("personalised", parties, n_components=3, variant="paper", iterations=8, **steps)
    np.testing.assert_allclose(projectors(model), [U @ U.T for U in own], atol=1e-9)
