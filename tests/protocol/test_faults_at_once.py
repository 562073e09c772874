"""All that is wrong is told at once, before anything is computed."""

import time

import numpy as np
import pytest

from fedpca_flwr.errors import ConfigError, DataError, QuorumError
from fedpca_flwr.protocol import quorum
from strategies import build_strategy, run_config_of
from tests.families import cut, rows
from tests.harness import Clock, context_of, finish, proxy_of, server_of
from tests.refusals import refused, unnamed


def before_any_round(server):
    """The same server, whose clients must not be asked to compute anything."""
    for proxy in server.client_manager().all().values():
        proxy.fit = lambda *_: pytest.fail("a round has begun")
    return server


def with_holes(X):
    X = X.copy()
    X[0, 0] = np.nan
    return X


def test_bad_sites_and_those_that_do_not_fit_are_all_named_at_once():
    parties = cut(rows(90), 30, 30, 30)
    server = server_of("p-cov", [with_holes(parties[0]), parties[1], parties[2][:, :4]], n_components=2)
    context_of(server, 1).node_config["min-rows"] = 50
    with pytest.raises(DataError) as caught:
        finish(before_any_round(server))
    told = str(caught.value).splitlines()
    assert not unnamed(told[0], "client 0", "NaN")
    assert not unnamed(told[1], "client 1", "min-rows", 50)
    parties = [rows(30), rows(30)[:, :4], rows(30), rows(30)[:, :3]]
    server = server_of("p-cov", parties, n_components=2)
    context_of(server, 2).node_config["num-partitions"] = 5
    with pytest.raises(ConfigError) as unlike:
        finish(before_any_round(server))
    told = str(unlike.value).splitlines()
    assert [line[:8] for line in told] == ["client 2", "client 1", "client 3"]
    assert not unnamed(told[0], 5, 4)
    assert not unnamed(told[1], 4, "client 0", rows(30).shape[1])


def test_partitions_widths_and_rows_that_do_not_fit_are_told_by_whom():
    server = server_of("p-cov", cut(rows(60), 30, 30), n_components=2)
    context_of(server, 1).node_config["partition-id"] = 0
    with refused(QuorumError, "[0]"):
        finish(before_any_round(server))
    server = server_of("p-cov", [rows(30), rows(30)[:, :4]], n_components=2)
    with refused(DataError, "client 1", 4):
        finish(before_any_round(server))
    with refused(ConfigError, "n-components", 6, 5):
        finish(server_of("p-cov", cut(rows(5), 3, 2), n_components=6))


def test_a_site_that_comes_later_is_asked_too(monkeypatch):
    clock = Clock()
    server = before_any_round(server_of("p-cov", [rows(30), with_holes(rows(30))], n_components=2))
    manager, late = server.client_manager(), proxy_of(server, 1)
    manager.unregister(late)

    def sleep(seconds):
        manager.register(late)

    clock.sleep = sleep
    monkeypatch.setattr(quorum, "time", clock)
    with refused(DataError, "client 1", "NaN"):
        finish(server)


def test_a_bad_site_does_not_wait_for_those_that_never_come(monkeypatch):
    server = before_any_round(server_of("p-cov", [with_holes(rows(30)), rows(30)], n_components=2))
    server.client_manager().unregister(proxy_of(server, 1))
    monkeypatch.setattr(time, "sleep", lambda _: pytest.fail("it waited"))
    with refused(DataError, "client 0", "NaN"):
        finish(server)


@pytest.mark.parametrize("method", ["p-cov", "sub-it", "em", "qr-pca", "dp-pca", "sapca", "dsa", "personalised"])
def test_more_components_than_features_are_refused_before_any_round(method):
    with refused(ConfigError, "n-components", 10, 4):
        finish(before_any_round(server_of(method, cut(rows(60)[:, :4], 30, 30), n_components=10)))


@pytest.mark.parametrize("method", ["p-cov", "vertical"])
def test_files_that_cannot_be_written_are_refused_before_any_round(method, tmp_path):
    (tmp_path / "file").touch()
    parties = cut(rows(60), 30, 30) if method == "p-cov" else [rows(60)[:, :3], rows(60)[:, 3:]]
    server = server_of(method, parties, n_components=2, site={"may-show": "inner products"})
    context_of(server, 0).node_config |= {"scores": str(tmp_path / "own.txt")}
    files = {"scores": str(tmp_path / "file" / "own.npy"), "loadings": str(tmp_path)}
    context_of(server, 1).node_config |= files
    with pytest.raises(ConfigError) as caught:
        finish(before_any_round(server))
    told = str(caught.value)
    assert not unnamed(told, "client 0", "'scores'", "'.txt'", ".npy", ".csv")
    assert not unnamed(told.split("client 1", 1)[1], "'scores'", "'loadings'")
    assert str(tmp_path) not in told


def test_scores_of_an_earlier_run_are_still_there_after_a_refused_one(tmp_path):
    (tmp_path / "own.npy").write_bytes(b"of an earlier run")
    server = server_of("p-cov", [rows(30), with_holes(rows(30))], n_components=2)
    context_of(server, 0).node_config["scores"] = str(tmp_path / "own.npy")
    with pytest.raises(DataError):
        finish(server)
    assert [path.name for path in tmp_path.iterdir()] == ["own.npy"]
    assert (tmp_path / "own.npy").read_bytes() == b"of an earlier run"


def test_all_that_is_wrong_with_keys_and_options_is_told_together():
    wrong = {"method": "sub-it tolerance=-1", "seed": -1, "n-components": 0.5}
    for begin in (build_strategy, run_config_of):
        with pytest.raises(ConfigError) as caught:
            begin(wrong)
        told = str(caught.value).splitlines()
        assert [line.split("'")[1] for line in told] == ["n-components", "tolerance", "seed"]
    with refused(ConfigError, "'clip'", "'centre-clip'", "'honest-parties'"):
        build_strategy({"method": "dp-pca release=two-stage trust=distributed", "secure-aggregation": True})
