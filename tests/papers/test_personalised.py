"""Algorithm 1 of Ozkara, Huang and Diggavi 2023, written from the paper."""

import numpy as np
import pytest
from scipy.linalg import sqrtm

from fedpca_flwr import run
from tests.papers.partitions import PARTITIONS, ROWS

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
            shared_slope = -projected(V, U) @ (U.T @ V + V.T @ U) / (2 * spread)
            versions.append(V - beta * projected(V, shared_slope))
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
