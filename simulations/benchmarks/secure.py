"""Secure aggregation against the same method without: angles, bytes, seconds.

python -m simulations.benchmarks secure
python -m simulations.benchmarks secure --dataset mnist --data-root DEST --bound 255
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray

from fedpca_flwr import data
from fedpca_flwr.markdown import head, row
from fedpca_flwr.metrics import principal_angles
from fedpca_flwr.model import PCAModel
from fedpca_flwr.partition import split
from fedpca_flwr.reference import pooled_pca
from simulations import run
from simulations.benchmarks.setting import COMPONENTS, data_parser

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


def main(arguments: Sequence[str]) -> None:
    options = data_parser(__doc__, dataset="digits", clients=10, components=COMPONENTS, seed=42, repeats=3)
    options.add_argument("--bound", type=float, default=16.0, help="no value is larger in size")
    args = options.parse_args(arguments)
    source = data.load(args.dataset, args.data_root)
    rows = source.all_rows()
    parties = [rows[part] for part in split(source.labels, args.clients, kind="dirichlet", alpha=0.1, seed=args.seed)]
    pooled = pooled_pca(rows, args.components)
    print(head(HEADS))
    for method in METHODS:
        print(row(line(method, parties, pooled, args.components, args.bound, args.repeats)), flush=True)
