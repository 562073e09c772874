"""A whole federation on this machine, from certificates to scores: what the deployment guide does step by step."""

from __future__ import annotations

import json
import re
import shlex
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import numpy as np

from fedpca_flwr.errors import ConfigError, FedPCAError
from fedpca_flwr.files import writable
from fedpca_flwr.site.audit import audit
from fedpca_flwr.site.deployment import Deployment
from fedpca_flwr.site.identity_files import make_key

ENDS = (0, 220, 400, 500, 569)
"""Where scikit-learn's breast cancer data are cut into four sites."""

RUN = 'method="p-cov" n-components=5 secure-aggregation=true bound=1e5'

DEADLINE = 30.0
"""Seconds that the run waits for the site that is killed."""

DROPPING = f"survivors=3 round-deadline={DEADLINE}"

EMPTY = re.compile(r"(INFO\s*:)?\s*")
"""A line with which Flower's log sets off what stands around it."""


def rehearse(folder: Path, app: Path, *, dropout: bool, say: Callable[[str], None]) -> None:
    """Start a SuperLink and four sites with rows of their own, run a secure PCA over them, and stop all again.

    Parameters
    ----------
    folder : Path
        For all that is made: certificates, keys, rows, logs, the model, scores and journals. Must be empty.
    app : Path
        This project's folder.
    dropout : bool
        Whether the last site is killed during the run, which goes on without it.
    say : callable
        Is given a line for each step, and the lines of the run's log when they are written.

    Raises
    ------
    ConfigError
        Where the folders are not as they must be.
    FedPCAError
        Where the run failed.
    """
    folder = writable(folder).resolve()
    if any(folder.iterdir()):
        raise ConfigError(f"the folder {folder} is not empty; name one that is, or a new one")
    if not (app / "pyproject.toml").exists():
        raise ConfigError(f"{app.resolve()} is not this project's folder: go there, or name it with --app")
    sites = _sites(folder)
    say(f"1. {len(sites)} sites have rows and identities of their own, in {folder}")
    with Deployment(folder, app.resolve(), sites) as deployment, ThreadPoolExecutor(1) as pool:
        say(f"2. a SuperLink with a certificate runs on port {deployment.port}, and four SuperNodes have signed in")
        config = f"{RUN} {DROPPING if dropout else ''} output={json.dumps(str(folder / 'model'))}"
        say(f"3. flwr run . lab --stream --run-config '{config}'")
        running = pool.submit(
            deployment.run, config, heard=lambda line: None if EMPTY.fullmatch(line) else say(f"   {line}")
        )
        if dropout:
            _wait_for_question(folder / "journal3", running)
            deployment.kill_node(3)
            waited = f"{DEADLINE:.0f} s after its question (round-deadline)"
            say(f"   hospital 3 (client 3) is killed; {waited} the others go on")
        status, _ = running.result()
    if status != "finished:completed":
        raise FedPCAError(
            f"the run ended as '{status}'; its log stands above, those of SuperLink and sites in {folder}"
        )
    say("4. everything is stopped; each site that took part has its scores (scores0.csv, ...)")
    for line in _next(folder):
        say(line)


def _next(folder: Path) -> list[str]:
    """How to read what the run has left, and where to go on."""
    journal, model = shlex.quote(str(folder / "journal0")), str(folder / "model")
    return [
        f'5. the model: python -c "from fedpca_flwr import PCAModel; print(PCAModel.load({model!r}).summary())"',
        f"   what a site was asked: python -m fedpca_flwr site journal {journal}; "
        "each step by hand: simulations/deployment/README.md",
    ]


def _sites(folder: Path) -> list[dict[str, object]]:
    """The node-configs of sites whose files are made here."""
    from sklearn.datasets import load_breast_cancer  # heavy, and only a rehearsal needs it

    data = load_breast_cancer()
    header = ",".join(name.replace(" ", "_") for name in data.feature_names)
    sites, lines = [], []
    for i, (start, end) in enumerate(pairwise(ENDS)):
        np.savetxt(
            folder / f"site{i}.csv", data.data[start:end], delimiter=",", header=header, comments="", fmt="%.17g"
        )
        lines.append(make_key(str(folder / f"site{i}.identity"), i, f"hospital {i}"))
        files = {"data": f"site{i}.csv", "scores": f"scores{i}.csv", "journal": f"journal{i}"}
        files |= {"identity": f"site{i}.identity", "identities": "identities"}
        paths = {key: str(folder / file) for key, file in files.items()}
        about = {"partition-id": i, "num-partitions": len(ENDS) - 1, "name": f"hospital {i}"}
        sites.append({**about, **paths, "min-rows": 50, "secure-only": True})
    (folder / "identities").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return sites


def _wait_for_question(journal: Path, running: Future[tuple[str, str]]) -> None:
    """Until a site was asked something, or the run is over."""
    while not running.done():
        with suppress(FedPCAError):  # the site has not made it yet
            if any(event.kind == "question" for event in audit(str(journal)).events):
                return
        time.sleep(0.1)
