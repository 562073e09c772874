"""Robust components: what rows that are far off do, and what it costs where there are none."""

from argparse import Namespace
from collections.abc import Callable

import numpy as np

from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.eigen import principal_angles

from .. import run
from .harness import Lines, benchmark

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


@benchmark(draws=20, seed=1, figure="")
def robust(args: Namespace) -> Lines:
    """`robust` beside `p-cov`: angles to the components that rows were drawn by, and the efficiency of the first.

    Means over the draws of the largest angle, in degrees. The efficiency is the mean squared sine of all angles of
    `p-cov` over that of `robust`. ``--figure FILE`` draws the angles.
    """
    found: dict[tuple[str, str], tuple[float, float]] = {}
    rng = np.random.default_rng(args.seed)
    yield "deviations", "rows", "p-cov (deg)", "robust (deg)", "efficiency"
    for name, (spread, k) in SPREADS.items():
        for kind, drawn in KINDS.items():
            angles = np.array([_angles(drawn(rng, spread), k) for _ in range(args.draws)])  # (draws, 2, k)
            plain, own = angles.max(axis=2).mean(axis=0)
            found[name, kind] = plain, own
            squares = (np.sin(np.radians(angles)) ** 2).mean(axis=(0, 2))
            yield name, kind, f"{plain:.2f}", f"{own:.2f}", f"{squares[0] / squares[1]:.2f}"
    if args.figure:
        _draw(found, args.figure)


def _draw(found: dict[tuple[str, str], tuple[float, float]], file: str) -> None:
    from matplotlib.figure import Figure  # an extra

    figure = Figure(figsize=(8, 3), layout="constrained")
    panels = figure.subplots(1, len(KINDS), sharey=True)
    for axes, kind in zip(panels, KINDS, strict=True):
        for place, (method, colour) in enumerate((("p-cov", "0.6"), ("robust", "tab:blue"))):
            heights = [found[name, kind][place] for name in SPREADS]
            axes.bar(np.arange(len(SPREADS)) + 0.4 * place, heights, 0.4, color=colour, label=method)
        axes.set(title=kind, xticks=np.arange(len(SPREADS)) + 0.2)
        axes.set_xticklabels([name.replace(" ", "\n") for name in SPREADS], fontsize=7)
        axes.title.set_fontsize(9)
    panels[0].set_ylabel("largest angle (degrees)")
    panels[0].legend(frameon=False)
    figure.savefig(file, metadata={"Date": None})


def _angles(rows: Array, k: int) -> list[Array]:
    parties, axes = np.array_split(rows, PARTIES), np.eye(rows.shape[1])[:, :k]
    models = (run(method, parties, n_components=k, progress=False) for method in ("p-cov", "robust"))
    return [principal_angles(model.loadings()[0].T, axes) for model in models]
