"""What a site tells its own watchers: a command at a refusal, and its journal's lines in the system's log."""

import logging
import shlex
import socket
import sys
import threading

import pytest

from fedpca_flwr import site_app
from fedpca_flwr.errors import ConfigError, FedPCAError
from fedpca_flwr.protocol.site_log import journal_logger
from fedpca_flwr.site import watch
from tests.families import cut, rows
from tests.harness import at_sites, context_of, finish, proxy_of, server_of, sites_of
from tests.refusals import refused


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


def to_system_log(sites):
    context = context_of(sites, 0)
    context.node_config["syslog"] = True
    proxy_of(sites, 0).make = lambda: site_app.site_client(context, context).to_client()
    watch.send_journal_to_system_log()
    return context


def test_the_system_log_needs_a_journal(sites):
    context_of(sites, 0).node_config |= {"syslog": True, "journal": ""}
    with refused((ConfigError, FedPCAError), "syslog", "journal"):
        finish(sites)
