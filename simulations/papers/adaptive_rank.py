"""Grammenos et al. 2019, Federated PCA with Adaptive Rank Estimation: its figures, table and claims.

    python -m simulations.papers adaptive-rank --output DIR [--motes DIR2]

About ten minutes on one core; ``--shrink 10`` is a quick look. DIR gets a table for each step, plots and report.md.
DIR2 has the files of the sensor network (q8calibLight.dat and others; those that are missing are left out). Nothing is
centred unless a column says so: the paper does not centre. ``--shrink`` divides numbers of rows, features and
permutations.
"""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np

from fedpca_flwr.maths.eigen import projector_distance
from fedpca_flwr.maths.streams import Fixed, Subspace, Tracker, merge, merge_in_tree, track

from .adaptive_rank_plots import draw, report
from .experiment import Paper, Row, Step
from .streams import (
    BLOCK,
    RANK,
    FrequentDirections,
    Grouse,
    Method,
    PowerMethod,
    Spirit,
    bounds,
    error,
    fed,
    followed,
    methods,
    offline,
    readings,
    sensors,
    synthetic,
    two_regimes,
)

ALPHAS = (0.0001, 0.001, 0.5, 1, 2, 3)
LEAVES = (1, 2, 4, 8, 16, 32)


def steps(motes: str = "", shrink: int = 1) -> list[Step]:
    """Every step; ``shrink`` divides numbers of rows, features and permutations."""
    size = {"d": 400 // shrink, "n": 4000 // shrink}
    ways = [Step(f"synthetic-{alpha}", on_synthetic, {"alpha": alpha, **size}) for alpha in ALPHAS]
    ways += [Step(f"spectrum-{alpha}", spectrum, {"alpha": alpha, **size}) for alpha in (0.5, 1, 2, 3)]
    ways += [Step(f"federated-{alpha}", federated, {"alpha": alpha, **size}) for alpha in (0.5, 1, 2)]
    ways += [Step(f"seconds-{n}", seconds, {"d": 1000 // shrink, "n": n}) for n in (4000 // shrink, 16_000 // shrink)]
    for alpha in (0.1, 0.5, 1, 2, 3, 4):
        case = {"d": 100, "n": 10_000 // shrink, "permutations": max(2, 5 // shrink)}
        ways.append(Step(f"order-{alpha}", time_order, {"alpha": alpha, **case}))
    orders = ("sorted", "shuffled", "reversed")
    ways += [Step(f"regimes-{order}", regimes, {"order": order, "n": 10_000 // shrink}) for order in orders]
    ways.append(Step("memory", memory, {"features": [1000 // shrink, 4000 // shrink, 16_000 // shrink]}))
    for name, path in (sensors(motes) if motes else {}).items():
        ways.append(Step(f"sensors-{name}", on_sensors, {"path": str(path)}))
        ways += [Step(f"final-{name}-{c}", final, {"path": str(path), "centre": c == "centred"}) for c in WAYS]
    return ways


WAYS = ("raw", "centred")


def on_synthetic(alpha: float, d: int, n: int) -> Iterable[Row]:
    """Figures 1(a), (b), (e), (f), 3 and 4: every method over time."""
    X = synthetic(alpha, seed=int(300 + alpha), d=d, n=n)
    return followed(X, methods(d) | bounds(X))


def on_sensors(path: str) -> Iterable[Row]:
    """Figures 1(c), (d), 6 and 7: every method over time, on rows centred beforehand as the authors' code does."""
    X = readings(path, centre=True)
    return followed(X, methods(X.shape[1]) | bounds(X))


def final(path: str, centre: bool) -> Iterable[Row]:
    """What every method ends with on a sensor's first 7,700 rows, which are those of the authors' code."""
    X = readings(path, centre=centre, rows=7700)
    yield {"method": "offline", "rank": RANK, "error": error(X, offline(X, RANK))}
    d = X.shape[1]
    more: dict[str, Method] = {
        "SPCA, 1.5r": Tracker(d, Fixed(RANK), tracked=15, center=False),
        "FD, ell = r": FrequentDirections(d, RANK, ell=RANK),
    }
    for name, method in (methods(d) | more).items():
        vectors = fed(method, X).vectors
        yield {"method": name, "rank": vectors.shape[1], "error": error(X, vectors)}


def spectrum(alpha: float, d: int, n: int) -> Iterable[Row]:
    """Figure 5: singular values, true and as SPCA has them."""
    X = synthetic(alpha, seed=int(300 + alpha), d=d, n=n)
    true = np.linalg.svd(X, compute_uv=False)
    one, two = (track(X, RANK, tracked=k, center=False).sigma for k in (RANK, 2 * RANK))
    for i in range(RANK):
        yield {"index": i + 1, "true": float(true[i]), "SPCA": float(one[i]), "SPCA, 2r": float(two[i])}


def federated(alpha: float, d: int, n: int) -> Iterable[Row]:
    """Excess error of the merged directions over those of an offline PCA, by number of leaves."""
    X = synthetic(alpha, seed=300, d=d, n=n)
    best = error(X, offline(X, RANK))

    def excess(subspace: Subspace) -> float:
        return error(X, subspace.vectors[:, :RANK]) / best - 1

    for leaves in LEAVES:
        parts = np.array_split(X, leaves)
        row: Row = {"leaves": leaves}
        for times in (1, 2, 4):
            k = times * RANK
            row[f"tree, {times}r"] = excess(merge_in_tree([track(p, RANK, tracked=k, center=False) for p in parts], k))
        exact = [track(part, RANK, block=len(part), center=False) for part in parts]
        yield {**row, "exact leaves, tree": excess(merge_in_tree(exact, RANK)), "star": excess(merge(exact, RANK))}


def seconds(d: int, n: int) -> Iterable[Row]:
    """Figure 2: seconds on one core, and with a core for each leaf (the slowest leaf, one merge for each level)."""
    X = synthetic(1, seed=300, d=d, n=n)
    for leaves in LEAVES:
        parts, times = [], []
        for rows in np.array_split(X, leaves):
            started = time.perf_counter()
            parts.append(track(rows, RANK, tracked=2 * RANK, center=False))
            times.append(time.perf_counter() - started)
        started = time.perf_counter()
        merge_in_tree(parts, 2 * RANK)
        merging = time.perf_counter() - started
        alone = max(times) + merging * (leaves - 1).bit_length() / max(1, leaves - 1)
        yield {"leaves": leaves, "one core": sum(times) + merging, "a core each": alone}


def time_order(alpha: float, d: int, n: int, permutations: int) -> Iterable[Row]:
    """Figure 8: sine of the largest angle between the directions of a stream and of its rows in other orders."""
    X = synthetic(alpha, seed=int(300 + alpha), d=d, n=n, code=True)
    rng = np.random.default_rng(5)
    orders = [rng.permutation(len(X)) for _ in range(permutations)]
    for rank in (5, 20, 50, 75):
        best = offline(X, rank)
        for name, make in _of_rank(d, rank).items():
            own, others = fed(make(), X).vectors, [fed(make(), X[order]).vectors for order in orders]
            yield {
                "rank": rank,
                "method": name,
                "to its own": float(np.mean([projector_distance(other, own) for other in others])),
                "to offline": float(np.mean([projector_distance(other, best) for other in others])),
                "excess error": max(error(X, other) for other in others) / error(X, best) - 1,
            }


def _of_rank(d: int, rank: int) -> dict[str, Callable[[], Method]]:
    """The methods of figure 8."""
    return {
        "SPCA": lambda: Tracker(d, Fixed(rank), center=False),
        "SPCA, 2r": lambda: Tracker(d, Fixed(rank), tracked=min(d, 2 * rank), center=False),
        "FD": lambda: FrequentDirections(d, rank),
        "PM": lambda: PowerMethod(d, rank, rng=np.random.default_rng(1)),
        "GROUSE": lambda: Grouse(d, rank, rng=np.random.default_rng(1)),
    }


def regimes(order: str, n: int) -> Iterable[Row]:
    """Excess error where the directions change for good, by how many are tracked."""
    X = two_regimes(order, n)
    best = error(X, offline(X, RANK))
    for k in (10, 12, 15, 20):
        vectors = track(X, RANK, tracked=k, center=False).vectors[:, :RANK]
        yield {"method": f"SPCA, {k} tracked", "excess error": error(X, vectors) / best - 1}
    for ell in (10, 20):
        vectors = fed(FrequentDirections(X.shape[1], RANK, ell=ell), X).vectors
        yield {"method": f"FD, ell = {ell}", "excess error": error(X, vectors) / best - 1}


def memory(features: list[int]) -> Iterable[Row]:
    """Table 1: the most memory allocated while four blocks are taken in (tracemalloc), in MB, without the rows."""
    makers: dict[str, Callable[[int], Method]] = {
        "SPCA": lambda d: Tracker(d, Fixed(RANK), center=False),
        "SPCA, 2r": lambda d: Tracker(d, Fixed(RANK), tracked=2 * RANK, center=False),
        "PM": lambda d: PowerMethod(d, RANK, rng=np.random.default_rng(1)),
        "FD": lambda d: FrequentDirections(d, RANK),
        "GROUSE": lambda d: Grouse(d, RANK, rng=np.random.default_rng(1)),
        "SPIRIT": Spirit,
    }
    for name, make in makers.items():
        row: Row = {"method": name}
        for d in features:
            X = np.random.default_rng(0).standard_normal((4 * BLOCK, d))
            tracemalloc.start()
            fed(make(d), X)
            row[f"d = {d}"] = tracemalloc.get_traced_memory()[1] / 1e6
            tracemalloc.stop()
        yield row


def figures(results: dict[str, list[Row]], folder: Path) -> dict[str, str]:
    draw(results, folder)
    return report(results)


PAPER = Paper(
    "adaptive-rank",
    __doc__,
    "Federated PCA with adaptive rank (Grammenos et al. 2019)",
    {"motes": "", "shrink": 1},
    steps,
    figures,
)
