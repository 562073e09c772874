"""The deployment of a rehearsal as tests use it, and a SuperLink that simulates."""

import json
import os
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

from fedpca_flwr.site.deployment import HOST, Deployment
from strategies import run_config_of

ROOT = Path(__file__).parents[2]


def told(method: str, **values: Any) -> str:
    """A method, its options and keys of the run as `--run-config` takes them."""
    config = run_config_of({"method": method, **{key.replace("_", "-"): value for key, value in values.items()}})
    return " ".join(f"{key}={json.dumps(value)}" for key, value in config.items())


def identified(folder: Path, sites: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The sites, each with an identity of its own and the list of all, made as the guide says."""
    lines = []
    for i, site in enumerate(sites):
        site |= {"identity": str(folder / f"site{i}.identity"), "identities": str(folder / "identities")}
        made = [site["identity"], "--partition-id", str(i), "--name", site["name"]]
        command = [sys.executable, "-m", "fedpca_flwr.site", "keys", *made]
        lines.append(subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout)
    (folder / "identities").write_text("".join(lines))
    return sites


IMPATIENT = """import time
sleep = time.sleep
time.sleep = lambda seconds: sleep(0.2 if seconds == 3 else seconds)
"""
"""Python runs this at the start of each process. A SuperNode sleeps three seconds where it finds no message, and a test
would wait for that in each round."""


def impatient(folder: Path, inherited: str = "") -> str:
    """A PYTHONPATH on which SuperNodes are that (`IMPATIENT`), of a file in this folder."""
    (folder / "sitecustomize.py").write_text(IMPATIENT, encoding="utf-8")
    return f"{folder}{os.pathsep}{inherited}"


class Lab(Deployment):
    """Of this repository's app, in a folder that is made."""

    def __init__(self, folder: Path, node_configs: list[dict[str, object]]) -> None:
        folder.mkdir(parents=True)
        super().__init__(folder, ROOT, node_configs)
        self.environment["PYTHONPATH"] = impatient(folder, self.environment.get("PYTHONPATH", ""))


class SimulationLab(Lab):
    """A SuperLink that simulates its nodes with Ray, as ``flwr run`` starts one for itself."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, [])

    def start_link(self) -> None:
        self.name_link("insecure = true")
        self.spawn(
            "superlink", ["flower-superlink", "--insecure", "--simulation", "--host", HOST, "--port", str(self.port)]
        )
        url = f"http://{HOST}:{self.port}/health"
        self.until(lambda: urllib.request.urlopen(url, timeout=20).status == 200, "the SuperLink")

    def all_online(self) -> bool:
        return True
