"""All that is wrong is told at once, before anything is computed."""

import time

import numpy as np
import pytest

from fedpca_flwr.errors import ConfigError, DataError, QuorumError
from fedpca_flwr.protocol import quorum
from fedpca_flwr.strategies import FACTORY, METHODS
from tests.families import cut, rows
from tests.harness import Clock, context_of, finish, proxy_of, server_of
from tests.refusals import refused, unnamed

HOLES = rows(30)
HOLES[0, 0] = np.nan
NARROW = rows(30)[:, :4]


def server_before_any_round(parties, method="p-cov", **options):
    """Return a server whose clients must not be asked to compute anything."""
    server = server_of(method, parties, **{"n_components": 2, **options})
    for proxy in server.client_manager().all().values():
        proxy.fit = lambda *_: pytest.fail("a round has begun")
    return server


def error_lines(server, kind):
    with pytest.raises(kind) as caught:
        finish(server)
    return str(caught.value).splitlines()


def test_all_bad_sites_are_named_at_once():
    server = server_before_any_round([HOLES, rows(30), NARROW])
    context_of(server, 1).node_config["min-rows"] = 50
    lines = error_lines(server, DataError)
    assert not unnamed(lines[0], "client 0", "NaN")
    assert not unnamed(lines[1], "client 1", "min-rows", 50)
    server = server_before_any_round([rows(30), NARROW, rows(30), NARROW[:, :3]])
    context_of(server, 2).node_config["num-partitions"] = 5
    lines = error_lines(server, ConfigError)
    assert [line[:8] for line in lines] == ["client 2", "client 1", "client 3"]
    assert not unnamed(lines[0], 5, 4)
    assert not unnamed(lines[1], 4, "client 0", 12)


def test_faulty_partitions_and_widths_name_the_party():
    server = server_before_any_round(cut(rows(60), 30, 30))
    context_of(server, 1).node_config["partition-id"] = 0
    with refused(QuorumError, "[0]"):
        finish(server)
    with refused(DataError, "client 1", 4):
        finish(server_before_any_round([rows(30), NARROW]))
    with refused(ConfigError, "n-components", 6, 5):
        finish(server_of("p-cov", cut(rows(5), 3, 2), n_components=6))
    for method in ("p-cov", "dp-pca", "personalised"):
        with refused(ConfigError, "n-components", 10, 4):
            finish(server_before_any_round([NARROW, NARROW], method, n_components=10))


def test_a_bad_site_is_told_when_it_comes_and_waits_for_no_other(monkeypatch):
    server, clock = server_before_any_round([HOLES, rows(30)]), Clock()
    server.client_manager().unregister(proxy_of(server, 1))
    monkeypatch.setattr(time, "sleep", lambda _: pytest.fail("it waited"))
    with refused(DataError, "client 0", "NaN"):
        finish(server)
    server = server_before_any_round([rows(30), HOLES])
    manager, late = server.client_manager(), proxy_of(server, 1)
    manager.unregister(late)
    monkeypatch.setattr(clock, "sleep", lambda _: manager.register(late))
    monkeypatch.setattr(quorum, "time", clock)
    with refused(DataError, "client 1", "NaN"):
        finish(server)


@pytest.mark.parametrize("method", ["p-cov", "vertical"])
def test_files_that_are_not_writable_are_refused_first(method, tmp_path):
    (tmp_path / "file").touch()
    parties = cut(rows(60), 30, 30) if method == "p-cov" else [rows(60)[:, :3], rows(60)[:, 3:]]
    server = server_before_any_round(parties, method, site={"may-show": "inner products"})
    context_of(server, 0).node_config["scores"] = str(tmp_path / "own.txt")
    files = {"scores": str(tmp_path / "file" / "own.npy"), "loadings": str(tmp_path)}
    context_of(server, 1).node_config |= files
    text = "\n".join(error_lines(server, ConfigError))
    assert not unnamed(text, "client 0", "'scores'", "'.txt'", ".npy", ".csv")
    assert not unnamed(text.split("client 1", 1)[1], "'scores'", "'loadings'")
    assert str(tmp_path) not in text


def test_a_refused_run_keeps_earlier_scores(tmp_path):
    (tmp_path / "own.npy").write_bytes(b"of an earlier run")
    server = server_before_any_round([rows(30), HOLES])
    context_of(server, 0).node_config["scores"] = str(tmp_path / "own.npy")
    error_lines(server, DataError)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"own.npy": b"of an earlier run"}


@pytest.mark.parametrize("begin", [FACTORY.strategy, METHODS.run_config])
def test_faults_of_keys_and_options_are_told_together(begin):
    with pytest.raises(ConfigError) as caught:
        begin({"method": "sub-it tolerance=-1", "seed": -1, "n-components": 0.5})
    assert [line.split("'")[1] for line in str(caught.value).splitlines()] == ["n-components", "tolerance", "seed"]
    with refused(ConfigError, "'clip'", "'honest-parties'"):
        FACTORY.strategy({"method": "dp-pca release=joint trust=distributed", "secure-aggregation": True})
