"""Figures of comparisons, as in `fedpca_flwr.figures.plots`: angles, bytes and other results of several methods."""

from collections.abc import Mapping, Sequence
from textwrap import wrap
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import NullFormatter
from numpy.typing import NDArray

from fedpca_flwr.analyses.inputs import takes
from fedpca_flwr.figures import style
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.eigen import EXACT_ANGLE_DEGREES


@takes("curves", Mapping, "give the angle after each round by the method's name: {'sub-it': [9.1, 0.2]}")
@rc_context(style.STYLE)
def angle_by_round(
    curves: Mapping[str, Sequence[float]], *, tolerance: float | None = None, title: str = "", ax: Axes | None = None
) -> Figure:
    """Draw the largest angle to the exact components after each round.

    Parameters
    ----------
    curves : mapping of str to sequence of float
        Angles in degrees after each round, by the name of the method.
    tolerance : float, optional
        Angle in degrees at which the figure has a line.
    title, ax : optional
        Title, by default none, and axes to draw into.

    Returns
    -------
    Figure
    """
    figure, axes = style.canvas(5.4, 4, ax)
    for name, angles, (colour, marker) in zip(style.short_names(curves), curves.values(), style.looks(), strict=False):
        axes.semilogy(range(1, len(angles) + 1), np.maximum(angles, 1e-14), color=colour, marker=marker, label=name)
    if tolerance is not None:
        axes.axhline(tolerance, color=style.GREY, linestyle="--", label=f"tolerance: {tolerance:g} degrees")
    axes.set(xlabel="round", ylabel="largest angle to the exact components (degrees)")
    style.number_axis(axes.xaxis, max(map(len, curves.values())))
    style.add_title(axes, title)
    style.add_legend(ax or figure, axes.get_legend_handles_labels()[0])
    return figure


@takes("points", Mapping, "give pairs of MB and degrees by the method's name: {'sub-it': [(0.5, 1e-3)]}")
@rc_context(style.STYLE)
def bytes_against_error(
    points: Mapping[str, Sequence[tuple[float, ...]]], *, title: str = "", ax: Axes | None = None
) -> Figure:
    """Draw bytes sent per client against the largest angle to the exact components, with the Pareto front.

    The line joins the points that no other point beats in both numbers. Angles below `EXACT_ANGLE_DEGREES` are drawn as
    equal, because they are only rounding. An arrow points down from a mean whose interval reaches zero.

    Parameters
    ----------
    points : mapping of str to sequence of (MB, degrees) or (MB, degrees, half of the interval)
        By method. The third number is half of the 95 % interval of an angle that is a mean over several runs.
    title, ax : optional
        Title, by default none, and axes to draw into.

    Returns
    -------
    Figure
    """
    curves = {name: np.array([(*point, 0.0)[:3] for point in line]) for name, line in points.items()}
    everything = np.concatenate(list(curves.values()))
    unit = 1e3 if (small := everything[:, 0].max() < 1) else 1.0
    sizes = unit * everything[:, 0]
    figure, axes = style.canvas(5.2, 4.2, ax)
    axes.set(xscale="log", yscale="log")
    handles = list[Artist]()
    for name, line, (colour, marker) in zip(style.short_names(curves), curves.values(), style.looks(), strict=False):
        how = {"color": colour, "marker": marker, "label": name, "linestyle": "none"}
        handles.append(_draw_intervals(axes, unit * line[:, 0], line[:, 1], line[:, 2], EXACT_ANGLE_DEGREES, how))
    front = _pareto_front(everything[:, :2] * [unit, 1.0])
    handles += axes.step(*np.transpose(front), where="post", color=style.GREY, linewidth=1, zorder=0, label="front")
    handles.append(_draw_exact_band(axes))
    largest = max(1e-3, everything[:, 1:].sum(axis=1).max().clip(max=90))
    axes.set(xlim=(sizes.min() / 1.3, 1.3 * sizes.max()), ylim=(EXACT_ANGLE_DEGREES / 5, 10 * largest))
    axes.set_xlabel(f"{'kB' if small else 'MB'} up per client")
    axes.set_ylabel("largest angle to the exact components (degrees)")
    style.few_ticks(axes.xaxis, sizes)
    style.add_title(axes, title)
    handles += _interval_entries(everything[:, 1:], EXACT_ANGLE_DEGREES, logarithmic=True)
    style.add_legend(ax or figure, handles)
    return figure


@rc_context(style.STYLE)
def results_over(
    panels: Mapping[str, Mapping[str, Sequence[tuple[float, float, float]]]],
    *,
    xlabel: str,
    ylabel: str,
    angles: bool = False,
    ticks: Sequence[str] = (),
    title: str = "",
    ax: Axes | None = None,
) -> Figure:
    """Draw means of several methods along an axis, with bars for the 95 % intervals of the means.

    Methods stand side by side at each position. An axis that spans more than a factor of ten is logarithmic. On such an
    axis an arrow points down from a mean whose interval reaches zero, and the legend says so.

    Parameters
    ----------
    panels : mapping of str to mapping of str to sequence of (position, mean, half of the interval)
        Points by the name of the method, by the title of a panel. The interval is that of 95 % confidence.
    xlabel, ylabel : str
        Labels of the axes.
    angles : bool, default False
        Whether means are angles in degrees. Angles below `EXACT_ANGLE_DEGREES` are then drawn as equal, because they
        are only rounding.
    ticks : sequence of str, default ()
        Names of the positions 0, 1, ... of results that have no order, such as those of methods. No line joins them.
    title : str, default ""
    ax : Axes, optional
        Axes to draw into, for a single panel.

    Returns
    -------
    Figure
    """
    columns = 2 if len(panels) == 4 else min(3, len(panels))
    width = max(6.5 if columns == 1 else 3.6 * columns, columns * (1 + 0.4 * len(ticks)))
    size = width, 1 + 3.2 * -(-len(panels) // columns)
    figure, grid = style.panel_grid(ax, len(panels), columns, size, sharex=True, sharey=True)
    points = np.array([point for curves in panels.values() for line in curves.values() for point in line])
    floor = EXACT_ANGLE_DEGREES if angles else -np.inf
    positions, means = np.unique(points[:, 0]), points[:, 1].clip(min=floor)
    names = list(dict.fromkeys(name for curves in panels.values() for name in curves))
    on_log = [values.min() > 0 and values.max() >= 10 * values.min() for values in (positions, means)]
    for axes, (heading, curves) in zip(grid, panels.items(), strict=True):
        axes.set(xscale="log" if on_log[0] and not ticks else "linear", yscale="log" if on_log[1] else "linear")
        axes.set_title("\n".join(wrap(heading, 40)), fontsize=10)
        if angles and means.min() <= floor:
            _draw_exact_band(axes)
        looks = zip(names, style.short_names(names), style.looks(), strict=False)
        for i, (name, label, (colour, marker)) in enumerate(looks):
            if name in curves:
                shift = (i - (len(names) - 1) / 2) / len(names)
                how = {"color": colour, "marker": marker, "label": label, "linestyle": "none" if ticks else "-"}
                _draw_means(axes, np.array(curves[name]), positions, shift, floor, how)
        axes.set_xticks(positions, style.short_names(ticks) or [f"{position:g}" for position in positions], minor=False)
        axes.tick_params(axis="x", labelrotation=45 if ticks else 0)
        for label in axes.get_xticklabels() if ticks else ():
            label.set(ha="right", rotation_mode="anchor")
        axes.xaxis.set_minor_formatter(NullFormatter())
    style.label_edges(grid, columns, xlabel, ylabel)
    style.add_title(figure, title)
    entries = {label: handle for axes in grid for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    entries.pop("", None)
    notes = _interval_entries(points[:, 1:], floor, logarithmic=on_log[1])
    style.add_legend(ax or figure, [*entries.values(), *notes])
    return figure


def _draw_exact_band(axes: Axes) -> Artist:
    """Draw a band about the angle at which exact results are drawn, whatever their rounding."""
    floor, label = EXACT_ANGLE_DEGREES, f"exact (below {EXACT_ANGLE_DEGREES:g})"
    return axes.axhspan(floor / 3, floor * 3, color=style.GREY, alpha=0.2, linewidth=0, label=label)


def _interval_entries(points: Array, floor: float, *, logarithmic: bool) -> list[Line2D]:
    """Return the entries of a legend that say what bars and arrows are, for means and half widths (n, 2)."""
    how: dict[str, Any] = {"linestyle": "none", "markersize": 14, "color": style.GREY}
    entries = [Line2D([], [], label="bar: 95 % interval\nof the mean", marker="|", **how)] if points[:, 1].any() else []
    if logarithmic and _reaches_zero(points[:, 0], points[:, 1], floor).any():
        entries.append(Line2D([], [], label="the interval reaches 0", marker="$\\downarrow$", **how))
    return entries


def _reaches_zero(means: Array, half_widths: Array, floor: float) -> NDArray[np.bool_]:
    """Return for which means (n,) above the floor the interval reaches zero, which a logarithmic axis has not."""
    return np.asarray((means > floor) & (half_widths > 0) & (means - half_widths <= max(floor, 0.0)))


def _draw_means(axes: Axes, line: Array, positions: Array, shift: float, floor: float, how: dict[str, Any]) -> None:
    """Draw a method's line (n, 3) of positions, means and half widths, shifted by a share of the least gap."""
    x, means, half_widths = line.T
    gap = np.diff(np.log(positions) if axes.get_xscale() == "log" else positions).min(initial=np.inf)
    step = 0.15 * shift * (gap if np.isfinite(gap) else 1.0)
    x = x * np.exp(step) if axes.get_xscale() == "log" else x + step
    _draw_intervals(axes, x, means, half_widths, floor, {"linewidth": 1.2, **how})


def _draw_intervals(
    axes: Axes, x: Array, means: Array, half_widths: Array, floor: float, how: Mapping[str, Any]
) -> Line2D:
    """Draw means with bars, none below the floor, and arrows to 0 on a logarithmic axis; return the legend's entry."""
    shown = means.clip(min=floor)
    low, high = np.where((means > floor) & (half_widths > 0), [means - half_widths, means + half_widths], shown)
    low = np.where(shown >= 0, low.clip(min=0.0), low)  # no result of a comparison is below zero
    high = np.maximum(shown, high.clip(max=90.0 if np.isfinite(floor) else np.inf))  # no angle is above 90 degrees
    endless = _reaches_zero(means, half_widths, floor) & (axes.get_yscale() == "log")
    bars: dict[str, Any] = {"fmt": "none", "ecolor": how["color"], "color": how["color"]}
    entry = axes.plot(x, shown, fillstyle="none", **how)[0]
    if half_widths.any():
        axes.errorbar(x, shown, yerr=[np.where(endless, 0.0, shown - low), high - shown], capsize=3, **bars)
    if endless.any():
        axes.errorbar(x[endless], shown[endless], yerr=shown[endless] * 2 / 3, uplims=True, **bars)
    return entry


def _pareto_front(pairs: Array) -> list[tuple[float, float]]:
    """Return the pairs (size, degrees) of (n, 2) that no other beats in both, by size; exact angles count as equal."""
    best, front = np.inf, []
    for size, degrees in sorted((size, max(degrees, EXACT_ANGLE_DEGREES)) for size, degrees in pairs.tolist()):
        if degrees < best:
            best = degrees
            front.append((size, degrees))
    return front
