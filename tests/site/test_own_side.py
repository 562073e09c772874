"""A site's own side: files that it writes, its memory, its command at a refusal, its lines in the system's log."""

import csv
import logging
import shlex
import socket
import sys
import threading
from io import BytesIO

import numpy as np
import pytest
from flwr.app import RecordDict

from fedpca_flwr import site_app
from fedpca_flwr.errors import ConfigError, FedPCAError
from fedpca_flwr.maths.moments import Moments
from fedpca_flwr.model.loadings import Loadings
from fedpca_flwr.protocol.journal import State
from fedpca_flwr.protocol.site_log import journal_logger
from fedpca_flwr.site import watch
from fedpca_flwr.site.rows.vault import Vault
from fedpca_flwr.site.scores import OddRows, row_names, score_file
from tests.families import cut, rows
from tests.harness import at_sites, context_of, finish, peak_of, proxy_of, server_of, sites_of
from tests.refusals import refused


@pytest.mark.parametrize(("suffix", "scale"), [(".npy", True), (".csv", False)])
def test_scores_are_written_complete_and_in_order(suffix, scale, tmp_path):
    """Rows that rounding leaves over are in no sum, and have scores."""
    X, new = rows(307) + 5, rows(20, seed=1)
    path, loadings = tmp_path / "deep" / f"scores{suffix}", tmp_path / "own.npz"
    site = {"loadings": str(loadings), "round-rows": 10}
    model = finish(server_of("p-cov", [X], n_components=3, scale=scale, scores=str(path), site=site))
    assert model.n_samples_ == 300
    written = np.load(path) if suffix == ".npy" else np.loadtxt(path, delimiter=",", skiprows=1)
    np.testing.assert_allclose(written, model.transform(X), rtol=1e-12, atol=1e-12)
    assert [file.name for file in path.parent.iterdir()] == [path.name]
    scores = Loadings.load(loadings).part_of_scores(new)
    np.testing.assert_allclose(scores, model.transform(new), rtol=1e-12, atol=1e-12)


def test_files_of_scores_are_whole_or_none(tmp_path):
    def interrupted():
        with score_file(str(tmp_path / "scores.npy"), 10, 2) as keep:
            keep(np.zeros((5, 2)))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert not list(tmp_path.iterdir())


def test_a_row_is_odd_beyond_either_limit():
    """One component of variance 4 along the first of three features; limits of T2 and SPE are 4 and 1."""
    stream = BytesIO()
    odd_rows = OddRows(np.array([[1.0, 0.0, 0.0]]), np.array([4.0]), np.array([4.0, 1.0]), np.arange(4) < 3, stream)
    odd_rows.add(np.array([[4.0, 0.0, 1.0], [6.0, 1.0, 0.0]]))
    odd_rows.add(np.array([[0.0, 0.5, 2.0], [99.0, 99.0, 98.0]]))
    np.testing.assert_array_equal(odd_rows.exceeding, [1, 1])
    columns = list(zip(*(line.split(",") for line in stream.getvalue().decode().splitlines()), strict=True))
    assert (columns[0][:3], columns[2][:3]) == (("4", "9", "0"), ("1", "1", "4.25"))
    assert columns[4:] == [tuple("0111"), ("2 0 1", "1 0 2", "2 1 0", "1 2 0"), tuple("0123")]


def test_odd_people_of_a_bed_file_have_their_ids(tmp_path):
    (tmp_path / "a.fam").write_text('f1 p1 0 0 0 -9\nf"2 p,2 0 0 0 -9\n')
    (cells,) = csv.reader([",".join(row_names(str(tmp_path / "a.bed")))])
    assert cells == ["f1 p1", 'f"2 p,2']


@pytest.mark.engine
def test_memory_does_not_grow_with_the_rows(tmp_path):
    data = np.lib.format.open_memmap(tmp_path / "big.npy", "w+", np.float64, (1_500_000, 20))
    data[::1000] = rows(1500, 20)

    def work():
        moments = Moments.from_rows(data)
        vault = Vault(data, State(RecordDict()), columns=0, parties=1)
        squared = vault.squared_error(moments.mean, np.empty(0), np.eye(20)[:5])
        np.testing.assert_allclose(squared, moments.diagonal()[5:].sum(), rtol=1e-9)

    assert peak_of(work) < 100e6


@pytest.fixture
def sites(tmp_path):
    parts = cut(rows(90), 50, 40)
    return at_sites(server_of("p-cov", parts, n_components=2), sites_of(tmp_path, parts))


COMMAND = "import os, sys; print(os.environ['FEDPCA_RUN'], os.environ['FEDPCA_REFUSAL'], file=open(sys.argv[1], 'a'))"


def test_a_refusal_runs_the_sites_own_command(sites, tmp_path):
    record = tmp_path / "refusals with a space"
    command = shlex.join([sys.executable, "-c", COMMAND, str(record)])
    context_of(sites, 1).node_config |= {"min-rows": 41, "on-refusal": command}
    context_of(sites, 0).node_config |= {"on-refusal": command}  # it refuses nothing
    with pytest.raises(FedPCAError):
        finish(sites)
    assert record.read_text().split("\n") == [f"{context_of(sites, 1).run_id} DisclosureError", ""]


@pytest.mark.parametrize("command", ["/nowhere/command", "false", "an 'open quote", "sleep 60"])
def test_a_command_that_fails_or_hangs_changes_no_answer(command, sites, caplog, monkeypatch):
    monkeypatch.setattr(watch, "COMMAND_SECONDS", 0.2 if "sleep" in command else 30.0)
    context_of(sites, 1).node_config |= {"min-rows": 41, "on-refusal": command}
    with refused(FedPCAError, "min-rows", 41):
        finish(sites)
    assert "on-refusal" in caplog.text


@pytest.fixture
def system_log(tmp_path, monkeypatch):
    monkeypatch.setattr(watch, "SYSTEM_LOG", tmp_path / "log")
    monkeypatch.setattr(watch, "SYSTEM_LOG_SECONDS", 0.01)
    yield socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    for handler in list(journal_logger.handlers):
        journal_logger.removeHandler(handler)
    journal_logger.setLevel(logging.NOTSET)
    journal_logger.propagate = True


@pytest.mark.skipif(not hasattr(socket, "AF_UNIX"), reason="the system's log is a socket of POSIX")
def test_each_line_of_the_journal_goes_to_the_system_log(sites, system_log):
    system_log.bind(str(watch.SYSTEM_LOG))
    lines: list[str] = []
    thread = threading.Thread(target=lambda: lines.extend(iter(lambda: system_log.recv(10000).decode(), "end")))
    thread.start()
    context = to_system_log(sites)
    finish(sites)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.sendto(b"end", str(watch.SYSTEM_LOG))
    thread.join()
    lines = [line for line in lines if f"run {context.run_id}, party 0" in line]  # both sites are in this process
    kinds = [kind for line in lines for kind in ("question", "answer", "completed") if f": {kind} " in line]
    assert kinds == ["question", "answer", "question", "answer", "completed"]


def to_system_log(sites):
    context = context_of(sites, 0)
    context.node_config["syslog"] = True
    proxy_of(sites, 0).make = lambda: site_app.site_client(context, context).to_client()
    watch.send_journal_to_system_log()
    return context


@pytest.mark.skipif(not hasattr(socket, "AF_UNIX"), reason="the system's log is a socket of POSIX")
@pytest.mark.parametrize("is_there", [True, False])
def test_a_system_log_that_takes_nothing_costs_no_answer(is_there, sites, system_log, caplog):
    """With nobody who reads, a socket is full after some lines."""
    if is_there:
        system_log.bind(str(watch.SYSTEM_LOG))
        for _ in range(100):
            to_system_log(sites)
            journal_logger.info("a line")
    to_system_log(sites)
    assert finish(sites).rounds == 1
    assert str(watch.SYSTEM_LOG) in caplog.text


def test_the_system_log_needs_a_journal(sites):
    context_of(sites, 0).node_config |= {"syslog": True, "journal": ""}
    with refused((ConfigError, FedPCAError), "syslog", "journal"):
        finish(sites)
