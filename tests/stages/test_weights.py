"""Weighted rows: the moments, the certificate and the last round of rows that count w times each."""

import numpy as np
import pandas as pd
import pytest
from scipy import sparse

from fedpca_flwr import ConfigError, ContractError, DataError, DisclosureError, PCAModel
from fedpca_flwr.config.node_config import NodeConfig
from fedpca_flwr.config.run_config import RunConfig
from fedpca_flwr.data.table import check_rows
from fedpca_flwr.maths.moments import Moments, unpack_symmetric
from fedpca_flwr.maths.rows import sparse_rows, weight_rows
from fedpca_flwr.maths.sums import pool
from fedpca_flwr.site.weights import separate_weights
from tests.families import cut, rows
from tests.harness import at_sites, finish, fit, server_of, tamper_arrays
from tests.refusals import refused, unnamed
from tests.site.test_alignment import site

SECURE = {"secure_aggregation": True, "bound": 1e7}
X = rows(120, 6) * [9, 7, 5, 3, 2, 1] + [0, 0, 0, 1e3, 0, -50]
WEIGHTS = np.random.default_rng(5).uniform(0.2, 4, len(X)) * (np.arange(len(X)) % 5 > 0)
RUNS: list[tuple] = [("p-cov", {}), ("p-cov scale=true", SECURE), ("p-cov", {**SECURE, "survivors": 3})]
RUNS += [("sub-it scale=true block-size=2", {}), ("sub-it", SECURE)]
RUNS += [("compressed tolerance=1e-6 corrections=10", travel) for travel in ({}, SECURE)]


def with_weights(weights=WEIGHTS, X=X):
    return cut(np.column_stack([X, weights]), 60, 35, 25)


def weigh(method="p-cov", parties=None, **options):
    return fit(method, parties or with_weights(), **{"n_components": 2, "weights": "6", **options})


def oracle(weights, k, *, scale=False):
    covariance = np.cov(X.T, aweights=weights, ddof=0)
    deviations = np.sqrt(np.diag(covariance)) if scale else 1
    values, vectors = np.linalg.eigh(covariance / np.outer(deviations, deviations) / (1 - 1 / weights.sum()))
    return values[::-1][:k], vectors.T[::-1][:k]


@pytest.mark.parametrize(("method", "travel"), RUNS, ids=str)
def test_a_run_is_the_weighted_pca_of_all_rows(method, travel):
    model = weigh(method, n_components=3, **travel)
    variances, components = oracle(WEIGHTS, 3, scale="scale" in method)
    assert model.n_samples_ == pytest.approx(WEIGHTS.sum(), rel=1e-14)
    assert model.explained_variance_ == pytest.approx(variances, rel=1e-10)
    assert np.abs(np.sum(model.components_ * components, axis=1)) == pytest.approx(np.ones(3), abs=1e-10)
    assert model.log["exact"]
    assert model.log["measured"]["squared_error_per_row"] > 0


def test_weights_bound_no_components_and_models_of_them_are_kept(tmp_path):
    times = np.arange(len(X)) % 4
    weighed = weigh(parties=with_weights(times), n_components=4)
    repeated = fit("p-cov", np.array_split(np.repeat(X, times, axis=0), 3), n_components=4)
    for name in ("n_samples_", "explained_variance_", "explained_variance_ratio_", "mean_", "components_"):
        assert getattr(weighed, name) == pytest.approx(getattr(repeated, name), rel=1e-9, abs=1e-10), name
    assert weighed.noise_variance_ == pytest.approx(repeated.noise_variance_)
    weights = WEIGHTS * 3.7 / WEIGHTS.sum()  # a sum that tells nothing of how many directions the rows have
    model = weigh(parties=with_weights(weights), n_components=5)
    assert model.explained_variance_ == pytest.approx(oracle(weights, 5)[0], rel=1e-10)
    assert PCAModel.load(model.save(tmp_path / "model")).n_samples_ == model.n_samples_
    with refused(ConfigError, "'weights'", "'6'", "clusters", "warm-start"):  # as a run-config has them
        finish(server_of("sub-it", with_weights(), weights="6", clusters=2, warm_start="svd"))
    # Rows of weight 0 take no part and have scores.
    files = [tmp_path / f"{party}.npy" for party in range(3)]
    distant = np.where(WEIGHTS[:, None] == 0, X + 100, X)
    model = weigh(parties=with_weights(X=distant), scores=files)
    assert model.explained_variance_ == pytest.approx(oracle(WEIGHTS, 2)[0], rel=1e-10)
    assert np.concatenate([np.load(file) for file in files]) == pytest.approx(model.transform(distant), abs=1e-9)


def test_a_minimum_of_rows_holds_for_weights_and_a_site_names_them():
    weights = np.ones(len(X))
    weights[3] = 9.0  # of 68 in all: more than a tenth
    for few in (weights, np.where(np.arange(len(X)) % 60 < 9, 100.0, 0.0)):
        with refused(DisclosureError, 10):
            weigh(parties=with_weights(few), min_rows=10)
    weights[3] = 6.0
    assert weigh(parties=with_weights(weights), min_rows=10).n_samples_ == weights.sum()
    table = check_rows(np.column_stack([np.ones(6), np.arange(6.0)]), ("w", "a"))
    with refused(DisclosureError, "'weights'", "'w'"):
        separate_weights(table, NodeConfig(partition_id=0, num_partitions=1, data="rows.csv"), RunConfig(weights="w"))
    own = NodeConfig(partition_id=0, num_partitions=1, min_rows=1, weights="a")  # of rows that an app has loaded
    features = separate_weights(table, own, RunConfig(weights="w"))
    assert features.names == ("w",)
    assert np.array_equal(np.asarray(features.weights), np.arange(6.0))


@pytest.mark.parametrize("key", ["weights", "adjust_for"])
def test_a_name_that_no_column_has_brings_those_that_there_are(key, tmp_path, caplog):
    """A server that names a column hears no names of a site's file: its own log has them."""
    frame = pd.DataFrame(np.column_stack([X, X, X, X]), columns=[f"c{j}" for j in range(24)])
    with refused(ConfigError, f"'{key}'", "'age'", "columns: 'c0', 'c1'", "'c19' and 4 more"):
        fit("p-cov", [frame], n_components=2, **{key: "age"})
    node = site(tmp_path / "0.csv", X, range(6), list("abcdef"), weights="age" if key == "weights" else "")
    with refused(ConfigError, f"'{key.replace('_', '-')}'") as caught:
        finish(at_sites(server_of("p-cov", [X], n_components=2, **{key: "age"}), [node]))
    assert unnamed(str(caught.value), "'a'")
    assert "columns: 'a', 'b'" in caplog.text


@pytest.mark.parametrize("wrong", [-1.0, np.nan])
def test_false_weights_are_named_by_row_and_column_and_false_sums_by_party(wrong):
    """The fault: NaN ended the server with a ValueError that named no party."""
    places = np.arange(len(X))
    with refused(DataError, "'6'", 31, 7, 26) as caught:  # of 31 rows, which are counted, 20 are named
        weigh(parties=with_weights(np.where((places >= 7) & (places < 38), wrong, WEIGHTS)))
    assert unnamed(str(caught.value), 27)
    for count in (0.0, 35 * wrong):
        server = server_of("p-cov", with_weights(), n_components=2, weights="6")
        tamper_arrays(server, 1, lambda arrays, count=count: [np.asarray(count), *arrays[1:]], "moments")
        with refused(ContractError, "client 1", "'count'"):
            finish(server)


@pytest.mark.engine
def test_a_site_says_itself_which_column_has_its_weights(tmp_path):
    """A run that chose among a site's columns would learn other sums over the same rows each time."""
    names = [*"abcdef", "w"]
    parties = with_weights(weights := WEIGHTS + 0.2)
    nodes = [site(tmp_path / f"{party}.csv", rows, range(7), names, weights="w") for party, rows in enumerate(parties)]
    run = {"n_components": 2, **SECURE}
    weighed = finish(at_sites(server_of("p-cov", parties, weights="w", **run), nodes))
    assert weighed.explained_variance_ == pytest.approx(oracle(weights, 2)[0], rel=1e-10)
    for request in ({"weights": "a"}, {}):  # without, the same rows count otherwise: the difference would tell of few
        with refused(DisclosureError, match="'weights'" if request else "with other weights, or without"):
            finish(at_sites(server_of("p-cov", parties, **request, **run), nodes))


def test_moments_in_blocks_are_those_of_all_weighted_rows():
    counts = np.random.default_rng(1).poisson(0.3, (400, 5)).astype(np.uint8)
    weights = np.random.default_rng(2).uniform(0, 3, 400)
    expected = np.cov(counts.T, aweights=weights, ddof=0) * weights.sum()
    total = [counts, sparse_rows(sparse.csr_array(counts.astype(float)))]
    halves = [Moments.from_rows(weight_rows(counts[part], weights[part])) for part in (slice(0, 150), slice(150, 400))]
    for result in [*(Moments.from_rows(weight_rows(data, weights)) for data in total), pool(halves)]:
        assert unpack_symmetric(result.scatter, 5) == pytest.approx(expected, rel=1e-12, abs=1e-12)
