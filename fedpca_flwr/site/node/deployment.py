"""A SuperLink and its SuperNodes with TLS and node authentication, all on this machine: for rehearsals and tests."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import socket
import ssl
import subprocess
import sys
import time
import tomllib
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from fedpca_flwr.config.site_file import toml_lines
from fedpca_flwr.errors import ConfigError, FedPCAError, name_sources
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.secure import min_survivors
from fedpca_flwr.protocol.strategy import Factory
from fedpca_flwr.site.node import certificates, flower_command
from fedpca_flwr.site.rules import audit
from fedpca_flwr.state.files import PRIVATE, atomic_file, make_folder, require_writable_folder, write_new
from fedpca_flwr.transports import identity

HOST = "127.0.0.1"


class Deployment:
    """Context manager that runs a SuperLink and its SuperNodes with TLS on this machine.

    The folder is for keys, certificates, logs and Flower's own state, and must hold none of them yet. ``app`` is the
    folder of the Flower app, which is this project's. The names of the running ``processes`` are superlink, node0,
    node1 and so on.
    """

    def __init__(self, folder: Path, app: Path, node_configs: Sequence[Mapping[str, object]]) -> None:
        """Set folder, port and environment of the processes; nothing is started yet."""
        self.folder = folder
        self.app = app
        self.node_configs = node_configs
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.port = free_port()
        self.environment = {
            **os.environ,
            **flower_command.FLOWER_SETTINGS,
            "FLWR_HOME": str(folder / "flwr"),
            "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2",
            "PYTHONUNBUFFERED": "1",  # what they print is read while they run
            "PATH": flower_command.local_path(),
        }
        self.flwr = flower_command.FlowerCommand(self.environment)

    def __enter__(self) -> Deployment:
        """Start the SuperLink and all SuperNodes, and wait until all are online; stop all after an error."""
        try:
            self.start_link()
            for i in range(len(self.node_configs)):
                self.start_node(i)
            self.wait_until(self.all_nodes_online, "the SuperNodes to be online")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """Stop all processes; kill a process that has not ended after ten seconds."""
        self.flwr.kill()
        for process in self.processes.values():
            process.terminate()
        for process in self.processes.values():
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                kill_process(process)

    def start_link(self) -> None:
        """Make certificates and a Flower config, start the SuperLink, and wait for an answer."""
        certificates.make_certificates(self.folder, ["localhost", HOST], days=2)
        self.write_flwr_config(f"root-certificates = {json.dumps(str(self.folder / 'ca.crt'))}")
        self.spawn(
            "superlink",
            ["flower-superlink", "--host", HOST, "--port", str(self.port), "--enable-supernode-auth"]
            + ["--ssl-ca-certfile", "ca.crt", "--ssl-certfile", "server.pem", "--ssl-keyfile", "server.key"],
        )
        trust = ssl.create_default_context(cafile=str(self.folder / "ca.crt"))
        url = f"https://{HOST}:{self.port}/health"
        self.wait_until(lambda: urllib.request.urlopen(url, context=trust, timeout=20).status == 200, "the SuperLink")

    def write_flwr_config(self, security: str) -> None:
        """Write a Flower config that names this SuperLink ``lab``, with a line of TOML about TLS."""
        config = self.folder / "flwr" / "config.toml"
        make_folder(config.parent)
        text = f'[superlink]\ndefault = "lab"\n[superlink.lab]\naddress = "{HOST}:{self.port}"\n{security}\n'
        write_new(config, text.encode())

    def start_node(self, i: int) -> None:
        """Make and register the key of site number `i`, and start its SuperNode."""
        key = self.folder / f"node{i}"
        self.flwr("supernode", "register", str(certificates.make_node_key(key)), "lab")
        self.spawn_site(i)

    def spawn_site(self, i: int) -> None:
        """Start site number `i`, whose key is registered: its own process, or on other systems a SuperNode alone."""
        if not hasattr(os, "memfd_create"):  # not Linux
            self.spawn_supernode(i)
            return
        connection = {"superlink": f"{HOST}:{self.port}", "root-certificates": "ca.crt", "node-key": f"node{i}"}
        tables = f"[supernode]\n{toml_lines(connection)}[site]\n{toml_lines(self.node_configs[i])}"
        with atomic_file(self.folder / f"site{i}.toml") as stream:
            stream.write(tables.encode())
        self.spawn(f"node{i}", [sys.executable, "-m", "fedpca_flwr", "site", "node", "--config", f"site{i}.toml"])

    def spawn_supernode(self, i: int) -> None:
        """Start the SuperNode of site number `i` without a process of ours, so it runs the code that a run brings.

        Raise ConfigError if the program is not installed.
        """
        command = ["flower-supernode", "--superlink", f"{HOST}:{self.port}", "--root-certificates", "ca.crt"]
        command += ["--auth-supernode-private-key", f"node{i}", "--host", HOST, "--port", str(free_port())]
        config = " ".join(f"{key}={json.dumps(value)}" for key, value in self.node_configs[i].items())
        self.spawn(f"node{i}", [*command, "--node-config", config])

    def kill_node(self, i: int) -> None:
        """Kill the process of site number `i` and its SuperNode at once, without notice to the SuperLink."""
        kill_process(self.processes.pop(f"node{i}"))

    def run(self, run_config: str, *options: str, on_line: Callable[[str], None] | None = None) -> tuple[str, str]:
        """Run the app by ``flwr run``; return Flower's status and the log, of which ``on_line`` gets each line."""
        run = self.flwr.run(str(self.app), ["lab"], "--run-config", run_config, *options, on_line=on_line)
        return run.status, run.log

    def all_nodes_online(self) -> bool:
        """Check that the SuperLink lists all SuperNodes as online; raise FedPCAError if it does not answer."""
        nodes = self.flwr.list_json("supernode", "list", "lab").get("nodes", [])  # none while the SuperLink starts
        return bool(sum(node["status"] == "online" for node in nodes) == len(self.node_configs))

    def read_log(self, name: str) -> str:
        """Return the log so far of a process by its name, "superlink" or "node0"."""
        return (self.folder / f"{name}.log").read_text(encoding="utf-8", errors="replace")

    def spawn(self, name: str, command: Sequence[str]) -> None:
        """Start a process with the log ``<name>.log``, ended with the context; ConfigError if it is not installed."""
        with open(self.folder / f"{name}.log", "wb", opener=PRIVATE.open) as log:
            self.processes[name] = subprocess.Popen(
                [flower_command.program_path(command[0], self.environment), *command[1:]],
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self.environment,
                cwd=self.folder,
                start_new_session=True,
            )

    def wait_until(self, condition: Callable[[], Any], awaited: str) -> Any:
        """Call `condition` several times a second until its result is true, and return the result.

        Errors of files, of values and of this project count as false. Raise FedPCAError if a process ends, or if
        nothing is true for `TIMEOUT_SECONDS`; the text says what was ``awaited``.
        """
        deadline = time.monotonic() + flower_command.TIMEOUT_SECONDS
        while time.monotonic() < deadline:
            for name, process in self.processes.items():
                if process.poll() is not None:
                    raise FedPCAError(f"{name} ended with {process.returncode}: {self.read_log(name)[-2000:]}")
            with suppress(OSError, ValueError, FedPCAError):
                if result := condition():
                    return result
            time.sleep(0.3)
        limit = f"{flower_command.TIMEOUT_SECONDS:.0f} s"
        raise FedPCAError(f"{awaited} did not appear within {limit}; the logs are in {self.folder}")


def kill_process(process: subprocess.Popen[bytes]) -> None:
    """Kill a process, the leader of its session, and, where process groups exist, its children; wait for its end."""
    if hasattr(os, "killpg"):
        os.killpg(process.pid, signal.SIGKILL)
    else:
        process.kill()
    process.wait()


def free_port() -> int:
    """Return the number of a TCP port of this machine that nobody listens on."""
    with socket.socket() as listener:
        listener.bind((HOST, 0))
        port: int = listener.getsockname()[1]
        return port


SITE_BOUNDARIES = (0, 200, 320, 500, 569)  # rows of scikit-learn's breast cancer data at four sites
SKEWED_COLUMNS = range(10, 20)  # its columns that one patient of a site dominates: a site refuses these (`rare-values`)
REHEARSAL_RUN_CONFIG = 'method="p-cov" n-components=5 secure-aggregation=true bound=1e5'
ROUND_DEADLINE_SECONDS = 30.0  # that the run waits for the killed site
MIN_SITES = 3  # of a secure sum
EMPTY_LOG_LINE = re.compile(r"(INFO\s*:)?\s*")  # a line of Flower's log that only separates other lines


def rehearse(
    folder: Path,
    app: Path,
    factory: Factory,
    *,
    data: Sequence[Path] = (),
    node_config: Mapping[str, object],
    run: str = "",
    dropout: bool,
    show: Callable[[str], None],
) -> None:
    """Run a secure PCA over several sites, deployed on this machine, as the command `site rehearse`.

    ``run`` replaces `REHEARSAL_RUN_CONFIG`. ``show`` receives a line for each step, and the lines of the run's log.
    Raise ConfigError before anything starts, and FedPCAError if the run does not complete.
    """
    folder = require_writable_folder(folder).resolve()
    if any(folder.iterdir()):
        raise ConfigError(f"the folder {folder} is not empty; name an empty or a new folder")
    try:
        is_project = tomllib.loads((app / "pyproject.toml").read_text("utf-8"))["project"]["name"] == "fedpca-flwr"
    except (OSError, ValueError, KeyError):
        is_project = False
    if not is_project:
        raise ConfigError(
            f"{app.resolve()} is not the folder of fedpca-flwr: go to a clone of this project, or name one with --app"
        )
    n_sites = len(data) or len(SITE_BOUNDARIES) - 1
    dropout_keys = f" survivors={min_survivors(n_sites)} round-deadline={ROUND_DEADLINE_SECONDS}" if dropout else ""
    config = f"{run or REHEARSAL_RUN_CONFIG}{dropout_keys} output={json.dumps(str(folder / 'model'))}"
    with TemporaryDirectory() as trial:  # so that the folder stays empty for another try
        _require_rows(factory, _hospital_configs(Path(trial), data, node_config, dropout), config)
    hospitals = _hospital_configs(folder, data, node_config, dropout)
    show(f"1. {n_sites} sites have rows and identities of their own, in {folder}")
    with ThreadPoolExecutor(1) as pool, Deployment(folder, app.resolve(), hospitals) as deployment:
        show(
            f"2. a SuperLink with a certificate runs on port {deployment.port}, and {n_sites} SuperNodes have signed in"
        )
        show(f"3. flwr run . lab --stream --run-config '{config}'")
        running = pool.submit(
            deployment.run, config, on_line=lambda line: None if EMPTY_LOG_LINE.fullmatch(line) else show(f"   {line}")
        )
        if dropout:
            last = n_sites - 1
            wait_for_question(folder / f"journal{last}", running)
            deployment.kill_node(last)
            wait_text = f"{ROUND_DEADLINE_SECONDS:.0f} s after its question (round-deadline)"
            show(f"   hospital {last} (client {last}) is killed; {wait_text} the others go on")
        status, _ = running.result()
    if status != flower_command.COMPLETED_STATUS:
        raise FedPCAError(
            f"the run ended as '{status}'; its log is above; the logs of SuperLink and sites are in {folder}"
        )
    show("4. everything is stopped; each site that took part has its scores (scores0.csv, ...)")
    model, journal = str(folder / "model"), shlex.quote(str(folder / "journal0"))
    show(f'5. the model: python -c "from fedpca_flwr import PCAModel; print(PCAModel.load({model!r}).summary())"')
    show(f"   what a site was asked: fedpca site journal {journal}; by hand: simulations/deployment/README.md")


def _require_rows(factory: Factory, node_configs: Sequence[Mapping[str, object]], run_config: str) -> None:
    """Raise ConfigError with a line for each fault of the run or of sites' rows, which names the sites' files."""
    from fedpca_flwr.site.node.doctor import SiteSetup, run_trial  # heavy, and only a rehearsal needs it

    faults = []
    for node_config in node_configs:
        try:
            run_trial(factory, SiteSetup(node_config, run_config))
        except FedPCAError as error:
            faults.append((str(node_config["data"]), f"{error}{f' ({error.local})' if error.local else ''}"))
    if faults:
        raise ConfigError("\n".join(name_sources(faults)))


def _hospital_configs(
    folder: Path, data: Sequence[Path], node_config: Mapping[str, object], dropout: bool
) -> list[dict[str, object]]:
    """Make keys for a rehearsal's sites in a folder, and return their node-configs: one for each file of rows.

    Without files, rows of breast cancer data for four sites are written to the folder. Raise ConfigError if a file is
    missing, there are fewer than `MIN_SITES` or with ``dropout`` too few to go on without one, or keys exist.
    """
    if not data:
        from sklearn.datasets import load_breast_cancer  # heavy, and only a rehearsal needs it

        dataset = load_breast_cancer()
        names = [name.replace(" ", "_") for name in np.delete(dataset.feature_names, SKEWED_COLUMNS)]
        rows = np.delete(dataset.data, SKEWED_COLUMNS, axis=1)
        data = write_site_files(folder, names, [rows[start:end] for start, end in pairwise(SITE_BOUNDARIES)])
    if missing := [str(file) for file in data if not file.is_file()]:
        raise ConfigError(f"--data names files that do not exist: {', '.join(missing)}")
    if len(data) < MIN_SITES:
        raise ConfigError(f"--data names {len(data)} files, expected {MIN_SITES} or more, one for each site")
    if dropout and min_survivors(len(data)) == len(data):
        raise ConfigError(
            f"with {len(data)} sites no site may drop out, because a secure sum continues only with more than two "
            "thirds of the sites: name at least four files, or leave out --dropout"
        )
    sites = make_site_configs(folder, "hospital", data)
    if own := node_config.keys() & sites[0].keys():
        raise ConfigError(f"--node-config has {', '.join(sorted(own))}, which the rehearsal sets itself for each site")
    paths = {key: str(Path(str(node_config[key])).resolve()) for key in node_config.keys() & {"variants", "apart"}}
    return [{**site, "min-rows": 50, "secure-only": True, **node_config, **paths} for site in sites]


def write_site_files(folder: Path, names: Sequence[str], parts: Sequence[Array]) -> list[Path]:
    """Write site0.csv, site1.csv, ..., each with the rows (n_i, d) of one part, and return the paths."""
    files = [folder / f"site{i}.csv" for i in range(len(parts))]
    for file, rows in zip(files, parts, strict=True):
        with atomic_file(file) as stream:
            np.savetxt(stream, rows, delimiter=",", header=",".join(names), comments="", fmt="%.17g")
    return files


def make_site_configs(folder: Path, kind: str, data: Sequence[Path]) -> list[dict[str, object]]:
    """Make a key for each file of rows, and return node-configs of sites such as "hospital 0" (kind and number).

    Write the sites' private keys and the list ``identities`` to the folder; raise ConfigError if they exist.
    """
    node_configs, lines = list[dict[str, object]](), list[str]()
    for i, file in enumerate(data):
        lines.append(identity.make_key(str(folder / f"site{i}.identity"), i, f"{kind} {i}"))
        files = {"scores": f"scores{i}.csv", "journal": f"journal{i}"}
        files |= {"identity": f"site{i}.identity", "identities": "identities"}
        paths = {"data": str(file.resolve()), **{key: str(folder / name) for key, name in files.items()}}
        node_configs.append({"partition-id": i, "num-partitions": len(data), "name": f"{kind} {i}", **paths})
    write_new(folder / "identities", ("\n".join(lines) + "\n").encode())
    return node_configs


def wait_for_question(journal: Path, running: Future[tuple[str, str]], *, earlier: int = 0) -> None:
    """Wait until a site's journal, which may not exist yet, has more than `earlier` questions, or the run has ended."""
    while not running.done():
        with suppress(FedPCAError):  # the site has not made it yet
            events = audit.audit(str(journal)).events
            if sum(event.kind == "question" for event in events) > earlier:
                return
        time.sleep(0.1)
