"""Figures of results of `fedpca_flwr.analyses`, as in `fedpca_flwr.figures.plots`."""

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.transforms import Bbox

from fedpca_flwr import analyses
from fedpca_flwr.analyses import Categories, HowMany, Outliers, Reading
from fedpca_flwr.analyses.inputs import takes
from fedpca_flwr.errors import ConfigError, printable_text, value_text
from fedpca_flwr.figures.plots import MAX_PLOTTED_ROWS
from fedpca_flwr.figures.style import (
    COLOURS,
    GREY,
    PAPER,
    STYLE,
    add_legend,
    canvas,
    few_ticks,
    number_axis,
    short_names,
    thin_rows,
)
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.model.model import PCAModel
from fedpca_flwr.model.tables import tables_by_name

P = ParamSpec("P")
Result = TypeVar("Result")

MAX_NAMED_ROWS, MAX_NAME_CHARACTERS = 10, 20  # odd rows that a map names, and characters of a name that it shows
__all__ = ["biplot", "contributions", "how_many", "levels", "outlier_map", "squared_correlations", "variables"]


def __dir__() -> list[str]:
    """Return the names of the plots alone."""
    return __all__


def _draws(name: str, kind: type[Result], analysis: Callable[[PCAModel], Result]) -> Callable[..., Any]:
    """Return a decorator of plots whose first argument is a result: of a model they get its ``analysis``."""

    def decorate(plot: Callable[Concatenate[Result, P], Figure]) -> Callable[Concatenate[Result | PCAModel, P], Figure]:
        @takes(name, (kind, PCAModel), f"make one with analyses.{analysis.__name__}(moments)")
        @wraps(plot)
        def of_model(result: Result | PCAModel, /, *args: P.args, **options: P.kwargs) -> Figure:
            with rc_context(STYLE):
                return plot(analysis(result) if isinstance(result, PCAModel) else result, *args, **options)

        return of_model

    return decorate


SHOWN = 30  # eigenvalues, and names of features, of which more would not be legible


@_draws("result", HowMany, analyses.how_many)
def how_many(result: HowMany) -> Figure:
    """Draw the leading eigenvalues, the band for unrelated features, and the number of components of each rule.

    Parameters
    ----------
    result : HowMany, or PCAModel that keeps moments

    Returns
    -------
    Figure
    """
    first = result.spectrum[:SHOWN]
    number, band = np.arange(1, first.size + 1), result.null_band[:SHOWN]
    figure, axes = canvas(5.2, 3.8)
    axes.plot(number, first, "o-", color=COLOURS[0], markersize=4, fillstyle="none", label="eigenvalues")
    look: dict[str, Any] = {"color": GREY, "alpha": 0.3, "linewidth": 0}
    axes.fill_between(number[: band.size], 0, band, label="unrelated features: 95 % of draws", **look)
    stops = [(rule, k) for rule, k in result.by_rule.items() if k is not None and k <= first.size]
    for place, ((rule, k), colour) in enumerate(zip(stops, COLOURS[1:], strict=False)):
        axes.axvline(k + 0.38 + 0.06 * place, color=colour, linewidth=1.5, label=f"{k}: {rule}")
    axes.set(xlabel="component", ylabel="eigenvalue: variance of the component", ylim=(0, None))
    number_axis(axes.xaxis, first.size)
    axes.set_xlim(0.2, first.size + 1)
    add_legend(figure, axes.get_legend_handles_labels()[0])
    return figure


@takes("outliers", Outliers, "make them with analyses.outliers(model, X)")
@rc_context(STYLE)
def outlier_map(outliers: Outliers) -> Figure:
    """Draw each row's distance from the components (SPE) against T squared, with limits; outliers are crosses.

    The oddest rows, at most `MAX_NAMED_ROWS`, are named by their labels, or else by their numbers from 0. A name has
    no place where all places beside its row are taken by names of odder rows.

    Parameters
    ----------
    outliers : Outliers
        Outlier statistics. The figure shows at most `MAX_PLOTTED_ROWS` of the rows within the limits.

    Returns
    -------
    Figure
    """
    exceeding = outliers.odd
    usual = np.flatnonzero(~exceeding)
    usual = usual[thin_rows(usual.size, MAX_PLOTTED_ROWS)]
    figure, axes = canvas(5.5, 4.2)
    for rows, marker, colour, name in (
        (usual, "o", COLOURS[0], "rows"),
        (np.flatnonzero(exceeding), "x", COLOURS[3], f"odd rows: {exceeding.sum()} of {exceeding.size}"),
    ):
        t2, spe = outliers.t_squared[rows], outliers.spe[rows]
        axes.plot(t2, spe, marker, color=colour, markersize=4, fillstyle="none", label=name)
    line: dict[str, Any] = {"color": GREY, "linestyle": "--", "linewidth": 1}
    if not outliers.note:
        axes.axvline(outliers.t_squared_limit, label=f"limits of {100 * outliers.level:g} % of new rows", **line)
        axes.axhline(outliers.spe_limit, **line)
    axes.set(xlabel="T²: squared distance within the components", ylabel="SPE: squared distance off the components")
    axes.set(xscale="log", yscale="log")
    for axis, values in ((axes.xaxis, outliers.t_squared), (axes.yaxis, outliers.spe)):
        few_ticks(axis, values)
    add_legend(figure, axes.get_legend_handles_labels()[0])
    figure.draw_without_rendering()  # makes the layout, by which names are measured
    names = outliers.labels or range(exceeding.size)
    occupied: list[Bbox] = []
    for row in outliers.oddest[:MAX_NAMED_ROWS].tolist():
        text = printable_text(str(names[row]))
        text = text if len(text) <= MAX_NAME_CHARACTERS else f"{text[: MAX_NAME_CHARACTERS - 1]}…"
        occupied += _name_row(axes, text, (outliers.t_squared[row], outliers.spe[row]), occupied)
    return figure


def _name_row(axes: Axes, name: str, point: tuple[float, float], occupied: Sequence[Bbox]) -> list[Bbox]:
    """Write a name above or below its point, on the right or left; return its box in a list, empty without room."""
    for offset, side in (((3, 3), "left"), ((-3, 3), "right"), ((3, -9), "left"), ((-3, -9), "right")):
        how: dict[str, Any] = {"textcoords": "offset points", "ha": side, "fontsize": "small", "parse_math": False}
        text = axes.annotate(name, point, offset, **how)
        box = text.get_window_extent()
        if not any(box.overlaps(other) for other in occupied):
            return [box]
        text.remove()
    return []


@_draws("reading", Reading, analyses.read)
def biplot(reading: Reading, parties: Any) -> Figure:
    """Draw the rows' scores on the first two components, and the features' correlations as arrows.

    Parameters
    ----------
    reading : Reading, or PCAModel that keeps moments
        Reading of at least two components, rotated or not. Scores and arrows are those of this object.
    parties : mapping of str to table, list of tables, or one table, of shape (n_i, d)
        Rows to draw. The figure divides each component by its largest score.

    Returns
    -------
    Figure

    Raises
    ------
    ConfigError, DataError
        If there are fewer than two components; if rows do not fit the features of the reading.
    """
    tables = list(tables_by_name(parties).values())
    if len(reading.correlations) < 2 or not tables:
        raise ConfigError("a biplot shows the first two components; read at least two, and give rows")
    scores = np.vstack([reading.scores(table) for table in tables])
    unit = np.abs(scores[:, :2]).max(axis=0)
    rows = (scores[thin_rows(len(scores), MAX_PLOTTED_ROWS), :2] / unit).T
    figure, axes = canvas(6.8, 6.5)
    axes.plot(*rows, "o", color=COLOURS[5], markersize=3, alpha=0.5, markeredgewidth=0)
    _arrows(figure, axes, reading, [_dots("rows: scores, each divided by its largest")])
    return figure


@_draws("reading", Reading, analyses.read)
def variables(reading: Reading) -> Figure:
    """Draw the correlations of features with the first two components as arrows in the unit circle.

    The length of an arrow is the root of the share of the feature's variance that the two components hold.
    Supplementary features have dashed arrows.

    Parameters
    ----------
    reading : Reading, or PCAModel that keeps moments
        Reading of at least two components.

    Returns
    -------
    Figure

    Raises
    ------
    ConfigError
        If there are fewer than two components.
    """
    if len(reading.correlations) < 2:
        raise ConfigError("a circle of correlations shows the first two components; read at least two")
    figure, axes = canvas(6.8, 6.5)
    turn = np.linspace(0, 2 * np.pi, 200)
    axes.plot(np.cos(turn), np.sin(turn), color=GREY, linewidth=1)
    _arrows(figure, axes, reading, [Line2D([], [], color=GREY, linewidth=1, label="all of a feature's variance")])
    return figure


@takes("categories", Categories, "make them with analyses.categories(model)")
@takes("scores", np.ndarray, "take them from model.transform(X), an array")
@rc_context(STYLE)
def levels(categories: Categories, scores: Array) -> Figure:
    """Draw the levels of categories at the mean scores of their rows on the first two components, among the rows.

    Parameters
    ----------
    categories : Categories
        Result for at least two components.
    scores : ndarray of shape (n, at least 2)
        Scores of the rows to draw, for the same components.

    Returns
    -------
    Figure

    Raises
    ------
    ConfigError
        If there are fewer than two components.
    """
    if categories.coordinates.shape[1] < 2 or scores.ndim != 2 or scores.shape[1] < 2:
        raise ConfigError("a figure of levels shows the first two components; give at least two, and scores of both")
    figure, axes = canvas(6.8, 5.2)
    rows = scores[thin_rows(len(scores), MAX_PLOTTED_ROWS), :2].T
    axes.plot(*rows, "o", color=COLOURS[5], markersize=3, alpha=0.5, markeredgewidth=0)
    shown = np.argsort(-categories.squared_cosines[:, :2].sum(axis=1), kind="stable")[:SHOWN]
    tips = categories.coordinates[shown, :2]
    axes.plot(*tips.T, "s", color=COLOURS[3], markersize=5)
    axes.set(xlabel="score on PC1", ylabel="score on PC2")
    levels_text = f"levels: mean of their rows{_part_text(len(shown), len(categories.levels))}"
    square = Line2D([], [], linestyle="none", marker="s", markersize=5, color=COLOURS[3], label=levels_text)
    add_legend(figure, [_dots("rows"), square], below=True)
    figure.draw_without_rendering()  # makes the layout, by which names are measured
    columns, values = zip(*(categories.levels[j].rsplit("=", 1) for j in shown.tolist()), strict=True)
    names = zip(short_names(columns, 16), short_names(values, 16), strict=True)
    _name_tips(axes, tips, [f"{column}={value}" for column, value in names])
    return figure


@takes("categories", Categories, "make them with analyses.categories(model)")
@rc_context(STYLE)
def squared_correlations(categories: Categories) -> Figure:
    """Draw each column's squared correlation with the first two components, categories included.

    Parameters
    ----------
    categories : Categories
        Result for at least two components.

    Returns
    -------
    Figure

    Raises
    ------
    ConfigError
        If there are fewer than two components.
    """
    if categories.coordinates.shape[1] < 2:
        raise ConfigError("squared correlations are shown with the first two components; the model has one")
    figure, axes = canvas(5.6, 5.4)
    shown = np.argsort(-categories.squared_correlations[:, :2].sum(axis=1), kind="stable")[:SHOWN]
    tips = categories.squared_correlations[shown, :2]
    axes.plot(*tips.T, "s", color=COLOURS[3], markersize=5)
    axes.set(xlim=(-0.12, 1.12), ylim=(-0.05, 1.08))
    part = _part_text(len(shown), len(categories.columns))
    axes.set(xlabel=f"squared correlation with PC1{part}", ylabel="squared correlation with PC2")
    figure.draw_without_rendering()
    _name_tips(axes, tips, short_names(categories.columns[j] for j in shown.tolist()))
    return figure


@_draws("reading", Reading, analyses.read)
def contributions(reading: Reading, component: int = 1) -> Figure:
    """Draw each feature's share in a component, largest first, and a line at the share of 1 / d.

    Parameters
    ----------
    reading : Reading, or PCAModel that keeps moments
    component : int, default 1
        Number of the component, from 1.

    Returns
    -------
    Figure

    Raises
    ------
    ConfigError
        If the reading does not have this component.
    """
    shares = reading.contributions[:, : len(reading.communalities) - reading.supplementary]
    if not isinstance(component, int | np.integer) or component not in range(1, len(shares) + 1):
        raise ConfigError(f"'component' is {value_text(component)}, expected 1 to {len(shares)}")
    percentages, d = 100 * shares[component - 1], shares.shape[1]
    shown = np.argsort(-percentages, kind="stable")[:SHOWN]
    names = short_names(reading.features[j] if reading.features else j for j in shown.tolist())
    figure, axes = canvas(4.6 + 0.085 * max(map(len, names)), 1.4 + 0.21 * shown.size)
    axes.barh(range(shown.size), percentages[shown], color=COLOURS[0])
    mean = axes.axvline(100 / d, color=GREY, linestyle="--", label=f"{100 / d:.3g} %, if all features had the same")
    axes.set_yticks(range(shown.size), names)
    axes.set_ylim(shown.size - 0.5, -0.5)
    axes.set(xlabel=f"contribution to PC{component} (%)")
    axes.set_ylabel("" if shown.size == d else f"the largest {shown.size} of {d} features")
    add_legend(figure, [mean], below=True)
    return figure


def _part_text(shown: int, total: int) -> str:
    """Return text that says how many of all are shown; empty if all are."""
    return "" if shown == total else f" ({shown} of {total})"


def _dots(text: str) -> Line2D:
    """Return a legend entry for the dots of rows."""
    return Line2D([], [], linestyle="none", marker="o", markersize=4, color=COLOURS[5], label=text)


def _arrows(figure: Figure, axes: Axes, reading: Reading, handles: list[Line2D]) -> None:
    """Draw the features' correlations with two components as arrows with names, and a legend after ``handles``."""
    x, y = reading.correlations[:2]
    shown = np.argsort(-(x**2 + y**2), kind="stable")[:SHOWN]
    first = x.size - reading.supplementary
    for j in shown.tolist():
        colour, line = (COLOURS[3], "-") if j < first else (COLOURS[0], "--")
        how = {"arrowstyle": "->", "color": colour, "linestyle": line, "alpha": 0.7}
        axes.annotate("", (x[j], y[j]), (0, 0), arrowprops=how)
    axes.set(xlim=(-1.3, 1.3), ylim=(-1.3, 1.3), aspect="equal")
    axes.set(xlabel="correlation with PC1", ylabel="correlation with PC2")
    names = [str(reading.features[j] if reading.features else j) for j in shown.tolist()]
    text = f"features{_part_text(shown.size, x.size)}"
    arrow: dict[str, Any] = {"color": COLOURS[3], "marker": ">", "markevery": (1, 2), "markersize": 4}
    handles.append(Line2D([], [], label=f"{text}: correlations", **arrow))
    if (shown >= first).any():
        handles.append(Line2D([], [], color=COLOURS[0], linestyle="--", label="without part in the components"))
    add_legend(figure, handles, below=True)
    figure.draw_without_rendering()  # makes the layout, by which names are measured
    tips = reading.correlations[:2, shown].T
    _name_tips(axes, tips, short_names(names), avoid=np.concatenate([share * tips for share in (0.3, 0.5, 0.7, 0.9)]))


def _name_tips(axes: Axes, tips: Array, names: Sequence[str], avoid: Array | None = None) -> None:
    """Write each name near its point (n, 2), and a line between, where there is room inside the axes.

    Names do not overlap other names, points and the points ``avoid`` (m, 2), if a grid of 61 x 61 places has room.
    """
    inside, dots = axes.get_window_extent(), np.diff(axes.transData.transform([(0, 0), (1, 1)]), axis=0)[0]  # per unit
    low, high = axes.transData.inverted().transform([inside.min, inside.max])
    marks = tips if avoid is None else np.concatenate([tips, avoid])
    occupied = np.column_stack([marks, np.broadcast_to(5 / dots, marks.shape)])  # 5 dots of a mark
    paper = {"facecolor": PAPER, "alpha": 0.7, "edgecolor": "none", "pad": 0.5}
    for tip, name in zip(tips, names, strict=True):
        text = axes.annotate(name, (0, 0), ha="center", va="center", fontsize=8, bbox=paper)
        half = np.array(text.get_window_extent().size) / dots / 2 + 0.01
        grid = np.stack(np.meshgrid(*(np.linspace(low + half, high - half, 61).T)), axis=-1).reshape(-1, 2)
        ideal = tip * (1 + 0.06 / max(np.hypot(*tip), 1e-9)) + np.sign(tip) * half * [1, 0]
        within = (np.hypot(*tip) - np.hypot(*grid.T)).clip(min=0.0)  # arrows are there, so it counts as farther away
        order = np.argsort(np.sum((grid - ideal) ** 2, axis=1) + 9 * within**2, kind="stable")
        clear = np.abs(grid[order, None] - occupied[:, :2]) >= half + occupied[:, 2:]
        place = grid[order[np.argmax(clear.any(axis=2).all(axis=1))]]
        text.set_position(place)
        near = np.clip(tip, place - half, place + half)  # of the name's box
        axes.plot(*np.stack([tip, near]).T, color=GREY, linewidth=0.4, zorder=0)
        occupied = np.vstack([occupied, np.concatenate([place, half])])
