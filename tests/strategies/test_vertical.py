"""VERTICAL: its rounds and bytes, its three solvers, what stays at the sites, and what they allow."""

from typing import Any

import numpy as np
import pytest

from fedpca_flwr.errors import ConfigError, ContractError, DataError, DisclosureError
from fedpca_flwr.maths.eigen import principal_angles
from fedpca_flwr.model.loadings import Loadings
from fedpca_flwr.model.reference import pooled_pca
from simulations import run
from simulations.loopback import assemble
from tests.families import rows
from tests.harness import at_sites, finish, server_of
from tests.refusals import refused


def cut(X, parties):
    return np.array_split(X, parties, axis=1)


def fit(parties, **options):
    return run("vertical", parties, **{"n_components": 3, **options})


@pytest.mark.engine
def test_certificates_hold_in_as_many_rounds_as_they_need():
    X = rows(300, 40)
    truth = pooled_pca(X, 3).transform(X)
    spent = []
    for tolerance in (10.0, 1e-3, 1e-6):
        model = fit(cut(X, 3), tolerance=tolerance)
        assert principal_angles(model.scores_, truth).max() <= tolerance
        spent.append(len(model.log["rounds"]))
    assert spent[0] < spent[1] < spent[2]
    model = fit(cut(rows(300, 40), 3))
    header, products = model.log["rounds"][0], model.log["rounds"][1:-1]
    assert header["up"] == [3 * 136 + 128] * 3
    assert all(entry["up"] == [300 * 8 * 8 + 128] * 3 for entry in products)
    model = fit(cut(rows(300, 40), 3), max_rounds=2)
    assert not model.log["exact"]
    assert "stopped after max-rounds = 2" in model.log["notes"][0]


def test_rank_and_merged_directions_that_do_not_suffice_are_told():
    X = rows(200, 4) @ np.random.default_rng(2).standard_normal((4, 30))
    model = fit(cut(X, 3), n_components=4)
    assert principal_angles(model.scores_, pooled_pca(X, 4).transform(X)).max() <= 1e-6
    assert len(model.log["rounds"]) <= 4
    beyond = fit(cut(X, 3), n_components=5)
    assert beyond.log["notes"][0].startswith("component 5 is below what can be resolved beside the first component")
    assert not beyond.log["exact"]
    X = rows(100, 24)
    truth = pooled_pca(X, 3).transform(X)
    narrow, whole = fit(cut(X, 3), solver="merge", rank=3), fit(cut(X, 3), solver="merge", rank=8)
    assert not narrow.log["exact"]
    assert 0.01 < principal_angles(narrow.scores_, truth).max() < 30
    assert whole.log["exact"]
    assert principal_angles(whole.scores_, truth).max() <= 1e-6
    assert "squared_error_per_row" in narrow.log["measured"]


@pytest.mark.parametrize("solver", ["krylov", "gram"])
@pytest.mark.parametrize("options", [{"scale": True}, {"center": False}, {"center": False, "scale": True}], ids=str)
def test_scaling_and_centring_are_those_of_the_pooled_columns(solver, options):
    X = rows(100, 12) * np.arange(1, 13) + np.arange(12)
    model, truth = fit(cut(X, 3), solver=solver, **options), pooled_pca(X, 3, **options)
    assert principal_angles(model.scores_, truth.transform(X)).max() <= 1e-6
    np.testing.assert_allclose(model.explained_variance_ratio_, truth.explained_variance_ratio_, rtol=1e-9)


def test_each_site_keeps_its_loadings_and_its_part_of_new_scores(tmp_path):
    X, new = rows(120, 12) * np.arange(1, 13) + 5.0, rows(7, 12, seed=9)
    files = {
        what: [tmp_path / f"{i}.{end}" for i in range(3)] for what, end in (("loadings", "npz"), ("scores", "npy"))
    }
    model, truth = fit(cut(X, 3), scale=True, **files), pooled_pca(X, 3, scale=True)
    own = [Loadings.load(tmp_path / f"{party}.npz") for party in range(3)]
    components = np.hstack([part.components for part in own])
    np.testing.assert_allclose(components @ components.T, np.eye(3), atol=7e-15)
    signs = np.sign((components * truth.components_).sum(axis=1))
    np.testing.assert_allclose(components, truth.components_ * signs[:, None], atol=1e-8)
    parts = [part.part_of_scores(columns) for part, columns in zip(own, cut(new, 3), strict=True)]
    np.testing.assert_allclose(sum(parts), truth.transform(new) * signs, atol=1e-8)
    np.testing.assert_allclose(np.load(tmp_path / "1.npy"), model.scores_, atol=1e-12)
    with refused(DataError, "(7, 12)", 4):
        own[0].part_of_scores(new)
    np.savez(tmp_path / "2.npz", components=np.eye(3, 4), mean=np.zeros(4), scale=np.ones(3))
    with refused(ContractError, tmp_path / "2.npz", match="shapes"):
        Loadings.load(tmp_path / "2.npz")
    (tmp_path / "0.npz").write_bytes((tmp_path / "0.npz").read_bytes()[:50])
    with refused(ContractError, "BadZipFile"):
        Loadings.load(tmp_path / "0.npz")


def test_inner_products_and_files_need_more_permission_than_scores(tmp_path):
    assert fit(cut(rows(60), 3), may_show="scores").n_components_ == 3
    with refused(DisclosureError, "client 0", "may_show"):
        fit(cut(rows(60), 3), solver="gram", may_show="scores")
    server = server_of("vertical", cut(rows(60), 3), n_components=2)
    np.save(tmp_path / "own.npy", rows(60)[:, :4])
    with refused(DisclosureError, "client 0", "may-show"):
        finish(at_sites(server, [{"data": str(tmp_path / "own.npy"), "split": "columns"}] * 3))


def test_a_party_whose_columns_change_during_the_run_is_noticed():
    parties = [part.copy() for part in cut(rows(60), 3)]
    server = server_of("vertical", parties, n_components=2)
    strategy: Any = server.strategy
    honest = strategy.modelled

    def modelled(solution):
        parties[1][:] = 2 * parties[1]
        return honest(solution)

    strategy.modelled = modelled
    with refused(ContractError, match="fit"):
        finish(server)


@pytest.mark.parametrize(("method", "split"), [("vertical", "rows"), ("p-cov", "columns")])
def test_a_site_whose_file_is_split_the_other_way_refuses(method, split, tmp_path):
    parties = cut(rows(60), 3) if method == "vertical" else np.array_split(rows(60), 3)
    server = server_of(method, parties, n_components=2)
    for party, own in enumerate(parties):
        np.save(tmp_path / f"{party}.npy", own)
    about = {"split": split, "may-show": "scores"}
    with refused(ConfigError, "client 0", f"'{method}'", split, "'split'"):
        finish(at_sites(server, [{"data": str(tmp_path / f"{i}.npy"), **about} for i in range(3)]))


@pytest.mark.parametrize(("method", "partition"), [("vertical", "iid"), ("p-cov", "columns")])
def test_a_simulated_data_set_split_the_other_way_is_refused(method, partition):
    config = {"method": method, "partition": partition, "dataset": "wine", "n-components": 2, "clients": 3}
    with refused(ConfigError, "client 0", f"'{method}'", "'split'"):
        finish(at_sites(assemble(config, [rows(30)] * 3, {}), [{}] * 3))


@pytest.mark.parametrize("solver", ["krylov", "gram", "merge"])
def test_no_solver_depends_on_the_order_of_the_parties(solver):
    parties = cut(rows(60, 24), 4)
    one = fit(parties, solver=solver)
    other = fit([parties[i] for i in (2, 0, 3, 1)], solver=solver)
    assert one.scores_.tobytes() == other.scores_.tobytes()


@pytest.mark.parametrize("method", ["vertical", "sub-it"])
@pytest.mark.parametrize(("rounds", "size"), [(1, 2), (2, 1)])
def test_too_few_rounds_for_so_many_components_are_refused_before_anything_is_asked(method, rounds, size):
    parts = cut(rows(60), 3) if method == "vertical" else np.array_split(rows(60), 3)
    for secure in ({}, {"secure_aggregation": True, "bound": 100.0}):
        with refused(ConfigError, "max_rounds", rounds, size, 2, "n_components", 3):
            run(method, parts, n_components=3, block_size=size, max_rounds=rounds, **secure)


@pytest.mark.parametrize("solver", ["krylov", "gram"])
def test_few_rounds_give_as_many_components_as_were_asked_for(solver):
    model = fit(cut(rows(60), 3), solver=solver, block_size=1, max_rounds=3)
    assert model.n_components_ == 3
    assert model.log["exact"] == (solver == "gram")


@pytest.mark.parametrize(
    ("sizes", "rank", "directions"), [((4, 4, 4), 1, 3), ((10, 1, 1), 2, 4)], ids=["rank", "narrow parties"]
)
def test_too_few_directions_to_merge_are_a_fault_of_the_options(sizes, rank, directions):
    parties = np.split(rows(60), np.cumsum(sizes)[:-1], axis=1)
    with refused(ConfigError, "'rank'", rank, 3, directions, "n_components", 5):
        run("vertical", parties, n_components=5, solver="merge", rank=rank)
