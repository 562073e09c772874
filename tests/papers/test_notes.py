"""The methods of the design notes 000 and 001, each as a few lines of dense matrices."""

import hashlib

import numpy as np
import pytest

from fedpca_flwr import run
from fedpca_flwr.errors import ConfigError
from tests.papers.partitions import PARTITIONS, ROWS

K, N, MEAN, SEED, STEPS = 4, len(ROWS), ROWS.mean(axis=0), 42, 6


def statistics(parts):
    """Return each party's number of rows, mean and covariance with the divisor n (000, 4.1)."""
    return [(len(X), X.mean(axis=0), np.cov(X, rowvar=False, ddof=0)) for X in parts]


def leading(C, k):
    values, vectors = np.linalg.eigh(C)
    return values[::-1][:k], vectors[:, ::-1][:, :k]


def low_rank(C, k):
    values, V = leading(C, k)
    return V * values @ V.T


def between(parts):
    return sum(n * np.outer(m - MEAN, m - MEAN) for n, m, _ in statistics(parts)) / N


def pooled_covariance(parts):  # 000, 4.1
    return leading(sum(n * (C + np.outer(m - MEAN, m - MEAN)) for n, m, C in statistics(parts)) / N, K)


def averaged_covariance(parts):  # 000, 5.2
    return leading(sum(n * C for n, _, C in statistics(parts)) / N, K)


def simple_average(parts):  # 001, the table of methods
    return leading(sum(C for _, _, C in statistics(parts)) / len(parts), K)


def stacked_eigenvectors(parts):
    """Return the first components of all parties' eigenvectors, by their variance in the mean of these low ranks."""
    _, V = leading(sum(vectors @ vectors.T for _, vectors in (leading(C, K) for _, _, C in statistics(parts))), K)
    values = np.diag(V.T @ sum(low_rank(C, K) for _, _, C in statistics(parts)) @ V) / len(parts)
    order = np.argsort(-values)
    return values[order], V[:, order]


def stacked_scores(parts):
    return leading(sum(low_rank(C, K) for _, _, C in statistics(parts)) / len(parts), K)


def stacked_factors(parts):
    """Return components of a QR of the parties' k best rows of a factor each, and of their means."""
    means = [np.sqrt(n) * (m - MEAN)[None] for n, m, _ in statistics(parts)]
    svds = [np.linalg.svd(X - X.mean(axis=0), full_matrices=False) for X in parts]
    R = np.linalg.qr(np.vstack([*(s[:K, None] * Vt[:K] for _, s, Vt in svds), *means]))[1]
    _, s, Vt = np.linalg.svd(R)
    return s[:K] ** 2 / N, Vt[:K].T


def subspace_iteration(parts):
    """Return the Ritz pairs of the block that the last of so many products multiplied."""
    bits = np.frombuffer(hashlib.shake_256(f"{SEED}/{ROWS.shape[1]}/{K}".encode()).digest(4 * ROWS.shape[1] * K), "<u4")
    V = np.linalg.qr((2.0 * (bits >> 9) + 1).reshape(-1, K) / 2.0**23 - 1)[0]
    centred = [X - MEAN for X in parts]
    for _ in range(STEPS - 1):
        V, _ = np.linalg.qr(sum(X.T @ (X @ V) for X in centred))
    values, rotation = leading(sum(V.T @ X.T @ (X @ V) for X in centred) / N, K)
    return values, V @ rotation


def low_rank_covariance(parts):
    return leading(sum(n * low_rank(C, 2 * K) for n, _, C in statistics(parts)) / N + between(parts), K)


LAWS = {
    "p-cov": (pooled_covariance, {"variant": "paper"}),
    "ap-cov": (averaged_covariance, {}),
    "ap-cov, simple": (simple_average, {"party_weights": "none"}),
    "ap-stack": (stacked_eigenvectors, {"variant": "paper"}),
    "ap-stack, scaled": (stacked_scores, {}),
    "qr-pca": (stacked_factors, {"variant": "paper"}),
    "sub-it": (subspace_iteration, {"variant": "paper", "max_rounds": STEPS}),
    "compressed": (low_rank_covariance, {"variant": "paper"}),
}


@pytest.mark.parametrize("partition", PARTITIONS)
@pytest.mark.parametrize("law", LAWS)
def test_a_run_as_in_the_notes_is_their_formula(law, partition):
    """Faults: other weights or divisors, a filler, rounded numbers, a Krylov space, a mean that is left out or in."""
    function, options = LAWS[law]
    parts, method = [ROWS[rows] for rows in PARTITIONS[partition]], law.partition(",")[0]
    values, vectors = function(parts)
    model = run(method, parts, n_components=K, seed=SEED, **options)
    np.testing.assert_allclose(np.abs(np.sum(model.components_.T * vectors, axis=0)), 1, rtol=1e-9)
    divisor = N if method == "p-cov" else N - 1
    np.testing.assert_allclose(model.explained_variance_, values * N / divisor, rtol=1e-9)
    np.testing.assert_allclose(model.singular_values_, np.sqrt(values * N), rtol=1e-9)
    np.testing.assert_allclose(model.mean_, MEAN, rtol=1e-12)


def test_the_divisor_changes_variances_and_nothing_else():
    parts = [ROWS[rows] for rows in PARTITIONS["dirichlet"]]
    ours, paper = (run("p-cov", parts, n_components=K, variant=variant) for variant in ("ours", "paper"))
    share = (N - 1) / N
    np.testing.assert_allclose(paper.explained_variance_, share * ours.explained_variance_, rtol=1e-14)
    np.testing.assert_allclose(paper.noise_variance_, share * ours.noise_variance_, rtol=1e-14)
    for name in ("components_", "mean_", "explained_variance_ratio_", "singular_values_"):
        np.testing.assert_array_equal(getattr(paper, name), getattr(ours, name))
    np.testing.assert_allclose(paper.squared_error, ours.squared_error, rtol=1e-12)
    assert paper.log["exact"]


@pytest.mark.parametrize("law", ["ap-stack", "compressed"])
def test_each_choice_of_the_notes_can_be_left_out(law):
    parts = [ROWS[rows] for rows in PARTITIONS["dirichlet"]]
    paper = run(law, parts, n_components=K, variant="paper")
    for option in {"ap-stack": [{"eigenvalues": True}], "compressed": [{"wire": "bits"}, {"filler": True}]}[law]:
        other = run(law, parts, n_components=K, variant="paper", **option)
        assert not np.allclose(paper.components_, other.components_, rtol=0, atol=1e-7)


@pytest.mark.parametrize("options", [{"center": False}, {"secure_aggregation": True, "bound": 20.0}])
def test_a_simple_mean_of_covariances_needs_each_covariance(options):
    with pytest.raises(ConfigError, match="set party_weights='rows'"):
        run("ap-cov", [ROWS[rows] for rows in PARTITIONS["iid"]], n_components=K, party_weights="none", **options)
