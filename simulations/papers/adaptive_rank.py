"""Grammenos et al. 2019, Federated PCA with Adaptive Rank Estimation: its figures and table.

    python -m fedpca_flwr.simulations.papers adaptive-rank --output DIR [--motes DIR2]

About ten minutes on one core; ``--shrink 10`` divides numbers of rows, features and permutations for a quick look. DIR
gets a table for each step, plots and report.md. DIR2 has the files of the sensor network (q8calibLight.dat and others;
those that are missing are left out). Only their rows are centred, as by the authors' program.
"""

import time
import tracemalloc
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fedpca_flwr.figures.style import COLOURS
from fedpca_flwr.maths.eigen import projector_distance
from fedpca_flwr.simulations.benchmarks.harness import peak_mb
from fedpca_flwr.simulations.papers import streams
from fedpca_flwr.simulations.papers.experiment import Line, Panel, Paper, Row, Step, markdown, plot, select
from fedpca_flwr.simulations.papers.streams import BLOCK, RANK, error, offline
from fedpca_flwr.strategies.sapca.streams import Fixed, Tracker, merge, track


def steps(motes: str = "", shrink: int = 1) -> list[Step]:
    """List the steps, a table each, of Grammenos et al. 2019; those on sensors need the folder ``motes`` of files."""
    size = {"d": 400 // shrink, "n": 4000 // shrink}
    plan = [Step(f"synthetic-{a}", _on_synthetic, {"alpha": a, **size}) for a in (0.0001, 0.001, 0.5, 1, 2, 3)]
    plan += [Step(f"spectrum-{alpha}", _spectrum, {"alpha": alpha, **size}) for alpha in (0.5, 1, 2, 3)]
    for thousands in (128, 256, 384, 512):
        plan.append(Step(f"seconds-{thousands}k", _seconds, {"d": 1000 // shrink, "n": 1000 * thousands // shrink**2}))
    for alpha in (0.1, 0.5, 1, 2, 3, 4):
        case = {"d": 100, "n": 10_000 // shrink, "permutations": max(2, 20 // shrink)}
        plan.append(Step(f"order-{alpha}", _time_order, {"alpha": alpha, **case}))
    for name, path in (streams.sensors(motes) if motes else {}).items():
        plan.append(Step(f"sensors-{name}", _on_sensors, {"path": str(path)}))
        plan.append(Step(f"memory-{name}", _memory, {"path": str(path)}))
        plan.append(Step(f"final-{name}-centred", _final, {"path": str(path)}))
    return plan


def _on_synthetic(alpha: float, d: int, n: int) -> Iterable[Row]:
    """Yield error and rank of every streaming method over time on synthetic rows (figures 1, 3 and 4)."""
    X = streams.synthetic(alpha, seed=int(300 + alpha), d=d, n=n)
    return streams.follow(X, streams.methods(d) | streams.bounds(X))


def _on_sensors(path: str) -> Iterable[Row]:
    """Yield error and rank of every streaming method over time on centred sensor rows (figures 1, 6 and 7)."""
    X = streams.readings(path)
    return streams.follow(X, streams.methods(X.shape[1]) | streams.bounds(X))


def _final(path: str) -> Iterable[Row]:
    """Yield rank and final error of the offline PCA and of every method on a sensor's first 7,700 rows, centred."""
    X = streams.readings(path, rows=7700)
    yield {"method": "offline", "rank": RANK, "error": error(X, offline(X, RANK))}
    for name, method in streams.methods(X.shape[1]).items():
        vectors = streams.feed(method, X).vectors
        yield {"method": name, "rank": vectors.shape[1], "error": error(X, vectors)}


def _spectrum(alpha: float, d: int, n: int) -> Iterable[Row]:
    """Yield the singular values of SPCA, with r and 2r tracked directions, beside the true ones (figure 5)."""
    X = streams.synthetic(alpha, seed=int(300 + alpha), d=d, n=n)
    true = np.linalg.svd(X, compute_uv=False)
    tight, wide = (track(X, RANK, tracked=k, center=False).sigma for k in (RANK, 2 * RANK))
    for i in range(RANK):
        yield {"index": i + 1, "true": float(true[i]), "SPCA": float(tight[i]), "SPCA, 2r": float(wide[i])}


def _seconds(d: int, n: int) -> Iterable[Row]:
    """Measure CPU seconds of tracking and merging: of all leaves together, and if each leaf had a core (figure 2).

    With a core each, it is the time of the slowest leaf and of a merge for each level. Rows are drawn outside the
    clock, in the coordinates of their covariance. Memory is by how much the peak of the process grows, in MB.
    """
    rng, deviations, before = np.random.default_rng(300), np.arange(1, d + 1.0) ** -0.5, peak_mb()
    for leaves in (1, 32):
        parts, times = [], []
        for _ in range(leaves):
            tracker, spent = Tracker(d, Fixed(RANK), tracked=2 * RANK, center=False), 0.0
            for _ in range(max(1, n // leaves // BLOCK)):
                rows = rng.standard_normal((BLOCK, d)) * deviations
                started = time.process_time()
                tracker.update(rows)
                spent += time.process_time() - started
            parts.append(tracker.subspace)
            times.append(spent)
        started = time.process_time()
        merge(parts, 2 * RANK, batch=2)
        merging = time.process_time() - started
        # a binary tree has leaves - 1 merges, in as many levels as leaves - 1 has bits
        alone = max(times) + merging * (leaves - 1).bit_length() / max(1, leaves - 1)
        yield {"leaves": leaves, "one core": sum(times) + merging, "a core each": alone, "MB more": peak_mb() - before}


def _time_order(alpha: float, d: int, n: int, permutations: int) -> Iterable[Row]:
    """Yield the sines of the largest angles between subspaces that come from several orders of the rows (figure 8)."""
    X = streams.synthetic(alpha, seed=int(300 + alpha), d=d, n=n, code=True)
    rng = np.random.default_rng(5)
    orders = [rng.permutation(len(X)) for _ in range(permutations)]
    for rank in (5, 20, 50, 75):
        best = offline(X, rank)
        for name, make in streams.methods_of_rank(d, rank).items():
            original = streams.feed(make(), X).vectors
            reordered = [streams.feed(make(), X[order]).vectors for order in orders]
            yield {
                "rank": rank,
                "method": name,
                "to its own": float(np.mean([projector_distance(other, original) for other in reordered])),
                "to offline": float(np.mean([projector_distance(other, best) for other in reordered])),
                "excess error": max(error(X, other) for other in reordered) / error(X, best) - 1,
            }


def _memory(path: str) -> Iterable[Row]:
    """Measure each method's peak memory (tracemalloc, MB) over a sensor's rows (table 1)."""
    X = streams.readings(path)
    d = X.shape[1]
    for name, make in (streams.methods_of_rank(d, RANK) | {"SPIRIT": partial(streams.Spirit, d)}).items():
        tracemalloc.start()
        streams.feed(make(), X)
        yield {"method": name, f"d = {d}": tracemalloc.get_traced_memory()[1] / 1e6}
        tracemalloc.stop()


Results = Mapping[str, list[Row]]

WIDE: dict[str, Any] = {"linewidth": 5, "alpha": 0.35, "marker": ""}  # look of a line under other lines

# each method has its colour, mark and line in every figure
LOOKS: dict[str, dict[str, Any]] = {
    "SPCA lo": {"color": "0.3", **WIDE},
    "SPCA hi": {"color": "0.6", **WIDE},
    "SPCA": {"color": COLOURS[0], "marker": "o"},
    "SPCA, 2r": {"color": COLOURS[0], "marker": "o", "linestyle": "--", "fillstyle": "none"},
    "SAPCA": {"color": COLOURS[2], "marker": "s", "markersize": 8, "fillstyle": "none"},
    "SAPCA, 2r": {"color": COLOURS[2], "marker": "s", "linestyle": "--", "fillstyle": "none"},
    "PM": {"color": COLOURS[4], "marker": "x", "linestyle": "-."},
    "PM lo": {"color": COLOURS[4], "marker": "+", "linestyle": ":"},
    "FD": {"color": COLOURS[1], "marker": "D", "linestyle": "--"},
    "GROUSE": {"color": COLOURS[5], "marker": "*", "linestyle": "-."},
    "SPIRIT": {"color": COLOURS[3], "marker": "P"},
    "SPIRIT .9": {"color": COLOURS[3], "marker": "P", "linestyle": ":", "fillstyle": "none"},
    "true": {"color": "black", **WIDE},
    "one core": {"color": "black", "marker": "o"},
    "a core each": {"color": "black", "marker": "o", "linestyle": "--", "fillstyle": "none"},
}

OURS = ["SPCA", "SPCA, 2r", "SAPCA", "SAPCA, 2r"]
LEGEND = """SPCA has rank 10 and keeps 10 directions; "2r" keeps 20. SAPCA's rank follows the paper's rule as printed;
with "2r" it has hysteresis. SPCA lo, SPCA hi and PM lo have the lowest and highest rank that SAPCA had. PM takes blocks
of d rows, FD a sketch of 40, GROUSE steps 2 / t; SPIRIT keeps 95 to 98 % of the energy, ".9" forgets. Blocks have 50
rows. The covariance has eigenvalues i^-alpha (figure 8: i^-2alpha, as in the authors' code)."""


def _draw(results: Results, folder: Path) -> dict[str, str]:
    """Draw all figures as PNG, and return the report's texts by heading."""
    synthetic, sensors = select(results, "synthetic-"), select(results, "sensors-")
    first = {f"alpha = {alpha}": synthetic[alpha] for alpha in ("1", "2")} | sensors
    bounds = ["SPCA lo", "SPCA hi", *OURS, "PM lo", "SPIRIT", "SPIRIT .9"]
    _over_time(folder / "figure1.png", first, bounds, ranks=True)
    times = select(results, "seconds-")
    panels = [_by_column(rows, "leaves", title=f"{n} rows", ylabel="seconds") for n, rows in times.items()]
    plot(folder / "figure2.png", [panel._replace(labels={"xscale": "log", **panel.labels}) for panel in panels])
    spectra = {f"alpha = {alpha}": rows for alpha, rows in synthetic.items()}
    _over_time(folder / "figure3.png", spectra, [*OURS, "PM", "FD", "GROUSE", "SPIRIT"])
    _over_time(folder / "figure4.png", spectra, [*OURS, "PM", "FD", "GROUSE", "SPIRIT .9"])
    values = select(results, "spectrum-").items()
    panels = [_by_column(rows, "index", title=f"alpha = {a}", ylabel="singular value") for a, rows in values]
    plot(folder / "figure5.png", panels, wide=4)
    if sensors:
        _over_time(folder / "figure6.png", sensors, [*OURS, "PM", "GROUSE", "SPIRIT .9"], ranks=True)
        _over_time(folder / "figure7.png", sensors, [*OURS, "FD"], ranks=True)
    _order(folder / "figure8.png", _stack(results, "order-", "alpha"))
    return _report(results)


def _report(results: Results) -> dict[str, str]:
    """Return the report's texts (tables and links to figures) by heading."""
    ends = [row for row in _stack(results, "synthetic-", "alpha") if row["rows"] == results["synthetic-1"][-1]["rows"]]
    times = (f"{n} rows\n\n{markdown(rows)}" for n, rows in select(results, "seconds-").items())
    sections = {
        "What is compared": LEGEND,
        "Figure 1: SAPCA on synthetic and real streams": "![](figure1.png)",
        "Figure 2: CPU seconds by number of leaves": "\n\n".join(["![](figure2.png)", *times]),
        "Figure 3: spectra, SPIRIT without forgetting": "![](figure3.png)",
        "Figure 4: spectra, SPIRIT with forgetting 0.9": "![](figure4.png)",
        "At the end of the synthetic streams": markdown(ends, ".6g"),
        "Figure 5: singular values": "![](figure5.png)",
    }
    if finals := _stack(results, "final-", "data"):
        sections["Figures 6 and 7: sensors"] = "![](figure6.png)\n\n![](figure7.png)"
        sections["At the end of 7,700 readings"] = markdown(finals, ".6g")
    sections["Figure 8: order of the rows"] = (
        "![](figure8.png)\n\nLemma 2 of the paper says that the order does not matter. The error hardly depends on it; "
        "the subspace does. Points that are missing are 0: all is tracked there.\n\n"
        + markdown(_stack(results, "order-", "alpha"), ".6g")
    )
    if measured := select(results, "memory-"):
        sections["Table 1: memory in MB"] = "\n\n".join(markdown(rows, ".6g") for rows in measured.values())
    return sections


def _stack(results: Results, prefix: str, column: str) -> list[Row]:
    """Return the rows of all steps with a prefix, with the rest of the step's name in a new column."""
    return [{column: name, **row} for name, rows in select(results, prefix).items() for row in rows]


def _over_time(target: Path, panels: Mapping[str, list[Row]], names: Sequence[str], *, ranks: bool = False) -> None:
    """Draw error (and ``ranks``) by number of rows, a panel for each stream, without values up to 1e-9 of all."""
    drawn = []
    for quantity, label in [("error", "error per row"), ("rank", "rank")][: 1 + ranks]:
        for title, rows in panels.items():
            lines = []
            for name in names:
                series = [row for row in rows if row["method"] == name]
                positive = [row for row in series if row[quantity] > 1e-9 * max(r[quantity] for r in series)]
                look = {"markersize": 5, "markevery": 3, **LOOKS[name]}
                lines.append(Line.of(name, positive, "rows", quantity, look))
            drawn.append(Panel(lines, {"title": title, "xlabel": "rows", "ylabel": label, "yscale": "log"}))
    plot(target, drawn, wide=len(panels) if ranks else 3)


def _by_column(rows: Sequence[Row], x: str, **labels: str) -> Panel:
    """Return a panel with a line for each column that has an entry in `LOOKS`; values up to 1e-9 are left out."""
    names = [name for name in rows[0] if name in LOOKS]
    lines = [Line.of(name, [row for row in rows if row[name] > 1e-9], x, name, LOOKS[name]) for name in names]
    return Panel(lines, {"xlabel": x, "yscale": "log", **labels})


def _order(target: Path, every: Sequence[Row]) -> None:
    """Draw, for each rank, the sine by which the order of the rows turns a method's subspace, by alpha."""
    panels = []
    for rank in sorted({row["rank"] for row in every}):
        # where all is tracked, nothing is lost, and a logarithmic axis has no place for 0
        shown = [row for row in every if row["rank"] == rank and row["to its own"] > 1e-6]
        lines = [
            Line.of(name, [row for row in shown if row["method"] == name], "alpha", "to its own", LOOKS[name])
            for name in dict.fromkeys(row["method"] for row in every)
        ]
        labels = {"xlabel": "alpha", "ylabel": "sine of the largest angle", "yscale": "log"}
        panels.append(Panel(lines, {"title": f"rank {rank}", **labels}))
    plot(target, panels, wide=4)


TITLE = "Federated PCA with adaptive rank (Grammenos et al. 2019)"
PAPER = Paper("adaptive-rank", __doc__, TITLE, {"motes": "", "shrink": 1}, steps, _draw)
