"""The battery that every method for data split by columns meets: invariances, the central result, faults, policy."""

from __future__ import annotations

import numpy as np
import pytest

from fedpca_flwr.errors import (
    ConfigError,
    ContractError,
    DataError,
    DisclosureError,
    FedPCAError,
    PartyError,
    QuorumError,
)
from fedpca_flwr.maths.eigen import principal_angles
from fedpca_flwr.model.reference import pooled_pca
from fedpca_flwr.protocol import quorum
from simulations import run
from strategies import METHODS
from tests.families import FAMILIES, rows
from tests.harness import Clock, exits, finish, own, proxy_of, server_of, tamper_arrays
from tests.refusals import refused

BY_COLUMNS = [name for name, method in METHODS.items() if method.strategy.card.split == "columns"]
VERTICAL = [name for name in BY_COLUMNS if not METHODS[name].strategy.card.after]
every_method = pytest.mark.parametrize("method", VERTICAL)
every_family = pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)


def fit(method, parties, **options):
    return run(method, parties, engine="loopback", **{"min_rows": 1, **own(method), **options})


def cut(X, *sizes):
    return np.split(X, np.cumsum(sizes)[:-1], axis=1)


def parties_of_three():
    return cut(rows(60), 6, 4, 2)


def reference_scores(X, k, **options):
    return pooled_pca(X, k, **options).transform(X)


@every_method
def test_every_model_is_well_formed(method):
    model = fit(method, parties_of_three(), n_components=3)
    assert model.components_ is None
    assert model.scores_.shape == (60, 3)
    assert (model.n_samples_, model.n_features_in_, model.n_components_) == (60, 12, 3)
    directions = model.scores_ / model.singular_values_
    np.testing.assert_allclose(directions.T @ directions, np.eye(3), atol=1e-10)
    assert (np.diff(model.explained_variance_) <= 0).all()
    share, pooled = model.explained_variance_ratio_.sum(), np.hstack(parties_of_three())
    assert 0 < share <= 1 + 1e-12
    if not METHODS[method].strategy.card.own_total:
        total = pooled.var(axis=0, ddof=1).sum()
        np.testing.assert_allclose(model.explained_variance_.sum() / share, total, rtol=1e-12)
        assert share <= pooled_pca(pooled, 3).explained_variance_ratio_.sum() * (1 + 1e-12)
    largest = np.abs(model.scores_).argmax(axis=0)
    assert (model.scores_[largest, np.arange(3)] > 0).all()


@every_method
def test_the_order_of_the_parties_changes_no_bit(method):
    one = fit(method, parties_of_three(), n_components=3)
    for order in ([2, 1, 0], [1, 2, 0]):
        other = fit(method, [parties_of_three()[i] for i in order], n_components=3)
        for name in ("scores_", "explained_variance_", "explained_variance_ratio_", "singular_values_"):
            assert getattr(one, name).tobytes() == getattr(other, name).tobytes(), name


@every_method
def test_the_log_counts_what_travelled(method):
    model = fit(method, parties_of_three(), n_components=3)
    assert [party["features"] for party in model.log["parties"]] == [6, 4, 2]
    assert model.log["rounds"][-1]["phase"] == "project"
    for entry in model.log["rounds"]:
        assert len(entry["up"]) == len(entry["down"]) == 3
        assert min(entry["up"]) > 0
    assert "3, with 2 to 6 features of the same rows" in model.summary()


@every_method
def test_what_needs_the_loadings_says_where_they_are(method):
    model = fit(method, parties_of_three(), n_components=3)
    for use in (lambda: model.transform(rows(5)), lambda: model.to_sklearn(), lambda: model.inverse_transform(rows(5))):
        with refused(ContractError, method, "scores_"):
            use()


@every_method
def test_a_model_comes_back_from_its_file(method, tmp_path):
    model = fit(method, parties_of_three(), n_components=3)
    again = type(model).load(model.save(tmp_path / "model"))
    assert again.components_ is None
    assert again.scores_.tobytes() == model.scores_.tobytes()
    assert again.summary() == model.summary()


@every_method
def test_data_split_by_rows_are_refused(method):
    parties = [rows(30), rows(30), rows(20)]
    with refused(ContractError, "client 2", 20, "client 0", 30, "p-cov"):
        fit(method, parties, n_components=2)


@pytest.mark.parametrize("method", [name for name in METHODS if name not in BY_COLUMNS])
def test_data_split_by_columns_are_refused_by_the_others(method):
    with refused(ContractError, "client 1", 4, "client 0", 6):
        fit(method, parties_of_three(), n_components=2)


@every_method
def test_a_party_with_unusable_data_is_named(method):
    for data, named in (
        (np.where(np.eye(60, 4) > 0, np.nan, 1.0), "NaN"),
        (np.empty((60, 0)), "(60, 0)"),
        (np.array([["a"] * 4] * 60), "<U1"),
    ):
        parties = parties_of_three()
        parties[1] = data
        with refused(DataError, "client 1", named):
            fit(method, parties, n_components=2)


@every_method
def test_identical_rows_have_no_components(method):
    with pytest.raises(DataError, match="variance"):
        fit(method, [np.full((20, 4), 0.1), np.ones((20, 3))], n_components=2)


@every_method
def test_too_many_components_are_refused(method):
    with refused(ConfigError, "n_components", 13, 12):
        fit(method, parties_of_three(), n_components=13)
    with refused(ConfigError, "n_components", "0.5"):
        fit(method, parties_of_three(), n_components=0.5)


@every_method
def test_payloads_at_fault_are_named(method):
    for change, what in (
        (lambda arrays: [*arrays[:-1], np.full_like(arrays[-1], np.nan)], "NaN"),
        (lambda arrays: [*arrays[:-1], arrays[-1].astype("float32")], "float32.*float64"),
        (lambda arrays: arrays[:-1], "arrays"),
    ):
        server = server_of(method, parties_of_three(), n_components=2)
        tamper_arrays(server, 1, change)
        with refused(ContractError, "client 1", match=what):
            finish(server)


@every_method
def test_a_party_that_raises_ends_the_run_without_its_text(method, monkeypatch):
    def broken(self, phase, received):
        raise ValueError("patient 4711 has 98.6")

    monkeypatch.setattr(METHODS[method].client, "statistics", broken)
    with refused(PartyError, "client 0", "ValueError") as caught:
        fit(method, parties_of_three(), n_components=2)
    assert "4711" not in str(caught.value)


@every_method
def test_a_party_that_dies_or_is_missing_is_named(method, monkeypatch):
    server = server_of(method, parties_of_three(), n_components=2)
    exits(server, 2)
    with refused(QuorumError, 1, 3, "client 2"):
        finish(server)
    monkeypatch.setattr(quorum, "time", Clock())
    server = server_of(method, parties_of_three(), n_components=2)
    server.client_manager().unregister(proxy_of(server, 1))
    with refused(QuorumError, 2, 3, "join-deadline"):
        finish(server)


@every_method
def test_a_site_that_shows_nothing_of_rows_refuses(method):
    with refused(DisclosureError, "client 0", "may_show"):
        fit(method, parties_of_three(), n_components=2, may_show="nothing")
    assert fit(method, parties_of_three(), n_components=2, may_show="inner products").n_components_ == 2


@every_method
def test_the_rest_of_a_sites_policy_holds(method):
    for site, named in (
        ({"min_rows": 61}, ["min_rows", 61]),
        ({"max_reply_bytes": 20}, ["max_reply_bytes", 20]),
        ({"allowed_methods": "p-cov"}, ["allowed_methods", method]),
        ({"secure_only": True}, ["secure_only"]),
    ):
        with refused(DisclosureError, "client 0", *named):
            fit(method, parties_of_three(), n_components=2, **site)


@every_method
def test_every_error_is_ours(method):
    for parties in ([np.empty((0, 3))], [rows(1)], [rows(20), rows(21)]):
        with pytest.raises(FedPCAError):
            fit(method, parties, n_components=2)


EXACT_WAYS = [("vertical", {}), ("vertical", {"solver": "gram"}), ("vertical", {"solver": "merge", "rank": 80})]


@every_family
@pytest.mark.parametrize("way", EXACT_WAYS, ids=str)
def test_exact_methods_give_the_scores_of_the_pooled_columns(way, family):
    method, options = way
    X, k = family.pooled, family.k
    wide = X.shape[1]
    parties = cut(X, wide // 2, wide // 4, wide - wide // 2 - wide // 4)
    model, truth = fit(method, parties, n_components=k, **options), pooled_pca(X, k)
    assert principal_angles(model.scores_, truth.transform(X)).max() <= 1e-5
    np.testing.assert_allclose(model.explained_variance_, truth.explained_variance_, rtol=1e-9)
    np.testing.assert_allclose(model.explained_variance_ratio_, truth.explained_variance_ratio_, rtol=0, atol=1e-9)


@pytest.mark.parametrize("way", EXACT_WAYS, ids=str)
@pytest.mark.parametrize("sizes", [(12,), (3, 3, 3, 3), (1,) * 12, (1, 11)], ids=str)
def test_exact_results_do_not_depend_on_the_split(way, sizes):
    method, options = way
    one = fit(method, parties_of_three(), n_components=4, **options)
    other = fit(method, cut(rows(60), *sizes), n_components=4, **options)
    np.testing.assert_allclose(other.scores_, one.scores_, rtol=0, atol=1e-12 * np.abs(one.scores_).max())
