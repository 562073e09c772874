"""A site's own side: files that it writes and who reads them, memory, command, lines in the system's log."""

import csv
import logging
import os
import re
import shlex
import socket
import stat
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from flwr.app import RecordDict

from fedpca_flwr import FedPCA, LocalGrid, run, site_app
from fedpca_flwr.cli import main
from fedpca_flwr.errors import ConfigError, FedPCAError
from fedpca_flwr.genetics.bed_file import read_bim
from fedpca_flwr.maths.moments import Moments
from fedpca_flwr.model.loadings import Loadings
from fedpca_flwr.protocol.journal import State
from fedpca_flwr.protocol.site_log import journal_logger
from fedpca_flwr.site import watch
from fedpca_flwr.site.node import deployment
from fedpca_flwr.site.rows.vault import Vault
from fedpca_flwr.site.scores import OddRows, outlier_file, row_names, score_file
from fedpca_flwr.strategies import FACTORY
from fedpca_flwr.transports.identity import read_member_keys
from tests.families import cut, rows
from tests.harness import at_sites, context_of, finish, identities, peak_of, proxy_of, server_of, sites_of
from tests.refusals import refused, unnamed


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
    scores = Loadings.load(loadings).part_of_scores(new)
    np.testing.assert_allclose(scores, model.transform(new), rtol=1e-12, atol=1e-12)
    with refused(KeyboardInterrupt), score_file(str(path.with_name("other.npy")), 10, 2) as keep:
        keep(np.zeros((5, 2)))
        raise KeyboardInterrupt
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_a_row_is_odd_beyond_either_limit_and_has_its_id(tmp_path):
    """One component of variance 4 along the first of three features; limits of T2 and SPE are 4 and 1."""
    limits, parts = np.array([4.0, 1.0]), [[[4.0, 0, 1], [6, 1, 0]], [[0, 0.5, 2], [99, 99, 98]]]
    with outlier_file(str(tmp_path / "s.npy"), limits) as stream:
        odd_rows = OddRows(np.array([[1.0, 0.0, 0.0]]), np.array([4.0]), limits, np.arange(4) < 3, stream)
        assert len(list(odd_rows.watch(map(np.array, parts)))) == 2
    np.testing.assert_array_equal(odd_rows.exceeding, [1, 1])
    header, *lines = (tmp_path / "s-outliers.csv").read_text().splitlines()
    assert header == "T2,T2 limit,SPE,SPE limit,odd,features,row"
    columns = list(zip(*(line.split(",") for line in lines), strict=True))
    assert (columns[0][:3], columns[2][:3]) == (("4", "9", "0"), ("1", "1", "4.25"))
    assert columns[4:] == [tuple("0111"), ("2 0 1", "1 0 2", "2 1 0", "1 2 0"), tuple("0123")]
    (tmp_path / "a.fam").write_text('f1 p1 0 0 0 -9\nf"2 p,2 0 0 0 -9\n')
    (cells,) = csv.reader([",".join(row_names(str(tmp_path / "a.bed")))])
    assert cells == ["f1 p1", 'f"2 p,2']
    with score_file(str(tmp_path / "s.eigenvec"), 2, 2, str(tmp_path / "a.bed")) as keep:
        keep(np.array([[0.5, 1], [2, -1]]))
    assert (tmp_path / "s.eigenvec").read_text() == '#FID\tIID\tPC1\tPC2\nf1\tp1\t0.5\t1\nf"2\tp,2\t2\t-1\n'


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


def test_a_refusal_runs_the_sites_own_command(sites, tmp_path):
    record, values = tmp_path / "refusals with a space", "os.environ['FEDPCA_RUN'], os.environ['FEDPCA_REFUSAL']"
    code = f"import os, sys; print({values}, file=open(sys.argv[1], 'a'))"
    command = shlex.join([sys.executable, "-c", code, str(record)])
    context_of(sites, 1).node_config |= {"min-rows": 41, "on-refusal": command}
    context_of(sites, 0).node_config |= {"on-refusal": command}  # it refuses nothing
    with pytest.raises(FedPCAError):
        finish(sites)
    assert record.read_text().split("\n") == [f"{context_of(sites, 1).run_id} DisclosureError", ""]
    said = FACTORY.client(context_of(sites, 0), lambda *given: given[2]).fit([], {"phase": "moments"})[2]
    assert not unnamed(said["message"], "IndexError"), "a fault of an app is named by its class"


FAILURES = {"/nowhere/command": "FileNotFound", "false": "Called", "an 'open quote": "Value", "sleep 60": "Timeout"}


@pytest.mark.parametrize("command", FAILURES)
def test_a_command_that_fails_or_hangs_changes_no_answer(command, sites, caplog, monkeypatch):
    monkeypatch.setattr(watch, "COMMAND_SECONDS", 0.2 if "sleep" in command else 30.0)
    context_of(sites, 1).node_config |= {"min-rows": 41, "on-refusal": command}
    with refused(FedPCAError, "min-rows", 41):
        finish(sites)
    assert re.search(f"on-refusal.*{FAILURES[command]}", caplog.text)


@pytest.fixture
def system_log(tmp_path, monkeypatch):
    if not hasattr(socket, "AF_UNIX"):
        pytest.skip("the system's log is a socket of POSIX")
    monkeypatch.setattr(watch, "SYSTEM_LOG", tmp_path / "log")
    monkeypatch.setattr(watch, "SYSTEM_LOG_SECONDS", 0.01)
    yield socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    for handler in list(journal_logger.handlers):
        journal_logger.removeHandler(handler)
    journal_logger.setLevel(logging.NOTSET)
    journal_logger.propagate = True


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


ROOT = Path(__file__).parents[2]
WITHOUT = """
import importlib, os, pkgutil, signal, sys
from pathlib import Path
import numpy as np
def load():
    import fedpca_flwr.simulations.compare, tests.harness
    for module in pkgutil.walk_packages(fedpca_flwr.__path__, "fedpca_flwr."):
        if not module.name.endswith("__main__") and not module.name.startswith("fedpca_flwr.simulations."):
            importlib.import_module(module.name)
load()
ours = [name for name in sys.modules if name.split(".")[0] in ("fedpca_flwr", "tests")]
for name in ours:  # other libraries have their ways on Windows
    del sys.modules[name]
for name in ("fcntl", "resource", "pwd", "grp", "termios", "pty", "syslog"):
    sys.modules[name] = None
gone = "fork forkpty getuid geteuid getgid getegid getpgid setsid setuid killpg chown fchown fchmod sysconf uname"
for name in gone.split():
    delattr(os, name)
for name in ("SIGKILL", "SIGHUP", "SIGUSR1", "SIGALRM", "SIGSTOP", "alarm", "setitimer"):
    delattr(signal, name)
load()
from fedpca_flwr.cli import main
from tests.harness import at_sites, finish, server_of
folder = Path(sys.argv[1])
main(["site", "certificates", str(folder), "--host", "localhost"])
main(["site", "node-key", str(folder / "site")])
main(["site", "ids-secret", str(folder / "salt")])
X = np.random.default_rng(0).normal(size=(60, 5))
nodes = []
for i, part in enumerate(np.split(X, [30])):
    np.savetxt(folder / f"{i}.csv", part, delimiter=",")
    nodes.append({"data": str(folder / f"{i}.csv"), "scores": str(folder / f"scores{i}.csv"), "min-parties": 2})
    nodes[-1]["journal"] = str(folder / f"journal{i}")
server = server_of("p-cov", np.split(X, [30]), n_components=2, secure_aggregation=True, bound=10.0)
print(finish(at_sites(server, nodes)).n_samples_)
sys.exit(main(["site", "journal", str(folder / "journal0"), "--check"]))
"""


@pytest.mark.engine
def test_sites_need_nothing_of_posix(tmp_path, monkeypatch):
    command, environment = [sys.executable, "-c", WITHOUT, str(tmp_path)], {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, encoding="utf-8", check=False)
    assert done.returncode == 0, done.stderr
    assert "\n60\n" in done.stdout
    assert (tmp_path / "scores1.csv").exists()
    monkeypatch.delattr(os, "killpg")  # groups of processes
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"])
    deployment.kill_process(process)
    assert process.poll() is not None


def test_lists_of_identities_and_of_variants_are_read_in_every_encoding(tmp_path, monkeypatch):
    """`>` of Windows PowerShell writes UTF-16, and editors a mark before UTF-8; both with their line ends."""
    members, variants = tmp_path / "identities", tmp_path / "common.bim"
    with open(members, "w", encoding="cp1252") as printed:  # the command writes UTF-8 all the same
        monkeypatch.setattr(sys, "stdout", printed)
        main(["site", "keys", str(tmp_path / "0"), "--partition-id", "0", "--name", "Łódź Zürich"])
    assert "Łódź Zürich" in members.read_text(encoding="utf-8")
    assert len(read_member_keys(str(members), 1)) == 1
    keys = [f"{i} {i:063x}7  # hospital {i}" for i in range(3)]
    for encoding in ("utf-8", "utf-8-sig", "utf-16"):
        members.write_bytes("\r\n".join(keys).encode(encoding))
        assert len(read_member_keys(str(members), 3)) == 3
        variants.write_bytes("1\ta\t0\t7\tA\tG\r\n2\tb\t0\t9\tC\tT\r\n".encode(encoding))
        assert [str(variant) for variant in read_bim(variants)] == ["1:7:A:G", "2:9:C:T"]


@pytest.fixture(params=[0o022, 0])
def modes(request):
    """Return a function for the modes of what a folder holds, by whatever umask an account has."""
    if sys.platform == "win32":
        pytest.skip("modes are POSIX's")
    before = os.umask(request.param)
    yield lambda folder: {
        str(file.relative_to(folder)): stat.S_IMODE(file.stat().st_mode) for file in folder.rglob("*")
    }
    os.umask(before)


def assert_private(found, folder, *, readable):
    expected = {name: 0o700 if (folder / name).is_dir() else 0o600 for name in found}
    assert found == {**expected, **dict.fromkeys(readable, 0o644)}


@pytest.mark.engine
@pytest.mark.parametrize("blind", [True, False])
def test_the_files_of_a_run_are_the_sites_alone(blind, tmp_path, modes):
    """The model is the one secret of a blind run, since its server does not have it."""
    made, nodes = tmp_path / "made", sites_of(tmp_path / "sources", cut(rows(180, 4), 60, 60, 60))
    names = {"journal": "deep/journal", "scores": "scores/s.csv", "loadings": "loadings.npz", "metrics": "m/numbers"}
    names |= {"model": "deep/er/models"} if blind else {}
    for party, node in enumerate(nodes):
        node |= {key: str(made / f"site{party}" / name) for key, name in names.items()} | identities(3)[party]
        node |= {"may-show": "distribution", "allowed-methods": "p-cov"}
    options = {"secure_aggregation": True, "bound": 1e5, "blind": True} if blind else {"outliers": "sites"}
    strategy = FedPCA("p-cov", n_components=2, **options)
    config = strategy.strategy.config.model_dump(by_alias=True)
    config["method"] = "p-cov" if blind else "p-cov outliers='sites'"
    strategy.start(LocalGrid(site_app.app, nodes, config))
    readable = [f"site{party}/m/numbers.{suffix}" for party in range(3) for suffix in ("prom", "jsonl")]
    for party in range(3):
        (made / f"site{party}" / "m").chmod(0o700)  # readable, as its files
    assert_private(modes(made), made, readable=readable)
    assert len(list(made.glob("site*/deep/er/models/model-*.npz"))) == 3 * blind


@pytest.mark.engine
def test_what_commands_of_a_site_and_rehearsals_write_is_private_but_for_certificates(tmp_path, monkeypatch, modes):
    home = tmp_path / "home"
    home.mkdir(0o700)
    monkeypatch.chdir(home)
    main(["site", "keys", "key", "--partition-id", "0"])
    main(["site", "node-key", "node"])
    main(["site", "ids-secret", "salt"])
    for flags in ([], ["--renew"]):
        main(["site", "certificates", "new/link", "--host", "localhost", "--authority", "new/authority", *flags])
    (node,) = sites_of(tmp_path / "site", [rows(60, 4)])
    files = deployment.write_site_files(home / "sites", ["a", "b"], [rows(20, 2)] * 3)
    deployment.make_site_configs(home / "sites", "hospital", files)
    config = f"partition-id=0 num-partitions=2 data='{node['data']}'"
    words = ["--rows", "100", "--node-config", config, "--run-config", "n-components=2"]
    assert main(["site", "worth", *words, "--output", "pages/worth.html"]) == 0
    assert_private(modes(home), home, readable=["new/link/ca.crt", "new/link/server.pem", "node.pub"])
    assert "pages/worth.html" in modes(home)


def test_a_servers_model_may_be_read_and_a_folder_keeps_its_mode(tmp_path, modes):
    model, folder = run("p-cov", [rows(20, 2)], n_components=1), tmp_path / "models"
    folder.mkdir(0o755)
    before = modes(tmp_path)
    model.save(folder / "model", private=True)
    model.save(tmp_path / "model")
    assert modes(tmp_path) == {**before, "models/model.npz": 0o600, "model.npz": 0o644}
