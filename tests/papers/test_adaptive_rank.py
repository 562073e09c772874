"""Grammenos et al. 2019, Federated PCA with Adaptive Rank Estimation, to the letter: algorithms 1 to 3, equation 6."""

import numpy as np
import pytest

from fedpca_flwr import run
from tests.papers.partitions import PARTITIONS, ROWS

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
