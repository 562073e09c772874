"""How a run grows with rows, features, components and clients, beside scikit-learn on the pooled rows.

    python -m simulations.benchmarks scaling

The base point first, then one of n (rows), d (features), k (components) and K (clients) at a time three times smaller
and larger, on seeded synthetic rows with means that differ between clients. Time is a whole loopback run, projections
included, as a multiple of ``PCA(k, svd_solver="covariance_eigh").fit_transform`` of the pool in the same
process: one BLAS thread each, in turn, the median of the repetitions. MB are up and down for one client, without the
model that it gets at the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.decomposition import PCA
from threadpoolctl import threadpool_limits

from fedpca_flwr.figures import markdown
from fedpca_flwr.model.model import PCAModel

from .. import run
from .setting import parser
from .timing import alternated, ratio

METHODS = ("p-cov", "qr-pca", "sub-it")


class Point(NamedTuple):
    """Rows in all, features, components, clients."""

    n: int
    d: int
    k: int
    K: int


BASE = Point(n=30_000, d=300, k=10, K=10)
VARIED = {"n": (10_000, 90_000), "d": (100, 900), "k": (3, 30), "K": (3, 30)}


def points() -> list[Point]:
    return [BASE, *(BASE._replace(**{name: value}) for name, values in VARIED.items() for value in values)]


def rows(point: Point) -> list[NDArray[Any]]:
    """Clients of about equal size, standard deviations that fall as a power, and means that differ."""
    rng = np.random.default_rng(0)
    spectrum = np.arange(1, point.d + 1) ** -0.6
    sizes = np.diff(np.linspace(0, point.n, point.K + 1).astype(int))
    return [(rng.standard_normal((size, point.d)) + 0.3 * rng.standard_normal(point.d)) * spectrum for size in sizes]


def line(point: Point, repeats: int) -> list[str]:
    """The cells of one point."""
    parts = rows(point)
    pool = np.vstack(parts)
    models: dict[str, PCAModel] = {}

    def ours(method: str) -> None:
        models[method] = run(method, parts, n_components=point.k, engine="loopback")

    def theirs() -> None:
        PCA(point.k, svd_solver="covariance_eigh").fit_transform(pool)

    times = alternated([*(lambda method=method: ours(method) for method in METHODS), theirs], repeats)
    cells = [f"{value:,}" for value in point]
    for i, method in enumerate(METHODS):
        fit = [entry for entry in models[method].log["rounds"] if entry["phase"] != "project"]
        up, down = (sum(max(entry[way]) for entry in fit) / 1e6 for way in ("up", "down"))
        cells.append(f"{ratio(times, i, len(METHODS)):.2g}; {len(fit)}; {up:.3g} + {down:.3g}")
    return cells


def main(arguments: Sequence[str]) -> None:
    args = parser(__doc__, repeats=3).parse_args(arguments)
    print(markdown.head(["n", "d", "k", "K", *(f"{method}: time; rounds; MB" for method in METHODS)]))
    with threadpool_limits(1, user_api="blas"):
        for point in points():
            print(markdown.row(line(point, args.repeats)), flush=True)
