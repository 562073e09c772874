"""Robust components: what rows that are far off do, and what it costs where there are none."""

import subprocess
from argparse import Namespace
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np

from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.eigen import principal_angles
from fedpca_flwr.simulations.benchmarks.harness import Lines, benchmark
from fedpca_flwr.simulations.engines import run

ROWS, PARTIES = 1500, 3
SPREADS: dict[str, tuple[Array, int]] = {
    "moderate": (np.array([4.0, 3.0, 2.2, 1.5, 1.2, 1.0, 1.0, 1.0]), 3),
    "one that dominates": (np.array([10.0, 3.0, 2.0, 1.0, 1.0, 1.0, 1.0, 1.0]), 2),
    "nearly flat": (np.append(np.linspace(3, 2, 5), np.ones(15)), 5),
}
"""Deviations of the features, and how many components are looked for."""


def normal(rng: np.random.Generator, spread: Array) -> Array:
    return rng.standard_normal((ROWS, spread.size)) * spread


def student(rng: np.random.Generator, spread: Array) -> Array:
    """Of Student's t with 3 degrees of freedom."""
    return normal(rng, spread) / np.sqrt(rng.chisquare(3, ROWS) / 3)[:, None]


def replaced(share: float) -> Callable[[np.random.Generator, Array], Array]:
    """Normal rows, of which a share is replaced by 1e6 in each feature."""

    def drawn(rng: np.random.Generator, spread: Array) -> Array:
        rows = normal(rng, spread)
        rows[rng.choice(ROWS, round(share * ROWS), replace=False)] = 1e6
        return rows

    return drawn


KINDS = {
    "normal": normal,
    "Student's t, 3 degrees": student,
    "5 % of rows at 1e6": replaced(0.05),
    "20 % of rows at 1e6": replaced(0.2),
}


@benchmark(draws=20, seed=1)
def robust(args: Namespace) -> Lines:
    """`robust` beside `p-cov`: angles to the components that rows were drawn by, and the efficiency for clean rows.

    Means over the draws of the largest angle, in degrees. The efficiency is the mean squared sine of the largest angle
    of `p-cov` over that of `robust`, for 900 normal rows of d features.
    """
    rng = np.random.default_rng(args.seed)
    yield "deviations", "rows", "p-cov (deg)", "robust (deg)"
    for name, (spread, k) in SPREADS.items():
        for kind, drawn in KINDS.items():
            angles = np.array([_angles(drawn(rng, spread), k) for _ in range(args.draws)])  # (draws, 2)
            plain, own = angles.mean(axis=0)
            yield name, kind, f"{plain:.2f}", f"{own:.2f}"
    yield ""
    yield "d", "k", "efficiency"
    for d, k in ((3, 1), (10, 2), (40, 3)):
        angles = np.array(
            [_angles(_contaminated(rng, Cell(d, k, "two sides", 0, 0), 900), k) for _ in range(3 * args.draws)]
        )
        plain, own = (np.sin(np.radians(angles)) ** 2).mean(axis=0)
        yield d, k, f"{plain / own:.2f}"


def _angles(rows: Array, k: int) -> list[float]:
    """The largest angles of `p-cov` and `robust`."""
    return [_off(_components(method, rows, k)) for method in ("p-cov", "robust")]


def _components(method: str, rows: Array, k: int, parties: int = PARTIES) -> Array:
    """The components (k, d) of a run of so many parties."""
    return run(method, np.array_split(rows, parties), n_components=k, progress=False).loadings()[0]


def _off(components: Array) -> float:
    """The largest angle, in degrees, of components (k, d) to the first k axes."""
    k, d = components.shape
    return float(principal_angles(components.T, np.eye(d)[:, :k]).max())


# The map: which share of the rows, how far off and in which direction, turns the components


class Cell(NamedTuple):
    """Rows of which a share lies together."""

    d: int
    k: int
    direction: str
    share: float
    distance: float  # in deviations of the features that no component has


DIRECTIONS = ("two sides", "one side", "diagonal")
"""Of the last feature, to both of its sides or to one; or to both sides of the diagonal of all features without
components."""
DISTANCES = (4, 6, 8, 12, 1e6)
CELLS = [
    Cell(d, k, direction, share, distance)
    for d, k in ((8, 2), (20, 5))
    for share in (0.1, 0.2)
    for direction in DIRECTIONS
    for distance in DISTANCES
]
MAP_ROWS = 600
IN_R = """
suppressMessages(library(rrcov))
sizes <- as.integer(commandArgs(TRUE)[2:5])
file <- file(commandArgs(TRUE)[1], "rb")
for (draw in seq_len(sizes[4])) {
  X <- matrix(readBin(file, "double", sizes[1] * sizes[2]), sizes[1], byrow = TRUE)
  for (method in list(PcaHubert, PcaLocantore)) {
    cat(as.vector(getLoadings(method(X, k = sizes[3]))[, seq_len(sizes[3])]), "\\n")
  }
}
"""
METHODS = {"p-cov": "0.6", "robust": "tab:blue", "ROBPCA": "tab:orange", "PcaLocantore": "tab:green"}
"""With their colours; the last two are those of R's rrcov."""


@benchmark(draws=40, seed=0, figure="")
def robust_map(args: Namespace) -> Lines:
    """Which share of the rows, how far off and in which direction, turns the components: `robust` beside others.

    The median and the worst of the draws' largest angles, in degrees, to the components that 600 rows were drawn by:
    the share of the rows lies together, at a distance in deviations, and one party has all rows. ROBPCA and
    PcaLocantore are those of R's rrcov, where it is installed. ``--figure FILE`` draws the worst.
    """
    worst: dict[tuple[Cell, str], float] = {}
    yield "d", "share", "direction", "distance", *METHODS
    for cell in CELLS:
        drawn = [_contaminated(np.random.default_rng([args.seed, i]), cell, MAP_ROWS) for i in range(args.draws)]
        angles = {
            method: [_off(_components(method, rows, cell.k, parties=1)) for rows in drawn]
            for method in ("p-cov", "robust")
        }
        angles |= _of_rrcov(drawn, cell)
        worst |= {(cell, method): max(found) for method, found in angles.items()}
        cells = (f"{np.median(angles[one]):.0f}, {max(angles[one]):.0f}" if one in angles else "-" for one in METHODS)
        yield cell.d, f"{cell.share:.0%}", cell.direction, f"{cell.distance:g}", *cells
    if args.figure:
        _draw_map(worst, args.figure)


def _contaminated(rng: np.random.Generator, cell: Cell, n: int) -> Array:
    """Normal rows (n, d) whose components are the first axes, with a share of others."""
    rows = rng.standard_normal((n, cell.d)) * np.sqrt(np.append(np.linspace(9, 4, cell.k), np.ones(cell.d - cell.k)))
    chosen = rng.choice(n, int(cell.share * n), replace=False)
    away = np.where(np.arange(cell.d) >= cell.k, 1.0, 0.0) if cell.direction == "diagonal" else np.eye(cell.d)[-1]
    side = 1.0 if cell.direction == "one side" else rng.choice([-1.0, 1.0], (len(chosen), 1))
    rows[chosen] = 0.3 * rng.standard_normal((len(chosen), cell.d)) + side * cell.distance * away / np.linalg.norm(away)
    return rows


def _of_rrcov(drawn: Sequence[Array], cell: Cell) -> dict[str, list[float]]:
    """The angles of ROBPCA and PcaLocantore; none where R or its package is missing."""
    with TemporaryDirectory() as folder:
        file = Path(folder) / "rows"
        file.write_bytes(np.concatenate(drawn).tobytes())
        sizes = map(str, (MAP_ROWS, cell.d, cell.k, len(drawn)))
        try:
            done = subprocess.run(["Rscript", "-e", IN_R, file, *sizes], capture_output=True, text=True, check=True)
        except (FileNotFoundError, subprocess.CalledProcessError):
            return {}
    angles = [_off(np.array(line.split(), dtype=float).reshape(cell.k, cell.d)) for line in done.stdout.splitlines()]
    return {"ROBPCA": angles[::2], "PcaLocantore": angles[1::2]}


def _draw_map(worst: dict[tuple[Cell, str], float], file: str) -> None:
    from matplotlib.figure import Figure  # an extra

    figure = Figure(figsize=(9, 5.5), layout="constrained")
    panels = figure.subplots(4, len(DIRECTIONS), sharex=True, sharey=True)
    rows = [(d, share) for d in (8, 20) for share in (0.1, 0.2)]
    for row, (d, share) in zip(panels, rows, strict=True):
        for axes, direction in zip(row, DIRECTIONS, strict=True):
            own = [cell for cell in CELLS if (cell.d, cell.share, cell.direction) == (d, share, direction)]
            for method, colour in METHODS.items():
                heights = [worst[cell, method] for cell in own if (cell, method) in worst]
                if heights:
                    axes.plot(range(len(own)), heights, "o-", markersize=3, color=colour, label=method)
            axes.set_title(f"d = {d}, {share:.0%} of the rows, {direction}", fontsize=8)
            axes.set(ylim=(0, 92), yticks=(0, 45, 90), xticks=range(len(own)))
            axes.set_xticklabels([f"{cell.distance:g}" for cell in own], fontsize=8)
    figure.supxlabel("distance in deviations", fontsize=9)
    figure.supylabel("worst of the largest angles (degrees)", fontsize=9)
    figure.legend(*panels[0, 0].get_legend_handles_labels(), loc="outside upper center", ncols=4, frameon=False)
    figure.savefig(file, metadata={"Date": None})
