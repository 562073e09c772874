"""The figures of Ozkara et al. 2023, drawn from their tables."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedpca_flwr.figures.style import COLOURS

from .experiment import Row, figure

LOOKS: dict[str, dict[str, Any]] = {
    "local": {"color": COLOURS[3], "marker": "s", "linestyle": "--", "fillstyle": "none", "markersize": 9},
    "global": {"color": COLOURS[0], "marker": "^", "linestyle": "-."},
    "personal": {"color": COLOURS[2], "marker": "o"},
    "personal 2 mu": {"color": COLOURS[5], "marker": "v", "linestyle": ":"},
    "PerPCA": {"color": COLOURS[4], "marker": "x", "linestyle": ":"},
}
"""Each method has its colour, mark and line in every figure."""


def draw(tables: dict[str, list[Row]], results: dict[str, list[Row]], folder: Path) -> None:
    """All figures as PNG."""
    traces = {name.removeprefix("1a-trace-"): rows for name, rows in results.items() if name.startswith("1a-trace-")}
    descents = {name.removeprefix("2-"): rows for name, rows in results.items() if name.startswith("2-")}
    _side_by_side(folder / "1a.png", traces, "iteration", "iterations", marks=False)
    _side_by_side(folder / "1b.png", {"": tables["1b"]}, "spread", "spread of the parties, $\\sigma_U^2$", log=True)
    _side_by_side(folder / "1c.png", _by_spread(tables["1c"]), "rows", "rows at each party, n", log=True)
    _side_by_side(folder / "1d.png", _by_spread(tables["1d"]), "parties", "parties, m", log=True)
    _training(folder / "2.png", descents)


def _by_spread(rows: Sequence[Row]) -> dict[str, list[Row]]:
    return {f"{s}": [row for row in rows if row["spread"] == s] for s in dict.fromkeys(row["spread"] for row in rows)}


def _side_by_side(
    target: Path, panels: dict[str, list[Row]], x: str, label: str, *, log: bool = False, marks: bool = True
) -> None:
    """A panel for each spread, a line for each method."""
    with figure(target, 1, len(panels), figsize=(5.2 * len(panels), 3.8)) as axes:
        for axis, (spread, rows) in zip(axes[0], panels.items(), strict=True):
            for name in (known for known in LOOKS if known in rows[0]):
                look = LOOKS[name] if marks else {**LOOKS[name], "marker": ""}
                axis.plot([float(row[x]) for row in rows], [row[name] for row in rows], label=name, **look)
            if log:
                axis.set_xscale("log")
            if log and x != "spread":
                points = [int(row[x]) for row in rows]
                axis.set_xticks(points, [str(point) for point in points])
                axis.minorticks_off()
            axis.set(xlabel=label, ylabel="error / error of the true components")
            axis.set_title(f"$\\sigma_U^2$ = {spread}" if spread else "")
            axis.grid(alpha=0.3)
        axes[0][0].legend()


def _training(target: Path, descents: dict[str, list[Row]]) -> None:
    """Figure 2: training and test error by iteration, a line for each spread."""
    with figure(target, 1, 2, figsize=(10.4, 3.8)) as axes:
        for axis, kind in zip(axes[0], ("train", "test"), strict=True):
            for colour, style, (spread, rows) in zip(COLOURS, ("-", "--", "-."), descents.items(), strict=False):
                look = {"color": colour, "linestyle": style, "label": f"$\\sigma_U^2$ = {spread}"}
                axis.plot([row["iteration"] for row in rows], [row[kind] for row in rows], **look)
            axis.set(xlabel="iterations of Algorithm 1", ylabel=f"{kind} error / error of the true components")
            axis.grid(alpha=0.3)
        axes[0][0].legend()
