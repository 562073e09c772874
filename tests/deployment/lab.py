"""The deployment of a rehearsal as tests use it, and a SuperLink that simulates."""

import io
import json
import os
import sys
import urllib.request
from pathlib import Path
from typing import Any
from unittest.mock import patch

from flwr.cli.app import app as flwr
from typer.testing import CliRunner

from fedpca_flwr.errors import FedPCAError
from fedpca_flwr.site.node.deployment import HOST, Deployment
from fedpca_flwr.site.node.flower_command import COLOUR_CODES, TIMEOUT_SECONDS, FlowerCommand
from fedpca_flwr.strategies import METHODS

ROOT = Path(__file__).parents[2]


def told(method: str, **values: Any) -> str:
    """Return a method, its options and keys of the run as `--run-config` takes them."""
    keys = {key.replace("_", "-"): value for key, value in values.items()}
    return as_text(METHODS.run_config({"method": method, **keys}))


def as_text(config: dict[str, Any]) -> str:
    return " ".join(f"{key}={json.dumps(value)}" for key, value in config.items())


IMPATIENT = """import time

sleep = time.sleep
time.sleep = lambda seconds: sleep(0.5 if seconds == 3 else seconds)
"""
"""For the start of each Python: a SuperNode sleeps three seconds where it finds no message, in each round of a test."""


def impatient(folder: Path, inherited: str = "") -> str:
    """Return a PYTHONPATH on which SuperNodes are that (`IMPATIENT`), of a file in this folder."""
    (folder / "sitecustomize.py").write_text(IMPATIENT, encoding="utf-8")
    return f"{folder}{os.pathsep}{inherited}"


class CommandHere(FlowerCommand):
    """`flwr`, in this process: another would import Flower for each listing. Runs have processes, which tests read."""

    def __call__(self, *arguments: str, on_line: Any = None, timeout: float = TIMEOUT_SECONDS) -> str:
        if arguments[0] == "run":
            return super().__call__(*arguments, on_line=on_line, timeout=timeout)
        home = {"FLWR_HOME": self.environment["FLWR_HOME"]}
        with patch.object(sys, "__stdout__", io.StringIO()) as listing:  # to which Flower returns for JSON
            ended = CliRunner().invoke(flwr, arguments, env=home)
        if ended.exit_code:
            raise FedPCAError(f"flwr {' '.join(arguments)}: {ended.output}")
        return COLOUR_CODES.sub("", ended.stdout + listing.getvalue())


class Lab(Deployment):
    """Of this repository's app, in a folder that is made."""

    def __init__(self, folder: Path, node_configs: list[dict[str, Any]]) -> None:
        folder.mkdir(parents=True)
        super().__init__(folder, ROOT, node_configs)
        self.environment["FLWR_SUPEREXEC_TASK_POLL_INTERVAL"] = "0.5"  # looking costs the cores that messages wait for
        self.environment["PYTHONPATH"] = impatient(folder, self.environment.get("PYTHONPATH", ""))
        self.flwr = CommandHere(self.environment)

    def with_sites(self, node_configs: list[dict[str, Any]]) -> "Lab":
        """Each SuperNode with the node-config of its number: it starts anew where it has another, or is stopped."""
        restart = []
        for i, config in enumerate(node_configs):
            process = self.processes[f"node{i}"]
            if config != self.node_configs[i] or process.poll() is not None:
                process.terminate()
                process.wait()
                restart.append(i)
        self.node_configs = node_configs
        for i in restart:
            self.spawn_site(i)
        self.wait_until(self.all_nodes_online, "the SuperNodes to be online")
        return self


class SimulationLab(Lab):
    """A SuperLink that simulates its nodes with Ray, as ``flwr run`` starts one for itself."""

    def start_link(self) -> None:
        self.write_flwr_config("insecure = true")
        command = ["flower-superlink", "--insecure", "--simulation", "--host", HOST, "--port", str(self.port)]
        self.spawn("superlink", command)
        url = f"http://{HOST}:{self.port}/health"
        self.wait_until(lambda: urllib.request.urlopen(url, timeout=20).status == 200, "the SuperLink")

    def all_nodes_online(self) -> bool:
        return True
