"""Times of whole runs and of their parts, as ratios of programs that are measured in turn: they hold elsewhere too."""

import json
from argparse import Namespace
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from scipy.linalg import blas, eigh
from scipy.sparse.linalg import eigsh
from sklearn.decomposition import PCA
from threadpoolctl import threadpool_limits

import fedpca_flwr
from fedpca_flwr.data import datasets
from fedpca_flwr.errors import FedPCAError
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.moments import Moments, head_and_diagonal, scatter_product, unpack, unpack_symmetric
from fedpca_flwr.maths.rows import centred_chunks
from fedpca_flwr.model.model import PCAModel
from fedpca_flwr.simulations.benchmarks import engines, harness, memory
from fedpca_flwr.simulations.benchmarks.harness import Lines, Program, Rows, benchmark
from fedpca_flwr.simulations.engines import run
from fedpca_flwr.strategies import METHODS


def scikit_learn(rows: Rows, components: int) -> Program:
    return partial(PCA(components, svd_solver="covariance_eigh").fit_transform, rows)


@benchmark(repeats=7, data_root={"required": True}, threads=1)
def speed(args: Namespace) -> Lines:
    """Speed as ratios of two programs, measured in turn in one run: client statistics, server, a whole run.

    DATA-ROOT holds MNIST/ and cifar10-jpeg/; both programs have so many BLAS threads. CPU seconds depend on the
    machine; the ratios are what we claim. Each is the median over alternating repetitions, with the least and the
    largest, between which that of another day should be.
    """
    with threadpool_limits(args.threads, user_api="blas"):
        yield from of_client_server_and_run(args)


def of_client_server_and_run(args: Namespace) -> Lines:
    sources = {
        "MNIST": datasets.load("mnist", args.data_root),
        "CIFAR-10 (JPEG)": datasets.load("images", f"{args.data_root}/cifar10-jpeg"),
    }
    yield "what", "ours", "theirs", "ratio"
    for name, source in sources.items():
        one = source.rows(np.arange(0, len(source.labels), 10))
        for dtype in (np.uint8, np.float64):
            figures = client_speed(one.astype(dtype), args.repeats)
            yield f"{name}: client, {len(one)} rows of {np.dtype(dtype)}", *figures
        parts = [Moments.from_rows(one[i::10]) for i in range(10)]
        yield f"{name}: server, 10 replies", *server_speed(parts, args.repeats)
    for dtype in (np.uint8, np.float64):
        parties = [part.astype(dtype) for part in harness.clients("mnist", args.data_root)]
        ours = partial(run, "p-cov", parties, n_components=harness.COMPONENTS)
        figures = beside(ours, scikit_learn(np.vstack(parties), harness.COMPONENTS), args.repeats)
        yield f"MNIST: whole run, 10 clients, {np.dtype(dtype)}", *figures


def beside(ours: Program, theirs: Program, repeats: int) -> list[str]:
    """Median CPU seconds of both, and of the ratios pair by pair the median, the least and the largest."""
    times = harness.alternated([ours, theirs], repeats + 1, harness.cpu_seconds)[1:]  # the first pair warms up
    first, second = np.median(times, axis=0)
    each = times[:, 0] / times[:, 1]
    return [
        f"{first:.3f} s",
        f"{second:.3f} s",
        f"**{harness.ratio(times, 0, 1):.2f}** ({each.min():.2f} to {each.max():.2f})",
    ]


def client_speed(rows: Rows, repeats: int) -> list[str]:
    """A client's moments against one bare syrk on data that are already centred."""
    centred = np.asarray(rows, dtype=np.float64) - rows.mean(axis=0)
    return beside(lambda: Moments.from_rows(rows), lambda: blas.dsyrk(1.0, centred.T, lower=1), repeats)


@benchmark(data_root={"required": True}, repeats=7, threads=2, blas_threads=1)
def threads(args: Namespace) -> Lines:
    """A site's `threads` on 40,000 rows of MNIST: wall time of one over that of several, which give the same bits.

    On a machine with fewer idle cores than threads the ratio is less.
    """
    pixels = datasets.load("mnist", args.data_root).rows(np.arange(40_000))
    numbers = pixels.astype(np.float64)
    head, _ = head_and_diagonal(numbers)
    block = np.random.default_rng(0).standard_normal((numbers.shape[1], harness.COMPONENTS))
    work: dict[str, Callable[[int], object]] = {
        "moments of uint8": partial(Moments.from_rows, pixels),
        "moments of float64": partial(Moments.from_rows, numbers),
        "product with 50 columns": partial(scatter_product, numbers, head, block),
    }
    yield "what", "1 thread, s", f"{args.threads} threads, s", "ratio"
    for name, one in work.items():
        programs = [partial(one, 1), partial(one, args.threads)]
        times = harness.alternated(programs, args.repeats + 1, harness.seconds)[1:]
        first, second = np.median(times, axis=0)
        yield name, f"{first:.3f}", f"{second:.3f}", f"{harness.ratio(times, 0, 1):.2f}"


def server_speed(parts: list[Moments], repeats: int) -> list[str]:
    """`aggregate_fit` on ten checked replies against the faster of SciPy's eigensolvers on the pooled matrix alone."""
    d = parts[0].n_features
    matrix = unpack(np.sum([part.scatter for part in parts], axis=0), d)
    matrix = matrix + np.tril(matrix, -1).T

    def lanczos() -> None:
        eigsh(matrix, harness.COMPONENTS, tol=0)

    def direct() -> None:
        eigh(matrix, driver="evr", subset_by_index=(d - harness.COMPONENTS, d - 1), check_finite=False)

    best = min((lanczos, direct), key=harness.seconds)
    messages = [memory.message(part) for part in parts]
    waiting = [memory.asking(len(parts), d, harness.COMPONENTS) for _ in range(repeats + 1)]

    def serve() -> None:
        waiting.pop().aggregate_fit(1, memory.results(messages, [int(part.count) for part in parts]), [])

    first, second, times = beside(serve, best, repeats)
    return [first, second, f"{times} ({best.__name__})"]


COMPARED = ["sub-it", "sub-it block-size=10", "sub-it warm-start=svd", "sub-it warm-start=svd wire=float32"]


@benchmark(**harness.DATA, repeats=3, methods=COMPARED, rows=0, gaps=0.0, blas_threads=1)
def iteration(args: Namespace) -> Lines:
    """CPU of whole runs beside the least that any program needs, measured in turn: what sites keep for a run of SUB-IT.

        python -m fedpca_flwr.simulations.benchmarks iteration --dataset mnist --data-root DEST [--methods p-cov qr-pca]

    10 clients, Dirichlet 0.1, 50 components, float64, one BLAS thread. The least: the moments of the pooled rows,
    ARPACK on them, and the projection of every row, without any federation. Ratios are medians over repetitions.
    ``--rows`` takes so many rows only; ``--gaps`` leaves out a share of the values, the least has them all.
    Methods for columns get the columns in ten equal parts.
    """
    parts = [np.asarray(part, dtype=np.float64) for part in harness.clients(args.dataset, args.data_root)]
    if args.rows:
        whole = np.random.default_rng(0).permutation(np.vstack(parts))[: args.rows]
        parts = np.array_split(whole, 10)
    pooled = np.vstack(parts)
    rng = np.random.default_rng(1)
    holed = [np.where(rng.random(part.shape) < args.gaps, np.nan, part) for part in parts] if args.gaps else parts
    yield "method", "rounds", "MB up", "certified", "CPU s", "CPU, over the least"
    for method in args.methods:
        of_columns = METHODS[method.split()[0]].strategy.card.split == "columns"
        own = np.array_split(pooled, 10, axis=1) if of_columns else holed
        ours = partial(run, method, own, n_components=harness.COMPONENTS, may_show="scores", progress=False)
        model = ours()
        times = harness.alternated([ours, partial(least, pooled)], args.repeats, harness.cpu_seconds)
        certified = model.log["measured"].get("certified_angle_degrees", float("nan"))
        up, seconds = max(model.bytes_up_by_party) / 1e6, f"{np.median(times[:, 0]):.2f}"
        yield method, model.rounds, f"{up:.3g}", f"{certified:.1e}", seconds, f"{harness.ratio(times, 0, 1):.1f}"


def least(rows: Array) -> Array:
    """The scores (n, k) of pooled rows."""
    moments = Moments.from_rows(rows)
    _, vectors = eigsh(unpack_symmetric(moments.scatter, moments.n_features), harness.COMPONENTS, tol=0)
    return np.vstack([chunk @ vectors for chunk in centred_chunks(rows, moments.mean)])


@benchmark(few=1000, many=10_000)
def parties(args: Namespace) -> Lines:
    """What a message costs as parties become many: CPU of whole runs of p-cov in one process, 10 rows of 20 features.

    A party sends three messages: what it holds, its moments, and the error of its projection. The last column is the
    cost of a message of many parties against one of few: 1 where time is linear.
    """
    message_ms(3)  # libraries are loaded
    first = message_ms(args.few)
    yield "parties", "CPU ms a message", "of that with few"
    yield f"{args.few:,}", f"{first:.2f}", "1.00"
    many = message_ms(args.many)
    yield f"{args.many:,}", f"{many:.2f}", f"{many / first:.2f}"


def message_ms(number: int) -> float:
    """CPU milliseconds of a run, by the messages that its parties send."""
    data = harness.drawn(number, 10, 20)
    return 1e3 * harness.cpu_seconds(lambda: run("p-cov", data, n_components=3, min_rows=1)) / (3 * number)


COLUMNS = ("vertical", "vertical solver=gram", "vertical-kernel")


@benchmark(rows=100_000)
def many_rows(args: Namespace) -> Lines:
    """Methods for columns where there are many rows: CPU time as rows grow, or how soon a run is refused.

    Three parties with 20 columns each of a quarter of the rows, and of all. What grows with the square of the rows
    (``solver='gram'``, kernels) is refused by its size, before anything is computed.
    """
    sizes = (args.rows // 4, args.rows)
    shares = [of_columns(rows) for rows in sizes]
    run("vertical", of_columns(1000), n_components=5, may_show="scores")  # warms up
    yield "method", *(f"{rows:,} rows" for rows in sizes)
    for method in COLUMNS:
        yield method, *(outcome(method, own) for own in shares)


def of_columns(rows: int) -> list[Array]:
    """Columns (rows, 20) of each of three: five directions that stand out of noise."""
    rng = np.random.default_rng(0)
    signal = rng.standard_normal((rows, 5)) * [5, 4, 3, 2, 1]
    return np.split(signal @ rng.standard_normal((5, 60)) + rng.standard_normal((rows, 60)), 3, axis=1)


def outcome(method: str, own: Sequence[Array]) -> str:
    """CPU seconds of a run, or of its refusal."""
    models: list[PCAModel] = []

    def work() -> None:
        with suppress(FedPCAError):
            models.append(run(method, own, n_components=5, may_show="inner products", progress=False))

    spent = harness.cpu_seconds(work)
    if not models:
        return f"{spent:.2f} s, refused"
    return f"{spent:.2f} s, {models[0].rounds} rounds, {models[0].bytes_up / len(own) / 1e6:.3g} MB up a party"


RELEASED = Path(__file__).with_name("released.json")

GROWN = 1.25
"""Times the ratio of the last release: more is marked."""


def _in_turn(ours: Program, theirs: Program, repeats: int) -> float:
    times = harness.alternated([ours, theirs], repeats + 1, harness.cpu_seconds)
    return harness.ratio(times[1:], 0, 1)  # the first warms up


def _moments(repeats: int) -> float:
    (rows,) = harness.drawn(1, 6000, 500)
    centred = np.asfortranarray((rows - rows.mean(axis=0)).T)
    return _in_turn(lambda: Moments.from_rows(rows), lambda: blas.dsyrk(1.0, centred, lower=1), 3 * repeats)


def _whole_run(method: str, repeats: int) -> float:
    """Of p-cov to scikit-learn, of another method to p-cov."""
    data = harness.drawn(10, 2000, 300)
    p_cov = partial(run, "p-cov", data, n_components=20)
    ours, theirs = partial(run, method, data, n_components=20), scikit_learn(np.vstack(data), 20)
    return _in_turn(ours, theirs if method == "p-cov" else p_cov, repeats)


def _secure(repeats: int) -> float:
    plain = partial(run, "p-cov", harness.drawn(50, 60, 128), n_components=5)
    return _in_turn(partial(plain, secure_aggregation=True, bound=10.0), plain, repeats)


RATIOS: dict[str, Callable[[int], float]] = {
    "start of the ClientApp, to Flower alone": lambda repeats: harness.ratio(
        engines.of_new_processes([engines.FLOWER, engines.PROGRAMS["ClientApp and p-cov"]], repeats), 1, 0
    ),
    "a party's moments (6,000 x 500), to a bare BLAS syrk": _moments,
    "whole run of p-cov (20,000 x 300), to scikit-learn's covariance_eigh": partial(_whole_run, "p-cov"),
    "whole run of sub-it (20,000 x 300), to p-cov": partial(_whole_run, "sub-it"),
    "secure p-cov of 50 parties (d = 128), to p-cov in clear": _secure,
}
"""From a number of repetitions, the median of one program's time to another's."""


@benchmark(quick=False, keep=False, blas_threads=1)
def all_(args: Namespace) -> Lines:
    """Five ratios that stand for the rest, today's beside those of the last release, kept in `released.json`.

        python -m fedpca_flwr.simulations.benchmarks all --quick  # three repetitions instead of nine: a minute or two
        python -m fedpca_flwr.simulations.benchmarks all --keep      # writes them down as the release's

    Each is the CPU time of one program to that of another, measured in turn on synthetic data with one BLAS thread: on
    another machine it is about the same, seconds are not. A ratio that has grown by a quarter is marked; nothing fails.
    """
    kept: dict[str, Any] = json.loads(RELEASED.read_text()) if RELEASED.exists() else {"version": "none", "ratios": {}}
    yield "CPU time", "today", f"release {kept['version']}", ""
    today = {}
    for name, measure in RATIOS.items():
        now = today[name] = round(measure(3 if args.quick else 9), 3)
        before = kept["ratios"].get(name)
        slower = before is not None and now > GROWN * before
        mark = f"slower: {now / before:.2f} times the release's" if slower else ""
        yield name, f"{now:.2f}", "-" if before is None else f"{before:.2f}", mark
    if args.keep:
        RELEASED.write_text(json.dumps({"version": fedpca_flwr.__version__, "ratios": today}, indent=1) + "\n")
