"""Speed as ratios of two programs, measured in turn in one run: client statistics, server, a whole run.

    python -m simulations.benchmarks speed --data-root DEST [--threads 1]

CPU seconds depend on the machine; the ratios are what we claim. Each is the median over alternating repetitions,
with the least and the largest, between which that of another day should be.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import blas, eigh
from scipy.sparse.linalg import eigsh
from sklearn.decomposition import PCA
from threadpoolctl import threadpool_limits

from fedpca_flwr.data import datasets
from fedpca_flwr.data.partition import split
from fedpca_flwr.figures.markdown import head, row
from fedpca_flwr.maths.moments import Moments, unpack

from .. import run
from .replies import asking, message, results
from .setting import parser
from .timing import alternated, cpu_seconds, ratio, seconds

COMPONENTS = 50


def compare(ours: Callable[[], object], theirs: Callable[[], object], repeats: int) -> list[str]:
    """Median CPU seconds of both, and of the ratios pair by pair the median, the least and the largest."""
    times = alternated([ours, theirs], repeats + 1, cpu_seconds)[1:]  # the first pair warms up
    first, second = np.median(times, axis=0)
    each = times[:, 0] / times[:, 1]
    told = f"**{ratio(times, 0, 1):.2f}** ({each.min():.2f} to {each.max():.2f})"
    return [f"{first:.3f} s", f"{second:.3f} s", told]


def client_speed(rows: NDArray[Any], repeats: int) -> list[str]:
    """A client's moments against one bare syrk on data that are already centred."""
    centred = np.asarray(rows, dtype=np.float64) - rows.mean(axis=0)
    return compare(lambda: Moments.of(rows), lambda: blas.dsyrk(1.0, centred.T, lower=1), repeats)


def server_speed(parts: list[Moments], repeats: int) -> list[str]:
    """`aggregate_fit` on ten checked replies against the faster of SciPy's eigensolvers on the pooled matrix alone."""
    d = parts[0].n_features
    matrix = unpack(np.sum([part.scatter for part in parts], axis=0), d)
    matrix = matrix + np.tril(matrix, -1).T

    def lanczos() -> None:
        eigsh(matrix, COMPONENTS, tol=0)

    def direct() -> None:
        eigh(matrix, driver="evr", subset_by_index=(d - COMPONENTS, d - 1), check_finite=False)

    best = min((lanczos, direct), key=seconds)
    messages = [message(part) for part in parts]

    waiting = [asking(len(parts), d, COMPONENTS) for _ in range(repeats + 1)]

    def serve() -> None:
        waiting.pop().aggregate_fit(1, results(messages, [part.count for part in parts]), [])

    first, second, times = compare(serve, best, repeats)
    return [first, second, f"{times} ({best.__name__})"]


def run_speed(rows: NDArray[Any], parties: list[NDArray[Any]], repeats: int) -> list[str]:
    """A whole loopback run, the projection of every row included, against fitting scikit-learn's PCA to the pool."""
    return compare(
        lambda: run("p-cov", parties, n_components=COMPONENTS, engine="loopback"),
        lambda: PCA(COMPONENTS, svd_solver="covariance_eigh").fit_transform(rows),
        repeats,
    )


def main(arguments: Sequence[str]) -> None:
    options = parser(__doc__, repeats=7)
    options.add_argument("--data-root", required=True, help="holds MNIST/ and cifar10-jpeg/")
    options.add_argument("--threads", type=int, default=1, help="BLAS threads of both programs")
    args = options.parse_args(arguments)
    logging.getLogger("flwr").setLevel(logging.ERROR)
    sources = {
        "MNIST": datasets.load("mnist", args.data_root),
        "CIFAR-10 (JPEG)": datasets.load("images", f"{args.data_root}/cifar10-jpeg"),
    }
    print(head(["what", "ours", "theirs", "ratio"]))
    with threadpool_limits(args.threads, user_api="blas"):
        for name, source in sources.items():
            one = source.rows(np.arange(0, len(source.labels), 10))
            for dtype in (np.uint8, np.float64):
                figures = client_speed(one.astype(dtype), args.repeats)
                print(row([f"{name}: client, {len(one)} rows of {np.dtype(dtype)}", *figures]), flush=True)
            parts = [Moments.of(one[i::10]) for i in range(10)]
            print(row([f"{name}: server, 10 replies", *server_speed(parts, args.repeats)]), flush=True)
        source = sources["MNIST"]
        rows = source.all_rows()
        shares = split(source.labels, 10, kind="dirichlet", alpha=0.1, seed=42)
        for dtype in (np.uint8, np.float64):
            pooled = np.asarray(rows, dtype=dtype)
            figures = run_speed(pooled, [pooled[share] for share in shares], args.repeats)
            print(row([f"MNIST: whole run, 10 clients, {np.dtype(dtype)}", *figures]), flush=True)
