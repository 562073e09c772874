"""A SuperLink and its SuperNodes with TLS and node authentication, all on this machine: for rehearsals and tests.

A rehearsal goes from certificates to scores: what the deployment guide does step by step.
"""

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
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from fedpca_flwr.errors import ConfigError, FedPCAError
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.secure import min_survivors
from fedpca_flwr.site import audit, certificates, identity
from fedpca_flwr.site.flower_command import COMPLETED_STATUS, TIMEOUT_SECONDS, FlowerCommand, program_path
from fedpca_flwr.state.files import require_writable_folder

HOST = "127.0.0.1"


class Deployment:
    """Starts a SuperLink, and a SuperNode for each node-config, on entry, and stops all that it started on exit.

    ``folder`` is for keys, certificates, logs and Flower's own state, and must hold none yet; ``app`` is that of the
    Flower app, this project's.
    """

    def __init__(self, folder: Path, app: Path, node_configs: Sequence[Mapping[str, object]]) -> None:
        self.folder = folder
        self.app = app
        self.node_configs = node_configs
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.port = free_port()
        self.environment = {
            **os.environ,
            "FLWR_HOME": str(folder / "flwr"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
            "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2",
            "PYTHONUNBUFFERED": "1",  # what they print is read while they run
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
        }
        self.flwr = FlowerCommand(self.environment)

    def __enter__(self) -> Deployment:
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
        self.flwr.kill()
        for process in self.processes.values():
            process.terminate()
        for process in self.processes.values():
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                kill_process(process)

    def start_link(self) -> None:
        """Make the certificates, and start the SuperLink."""
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
        """Tell the `flwr` command of the SuperLink, as ``lab``."""
        (self.folder / "flwr").mkdir(parents=True)
        (self.folder / "flwr" / "config.toml").write_text(
            f'[superlink]\ndefault = "lab"\n[superlink.lab]\naddress = "{HOST}:{self.port}"\n{security}\n',
            encoding="utf-8",
        )

    def start_node(self, i: int) -> None:
        """Make a site's key, register it, and start the site's SuperNode."""
        key = self.folder / f"node{i}"
        self.flwr("supernode", "register", str(certificates.make_node_key(key)), "lab")
        config = " ".join(f"{k}={json.dumps(v)}" for k, v in self.node_configs[i].items())
        self.spawn(
            f"node{i}",
            ["flower-supernode", "--superlink", f"{HOST}:{self.port}", "--root-certificates", "ca.crt"]
            + ["--host", HOST, "--port", str(free_port()), "--auth-supernode-private-key", str(key)]
            + ["--node-config", config],
        )

    def kill_node(self, i: int) -> None:
        """End a site's SuperNode at once, as a power cut does: the SuperLink does not hear of it."""
        kill_process(self.processes.pop(f"node{i}"))

    def run(self, run_config: str, *options: str, on_line: Callable[[str], None] | None = None) -> tuple[str, str]:
        """Run the app; its final status and its log, of which ``heard`` is given each line when it is written."""
        run = self.flwr.run(str(self.app), ["lab"], "--run-config", run_config, *options, on_line=on_line)
        return run.status, run.log

    def all_nodes_online(self) -> bool:
        """Whether every SuperNode has signed in."""
        nodes = self.flwr.list_json("supernode", "list", "lab")["nodes"]
        return bool(sum(node["status"] == "online" for node in nodes) == len(self.node_configs))

    def read_log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(encoding="utf-8", errors="replace")

    def spawn(self, name: str, command: Sequence[str]) -> None:
        """Start a process that is stopped at the end, with a log of its own."""
        with open(self.folder / f"{name}.log", "wb") as log:
            self.processes[name] = subprocess.Popen(
                [program_path(command[0], self.environment), *command[1:]],
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self.environment,
                cwd=self.folder,
                start_new_session=True,
            )

    def wait_until(self, condition: Callable[[], Any], awaited: str) -> Any:
        """Wait for a condition, while all processes live; what it gives once that is true."""
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while time.monotonic() < deadline:
            for name, process in self.processes.items():
                if process.poll() is not None:
                    raise FedPCAError(f"{name} ended with {process.returncode}: {self.read_log(name)[-2000:]}")
            with suppress(OSError, ValueError, FedPCAError):
                if result := condition():
                    return result
            time.sleep(0.3)
        raise FedPCAError(f"waited {TIMEOUT_SECONDS:.0f} s for {awaited} in vain; the logs are in {self.folder}")


def kill_process(process: subprocess.Popen[bytes]) -> None:
    """End a process and those that it has started, where the system knows these."""
    if hasattr(os, "killpg"):
        os.killpg(process.pid, signal.SIGKILL)
    else:
        process.kill()
    process.wait()


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind((HOST, 0))
        port: int = listener.getsockname()[1]
        return port


SITE_BOUNDARIES = (0, 200, 320, 500, 569)  # where scikit-learn's breast cancer data are cut into four sites
SKEWED_COLUMNS = range(10, 20)  # its columns that one patient of a site dominates: a site refuses these (`rare-values`)
REHEARSAL_RUN_CONFIG = 'method="p-cov" n-components=5 secure-aggregation=true bound=1e5'
ROUND_DEADLINE_SECONDS = 30.0  # seconds that the run waits for the site that is killed
MIN_SITES = 3  # sites of a secure sum
EMPTY_LOG_LINE = re.compile(r"(INFO\s*:)?\s*")  # a line with which Flower's log sets off what stands around it


def rehearse(
    folder: Path, app: Path, *, data: Sequence[Path] = (), run: str = "", dropout: bool, show: Callable[[str], None]
) -> None:
    """Start a SuperLink and a site for each file of ``data``, run a secure PCA over them, and stop all again.

    Without ``data`` four sites have rows that are made. All that is made is in ``folder``: certificates, keys, logs,
    the model, scores and journals; ``app`` is this project's, and ``run`` a run-config instead of `RUN`. With
    ``dropout`` the last site is killed during the run, which goes on without it. ``say`` is given a line for each
    step, and the lines of the run's log when they are written.
    """
    folder = require_writable_folder(folder).resolve()
    if any(folder.iterdir()):
        raise ConfigError(f"the folder {folder} is not empty; name one that is, or a new one")
    if not (app / "pyproject.toml").exists():
        raise ConfigError(f"{app.resolve()} is not this project's folder: go there, or name it with --app")
    hospitals = _hospital_configs(folder, data, dropout)
    n_sites = len(hospitals)
    show(f"1. {n_sites} sites have rows and identities of their own, in {folder}")
    with ThreadPoolExecutor(1) as pool, Deployment(folder, app.resolve(), hospitals) as deployment:
        show(
            f"2. a SuperLink with a certificate runs on port {deployment.port}, and {n_sites} SuperNodes have signed in"
        )
        dropout_keys = f" survivors={min_survivors(n_sites)} round-deadline={ROUND_DEADLINE_SECONDS}" if dropout else ""
        config = f"{run or REHEARSAL_RUN_CONFIG}{dropout_keys} output={json.dumps(str(folder / 'model'))}"
        show(f"3. flwr run . lab --stream --run-config '{config}'")
        running = pool.submit(
            deployment.run, config, on_line=lambda line: None if EMPTY_LOG_LINE.fullmatch(line) else show(f"   {line}")
        )
        if dropout:
            wait_for_question(folder / f"journal{n_sites - 1}", running)
            deployment.kill_node(n_sites - 1)
            wait_text = f"{ROUND_DEADLINE_SECONDS:.0f} s after its question (round-deadline)"
            show(f"   hospital {n_sites - 1} (client {n_sites - 1}) is killed; {wait_text} the others go on")
        status, _ = running.result()
    if status != COMPLETED_STATUS:
        raise FedPCAError(
            f"the run ended as '{status}'; its log stands above, those of SuperLink and sites in {folder}"
        )
    show("4. everything is stopped; each site that took part has its scores (scores0.csv, ...)")
    model, journal = str(folder / "model"), shlex.quote(str(folder / "journal0"))
    show(f'5. the model: python -c "from fedpca_flwr import PCAModel; print(PCAModel.load({model!r}).summary())"')
    by_hand = "each step by hand: simulations/deployment/README.md"
    show(f"   what a site was asked: python -m fedpca_flwr site journal {journal}; {by_hand}")


def _hospital_configs(folder: Path, data: Sequence[Path], dropout: bool) -> list[dict[str, object]]:
    """The node-configs of sites with the files of ``data``, or that share scikit-learn's breast cancer data."""
    if not data:
        from sklearn.datasets import load_breast_cancer  # heavy, and only a rehearsal needs it

        dataset = load_breast_cancer()
        names = np.delete(dataset.feature_names, SKEWED_COLUMNS)
        rows = np.delete(dataset.data, SKEWED_COLUMNS, axis=1)
        parts = [rows[start:end] for start, end in pairwise(SITE_BOUNDARIES)]
        data = write_site_files(folder, [name.replace(" ", "_") for name in names], parts)
    missing = [str(file) for file in data if not file.is_file()]
    if missing:
        raise ConfigError(f"--data names files that are not there: {', '.join(missing)}")
    if len(data) < MIN_SITES:
        raise ConfigError(f"--data names {len(data)} files, expected {MIN_SITES} or more, one for each site")
    if dropout and min_survivors(len(data)) == len(data):
        raise ConfigError(
            f"with {len(data)} sites nobody may drop out, since a secure sum goes on with more than two thirds of the "
            "sites only: name four files or more, or leave out --dropout"
        )
    return [{**site, "min-rows": 50, "secure-only": True} for site in make_site_configs(folder, "hospital", data)]


def write_site_files(folder: Path, names: Sequence[str], parts: Sequence[Array]) -> list[Path]:
    """Files in the folder that are made of these rows of the named columns, one for each site."""
    files = [folder / f"site{i}.csv" for i in range(len(parts))]
    for file, rows in zip(files, parts, strict=True):
        np.savetxt(file, rows, delimiter=",", header=",".join(names), comments="", fmt="%.17g")
    return files


def make_site_configs(folder: Path, kind: str, data: Sequence[Path]) -> list[dict[str, object]]:
    """The node-configs of sites with these files of rows, and with identities that are made in the folder; a site is
    called by its kind and number."""
    node_configs: list[dict[str, object]] = []
    lines = []
    for i, file in enumerate(data):
        lines.append(identity.make_key(str(folder / f"site{i}.identity"), i, f"{kind} {i}"))
        files = {"scores": f"scores{i}.csv", "journal": f"journal{i}"}
        files |= {"identity": f"site{i}.identity", "identities": "identities"}
        paths = {"data": str(file.resolve()), **{key: str(folder / file) for key, file in files.items()}}
        node_configs.append({"partition-id": i, "num-partitions": len(data), "name": f"{kind} {i}", **paths})
    (folder / "identities").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return node_configs


def wait_for_question(journal: Path, running: Future[tuple[str, str]], *, earlier: int = 0) -> None:
    """Until a site was asked more than it was ``before``, or the run is over."""
    while not running.done():
        with suppress(FedPCAError):  # the site has not made it yet
            events = audit.audit(str(journal)).events
            if sum(event.kind == "question" for event in events) > earlier:
                return
        time.sleep(0.1)
