"""A site's own process: which apps it answers, and that it forks safely, whatever its messages compute."""

import ctypes
import hashlib
import logging
import re
import signal
import socket
import subprocess
import sys
import time
import tomllib
from contextlib import nullcontext
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.common.serde import context_to_proto

from fedpca_flwr import FedPCA, LocalGrid, __version__, site_app
from fedpca_flwr.config.node_config import NodeConfig
from fedpca_flwr.config.site_file import read_site_file
from fedpca_flwr.errors import ConfigError, FedPCAError
from fedpca_flwr.protocol import messages
from fedpca_flwr.protocol.quorum import PCA_KEY
from fedpca_flwr.site import commands
from fedpca_flwr.site.commands import ONE_THREAD
from fedpca_flwr.site.custodian import AppName
from fedpca_flwr.site.rules import audit
from fedpca_flwr.site.rules.journal import FileJournal
from tests.refusals import refused, unnamed

node = pytest.importorskip("fedpca_flwr.site.node.process", reason="needs Flower's SuperExec")
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="sites have a process of their own on Linux")

OWN = ("fedpca/fedpca-flwr", __version__, "ab" * 32)


def site_of(folder, app_hash=""):
    pinned = f'app-hash = "{app_hash}"\n' if app_hash else ""
    site = f'partition-id = 0\nnum-partitions = 2\ndata = "rows.csv"\njournal = "{folder}/journal"\n'
    (folder / "site.toml").write_text(f'[supernode]\nsuperlink = "localhost:1"\n{pinned}[site]\n{site}')
    return read_site_file(folder / "site.toml")


def test_apps_of_another_name_minor_version_or_hash_are_refused_with_all_that_differs(tmp_path):
    for app, app_hash, words in (
        *((OWN, app_hash, []) for app_hash in ("", "abababab")),
        *((("other/fedpca-flwr", f"{__version__.rpartition('.')[0]}.99", OWN[2]), h, []) for h in ("", "abababab")),
        (("fedpca/other", *OWN[1:]), "", ["fedpca/other"]),
        ((OWN[0], "9.9.0", OWN[2]), "", ["9.9.0", __version__]),
        (OWN, "cd" * 32, ["abababababababab", "cdcdcdcdcdcdcdcd"]),
        (("fedpca/other", "9.9.0", OWN[2]), "cd" * 4, ["fedpca/other", "9.9.0", "cdcdcdcd"]),
    ):
        with refused(ConfigError, *words) if words else nullcontext():
            node.require_compatible_app(site_of(tmp_path, app_hash), *app)


@pytest.fixture
def process(tmp_path, monkeypatch):
    monkeypatch.setattr(AppName, "text", "")
    yield node.SiteProcess(site_of(tmp_path), tmp_path, site_app.app_for)
    node.held_rows.resident = None


def test_the_installed_app_answers_and_is_named_by_the_hash_of_its_archive(process, tmp_path):
    process.inspect_archive(b"an archive", skip_prompt=True)
    assert process.load_app(*OWN) is site_app.app
    assert hashlib.sha256(b"an archive").hexdigest()[:8] in AppName.text
    AppName.text = ""
    pinned = node.SiteProcess(site_of(tmp_path, OWN[2]), tmp_path, lambda refusal: refusal)
    pinned.inspect_archive(b"another archive")
    assert OWN[2][:16] in str(pinned.load_app(*OWN))


@pytest.mark.parametrize(
    "kind", ["train", "evaluate", "query", "train.own", "train.fedpca", "query.fedpca", "train classic"]
)
def test_every_message_of_a_refused_app_is_noted_and_answered(kind, process, tmp_path):
    app, (kind, _, classic) = process.load_app("fedpca/other", __version__, OWN[2]), kind.partition(" ")
    keys = {**process.site.node_config, "num-partitions": 1, "metrics": str(tmp_path / "numbers")}
    grid = LocalGrid(app, [keys])
    messages.identify_run(grid)
    config = {"fitins.config": ConfigRecord({PCA_KEY: "?"})} if classic else {"config": ConfigRecord({"lr": 0.1})}
    for reply in grid.send_and_receive([Message(RecordDict(config), *grid.get_node_ids(), kind) for _ in range(2)]):
        assert not unnamed(reply.error.reason if reply.has_error() else str(dict(reply.content)), "fedpca/other")
    assert [event.kind for event in audit.audit(f"{tmp_path}/journal").events] == ["run", "refused"]
    assert 'refusals_total{at="client 0",refused="ConfigError"} 1.0' in (tmp_path / "numbers.prom").read_text()
    with refused(FedPCAError, "fedpca/other"):
        FedPCA("p-cov", n_components=1, clients=1).start(LocalGrid(app, [keys]))
    assert [event.kind for event in audit.audit(f"{tmp_path}/journal").events[-2:]] == ["run", "refused"]


def test_a_site_starts_on_linux_with_one_thread_and_the_installed_app(tmp_path, monkeypatch):
    started: list = []
    monkeypatch.setattr(node.os, "execve", lambda program, words, environment: started.append(environment))
    monkeypatch.setattr(node, "run_site", lambda *given: started.append(given))
    monkeypatch.delenv("OMP_NUM_THREADS")
    commands.node(tmp_path)
    assert ONE_THREAD.items() <= started[0].items()
    assert started[1:] == [(tmp_path, site_app.app_for)]
    monkeypatch.delattr(node.os, "memfd_create")
    with refused(ConfigError, "--node-config"):
        commands.node(tmp_path)


MANY_FORKS = """
import os, sys
from pathlib import Path
from types import SimpleNamespace
from fedpca_flwr.site.node import process as node
from fedpca_flwr.site_app import app_for
from fedpca_flwr.config.site_file import read_site_file

def compute(*args, **options):
    import numpy as np, scipy.linalg, threading
    X = np.random.default_rng(0).standard_normal((300, 60))
    threads = [threading.Thread(target=lambda: scipy.linalg.svd(X)) for _ in range(2)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    if os.getpid() % 20 == 0:
        import io, pyarrow.csv
        assert pyarrow.csv.read_csv(io.BytesIO(b"a,b" + b"\\n1,2" * 20000)).num_rows == 20000

folder = Path(sys.argv[1])
process = node.SiteProcess(read_site_file(folder / "site.toml"), folder, app_for)
node.run_clientapp.run_clientapp = compute
codes = []
for number in range(int(sys.argv[2])):
    process.launch(SimpleNamespace(runtime_api_address="", token=""))
    if len(process.messages) == 8:
        codes += [os.waitpid(pid, 0)[1] for pid in process.messages]
        process.messages.clear()
print(len(codes), sum(map(bool, codes)), len(list(Path("/proc/self/task").iterdir())))
"""


@pytest.mark.engine
@pytest.mark.parametrize("forks", [24, pytest.param(1000, marks=pytest.mark.nightly)])
def test_forks_under_load_all_answer(forks, tmp_path):
    """Each computes with several threads; two other processes take the cores meanwhile."""
    site_of(tmp_path)
    burners = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2)]
    command = [sys.executable, "-c", MANY_FORKS, str(tmp_path), str(forks)]
    try:
        done = subprocess.run(command, env=node.os.environ | ONE_THREAD, capture_output=True, text=True, check=False)
    finally:
        for burner in burners:
            burner.kill()
    assert done.stdout.split() == [str(forks), "0", "1"], done.stderr


def child_of(process, monkeypatch, compute):
    monkeypatch.setattr(node.run_clientapp, "run_clientapp", compute)
    process.launch(SimpleNamespace(runtime_api_address="here:1", token="token"))
    (child,) = process.messages
    return child


def test_a_child_has_its_message_and_ends_with_its_parent(process, monkeypatch):
    def compute(address, token, **_):
        ctypes.CDLL(None).prctl(2, ctypes.byref(sent := ctypes.c_int()))  # PR_GET_PDEATHSIG
        sys.exit(sent.value if (address, token) == ("here:1", "token") else 1)

    assert node.os.waitpid(child_of(process, monkeypatch, compute), 0)[1] == signal.SIGKILL << 8


def test_a_child_without_a_message_ends_with_a_code_and_a_silent_run_is_in_the_numbers(
    process, tmp_path, monkeypatch, caplog
):
    assert node.os.waitpid(child_of(process, monkeypatch, lambda *_, **__: int("no text of ours")), 0)[1] == 256
    process.messages.clear()
    run = context_to_proto(Context(7, 1, {}, RecordDict(), {"round-deadline": 1.0}))
    waiting = child_of(process, monkeypatch, lambda *_, **__: node.limit_wait(run) and time.sleep(5))
    assert node.os.waitpid(waiting, 0)[1] != 0
    process.messages.clear()
    monkeypatch.setattr(node, "FIRST_CHECK_SECONDS", 0.0)
    keys = {**process.site.node_config, "metrics": str(tmp_path / "numbers")}
    process.site = process.site._replace(node=NodeConfig.parse(keys), node_config=keys)
    journal = FileJournal(f"{tmp_path}/journal", "7", 0, description="p-cov; round-deadline=0; app")
    journal.begin("moments", "", b"", lambda answered: None)
    time.sleep(1.0)  # times in a journal are in seconds
    child_of(process, monkeypatch, lambda *_, **__: None)
    process.reconcile()
    process.check_seconds = node.math.inf
    while process.messages:
        process.reconcile()
    assert 'run_active{at="client 0"} 0.0' in (tmp_path / "numbers.prom").read_text()
    node.write_metrics({**keys, "metrics": f"{tmp_path}/numbers.prom/numbers"})  # a file is no folder
    assert re.search("numbers were not written: .*numbers[.]prom", caplog.text)


@pytest.mark.parametrize("threads", [1, 2])
def test_a_site_serves_its_own_supernode_from_one_thread(threads, process, monkeypatch, caplog):
    caplog.set_level(logging.INFO, "fedpca_flwr.client")
    started, served = Mock(return_value=Mock(poll=lambda: None)), Mock()
    monkeypatch.setattr(node.subprocess, "Popen", started)
    monkeypatch.setattr(node, "run_clientapp", SimpleNamespace())
    monkeypatch.setattr(node, "run_superexec", SimpleNamespace(run_superexec=served))
    monkeypatch.setattr(node, "Path", lambda _: Mock(iterdir=lambda: range(threads)))
    monkeypatch.setattr(node.os, "fork", lambda: 2**30)  # no process has this number
    with socket.create_server(("127.0.0.1", 0)) as listener:
        monkeypatch.setattr(node, "free_port", lambda: listener.getsockname()[1])
        with nullcontext() if threads == 1 else refused(FedPCAError, match="threads"):
            process.serve()
    assert served.call_count == caplog.text.count(f"partition 0 answers with fedpca-flwr {node.VERSION}") == 2 - threads
    if served.called:
        words = dict(pairwise(started.call_args.args[0]))
        secret = Path(words["--superexec-auth-secret-file"]).read_bytes()
        assert (words["--superlink"], secret) == ("localhost:1", served.call_args.kwargs["superexec_auth_secret"])
        assert tomllib.loads(Path(words["--node-config"]).read_text("utf-8")) == process.site.node_config


def test_a_site_ends_with_its_supernode_and_all_that_it_has_started(process):
    process.supernode = subprocess.Popen([sys.executable, "-c", "raise SystemExit(7)"])
    process.supernode.wait(60)
    with pytest.raises(SystemExit) as ended:
        process.reconcile()
    assert ended.value.code == 7
    sleeping = [sys.executable, "-c", "import time; time.sleep(600)"]
    process.supernode, message = (subprocess.Popen(sleeping) for _ in range(2))
    process.messages.add(message.pid)
    process.reconcile()
    process.close()
    assert process.supernode.poll() is not None
    assert message.wait(60) == -signal.SIGKILL
