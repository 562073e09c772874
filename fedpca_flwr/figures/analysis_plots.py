"""Figures of what `fedpca_flwr.analyses` finds, in the manner of `fedpca_flwr.figures.plots`; they need the extra
``plots``."""

from __future__ import annotations

import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fedpca_flwr.analyses import HowMany, Outliers, Reading
from fedpca_flwr.errors import ConfigError
from fedpca_flwr.figures.plots import MOST
from fedpca_flwr.figures.style import COLOURS, GREY, STYLE, few_ticks
from fedpca_flwr.maths.arrays import Array

SHOWN = 30  # eigenvalues, and names of features, of which more would not be legible


@rc_context(STYLE)
def how_many(found: HowMany) -> Figure:
    """The leading eigenvalues with the band of unrelated features, and where each rule stops."""
    first = found.spectrum[:SHOWN]
    number, band = np.arange(1, first.size + 1), found.null_band[:SHOWN]
    figure = Figure(figsize=(7.5, 3.8))
    axes = figure.subplots()
    axes.plot(number, first, "o-", color=COLOURS[0], markersize=4, fillstyle="none", label="eigenvalues")
    axes.fill_between(
        number[: band.size], 0, band, color=GREY, alpha=0.3, linewidth=0, label="unrelated features, up to 95 %"
    )
    stops = [(rule, k) for rule, k in found.by_rule.items() if k is not None and k <= first.size]
    for place, ((rule, k), colour) in enumerate(zip(stops, COLOURS[1:], strict=False)):
        axes.axvline(k + 0.38 + 0.06 * place, color=colour, linewidth=1.5, label=f"{k}: {rule}")
    axes.set(xlabel="component", ylabel="variance", ylim=(0, None), xlim=(0.4, first.size + 1))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5))
    return figure


@rc_context(STYLE)
def outlier_map(found: Outliers) -> Figure:
    """SPE against T squared of each row, with their limits; odd rows are crosses, of the others some are shown."""
    odd = found.odd
    others = np.flatnonzero(~odd)
    others = others[:: max(1, -(-others.size // MOST))]
    figure = Figure(figsize=(5.5, 4.2))
    axes = figure.subplots()
    for rows, marker, colour, name in (
        (others, "o", COLOURS[0], "rows"),
        (np.flatnonzero(odd), "x", COLOURS[3], f"odd rows: {odd.sum()} of {odd.size}"),
    ):
        t2, spe = found.t_squared[rows], found.spe[rows]
        axes.plot(t2, spe, marker, color=colour, markersize=4, fillstyle="none", label=name)
    axes.axvline(found.t_squared_limit, color=GREY, linestyle="--", linewidth=1, label="limits")
    axes.axhline(found.spe_limit, color=GREY, linestyle="--", linewidth=1)
    axes.set(xlabel="T² (within the components)", ylabel="SPE (off the components)", xscale="log", yscale="log")
    for axis, values in ((axes.xaxis, found.t_squared), (axes.yaxis, found.spe)):
        few_ticks(axis, values)
    axes.legend(loc="best")
    return figure


@rc_context(STYLE)
def biplot(found: Reading, scores: Array) -> Figure:
    """Rows in the first two components, each divided by its largest score, and the features' correlations as arrows.

    Parameters
    ----------
    found : Reading
        Of two components at least, not rotated.
    scores : ndarray of shape (n, at least 2)
        Those of the same components.
    """
    if len(found.correlations) < 2 or scores.ndim != 2 or scores.shape[1] < 2:
        raise ConfigError(
            "a biplot shows the first two components; give at least two, of the reading and of the scores"
        )
    x, y = found.correlations[:2]
    shown = np.argsort(-(x**2 + y**2), kind="stable")[:SHOWN]
    unit = np.abs(scores[:, :2]).max(axis=0)
    rows = (scores[:: max(1, -(-len(scores) // MOST)), :2] / unit).T
    figure = Figure(figsize=(5.5, 5.2))
    axes = figure.subplots()
    axes.plot(*rows, "o", color=COLOURS[5], markersize=3, alpha=0.5, markeredgewidth=0)
    for j in shown.tolist():
        axes.annotate("", (x[j], y[j]), (0, 0), arrowprops={"arrowstyle": "->", "color": COLOURS[3]})
    for j, place in zip(shown.tolist(), _apart(found.correlations[:2, shown]), strict=True):
        name = found.features[j] if found.features else str(j)
        axes.annotate(name, place, ha="center", va="center", fontsize=8)
    axes.set(xlim=(-1.15, 1.15), ylim=(-1.15, 1.15), aspect="equal")
    axes.set(xlabel="correlation with the first component", ylabel="correlation with the second")
    return figure


def _apart(tips: Array) -> list[tuple[float, float]]:
    """Places for the names of arrows with these tips (2, n): beyond the tip, as far out as others leave room."""
    places: list[tuple[float, float]] = []
    for x, y in tips.T.tolist():
        length = max(np.hypot(x, y), 1e-9)
        for step in range(12):
            reach = 1 + (0.07 + 0.055 * step) / length
            place = (x * reach, y * reach)
            if all(abs(place[0] - a) > 0.09 or abs(place[1] - b) > 0.06 for a, b in places):
                break
        places.append(place)
    return places
