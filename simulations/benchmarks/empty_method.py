"""What a method adds to Flower's engine: a run beside an empty one of as many rounds and messages of the same sizes.

    python -m simulations.benchmarks empty-method --dataset mnist --data-root DEST [--clients 50] [--method sub-it]
    python -m simulations.benchmarks empty-method --dataset digits --deployment --clients 3 --method p-cov

The empty method is Flower's own server, and clients that reply bytes (`simulations.benchmarks.empty_app`). Seconds are
those from questions to the last reply, over all rounds but the first, in which an engine starts its workers: medians of
repetitions in turn. What the parties compute is in ours; how long that takes in one process is a column, and the last
one is the ratio without it.
"""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation
from numpy.typing import NDArray

from fedpca_flwr.data import datasets
from fedpca_flwr.data.partition import split
from fedpca_flwr.figures.markdown import head, row
from fedpca_flwr.model.model import PCAModel
from fedpca_flwr.packages import strategies
from fedpca_flwr.protocol.progress import flower_from
from fedpca_flwr.site.deployment import Deployment

from .. import run
from ..ray_engine import BACKEND
from . import empty_app
from .empty_app import TOOK, Sizes
from .setting import COMPONENTS, data_parser

ROOT = Path(__file__).parents[2]

PROJECT = """[project]
name = "empty"
version = "1.0.0"
[tool.hatch.build.targets.wheel]
packages = ["."]
[tool.flwr.app]
publisher = "nobody"
[tool.flwr.app.components]
serverapp = "empty_app:server_app"
clientapp = "empty_app:client_app"
[tool.flwr.app.config]
sizes = ""
"""


def components(parties: list[NDArray[Any]]) -> int:
    """How many are asked for: the digits have not so many features."""
    return min(COMPONENTS, int(parties[0].shape[1]) // 2)


def sizes(model: PCAModel) -> Sizes:
    """Of the messages of a run."""
    return [[entry["up"], entry["down"]] for entry in model.log["rounds"]]


def in_rounds(model: PCAModel) -> float:
    """Seconds from questions to the last reply, over all rounds but the first."""
    return float(sum(entry["seconds"] for entry in model.log["rounds"][1:]))


def on_ray(parties: list[NDArray[Any]], method: str, repeats: int) -> list[tuple[float, float]]:
    """Seconds of the method and of the empty one, in turn, in Flower's simulation."""
    found = []
    for _ in range(repeats):
        model = run(method, parties, n_components=components(parties), engine="ray", min_rows=1, progress=False)
        found.append((in_rounds(model), _empty_on_ray(sizes(model))))
    return found


def _empty_on_ray(of: Sizes) -> float:
    server_app, took = ServerApp(), list[float]()

    @server_app.main()
    def serve(grid: Grid, context: Context) -> None:
        took.append(empty_app.serve(grid, of))

    with flower_from(logging.ERROR):
        run_simulation(server_app, empty_app.client_app, len(of[0][0]), backend_config=BACKEND)
    return took[0]


def on_sites(parties: list[NDArray[Any]], method: str, repeats: int) -> list[tuple[float, float]]:
    """The same in one deployment: a SuperLink and a SuperNode for each party."""
    found = []
    with TemporaryDirectory(prefix="fedpca-") as name:
        folder, app = Path(name), Path(name, "app")
        app.mkdir()
        (app / "pyproject.toml").write_text(PROJECT)
        shutil.copy(empty_app.__file__, app)
        nodes: list[dict[str, object]] = []
        for i, rows in enumerate(parties):
            np.save(folder / f"{i}.npy", rows)
            own = {"data": str(folder / f"{i}.npy"), "min-rows": 1}
            nodes.append({"partition-id": i, "num-partitions": len(parties), **own})
        with Deployment(folder, ROOT, nodes) as link:
            for i in range(repeats):
                values = {"method": method, "n-components": components(parties), "output": str(folder / f"model{i}")}
                _ran(link, strategies.run_config_of(values))
                model = PCAModel.load(folder / f"model{i}")
                link.app = app
                log = _ran(link, {"sizes": json.dumps(sizes(model))})
                link.app = ROOT
                found.append((in_rounds(model), float(log.rsplit(TOOK, 1)[1].split()[0])))
    return found


def _ran(link: Deployment, run_config: dict[str, Any]) -> str:
    status, log = link.run(" ".join(f"{key}={json.dumps(value)}" for key, value in run_config.items()))
    if status != "finished:completed":
        raise RuntimeError(f"the run ended as {status}: {log}")
    return log


def main(arguments: Sequence[str]) -> None:
    options = data_parser(__doc__, clients=50, repeats=3)
    options.add_argument("--method", default="sub-it")
    options.add_argument("--deployment", action="store_true", help="on a SuperLink and SuperNodes instead of Ray")
    args = options.parse_args(arguments)
    source = datasets.load(args.dataset, args.data_root)
    rows = source.all_rows()
    parties = [rows[own] for own in split(source.labels, args.clients, kind="dirichlet", alpha=0.5, seed=42)]
    engine: Callable[..., list[tuple[float, float]]] = on_sites if args.deployment else on_ray
    times = np.array(engine(parties, args.method, args.repeats))
    alone = [run(args.method, parties, n_components=components(parties), min_rows=1, progress=False) for _ in times]
    computing, rounds = np.median([in_rounds(model) for model in alone]), len(alone[0].log["rounds"])
    ours, empty = np.median(times, axis=0)
    shares = [np.median(times[:, 0] / times[:, 1]), np.median((times[:, 0] - computing) / times[:, 1])]
    print(head(["method", "clients", "rounds", "ours, s", "empty, s", "computing, s", "ratio", "without computing"]))
    seconds = [f"{value:.2f}" for value in (ours, empty, computing, *shares)]
    print(row([args.method, str(args.clients), str(rounds), *seconds]))
