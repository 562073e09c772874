"""The figures of Cheung et al. 2022, drawn from their tables."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedpca_flwr.figures.style import COLOURS

from .experiment import Row, figure

CURVES = {
    "6-clients": "parties",
    "6-iterations": "local iterations",
    "7-single-1000": "parties",
    "7-single-5000": "parties",
    "7-mixture-1000": "parties",
    "7-mixture-5000": "parties",
    "8-warm": "parties, warm start",
    "8-scaled": "parties, weight scaling",
}
"""Figures whose lines are steps of their own, and what numbers the lines."""


def draw(results: dict[str, list[Row]], folder: Path) -> list[str]:
    """All figures as PNG; their names."""
    drawn = []
    for name, what in CURVES.items():
        lines = {key.rpartition("-")[2]: rows for key, rows in results.items() if key.rpartition("-")[0] == name}
        _curves(folder / f"{name}.png", lines, what)
        drawn.append(name)
    _splits(folder / "9.png", results)
    drawn.append("9")
    for name in sorted(key for key in results if key.startswith("images-")):
        _images(folder / f"{name}.png", results[name])
        drawn.append(name)
    for name in sorted(key for key in results if key.startswith(("12-", "14-"))):
        _grid(folder / f"{name}.png", results[name])
        drawn.append(name)
    return drawn


def _line(axis: Any, rows: list[Row], **style: Any) -> None:
    """Distance by period."""
    axis.plot([row["period"] for row in rows], [row["distance"] for row in rows], **style)


def _curves(target: Path, lines: dict[str, list[Row]], what: str) -> None:
    """Distance by period: as published, and dashed without the memory of earlier periods."""
    with figure(target, figsize=(5.2, 3.8)) as ((axis,),):
        for colour, marker, (number, rows) in zip(COLOURS, "os^", lines.items(), strict=False):
            solid, dotted = ([row for row in rows if row["lists"] == lists] for lists in ("as published", "reset"))
            _line(axis, solid, color=colour, marker=marker, label=f"{number} {what}")
            _line(axis, dotted, color=colour, linestyle=":", label=f"{number}, lists reset")
        axis.set(xlabel="communication period (0: isolated)", ylabel="distance (equation 4)")
        axis.grid(alpha=0.3)
        axis.legend(fontsize="small")


def _splits(target: Path, results: dict[str, list[Row]]) -> None:
    """Figure 9: distance by period with other columns, and with other rows, at the parties; dotted: signs aligned."""
    with figure(target, 1, 2, figsize=(8.4, 3.8), sharey=True) as axes:
        for axis, split, what in zip(axes[0], ("vertical", "horizontal"), ("columns", "rows"), strict=True):
            lines = {key.rpartition("-")[2]: rows for key, rows in results.items() if key.startswith(f"9-{split}-")}
            for colour, marker, (parties, rows) in zip(COLOURS, "os^", lines.items(), strict=False):
                solid, dotted = (
                    [row for row in rows if row["signs"] == signs] for signs in ("as they come", "aligned")
                )
                _line(axis, solid, color=colour, marker=marker, label=f"{parties} parties")
                _line(axis, dotted, color=colour, linestyle=":", label=f"{parties}, signs aligned")
            axis.set(xlabel="communication period (0: isolated)")
            axis.set_title(f"{split}: different {what} at each party", fontsize="medium")
            axis.grid(alpha=0.3)
        axes[0][0].set_ylabel("distance (equation 4)")
        axes[0][0].legend(fontsize="small")


def _grid(target: Path, rows: Sequence[Row]) -> None:
    """Figures 12 and 14: images named 'down, across', each with its correlation to the first of its line."""
    names = [name.partition(", ") for name in rows[0] if name != "pixel"]
    down, across = (list(dict.fromkeys(parts)) for parts in ([n[0] for n in names], [n[2] for n in names]))
    side = int(np.sqrt(len(rows)))
    with figure(target, len(down), len(across), figsize=(2 * len(across) + 0.4, 2.3 * len(down))) as axes:
        for line, method in zip(axes, down, strict=True):
            first = np.array([row[f"{method}, {across[0]}"] for row in rows], float)
            for axis, what in zip(line, across, strict=True):
                image = np.array([row[f"{method}, {what}"] for row in rows], float)
                axis.imshow(image.reshape(side, side), cmap="gray")
                axis.set(xticks=[], yticks=[], xlabel=f"r = {np.corrcoef(first, image)[0, 1]:.3f}")
            line[0].set_ylabel(method)
        for axis, what in zip(axes[0], across, strict=True):
            axis.set_title(what, fontsize="medium")


def _images(target: Path, rows: Sequence[Row]) -> None:
    """Figures 10 and 11: an image and its clusters for each method."""
    names = [name for name in rows[0] if name != "pixel" and not name.endswith(" cluster")]
    side = int(np.sqrt(len(rows)))
    with figure(target, 2, len(names), figsize=(1.8 * len(names), 3.9)) as axes:
        for column, name in enumerate(names):
            for axis, key in zip(axes[:, column], (name, f"{name} cluster"), strict=True):
                axis.imshow(np.array([row[key] for row in rows], float).reshape(side, side), cmap="gray")
                axis.set(xticks=[], yticks=[])
            axes[0, column].set_title(name, fontsize="small")
