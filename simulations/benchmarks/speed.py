"""Times of runs and of their parts, as ratios of two programs measured in turn: speed, secure sums, Flower's engine."""

import json
import logging
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from flwr import client, clientapp, serverapp, simulation
from flwr.common import Code, FitIns, FitRes, Parameters, Scalar, Status
from flwr.server import Server, ServerConfig, SimpleClientManager, client_proxy, compat
from flwr.server.client_manager import ClientManager
from flwr.server.strategy import FedAvg
from scipy.linalg import blas, eigh
from scipy.sparse.linalg import eigsh
from sklearn.decomposition import PCA
from typing_extensions import override

import fedpca_flwr
from fedpca_flwr.data import datasets
from fedpca_flwr.maths.moments import Moments, head_and_diagonal, scatter_product
from fedpca_flwr.model.model import PCAModel
from fedpca_flwr.model.reference import pooled_pca, principal_angles
from fedpca_flwr.protocol.progress import limit_flower_log
from fedpca_flwr.protocol.server import watch_grid
from fedpca_flwr.simulations import ray_engine
from fedpca_flwr.simulations.benchmarks import harness, memory
from fedpca_flwr.simulations.benchmarks.harness import COMPONENTS, Lines, Program, Rows
from fedpca_flwr.simulations.engines import run
from fedpca_flwr.transports.neighbours import degree

PAGE = "docs/benchmarks.md"
Pair = tuple[str, Program, Program]
"""Title, our program and the one beside it."""


@harness.benchmark(PAGE, data_root="", repeats=1, blas_threads=1)
def _speed(data_root: harness.Required, repeats: int = 7, threads: int = 2) -> Lines:
    """Measure a client's moments, the server and a whole run, each beside the fastest program for the same task.

    The folder holds MNIST/ and cifar10-jpeg/ (--quick: the digits stand for both). The ratios are what we claim: the
    median over the repetitions, with the least and the largest. The last table has the wall time of a site's work with
    one of its `threads` over that with several: with fewer idle cores than threads the ratio is less.
    """
    yield from _tabulate(_pairs_of_images(data_root, repeats), repeats)
    pixels = datasets.load("mnist" if data_root else "digits", data_root).all_rows()[:40_000]
    numbers = pixels.astype(np.float64)
    block = np.random.default_rng(0).standard_normal((numbers.shape[1], COMPONENTS))
    work: dict[str, Callable[[int], object]] = {
        "moments from_rows uint8": partial(Moments.from_rows, pixels),
        "moments from_rows float64": partial(Moments.from_rows, numbers),
        "product with 50 columns": partial(scatter_product, numbers, head_and_diagonal(numbers)[0], block),
    }
    yield f"\none thread, and {threads} threads:\n"
    pairs = ((name, partial(program, 1), partial(program, threads)) for name, program in work.items())
    yield from _tabulate(pairs, repeats, harness.wall_seconds)


def _tabulate(pairs: Iterable[Pair], repeats: int, clock: Callable[[Program], float] = harness.cpu_seconds) -> Lines:
    """Measure pairs of programs in turn; yield a line of seconds and ratio for each pair."""
    yield "what", "ours, s", "theirs, s", "ratio"
    for title, ours, theirs in pairs:
        ratio = harness.time_pair(ours, theirs, repeats, clock)
        yield title, f"{ratio.ours:.3f}", f"{ratio.theirs:.3f}", ratio


def _pairs_of_images(root: str, repeats: int) -> Iterator[Pair]:
    """Yield pairs of programs (ours, rival) for clients, servers and whole runs on image data sets."""
    for name, folder in {"mnist": root, "images": f"{root}/cifar10-jpeg"}.items() if root else [("digits", ".")]:
        source = datasets.load(name, folder)
        rows = source.rows(np.arange(0, len(source.labels), 10))
        for dtype in (np.uint8, np.float64):
            yield f"{name}: client, {len(rows)} rows of {dtype.__name__}", *_moments(rows.astype(dtype))
        parts = [rows[i::10] for i in range(10)]
        yield f"{name}: server, 10 replies", *_server(parts, min(COMPONENTS, rows.shape[1] // 2), repeats)
    for dtype in (np.uint8, np.float64):
        parties = [part.astype(dtype) for part in harness.clients("mnist" if root else "digits", root or ".")]
        yield f"whole run, 10 clients, {dtype.__name__}", _run("p-cov", parties), _scikit_learn(parties)


def _moments(rows: Rows, calls: int = 1) -> tuple[Program, Program]:
    """Return two programs: a client's moments, and only BLAS's syrk on centred data, each ``calls`` times."""
    centred = np.asfortranarray((np.asarray(rows, dtype=np.float64) - rows.mean(axis=0)).T)
    return (
        lambda: [Moments.from_rows(rows) for _ in range(calls)],
        lambda: [blas.dsyrk(1.0, centred, lower=1) for _ in range(calls)],
    )


def _server(parts: list[Rows], components: int, repeats: int) -> tuple[Program, Program]:
    """Return two programs: P-COV's server on replies, and SciPy's faster eigensolver on the pooled matrix."""
    d, matrix = parts[0].shape[1], np.cov(np.vstack(parts), rowvar=False)
    direct = partial(eigh, matrix, driver="evr", subset_by_index=(d - components, d - 1), check_finite=False)
    servers = [memory.ask_for_moments(parts, components) for _ in range(repeats + 1)]
    replies = [(proxy, proxy.fit(question, None, 1)) for proxy, question in servers[0][1]]
    theirs = min((partial(eigsh, matrix, components, tol=0), direct), key=harness.wall_seconds)

    def serve() -> None:  # a server empties the replies that it gets
        """Let a fresh server aggregate copies of the replies."""
        servers.pop()[0].aggregate_fit(1, [(proxy, deepcopy(reply)) for proxy, reply in replies], [])

    return serve, theirs


def _run(method: str, parties: Any, components: int = COMPONENTS, **options: Any) -> Program:
    """Return a program that runs a method on the parties."""
    return partial(run, method, parties, n_components=components, **options)


def _scikit_learn(parties: Any, components: int = COMPONENTS) -> Program:
    """Return a program that fits scikit-learn's PCA to the pooled rows and computes their scores."""
    return partial(PCA(components, svd_solver="covariance_eigh").fit_transform, np.vstack(parties))


def _imports() -> tuple[Program, Program]:
    """Return two programs: a process that imports our ClientApp and a method, and one that imports Flower only."""
    method = "from fedpca_flwr.strategies import METHODS; METHODS['p-cov']"
    codes = f"import fedpca_flwr.site_app; {method}", "import flwr.clientapp, flwr.serverapp"
    ours, theirs = (partial(subprocess.run, [sys.executable, "-c", code], check=True) for code in codes)
    return ours, theirs


RELEASED = Path(__file__).with_name("released.json")
MAX_GROWTH = 1.25
"""Ratio to that of the last release beyond which a line is marked."""

_many, _small = partial(harness.draw_parties, 10, 2000, 300), partial(harness.draw_parties, 50, 60, 128)
RATIOS: dict[str, Callable[[], tuple[Program, Program]]] = {
    "start of the ClientApp, to Flower alone": _imports,
    "a party's moments (6,000 x 500), to a bare BLAS syrk": lambda: _moments(harness.draw_parties(1, 6000, 500)[0], 3),
    "whole run of p-cov (20,000 x 300), to scikit-learn's covariance_eigh": lambda: (
        _run("p-cov", _many(), 20),
        _scikit_learn(_many(), 20),
    ),
    "whole run of sub-it (20,000 x 300), to p-cov": lambda: (_run("sub-it", _many(), 20), _run("p-cov", _many(), 20)),
    "secure p-cov of 50 parties (d = 128), to p-cov in clear": lambda: (
        _run("p-cov", _small(), 5, secure_aggregation=True, bound=10.0),
        _run("p-cov", _small(), 5),
    ),
}
"""Our program and the one beside it, that stand for the rest."""


@harness.benchmark(".github/workflows/nightly.yml", repeats=3, blas_threads=1)
def _all(repeats: int = 9, keep: bool = False) -> Lines:
    """Measure five ratios of CPU times that represent the rest, beside the last release's ratios in `released.json`.

    Data are synthetic. A ratio that has grown by a quarter is marked; nothing fails. --keep writes the ratios down as
    the release's.
    """
    stored: dict[str, Any] = (
        json.loads(RELEASED.read_text()) if RELEASED.exists() else {"version": "none", "ratios": {}}
    )
    yield "CPU time", "today", f"release {stored['version']}", "slower"
    today = {}
    for name, pair in RATIOS.items():
        now = today[name] = round(harness.time_pair(*pair(), repeats).median, 3)
        before = stored["ratios"].get(name)
        slower = before is not None and now > MAX_GROWTH * before
        mark = f"slower: {now / before:.2f} times the release's" if slower else ""
        yield name, f"{now:.2f}", "-" if before is None else f"{before:.2f}", mark
    if keep:
        RELEASED.write_text(json.dumps({"version": fedpca_flwr.__version__, "ratios": today}, indent=1) + "\n")


@harness.benchmark("docs/secure-aggregation.md", repeats=1, blas_threads=1)
def _secure(
    dataset: harness.Dataset = "digits",
    data_root: str = ".",
    repeats: int = 3,
    bound: float = 16.0,
    features: int = 256,
    parties: list[int] = [],  # noqa: B006
) -> Lines:
    """Compare secure aggregation with the same method in clear: angles, bytes and wall time of ten parties.

    No value is larger in size than the bound. With --parties instead the growth: CPU seconds of whole runs of p-cov, 60
    rows a party, and with how many neighbours each party shares masks.
    """
    if parties:
        yield "parties", "neighbours of each", "plain (s)", "secure (s)", "secure (ms) a party", "secure / plain"
        for number in parties:
            rows = harness.draw_parties(number, 60, features)
            secure = _run("p-cov", rows, 5, secure_aggregation=True, bound=20.0)
            ratio = harness.time_pair(secure, _run("p-cov", rows, 5), repeats)
            seconds = f"{ratio.theirs:.2f}", f"{ratio.ours:.2f}", f"{1e3 * ratio.ours / number:.1f}"
            yield f"{number:,}", degree(number), *seconds, ratio
        return
    vaults = harness.clients(dataset, data_root)
    pooled = pooled_pca(np.vstack(vaults), COMPONENTS)
    yield "method", "angle to plain (deg)", "to pooled PCA", "fixed point", "bytes up, times plain", "down", "time"
    for method in ("p-cov", "sub-it", "ap-cov"):
        models: dict[str, PCAModel] = {}

        def fit(kind: str, options: dict[str, Any], method: str = method, models: Any = models) -> None:
            """Run the method with further options, and keep the model under ``kind`` ("masked" or "clear")."""
            models[kind] = run(method, vaults, n_components=COMPONENTS, min_rows=1, **options)

        secure = partial(fit, "masked", {"secure_aggregation": True, "bound": bound})
        ratio = harness.time_pair(secure, partial(fit, "clear", {}), repeats, harness.wall_seconds)
        masked, clear = models["masked"], models["clear"]
        up, down = (_nbytes(masked, way) / _nbytes(clear, way) for way in ("up", "down"))
        angles = [f"{principal_angles(masked, other).max:.1e}" for other in (clear, pooled)]
        rounding = f"{masked.log['measured']['fixed_point_variance_share']:.1g} of the variance"
        yield method, *angles, rounding, f"{up:.3f}", f"{down:.2f}", f"{ratio}, {ratio.ours:.2f} s"


def _nbytes(model: PCAModel, direction: str) -> int:
    """Return the bytes "up" or "down" of all parties in all rounds."""
    return sum(sum(entry[direction]) for entry in model.log["rounds"])


Sizes = list[tuple[list[int], list[int]]]
"""Bytes up and down by party, of every round."""


class Empty(FedAvg):
    """Strategy that sends and receives as many bytes per round as another run, and computes nothing.

    ``seconds`` are those from questions to the last reply, over all rounds but the first, which starts the workers.
    """

    def __init__(self, sizes: Sizes) -> None:
        """Keep the bytes up and down of each party in each round."""
        super().__init__(fraction_evaluate=0.0, initial_parameters=Parameters([], "bytes"))
        self.sizes, self.seconds, self._since = sizes, 0.0, 0.0

    @override
    def configure_fit(
        self, server_round: int, parameters: Parameters, client_manager: ClientManager
    ) -> list[tuple[client_proxy.ClientProxy, FitIns]]:
        """Ask each party with as many bytes as in the recorded round, and name the bytes of its reply."""
        up, down = self.sizes[server_round - 1]
        client_manager.wait_for(len(up), 600)
        pairs = zip(down, up, strict=True)
        questions = [FitIns(Parameters([bytes(sent)], "bytes"), {"bytes": reply}) for sent, reply in pairs]
        self._since = time.monotonic()
        return list(zip(client_manager.all().values(), questions, strict=True))

    @override
    def aggregate_fit(self, server_round: int, results: Any, failures: Any) -> tuple[None, dict[str, Scalar]]:
        """Add the seconds of the round, except the first, and refuse failures."""
        if server_round > 1:
            self.seconds += time.monotonic() - self._since
        if failures:
            raise RuntimeError(f"{len(failures)} parties of the empty run failed: {failures[0]}")
        return None, {}


class EmptyClient(client.Client):
    """Client that replies with as many zero bytes as the question asks for."""

    @override
    def fit(self, ins: FitIns) -> FitRes:
        """Return as many zero bytes as the configuration names."""
        return FitRes(Status(Code.OK, ""), Parameters([bytes(int(ins.config["bytes"]))], "bytes"), 1, {})


@harness.benchmark(PAGE, dataset="digits", parties=3, repeats=1, method="p-cov")
def _empty_method(
    dataset: harness.Dataset,
    data_root: str = ".",
    parties: harness.Clients = 50,
    repeats: int = 3,
    method: str = "sub-it",
) -> Lines:
    """Measure the cost of a method on Flower's Ray engine, beside a run that only sends as many bytes.

    Seconds are those from questions to the last reply, over all rounds but the first, in which an engine starts its
    workers. What the parties compute is in ours; how long that takes in one process is a column, and the last one is
    the ratio without that.
    """
    rows = harness.clients(dataset, data_root, parties, **harness.PARTITIONS["Dirichlet 0.5"])
    fit = partial(run, method, rows, n_components=min(COMPONENTS, rows[0].shape[1] // 2), min_rows=1, progress=False)

    def seconds(model: PCAModel) -> float:
        """Return the seconds of a model's run in all rounds but the first."""
        return float(sum(entry["seconds"] for entry in model.log["rounds"][1:]))

    times = []
    for _ in range(repeats):
        model = fit(engine="ray")
        sizes = [(entry["up"], entry["down"]) for entry in model.log["rounds"]]
        times.append([seconds(model), _run_empty(sizes), seconds(fit())])
    ours, empty, computing = np.median(times, axis=0)
    ratios = np.array(times)[:, 0] / np.array(times)[:, 1], (np.array(times)[:, 0] - computing) / np.array(times)[:, 1]
    yield "method", "clients", "rounds", "ours, s", "empty, s", "computing, s", "ratio", "without computing"
    cells = (ours, empty, computing, *map(np.median, ratios))
    yield method, parties, len(model.log["rounds"]), *(f"{value:.2f}" for value in cells)


def _run_empty(sizes: Sizes) -> float:
    """Run rounds of empty messages of given sizes on Ray, and return their seconds without the first round."""
    server_app, strategy = serverapp.ServerApp(), Empty(sizes)

    @server_app.main()
    def serve(grid: serverapp.Grid, context: Any) -> None:
        """Run the empty strategy on a grid, with all parties asked at once."""
        server = Server(client_manager=SimpleClientManager(), strategy=strategy)
        server.set_max_workers(len(sizes[0][0]))
        with watch_grid(grid):
            compat.start_grid(grid=grid, server=server, config=ServerConfig(len(sizes)))

    app = clientapp.ClientApp(lambda context: EmptyClient())
    with limit_flower_log(logging.ERROR):
        simulation.run_simulation(server_app, app, len(sizes[0][0]), backend_config=ray_engine.BACKEND)
    return strategy.seconds
