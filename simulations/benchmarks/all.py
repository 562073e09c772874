"""Five ratios that stand for the rest, today's beside those of the last release, which are kept in `released.json`.

    python -m simulations.benchmarks all --quick     # a minute or two
    python -m simulations.benchmarks all --keep      # more repetitions, and writes them down as the release's

Each is the CPU time of one program to that of another, measured in turn on synthetic data with one BLAS thread: on
another machine it is about the same, seconds are not. A ratio that has grown by a quarter is marked; nothing fails.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import blas
from threadpoolctl import threadpool_limits

import fedpca_flwr
from fedpca_flwr.figures.markdown import head, row
from fedpca_flwr.maths.moments import Moments

from .. import run
from .setting import parser
from .start import FLOWER, PROGRAMS, measured
from .timing import alternated, cpu_seconds, ratio

RELEASED = Path(__file__).with_name("released.json")

GROWN = 1.25
"""Times the ratio of the last release: more is marked."""

Ratio = Callable[[int], float]
"""From a number of repetitions, the median of one program's time to another's."""


def parties(number: int, rows: int, features: int) -> list[NDArray[Any]]:
    """Rows (rows, features) for each, of a falling spectrum and with means of their own."""
    rng = np.random.default_rng(0)
    unit = 1 / np.sqrt(np.arange(1, features + 1))
    return [(rng.standard_normal((rows, features)) + rng.standard_normal(features)) * unit for _ in range(number)]


def start(repeats: int) -> float:
    return ratio(measured([FLOWER, PROGRAMS["ClientApp and p-cov"]], repeats), 1, 0)


def moments(repeats: int) -> float:
    (rows,) = parties(1, 6000, 500)
    centred = np.asfortranarray((rows - rows.mean(axis=0)).T)
    return _ratio(lambda: Moments.of(rows), lambda: blas.dsyrk(1.0, centred, lower=1), 3 * repeats)


def whole_run(repeats: int) -> float:
    from sklearn.decomposition import PCA

    data = parties(10, 2000, 300)
    pool = np.vstack(data)
    theirs = PCA(20, svd_solver="covariance_eigh")
    return _ratio(lambda: run("p-cov", data, n_components=20), lambda: theirs.fit_transform(pool), repeats)


def iteration(repeats: int) -> float:
    data = parties(10, 2000, 300)
    return _ratio(lambda: run("sub-it", data, n_components=20), lambda: run("p-cov", data, n_components=20), repeats)


def secure(repeats: int) -> float:
    data = parties(50, 60, 128)
    masked: dict[str, Any] = {"secure_aggregation": True, "bound": 10.0}
    return _ratio(
        lambda: run("p-cov", data, n_components=5, **masked), lambda: run("p-cov", data, n_components=5), repeats
    )


RATIOS: dict[str, Ratio] = {
    "start of the ClientApp, to Flower alone": start,
    "a party's moments (6,000 x 500), to a bare BLAS syrk": moments,
    "whole run of p-cov (20,000 x 300), to scikit-learn's covariance_eigh": whole_run,
    "whole run of sub-it (20,000 x 300), to p-cov": iteration,
    "secure p-cov of 50 parties (d = 128), to p-cov in clear": secure,
}


def _ratio(ours: Callable[[], object], theirs: Callable[[], object], repeats: int) -> float:
    times = alternated([ours, theirs], repeats + 1, cpu_seconds)
    return ratio(times[1:], 0, 1)  # the first warms up


def line(name: str, today: float, released: dict[str, float]) -> list[str]:
    """A row of the table."""
    before = released.get(name)
    if before is None:
        return [name, f"{today:.2f}", "-", ""]
    mark = f"slower: {today / before:.2f} times the release's" if today > GROWN * before else ""
    return [name, f"{today:.2f}", f"{before:.2f}", mark]


def main(arguments: Sequence[str]) -> None:
    options = parser(__doc__)
    options.add_argument("--quick", action="store_true", help="three repetitions instead of nine")
    options.add_argument("--keep", action="store_true", help="write today's ratios down as those of the release")
    args = options.parse_args(arguments)
    kept: dict[str, Any] = json.loads(RELEASED.read_text()) if RELEASED.exists() else {"version": "none", "ratios": {}}
    print(head(["CPU time", "today", f"release {kept['version']}", ""]))
    today = {}
    with threadpool_limits(1, user_api="blas"):
        for name, measure in RATIOS.items():
            today[name] = round(measure(3 if args.quick else 9), 3)
            print(row(line(name, today[name], kept["ratios"])), flush=True)
    if args.keep:
        RELEASED.write_text(json.dumps({"version": fedpca_flwr.__version__, "ratios": today}, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
