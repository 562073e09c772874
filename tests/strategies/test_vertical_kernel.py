"""VERTICAL-KERNEL is scikit-learn's kernel PCA of all columns, however they are split; Nystrom's limits are said."""

from itertools import product

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer, load_digits
from sklearn.decomposition import KernelPCA
from sklearn.preprocessing import minmax_scale

from fedpca_flwr import run
from fedpca_flwr.errors import ConfigError, DataError
from fedpca_flwr.maths.eigen import principal_angles
from tests.families import rows
from tests.harness import client_of, server_of
from tests.refusals import refused, unnamed

DATA = {
    "digits": load_digits().data[:250] / 16,
    "breast-cancer": minmax_scale(load_breast_cancer().data[:200]),
    "wide": rows(40, 80),
}
KERNELS = [
    {"kernel": "rbf"},
    {"kernel": "rbf", "gamma": 0.3},
    {"kernel": "linear"},
    {"kernel": "polynomial", "gamma": 0.05, "degree": 2},
    {"kernel": "sigmoid", "gamma": 0.02, "coef0": 1.0},
]


def fit(X, parties, **options):
    columns = np.array_split(X, parties, axis=1)
    return run("vertical-kernel", columns, **{"n_components": 3, **options})


RUNS = [(*run, (1, 3, 10)[i % 3]) for i, run in enumerate(product(DATA, KERNELS))]


@pytest.mark.parametrize(("data", "options", "parties"), RUNS, ids=str)
def test_it_is_the_kernel_pca_of_all_columns(data, options, parties):
    X = DATA[data]
    name = {"polynomial": "poly"}.get(options["kernel"], options["kernel"])
    defaults = {"gamma": 1 / (X.shape[1] * X.var()), "coef0": 1.0, "degree": 3, "eigen_solver": "dense"}
    truth = KernelPCA(3, **{**defaults, **options, "kernel": name}).fit(X)
    model = fit(X, parties, **options)
    assert principal_angles(model.scores_, truth.transform(X)).max() <= 1e-8
    np.testing.assert_allclose(model.singular_values_**2, truth.eigenvalues_, rtol=1e-10)


def test_the_linear_kernel_is_pca():
    X = DATA["digits"]
    model = fit(X, 3, kernel="linear", scale=True)
    other = run("vertical", np.array_split(X, 3, axis=1), n_components=3, scale=True)
    assert principal_angles(model.scores_, other.scores_).max() <= 1e-6
    np.testing.assert_allclose(model.explained_variance_ratio_, other.explained_variance_ratio_, rtol=1e-9)
    # The fault: the secure kernel had ones where the true one has none, and spoke of its positive eigenvalues.
    X = rows(12, 12)
    X[:, 0] *= 1e80
    X[1] = X[0]
    X[1, 1:] += 1e20
    options = {"n_components": 11, "gamma": 0.01, "secure_aggregation": True, "bound": 1e84, "min_parties": 2}
    assert fit(X, 2, n_components=11, gamma=0.01).n_components_ == 11
    with refused(ConfigError, "n_components", "scale=True", "'gamma'"):
        fit(X, 2, **options)


def test_landmarks_come_nearer():
    X = DATA["digits"]
    truth = fit(X, 3).scores_
    angles = [principal_angles(fit(X, 3, landmarks=c).scores_, truth).max() for c in (20, 80, 250)]
    assert 80 > angles[0] > 2 * angles[1] > 0.01
    assert angles[2] < 1e-3
    model = fit(X, 3, landmarks=80)
    assert not model.log["exact"]
    assert max(model.log["rounds"][1]["up"]) == 250 * 80 * 8 + 128
    with refused(ConfigError, "'landmarks'", 50, "'sigmoid'"):
        fit(DATA["digits"], 3, kernel="sigmoid", landmarks=50)
    for c in (3, 251):
        with refused(ConfigError, "'landmarks'", c, "n_components", 3):
            fit(DATA["digits"], 3, landmarks=c)


def test_the_default_gamma_is_of_all_entries():
    X = rows(40, 6) + np.arange(6)
    for secure in ({}, {"secure_aggregation": True, "bound": 50.0}):
        assert fit(X, 3, **secure).log["measured"]["gamma"] == pytest.approx(1 / (6 * X.var()), rel=1e-9)


@pytest.mark.parametrize("places", [[0, 1, 2, 2], [0, 1, 2, 40]])
def test_landmarks_that_are_none_are_refused(places):
    server = server_of("vertical-kernel", np.hsplit(rows(40), 3), n_components=3, landmarks=4)
    client_of(server, 0).fit([], {"phase": "rows"})
    arrays, _, metrics = client_of(server, 0).fit([np.array(places)], {"phase": "landmarks"})
    assert (arrays, metrics["error"]) == ([], "ContractError")
    assert not unnamed(metrics["message"], 4, 40)


def test_kernels_without_use_are_said():
    model = fit(DATA["digits"], 3, gamma=15.0)
    assert "nearly the identity" in model.log["notes"][0]
    with refused(DataError, "float64", "'gamma'", "'degree'"):
        fit(rows(60) * 1e6, 3, kernel="polynomial", gamma=1.0, degree=60)
    assert "squared_error_per_row" not in fit(DATA["digits"], 3).log["measured"]
    # Rows far from zero have a large spread over all entries, and so a small gamma: they are not identical.
    parties = np.split(rows(30, 6) + 1e9 * np.arange(6), [2, 4], axis=1)
    with refused(DataError, "center=True", "'gamma'"):
        run("vertical-kernel", parties, n_components=2)
    assert run("vertical-kernel", parties, n_components=2, center=True).n_components_ == 2
    with refused(ConfigError, "n_components", 12, "'sigmoid'"):
        fit(rows(12), 3, kernel="sigmoid", gamma=0.1, n_components=12)


def test_large_values_lose_what_is_said():
    """The fault: scaled but not centred they are huge, and their distances had few digits; called exact, 9e-6 off."""
    X = rows(40, 7)
    stamps = 1.6e18 + np.round(X * 1e9)
    model = fit(stamps, 2, gamma=0.1, scale=True)
    scaled = (stamps - 1.6e18 - (stamps - 1.6e18).mean(axis=0)) / (stamps - 1.6e18).std(axis=0)
    truth = KernelPCA(3, kernel="rbf", gamma=0.1, eigen_solver="dense").fit_transform(scaled)
    assert model.log["exact"]
    assert principal_angles(model.scores_, truth).max() <= 1e-9
    # Products of 1e16 hold nothing of variances of 1.
    model = fit(rows(40, 7) + 1e8, 2, kernel="linear")
    assert not model.log["exact"]
    assert fit(rows(40, 7) + 1e8, 2, kernel="linear", center=True).log["exact"]
