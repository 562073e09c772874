"""Secure aggregation against the same method without: angles, bytes, seconds.

python -m simulations.benchmarks secure
python -m simulations.benchmarks secure --dataset mnist --data-root DEST --bound 255
python -m simulations.benchmarks secure --parties 10 100 1000 --features 256     # p-cov of 60 rows each, CPU seconds
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from fedpca_flwr.data import datasets
from fedpca_flwr.data.partition import split
from fedpca_flwr.figures.markdown import head, row
from fedpca_flwr.model.model import PCAModel
from fedpca_flwr.model.reference import pooled_pca, principal_angles
from fedpca_flwr.transports.neighbours import degree

from .. import run
from .all import parties as synthetic
from .setting import COMPONENTS, data_parser
from .timing import alternated, cpu_seconds, ratio

METHODS = ("p-cov", "sub-it", "ap-cov")
HEADS = (
    "method",
    "angle to plain (deg)",
    "to pooled PCA",
    "fixed point",
    "bytes up, times plain",
    "down",
    "time",
)
SCALE_HEADS = ("parties", "neighbours of each", "plain (s)", "secure (s)", "secure (ms) a party", "secure / plain")


def line(method: str, parties: list[NDArray[Any]], pooled: PCAModel, k: int, bound: float, repeats: int) -> list[str]:
    """One line: the secure model against the plain one and against the pooled PCA; ratios of bytes and time."""
    options: dict[str, Any] = {"n_components": k, "engine": "loopback", "min_rows": 1}
    plain, short = _timed(method, parties, options, repeats)
    secure, long = _timed(method, parties, {**options, "secure_aggregation": True, "bound": bound}, repeats)
    apart, truth = principal_angles(secure, plain), principal_angles(secure, pooled)
    measured = secure.log["measured"]
    up, down = (_bytes(secure, way) / _bytes(plain, way) for way in ("up", "down"))
    off = f"{measured['fixed_point_variance_share']:.1g} of the variance"
    cells = [method, f"{apart.max:.1e}", f"{truth.max:.1e}", off, f"{up:.3f}", f"{down:.2f}"]
    return [*cells, f"{long / short:.2f} ({short:.2f} s, {long:.2f} s)"]


def _timed(method: str, parties: list[NDArray[Any]], options: dict[str, Any], repeats: int) -> tuple[PCAModel, float]:
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        model = run(method, parties, **options)
        seconds.append(time.perf_counter() - start)
    return model, min(seconds)


def _bytes(model: PCAModel, way: str) -> int:
    return sum(sum(entry[way]) for entry in model.log["rounds"])


def scale_line(number: int, features: int, repeats: int) -> list[str]:
    """So many parties: with how many each shares masks, and CPU seconds of whole runs of p-cov."""
    held = synthetic(number, 60, features)
    options: dict[str, Any] = {"n_components": 5, "engine": "loopback"}
    times = alternated(
        [
            lambda: run("p-cov", held, **options, secure_aggregation=True, bound=20.0),
            lambda: run("p-cov", held, **options),
        ],
        repeats,
        cpu_seconds,
    )
    secure, plain = np.median(times, axis=0)
    each = f"{1e3 * secure / number:.1f}"
    return [f"{number:,}", str(degree(number)), f"{plain:.2f}", f"{secure:.2f}", each, f"{ratio(times, 0, 1):.1f}"]


def main(arguments: Sequence[str]) -> None:
    options = data_parser(__doc__, dataset="digits", clients=10, components=COMPONENTS, seed=42, repeats=3)
    options.add_argument("--bound", type=float, default=16.0, help="no value is larger in size")
    options.add_argument("--parties", type=int, nargs="+", help="instead: how it grows with so many parties")
    options.add_argument("--features", type=int, default=256, help="of these")
    args = options.parse_args(arguments)
    if args.parties:
        print(head(SCALE_HEADS))
        with threadpool_limits(1, user_api="blas"):
            for number in args.parties:
                print(row(scale_line(number, args.features, args.repeats)), flush=True)
        return
    source = datasets.load(args.dataset, args.data_root)
    rows = source.all_rows()
    parties = [rows[part] for part in split(source.labels, args.clients, kind="dirichlet", alpha=0.1, seed=args.seed)]
    pooled = pooled_pca(rows, args.components)
    print(head(HEADS))
    for method in METHODS:
        print(row(line(method, parties, pooled, args.components, args.bound, args.repeats)), flush=True)
