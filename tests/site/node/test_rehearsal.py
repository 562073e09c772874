"""What a rehearsal says and when, and which processes end with others."""

import json
import os
import signal
import subprocess
import sys
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from fedpca_flwr.errors import ConfigError, FedPCAError
from fedpca_flwr.site.node import deployment as rehearsal
from fedpca_flwr.site.node import outlived
from fedpca_flwr.site.rules.journal import FileJournal
from fedpca_flwr.strategies import FACTORY
from tests.harness import Clock
from tests.refusals import refused

ROOT = Path(__file__).parents[3]


class StubDeployment:
    port, status = 1, "finished:completed"

    def __init__(self, folder, monkeypatch):
        monkeypatch.setattr(rehearsal, "Deployment", self.of)
        self.folder, self.killed, self.shown, self.sites = folder, [], [], []
        self.kill_node = self.killed.append

    def of(self, folder, app, sites):
        self.sites[:] = sites
        return nullcontext(self)

    def run(self, config, *, on_line):
        self.config = config
        for line in ("Federated PCA", "", "  rows  500", "INFO :", "INFO :      "):
            on_line(line)
        return self.status, ""

    def rehearse(self, app=ROOT, *, dropout=False, **options):
        options = {"node_config": {}, "show": self.shown.append, **options}
        rehearsal.rehearse(self.folder / "all", app, FACTORY, dropout=dropout, **options)


def test_steps_stand_in_order_with_the_log_between_them(tmp_path, monkeypatch):
    deployment = StubDeployment(tmp_path, monkeypatch)
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "other"\n')
    for folder in (tmp_path, tmp_path / "none"):  # another project's
        with refused(ConfigError, "--app", folder):
            deployment.rehearse(folder)
    assert not deployment.sites
    deployment.rehearse(dropout=True)
    lines, seconds = deployment.shown, rehearsal.ROUND_DEADLINE_SECONDS
    assert deployment.killed == [3]
    first_words = ["1.", "2.", "3.", "Federated", "rows", "hospital", "4.", "5.", "what"]
    assert [line.split()[0] for line in lines] == first_words
    assert lines[5].startswith("   hospital 3 (client 3) is killed; ")
    assert f" {seconds:.0f} s after its question" in lines[5]
    assert f"round-deadline={seconds}" in deployment.config
    assert str(tmp_path / "all" / "model") in lines[-2]
    assert f"fedpca site journal {tmp_path / 'all' / 'journal0'}" in lines[-1]


def test_sites_have_the_files_that_are_named(tmp_path, monkeypatch):
    deployment = StubDeployment(tmp_path, monkeypatch)
    data = [tmp_path / f"{name}.csv" for name in ("north", "south", "west")]
    for number, file in enumerate(data):
        lines = [f"P{row},{row / 10},{row * (number + 7) % 61 / 10}" for row in range(60)]
        file.write_text("\n".join(["id,a,b", *lines]))
    gone = [tmp_path / "nowhere.csv", *data, tmp_path / "gone.csv"]
    wrong = (data, ["3 sites", "--dropout"]), (data[1:], ["2 files", 3]), (gone, ["nowhere.csv", "gone.csv"])
    for files, named in wrong:
        with refused(ConfigError, *named):
            deployment.rehearse(data=files, dropout=files is data)
    run = "method='p-cov' n-components=1 secure-aggregation=true bound=10"
    keys = {"leave-out": "id"}
    for wrong_keys in ({}, {**keys, "min-rows": 61}, {**keys, "journal": "own"}):
        with refused(ConfigError, *([*data, "id"] if not wrong_keys else list(wrong_keys)[1:])):
            deployment.rehearse(data=data, run=run, node_config=wrong_keys)
    assert not deployment.sites, "nothing was started"
    deployment.rehearse(data=data, run=run, node_config=keys)
    assert [site["data"] for site in deployment.sites] == [str(file) for file in data]
    assert all(site["secure-only"] and site["min-rows"] == 50 for site in deployment.sites)
    assert deployment.config.startswith(run)
    deployment.folder, deployment.status = tmp_path / "failed", "finished:failed"
    with refused(FedPCAError, "finished:failed"):
        deployment.rehearse()
    assert deployment.shown[-1] == "     rows  500"


STUBBED = """
from fedpca_flwr import cli
from fedpca_flwr.site.node import deployment

class Stubbed(deployment.Deployment):
    def start_link(self):
        self.environment["PATH"] = "{folder}:/usr/bin:/bin"
        self.spawn("superlink", ["sleep", "600"])

    def start_node(self, i):
        self.spawn(f"node{{i}}", ["sleep", "600"])

    def all_nodes_online(self):
        return True

deployment.Deployment = Stubbed
cli.main(["site", "rehearse", "{folder}/all", "--app", "{app}"])
"""


def lives(pid: int) -> bool:
    shown = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False).stdout
    return bool(shown.strip()) and not shown.strip().startswith("Z")


def end(process_ids):
    for process_id in filter(lives, process_ids):
        os.kill(process_id, signal.SIGKILL)


@pytest.mark.engine
@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="the stub is a shell script")
def test_a_rehearsal_that_is_terminated_ends_what_it_has_started(tmp_path):
    """While its run is at work: the SuperLink, four SuperNodes, and the command that waits for the run."""
    (tmp_path / "flwr").write_text("#!/bin/sh\nexec sleep 600\n")
    (tmp_path / "flwr").chmod(0o755)
    code, started = STUBBED.format(folder=tmp_path, app=ROOT), []
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.DEVNULL) as rehearsed:
        try:
            while len(started) < 6:
                assert rehearsed.poll() is None
                listed = subprocess.run(["pgrep", "-P", str(rehearsed.pid)], stdout=subprocess.PIPE, check=False).stdout
                started = list(map(int, listed.split()))
            rehearsed.terminate()
            assert rehearsed.wait(60) == 128 + signal.SIGTERM
            assert not any(map(lives, started))
        finally:
            end([rehearsed.pid, *started])


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="Linux' list of processes")
@pytest.mark.parametrize("elder", ["node", "exec"])
def test_a_client_ends_with_its_node(elder, monkeypatch):
    """Which nobody fetches: it is a zombie. The thread is one that ends with the client, and is run here."""
    command, pauses, codes = [sys.executable, "-c", "print(flush=True); input()", "--parent-pid"], [], []
    start = partial(subprocess.Popen, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with start([*command, "0"]) as node, start([*command, str(node.pid)]) as executor:
        executor.stdout.read(1)  # before, Linux may not show its arguments yet

        def sleep(seconds):
            pauses.append(seconds)
            if len(pauses) == 2:
                ended = node if elder == "node" else executor
                ended.kill()
                os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
            assert len(pauses) < 4

        def thread(target, args, daemon):
            return SimpleNamespace(start=lambda: daemon and target(*args))

        monkeypatch.setattr(outlived, "time", SimpleNamespace(sleep=sleep))
        monkeypatch.setattr(outlived, "threading", SimpleNamespace(Thread=thread))
        monkeypatch.setattr(outlived, "os", SimpleNamespace(getppid=lambda: executor.pid, _exit=codes.append))
        try:
            outlived.end_with_node()
        finally:
            end([node.pid, executor.pid])
    assert (pauses, codes) == ([outlived.WATCH_SECONDS, outlived.WATCH_SECONDS, outlived.GRACE_SECONDS], [1])


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="the stubs are shell scripts")
def test_a_superlink_has_its_port_and_certificate_and_lists_its_nodes(tmp_path):
    deployment = rehearsal.Deployment(tmp_path, ROOT, [{}, {}])
    deployment.environment["PATH"] = f"{tmp_path}/bin:/usr/bin:/bin"
    (tmp_path / "bin").mkdir()
    listing = f'test "$*" = "supernode list lab --format json" && cat {tmp_path}/nodes'
    for name, text in (("flower-superlink", 'echo "$@"'), ("flwr", listing)):
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    words = f"--port {deployment.port} .*--ssl-certfile server.pem --ssl-keyfile server.key"
    with refused(FedPCAError, 0, match=f"superlink ended with 0: .*{words}"):
        deployment.start_link()
    for status in ("offline", "online"):
        (tmp_path / "nodes").write_text(json.dumps({"nodes": [{"status": status}, {"status": "online"}]}))
        assert deployment.all_nodes_online() == (status == "online")


def test_a_wait_ends_with_its_condition_its_time_a_process_or_a_question(tmp_path, monkeypatch):
    monkeypatch.setattr(rehearsal, "time", clock := Clock())
    process = SimpleNamespace(poll=lambda: 3 if clock.now > 100 else None, returncode=3)
    stub = SimpleNamespace(processes={"site 1": process}, folder="lab", read_log=lambda name: f"log of {name}")
    wait_until = partial(rehearsal.Deployment.wait_until, stub)
    answers = [OSError, FedPCAError("silent"), "", "there"]  # a fault is no end: a server that does not listen yet
    condition = Mock(side_effect=answers)
    assert wait_until(condition, "the nodes") == "there"
    assert condition.call_count == 4
    with refused(FedPCAError, 3, match="site 1 ended .* log of site 1"):
        wait_until(lambda: False, "the nodes")
    stub.processes = {}
    with refused(FedPCAError, 1800, "lab"):
        wait_until(lambda: False, "the nodes")
    assert 1900 < clock.now < 1902
    FileJournal(str(tmp_path), "1", 0).begin("keys", "", b"", lambda answered: None)
    for before, looks in ((0, 1), (1, 3)):
        running = Mock(done=Mock(side_effect=[False, False, True]))
        rehearsal.wait_for_question(tmp_path, running, earlier=before)
        assert running.done.call_count == looks
