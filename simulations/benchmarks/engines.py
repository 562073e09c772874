"""What Flower's engines cost beyond the mathematics: processes and imports, rounds of empty messages, Ray."""

import json
import logging
import resource
import shutil
import subprocess
import sys
from argparse import Namespace
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from flwr import serverapp, simulation
from flwr.app import Context

from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.model.model import PCAModel
from fedpca_flwr.protocol.progress import limit_flower_log
from fedpca_flwr.simulations import ray_engine
from fedpca_flwr.simulations.benchmarks import empty_app
from fedpca_flwr.simulations.benchmarks.empty_app import TOOK, Sizes
from fedpca_flwr.simulations.benchmarks.harness import (
    COMPONENTS,
    DATA,
    PARTITIONS,
    Lines,
    Rows,
    benchmark,
    clients,
    ratio,
)
from fedpca_flwr.simulations.engines import run
from fedpca_flwr.site.deployment import Deployment
from fedpca_flwr.strategies import METHODS

FLOWER = "import flwr.clientapp, flwr.serverapp"
METHOD = "from fedpca_flwr.strategies import METHODS; METHODS['p-cov']"
PROGRAMS = {
    "ClientApp and p-cov": f"import fedpca_flwr.site_app; {METHOD}",
    "ServerApp and p-cov": f"import fedpca_flwr.server_app; {METHOD}",
}


@benchmark(repeats=5)
def start(args: Namespace) -> Lines:
    """What a message to a site costs before anything is computed: CPU time of importing an app, to Flower's alone.

    In a deployment every message starts a process, which imports the ClientApp and the run's method. The processes run
    in turn; each figure is the median over the repetitions.
    """
    codes = {"flwr.clientapp, flwr.serverapp": FLOWER, **PROGRAMS}
    times = of_new_processes(list(codes.values()), args.repeats)
    yield "what is imported", "CPU s", "times Flower alone"
    for i, name in enumerate(codes):
        yield name, f"{np.median(times[:, i]):.2f}", f"{ratio(times, i, 0):.2f}"


def of_new_processes(codes: Sequence[str], repeats: int) -> Array:
    """CPU seconds of a new process that runs each code, one row for each repetition; a first one warms up."""

    def spent(code: str) -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    return np.array([[spent(code) for code in codes] for _ in range(repeats + 1)])[1:]


ROOT = Path(__file__).resolve().parents[2]

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


@benchmark(**DATA, clients=50, repeats=3, method="sub-it", deployment=False)
def empty_method(args: Namespace) -> Lines:
    """What a method adds to Flower's engine: a run beside an empty one of as many rounds and bytes.

        python -m fedpca_flwr.simulations.benchmarks empty-method --dataset mnist \
            --data-root DEST [--clients 50] [--method sub-it]
        python -m fedpca_flwr.simulations.benchmarks empty-method --dataset digits --deployment --clients 3 \
            --method p-cov

    With ``--deployment`` on a SuperLink and SuperNodes instead of Ray. The empty method is Flower's own server, and
    clients that reply bytes (`empty_app`). Seconds are those from questions to the last reply,
    over all rounds but the first, in which an engine starts its workers: medians of repetitions in turn. What the
    parties compute is in ours; how long that takes in one process is a column, and the last one is the ratio without
    it.
    """
    parties = clients(args.dataset, args.data_root, args.clients, **PARTITIONS["Dirichlet 0.5"])
    engine: Callable[..., list[tuple[float, float]]] = on_sites if args.deployment else on_ray
    times = np.array(engine(parties, args.method, args.repeats))
    alone = [run(args.method, parties, n_components=components(parties), min_rows=1, progress=False) for _ in times]
    computing, rounds = np.median([in_rounds(model) for model in alone]), len(alone[0].log["rounds"])
    ours, empty = np.median(times, axis=0)
    shares = [np.median(times[:, 0] / times[:, 1]), np.median((times[:, 0] - computing) / times[:, 1])]
    yield "method", "clients", "rounds", "ours, s", "empty, s", "computing, s", "ratio", "without computing"
    yield args.method, args.clients, rounds, *(f"{value:.2f}" for value in (ours, empty, computing, *shares))


def components(parties: list[Rows]) -> int:
    """How many are asked for: the digits have not so many features."""
    return min(COMPONENTS, int(parties[0].shape[1]) // 2)


def sizes(model: PCAModel) -> Sizes:
    """Of the messages of a run."""
    return [[entry["up"], entry["down"]] for entry in model.log["rounds"]]


def in_rounds(model: PCAModel) -> float:
    """Seconds from questions to the last reply, over all rounds but the first."""
    return float(sum(entry["seconds"] for entry in model.log["rounds"][1:]))


def on_ray(parties: list[Rows], method: str, repeats: int) -> list[tuple[float, float]]:
    """Seconds of the method and of the empty one, in turn, in Flower's simulation."""
    found = []
    for _ in range(repeats):
        model = run(method, parties, n_components=components(parties), engine="ray", min_rows=1, progress=False)
        found.append((in_rounds(model), _empty_on_ray(sizes(model))))
    return found


def _empty_on_ray(of: Sizes) -> float:
    server_app, took = serverapp.ServerApp(), list[float]()

    @server_app.main()
    def serve(grid: serverapp.Grid, context: Context) -> None:
        took.append(empty_app.serve(grid, of))

    with limit_flower_log(logging.ERROR):
        simulation.run_simulation(server_app, empty_app.client_app, len(of[0][0]), backend_config=ray_engine.BACKEND)
    return took[0]


def on_sites(parties: list[Rows], method: str, repeats: int) -> list[tuple[float, float]]:
    """The same in one deployment: a SuperLink and a SuperNode for each party."""
    found = []
    with TemporaryDirectory(prefix="fedpca-") as name:
        folder, app = Path(name), Path(name, "app")
        app.mkdir()
        (app / "pyproject.toml").write_text(PROJECT)
        shutil.copy(empty_app.__file__, app)
        nodes: list[dict[str, object]] = []
        for i, rows in enumerate(parties):
            np.save(data := folder / f"{i}.npy", rows)
            rules = {"min-rows": 1, "rare-values": "allow"}  # the data are public
            nodes.append({"partition-id": i, "num-partitions": len(parties), "data": str(data), **rules})
        with Deployment(folder, ROOT, nodes) as link:
            for i in range(repeats):
                values = {"method": method, "n-components": components(parties), "output": str(folder / f"model{i}")}
                _ran(link, METHODS.run_config(values))
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
