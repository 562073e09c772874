"""The methods of the design notes 000 and 001, each as a few lines of dense matrices."""

import hashlib

import numpy as np
import pytest

from fedpca_flwr import run
from fedpca_flwr.errors import ConfigError
from tests.papers.partitions import PARTITIONS, ROWS

(N, D), K, MEAN, SEED, STEPS = ROWS.shape, 4, ROWS.mean(axis=0), 42, 6
LAWS = {
    "p-cov": {"variant": "paper"},
    "ap-cov": {},
    "ap-cov, simple": {"party_weights": "none"},
    "ap-stack": {"variant": "paper"},
    "ap-stack, scaled": {},
    "qr-pca": {"variant": "paper"},
    "sub-it": {"variant": "paper", "max_rounds": STEPS},
    "compressed": {"variant": "paper"},
}


def leading(C, k=K):
    values, vectors = np.linalg.eigh(C)
    return values[::-1][:k], vectors[:, ::-1][:, :k]


def low_rank(C, k):
    values, V = leading(C, k)
    return V * values @ V.T


def published(law, parts):
    """Return the variances with the divisor N, and the components (D, K), by the formulas of the notes."""
    n, C = [len(X) for X in parts], [np.cov(X, rowvar=False, ddof=0) for X in parts]  # 000, 4.1
    means = np.array([np.sqrt(len(X) / N) * (X.mean(axis=0) - MEAN) for X in parts])
    match law:
        case "p-cov":
            return leading(np.average(C, axis=0, weights=n) + means.T @ means)
        case "ap-cov":  # 000, 5.2: without the correction
            return leading(np.average(C, axis=0, weights=n))
        case "ap-cov, simple":
            return leading(np.mean(C, axis=0))
        case "ap-stack":  # the note states no variances: those of the low-rank mean, by which components are in order
            _, _, Vt = np.linalg.svd(np.hstack([leading(part)[1] for part in C]).T)
            values = np.diag(Vt[:K] @ np.mean([low_rank(part, K) for part in C], axis=0) @ Vt[:K].T)
            return np.sort(values)[::-1], Vt[:K].T[:, np.argsort(-values)]
        case "ap-stack, scaled":
            return leading(np.mean([low_rank(part, K) for part in C], axis=0))
        case "qr-pca":
            svds = [np.linalg.svd(X - X.mean(axis=0), full_matrices=False) for X in parts]
            R = np.linalg.qr(np.vstack([np.sqrt(N) * means, *(s[:K, None] * Vt[:K] for _, s, Vt in svds)]))[1]
            _, s, Vt = np.linalg.svd(R)
            return s[:K] ** 2 / N, Vt[:K].T
        case "compressed":
            low_ranks = [low_rank(part, 2 * K) for part in C]
            return leading(np.average(low_ranks, axis=0, weights=n) + means.T @ means)
    bits = np.frombuffer(hashlib.shake_256(f"{SEED}/{D}/{K}".encode()).digest(4 * D * K), "<u4") >> 9  # our start
    V, _ = np.linalg.qr((2.0 * bits + 1).reshape(D, K) / 2**23 - 1)
    for _ in range(STEPS - 1):
        V, _ = np.linalg.qr(sum((X - MEAN).T @ ((X - MEAN) @ V) for X in parts))
    values, rotation = leading(sum(V.T @ (X - MEAN).T @ (X - MEAN) @ V for X in parts) / N)
    return values, V @ rotation


@pytest.mark.parametrize("partition", PARTITIONS)
@pytest.mark.parametrize("law", LAWS)
def test_a_run_as_in_the_notes_is_their_formula(law, partition):
    """Faults: other weights or divisors, a filler, rounded numbers, a Krylov space, a mean that is left out or in."""
    parts, method = [ROWS[rows] for rows in PARTITIONS[partition]], law.partition(",")[0]
    values, vectors = published(law, parts)
    model = run(method, parts, n_components=K, seed=SEED, **LAWS[law])
    signs = np.sign(np.sum(model.components_.T * vectors, axis=0))
    np.testing.assert_allclose(model.components_, (vectors * signs).T, rtol=0, atol=1e-9)
    np.testing.assert_allclose(model.explained_variance_, values * N / (N if method == "p-cov" else N - 1), rtol=1e-9)
    np.testing.assert_allclose(model.singular_values_, np.sqrt(values * N), rtol=1e-9)
    np.testing.assert_allclose(model.mean_, MEAN, rtol=1e-12)


def test_the_divisor_changes_variances_and_nothing_else():
    """Faults: a noise variance with the other divisor, or a squared error that does not fit the variances."""
    parts = [ROWS[rows] for rows in PARTITIONS["dirichlet"]]
    ours, paper = (run("p-cov", parts, n_components=K, variant=variant) for variant in ("ours", "paper"))
    for name in ("explained_variance_", "noise_variance_", "total_variance"):
        np.testing.assert_allclose(getattr(paper, name), (N - 1) / N * getattr(ours, name), rtol=1e-14)
    for name in ("components_", "mean_", "explained_variance_ratio_", "singular_values_"):
        np.testing.assert_array_equal(getattr(paper, name), getattr(ours, name))
    np.testing.assert_allclose(paper.squared_error, ours.squared_error, rtol=1e-12)


@pytest.mark.parametrize("options", [{"center": False}, {"secure_aggregation": True, "bound": 20.0}])
def test_a_simple_mean_of_covariances_needs_each_covariance(options):
    with pytest.raises(ConfigError, match="set party_weights='rows'"):
        run("ap-cov", [ROWS[rows] for rows in PARTITIONS["iid"]], n_components=K, party_weights="none", **options)
