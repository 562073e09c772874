"""VFedPCA and VFedAKPCA are the equations of Cheung et al. 2022, as a recursion of dense matrices."""

from operator import matmul

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer
from sklearn.metrics.pairwise import rbf_kernel

from fedpca_flwr import run
from fedpca_flwr.strategies import METHODS

X = load_breast_cancer().data[:100]
X = X / X.max(axis=0)
SPLITS = {"3, 5, 22": [3, 8], "1, 10, 12, 7": [1, 11, 23], "28, 2": [28]}
SEED, STEPS, PERIODS = 7, 10, 10


SIGMOID = {"kernel": "sigmoid", "gamma": 0.2, "coef0": 1.0}
WAYS = {
    "vfedpca": (lambda X: X @ X.T / X.shape[1], {}),
    "vfedpca scaled": (lambda X: X @ X.T / X.shape[1], {"weight_scaling": True, "warm_start": "previous"}),
    "vfedakpca rbf": (lambda X: rbf_kernel(X, gamma=0.4), {"gamma": 0.4}),  # equation 11
    "vfedakpca sigmoid": (lambda X: np.tanh(1 - 0.2 * X @ X.T), SIGMOID),  # equation 12
}


def published(parts, k, near, matrix, *, warm, scaled):
    """Return each party's directions (n, k): algorithms 2 to 5, and deflation for the components after the first."""
    parties, found = range(len(parts)), [np.empty((len(X), 0)) for _ in parts]
    for component in range(k):
        blocks = [block - U @ (U.T @ block) for block, U in zip(parts, found, strict=True)]
        draws = [np.random.default_rng((SEED, component, party)).standard_normal(len(X)) for party in parties]
        starts = draws
        for _ in range(PERIODS):
            A, a = [matrix(block) for block in blocks], starts
            for _ in range(STEPS):
                a = [v / np.linalg.norm(v) for v in map(matmul, A, a)]  # equation 5
            alpha = np.array([v @ A_i @ v / (v @ v) for A_i, v in zip(A, a, strict=True)])  # equation 6
            u = [weights(alpha[j], scaled) @ np.array(a)[j] for j in near]  # equation 13
            M = [np.outer(m, m) for m in (block.T @ v for block, v in zip(blocks, u, strict=True))]
            blocks = [block @ m / np.linalg.norm(m) for block, m in zip(blocks, M, strict=True)]  # equation 14
            starts = u if warm else draws
        u = [v - U @ (U.T @ v) for v, U in zip(u, found, strict=True)]
        found = [np.column_stack([U, v / np.linalg.norm(v)]) for v, U in zip(u, found, strict=True)]
    return found


def weights(alpha, scaled):
    omega = alpha / alpha.sum()
    larger = np.argsort(np.argsort(-omega)) < np.ceil(len(omega) / 2)
    return omega * (np.where(larger, 1 + omega.mean(), 1 - omega.mean()) if scaled else 1)  # equation 15


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("cuts", SPLITS.values(), ids=SPLITS)
@pytest.mark.parametrize(("graph", "k"), [("server", 2), ("ring", 1)])
def test_a_run_as_in_the_paper_is_its_recursion(way, cuts, graph, k):
    """Faults: weights of other sizes, turned signs, centred columns or kernels, another start, weights by roots."""
    (matrix, options), method = WAYS[way], way.split()[0]
    parts, p = np.split(X, cuts, axis=1), len(cuts) + 1
    near = [list(range(p)) if graph == "server" else sorted({i, (i + 1) % p, (i - 1) % p}) for i in range(p)]
    warm = method == "vfedakpca" or "warm_start" in options
    directions = published(parts, k, near, matrix, warm=warm, scaled="weight_scaling" in options)
    aligned = [U * np.sign((U * directions[0]).sum(axis=0)) for U in directions]  # the model is the parties' mean
    U = np.linalg.qr(np.mean(aligned, axis=0)).Q
    U = U[:, np.argsort(-np.square(X.T @ U).sum(axis=0))]
    energies = np.square(X.T @ U).sum(axis=0)
    model = run(method, parts, n_components=k, variant="paper", graph=graph, seed=SEED, **options)
    expected = U * np.sqrt(energies) * np.sign((U * model.scores_).sum(axis=0))
    np.testing.assert_allclose(model.scores_, expected, rtol=0, atol=1e-9 * np.abs(expected).max())
    np.testing.assert_allclose(model.explained_variance_, energies / (len(X) - 1), rtol=1e-9)
    np.testing.assert_allclose(model.explained_variance_ratio_, energies / np.square(X).sum(), rtol=1e-9)


@pytest.mark.parametrize(
    ("method", "option"),
    [(name, option) for name in ("vfedpca", "vfedakpca") for option in METHODS[name].strategy.card.options.published],
)
def test_each_choice_of_the_paper_can_be_left_out(method, option):
    """A fault: the preset hid an option, or an option did nothing."""
    default = METHODS[method].strategy.card.options.model_fields[option].default
    options = {"n_components": 1, "variant": "paper", "seed": SEED}
    options |= {"kernel": "sigmoid"} if option == "sigmoid_sign" else {}
    parts = np.split(X, [3, 8], axis=1)
    paper, other = (np.abs(run(method, parts, **options, **more).scores_) for more in ({}, {option: default}))
    assert not np.allclose(paper, other, rtol=0, atol=1e-7)
