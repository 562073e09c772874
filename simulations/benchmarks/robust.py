"""Robust components where rows are far off, and their efficiency where no row is."""

import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np
from numpy.random import Generator

from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.eigen import principal_angles
from fedpca_flwr.simulations.benchmarks import harness
from fedpca_flwr.simulations.benchmarks.harness import Lines
from fedpca_flwr.simulations.engines import run

ROWS, MAP_ROWS, PARTIES = 1500, 600, 3
SPREADS: dict[str, tuple[Array, int]] = {
    "moderate": (np.array([4.0, 3.0, 2.2, 1.5, 1.2, 1.0, 1.0, 1.0]), 3),
    "one that dominates": (np.array([10.0, 3.0, 2.0, 1.0, 1.0, 1.0, 1.0, 1.0]), 2),
    "nearly flat": (np.append(np.linspace(3, 2, 5), np.ones(15)), 5),
}
"""Deviations of the features, and number of components."""


def _normal(rng: Generator, spread: Array) -> Array:
    return rng.standard_normal((ROWS, spread.size)) * spread


def _student(rng: Generator, spread: Array) -> Array:
    return _normal(rng, spread) / np.sqrt(rng.chisquare(3, ROWS) / 3)[:, None]


def _replaced(share: float) -> Callable[[Generator, Array], Array]:
    """Return a function that draws normal rows, of which a share is replaced by 1e6 in each feature."""

    def draw(rng: Generator, spread: Array) -> Array:
        rows = _normal(rng, spread)
        rows[rng.choice(ROWS, round(share * ROWS), replace=False)] = 1e6
        return rows

    return draw


KINDS = {
    "normal": _normal,
    "Student's t, 3 degrees": _student,
    "5 % of rows at 1e6": _replaced(0.05),
    "20 % of rows at 1e6": _replaced(0.2),
}


@harness.benchmark("docs/robust.md", draws=1)
def _robust(draws: int = 20, seed: int = 1) -> Lines:
    """Compare `robust` with `p-cov`: angles to the components that rows were drawn by, and efficiency for clean rows.

    Means over the draws of the largest angle, in degrees. The efficiency is the mean squared sine of the largest angle
    of `p-cov` over that of `robust`, for 900 normal rows of d features.
    """
    rng = np.random.default_rng(seed)
    yield "deviations", "rows", "p-cov (deg)", "robust (deg)"
    for name, (spread, k) in SPREADS.items():
        for kind, draw in KINDS.items():
            samples = [draw(rng, spread) for _ in range(draws)]
            yield name, kind, *(f"{np.mean(_angles(method, samples, k)):.2f}" for method in ("p-cov", "robust"))
    yield ""
    yield "d", "k", "efficiency"
    for d, k in ((3, 1), (10, 2), (40, 3)):
        samples = [_contaminate(rng, Cell(d, k, "two sides", 0, 0), 900) for _ in range(3 * draws)]
        plain, robust = (
            np.mean(np.sin(np.radians(_angles(method, samples, k))) ** 2) for method in ("p-cov", "robust")
        )
        yield d, k, f"{plain / robust:.2f}"


def _angles(method: str, samples: Sequence[Array], k: int, parties: int = PARTIES) -> list[float]:
    """Return the largest angle, in degrees, of a run on each sample to the first axes."""
    runs = (run(method, np.array_split(rows, parties), n_components=k, progress=False) for rows in samples)
    return [_angle(model.loadings()[0]) for model in runs]


def _angle(components: Array) -> float:
    k, d = components.shape
    return float(principal_angles(components.T, np.eye(d)[:, :k]).max())


class Cell(NamedTuple):
    """Rows of which a share lies together, at a distance in deviations of the features that no component has."""

    d: int
    k: int
    direction: str
    share: float
    distance: float


DIRECTIONS = ("two sides", "one side", "diagonal")
"""To both sides of the last feature or to one; or of the diagonal of all features without components."""
CELLS = [
    Cell(d, k, direction, share, distance)
    for d, k in ((8, 2), (20, 5))
    for share in (0.1, 0.2)
    for direction in DIRECTIONS
    for distance in (4, 6, 8, 12, 1e6)
]
R_PROGRAM = """
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
COLOURS = {"p-cov": "0.6", "robust": "tab:blue", "ROBPCA": "tab:orange", "PcaLocantore": "tab:green"}
"""Colours of the methods; the last two are those of R's rrcov."""


@harness.benchmark("docs/robust.md", draws=1)
def _robust_map(draws: int = 40, seed: int = 0, figure: str = "") -> Lines:
    """Compare `robust` with other methods by the share of the rows that lie together, their distance and direction.

    The median and the worst of the draws' largest angles, in degrees, to the components that 600 rows were drawn by.
    One party has all rows. ROBPCA and PcaLocantore are those of R's rrcov, where it is installed. The figure has the
    worst angles.
    """
    panels: dict[str, dict[str, list[tuple[float, float]]]] = {}
    yield "d", "share", "direction", "distance", *COLOURS
    for cell in CELLS:
        samples = [_contaminate(np.random.default_rng([seed, i]), cell, MAP_ROWS) for i in range(draws)]
        angles = {method: _angles(method, samples, cell.k, parties=1) for method in ("p-cov", "robust")}
        angles |= _angles_of_rrcov(samples, cell)
        panel = panels.setdefault(f"d = {cell.d}, {cell.share:.0%} of the rows, {cell.direction}", {})
        for method, degrees in angles.items():
            panel.setdefault(method, []).append((cell.distance, max(degrees)))
        cells = (
            f"{np.median(angles[name]):.0f}, {max(angles[name]):.0f}" if name in angles else "-" for name in COLOURS
        )
        yield cell.d, f"{cell.share:.0%}", cell.direction, f"{cell.distance:g}", *cells
    labels = "distance in deviations", "worst of the largest angles (degrees)"
    harness.plot(figure, panels, labels, rows=4, colours=COLOURS)


def _contaminate(rng: Generator, cell: Cell, n: int) -> Array:
    """Draw normal rows (n, d) whose components are the first axes, with a share of others."""
    rows = rng.standard_normal((n, cell.d)) * np.sqrt(np.append(np.linspace(9, 4, cell.k), np.ones(cell.d - cell.k)))
    chosen = rng.choice(n, int(cell.share * n), replace=False)
    axis = np.where(np.arange(cell.d) >= cell.k, 1.0, 0.0) if cell.direction == "diagonal" else np.eye(cell.d)[-1]
    side = 1.0 if cell.direction == "one side" else rng.choice([-1.0, 1.0], (len(chosen), 1))
    rows[chosen] = 0.3 * rng.standard_normal((len(chosen), cell.d)) + side * cell.distance * axis / np.linalg.norm(axis)
    return rows


def _angles_of_rrcov(samples: Sequence[Array], cell: Cell) -> dict[str, list[float]]:
    """Return the angles of ROBPCA and PcaLocantore; none where R or its package is missing."""
    with TemporaryDirectory() as folder:
        file = Path(folder) / "rows"
        file.write_bytes(np.concatenate(samples).tobytes())
        command = ["Rscript", "-e", R_PROGRAM, str(file), *map(str, (MAP_ROWS, cell.d, cell.k, len(samples)))]
        try:
            lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
        except (FileNotFoundError, subprocess.CalledProcessError):
            return {}
    angles = [_angle(np.array(line.split(), dtype=float).reshape(cell.k, cell.d)) for line in lines]
    return {"ROBPCA": angles[::2], "PcaLocantore": angles[1::2]}
