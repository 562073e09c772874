"""Figures of results of `fedpca_flwr.analyses`, as in `fedpca_flwr.figures.plots`."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
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
from fedpca_flwr.figures import style
from fedpca_flwr.figures.rows import component_places, label_rows, model_title, points_of, scatter, tables_and_labels
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.model.model import PCAModel

P = ParamSpec("P")
Result = TypeVar("Result")

MAX_NAMED_ROWS, MAX_NAME_CHARACTERS = 10, 20  # odd rows that a map names, and characters of a name that it shows


def _draws(name: str, kind: type[Result], analysis: Callable[[PCAModel], Result]) -> Callable[..., Any]:
    """Return a decorator of plots of a result: of a model they get its ``analysis`` and its default title."""

    def decorate(plot: Callable[Concatenate[Result, P], Figure]) -> Callable[Concatenate[Result | PCAModel, P], Figure]:
        @takes(name, (kind, PCAModel), f"make one with analyses.{analysis.__name__}, or give the model, first")
        @wraps(plot)
        def of_model(result: Result | PCAModel, /, *args: P.args, **options: P.kwargs) -> Figure:
            model = getattr(result, "model", result)
            if options.get("title") is None:
                options["title"] = model_title(model) if isinstance(model, PCAModel) else ""
            with rc_context(style.STYLE):
                return plot(analysis(result) if isinstance(result, PCAModel) else result, *args, **options)

        return of_model

    return decorate


SHOWN = 30  # eigenvalues, and names of features, of which more would not be legible


@_draws("result", HowMany, analyses.how_many)
def how_many(result: HowMany, *, title: str | None = None, ax: Axes | None = None) -> Figure:
    """Draw the leading eigenvalues, the band for unrelated features, and the number of components of each rule.

    Parameters
    ----------
    result : HowMany, or PCAModel that keeps moments
    title, ax : optional
        As in `scores`.

    Returns
    -------
    Figure
    """
    first = result.spectrum[:SHOWN]
    number, band = np.arange(1, first.size + 1), result.null_band[:SHOWN]
    figure, axes = style.canvas(5.2, 3.8, ax)
    axes.plot(number, first, "o-", color=style.COLOURS[0], markersize=4, fillstyle="none", label="eigenvalues")
    look: dict[str, Any] = {"color": style.GREY, "alpha": 0.3, "linewidth": 0}
    axes.fill_between(number[: band.size], 0, band, label="unrelated features: 95 % of draws", **look)
    rules: dict[int, list[str]] = {}
    for rule, k in result.by_rule.items():
        if k is not None and k <= first.size:
            rules.setdefault(k, []).append(rule)
    for place, k in enumerate(sorted(rules)):
        label = "\n".join([f"{k}: {rules[k][0]}", *(f"    {rule}" for rule in rules[k][1:])])
        axes.axvline(k + 0.5, color=style.COLOURS[3], linewidth=1.2, label=label)
        above = (3, -11 - 12 * (place % 2))  # neighbours have room
        axes.annotate(str(k), (k + 0.5, 1), above, ("data", "axes fraction"), textcoords="offset points")
    axes.set(xlabel="component", ylabel="eigenvalue: variance of the component", ylim=(0, None))
    style.number_axis(axes.xaxis, first.size)
    axes.set_xlim(0.2, first.size + 1)
    style.add_title(axes, title)
    style.add_legend(ax or figure, axes.get_legend_handles_labels()[0])
    return figure


@takes("model", (Outliers, PCAModel), "give the model and its parties, or a result of analyses.outliers")
@rc_context(style.STYLE)
def outlier_map(
    model: Outliers | PCAModel, parties: Any = None, *, title: str | None = None, ax: Axes | None = None
) -> Figure:
    """Draw each row's distance from the components (SPE) against T squared, with limits; outliers are crosses.

    The oddest rows, at most `MAX_NAMED_ROWS`, are named by their labels, or else by their numbers from 0. A name has
    no place where all places beside its row are taken by names of odder rows.

    Parameters
    ----------
    model : PCAModel or Outliers
        Model, or outlier statistics. The figure shows at most `MAX_PLOTTED_ROWS` of the rows within the limits.
    parties : mapping of str to table, list of tables, or one table, of shape (n_i, d), optional
        Rows of a model.
    title, ax : optional
        As in `scores`.

    Returns
    -------
    Figure

    Raises
    ------
    ConfigError, DataError
        As `fedpca_flwr.analyses.outliers`.
    """
    outliers = model if isinstance(model, Outliers) else _outliers_of(model, parties)
    exceeding = outliers.odd
    usual = np.flatnonzero(~exceeding)
    usual = usual[style.thin_rows(usual.size, style.MAX_PLOTTED_ROWS)]
    figure, axes = style.canvas(5.5, 4.2, ax)
    style.add_title(axes, title, model_title(model) if isinstance(model, PCAModel) else "")
    for rows, marker, colour, name in (
        (usual, "o", style.COLOURS[0], "rows"),
        (np.flatnonzero(exceeding), "x", style.COLOURS[3], f"odd rows: {exceeding.sum()} of {exceeding.size}"),
    ):
        t2, spe = outliers.t_squared[rows], outliers.spe[rows]
        axes.plot(t2, spe, marker, color=colour, markersize=4, fillstyle="none", label=name)
    line: dict[str, Any] = {"color": style.GREY, "linestyle": "--", "linewidth": 1}
    if not outliers.note:
        axes.axvline(outliers.t_squared_limit, label=f"limits of {100 * outliers.level:g} % of new rows", **line)
        axes.axhline(outliers.spe_limit, **line)
    axes.set(xlabel="T²: squared distance within the components", ylabel="SPE: squared distance off the components")
    axes.set(xscale="log", yscale="log")
    for axis, values in ((axes.xaxis, outliers.t_squared), (axes.yaxis, outliers.spe)):
        style.few_ticks(axis, values)
    style.add_legend(ax or figure, axes.get_legend_handles_labels()[0])
    figure.draw_without_rendering()  # makes the layout, by which names are measured
    names = outliers.labels or range(exceeding.size)
    occupied: list[Bbox] = []
    for row in outliers.oddest[:MAX_NAMED_ROWS].tolist():
        text = printable_text(str(names[row]))
        text = text if len(text) <= MAX_NAME_CHARACTERS else f"{text[: MAX_NAME_CHARACTERS - 1]}…"
        occupied += _name_row(axes, text, (outliers.t_squared[row], outliers.spe[row]), occupied)
    return figure


def _outliers_of(model: PCAModel, parties: Any) -> Outliers:
    """Return the outlier statistics of all parties' rows."""
    tables, *_ = tables_and_labels(parties, None, model)
    parts = [analyses.outliers(model, table) for table in tables.values()]
    keys = ("t_squared", "spe", "t_squared_contributions", "spe_contributions")
    joined: dict[str, Any] = {key: np.concatenate([getattr(part, key) for part in parts]) for key in keys}
    labels = sum((part.labels for part in parts), ())
    return replace(parts[0], **joined, labels=labels if len(labels) == len(joined["spe"]) else ())


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
def biplot(
    reading: Reading,
    parties: Any,
    *,
    labels: Any = None,
    components: Sequence[int] = (1, 2),
    title: str | None = None,
    ax: Axes | None = None,
) -> Figure:
    """Draw the rows' scores on two components, and the features' correlations as arrows.

    Parameters
    ----------
    reading : Reading, or PCAModel that keeps moments
        Reading of at least two components, rotated or not. Scores and arrows are those of this object.
    parties : mapping of str to table, list of tables, or one table, of shape (n_i, d)
        Rows to draw. The figure divides each component by its largest score.
    labels, components, title, ax : optional
        As in `scores`.

    Returns
    -------
    Figure

    Raises
    ------
    ConfigError, DataError
        If the reading has no such components; if rows or labels do not fit the reading.
    """
    places = component_places(components, len(reading.correlations))
    tables, row_labels, column = tables_and_labels(parties, labels, reading.model)
    points = {name: reading.scores(table)[:, places] for name, table in tables.items()}
    unit = np.abs(np.concatenate(list(points.values()))).max(axis=0)
    figure, axes = style.canvas(6.8, 6.5, ax)
    points = {name: part / unit for name, part in points.items()}
    handles = _row_dots(axes, points, row_labels, column)
    handles[0].set_label("rows: scores, each divided by its largest")
    style.add_title(axes, title)
    _arrows(axes, reading, places, handles, ax or figure)
    return figure


@_draws("reading", Reading, analyses.read)
def variables(
    reading: Reading, *, components: Sequence[int] = (1, 2), title: str | None = None, ax: Axes | None = None
) -> Figure:
    """Draw the correlations of features with two components as arrows in the unit circle.

    The length of an arrow is the root of the share of the feature's variance that the two components hold.
    Supplementary features have dashed arrows.

    Parameters
    ----------
    reading : Reading, or PCAModel that keeps moments
        Reading of at least two components.
    components, title, ax : optional
        As in `scores`.

    Returns
    -------
    Figure

    Raises
    ------
    ConfigError
        If the reading has no such components.
    """
    places = component_places(components, len(reading.correlations))
    figure, axes = style.canvas(6.8, 6.5, ax)
    turn = np.linspace(0, 2 * np.pi, 200)
    axes.plot(np.cos(turn), np.sin(turn), color=style.GREY, linewidth=1)
    circle = Line2D([], [], color=style.GREY, linewidth=1, label="all of a feature's variance")
    style.add_title(axes, title)
    _arrows(axes, reading, places, [circle], ax or figure)
    return figure


@takes("model", (Categories, PCAModel), "make it with analyses.categories, or give the model, first")
@rc_context(style.STYLE)
def levels(
    model: Categories | PCAModel,
    parties: Any,
    *,
    labels: Any = None,
    components: Sequence[int] = (1, 2),
    title: str | None = None,
    ax: Axes | None = None,
) -> Figure:
    """Draw the levels of categories at the mean scores of their rows on two components, among the rows.

    Parameters
    ----------
    model : PCAModel or Categories
        Model of a mixed table, or result of `fedpca_flwr.analyses.categories`.
    parties : mapping of str to table, list of tables, or one table, of shape (n_i, d)
        Rows to draw. Beside a result they are scores, arrays of shape (n_i, k).
    labels, components, title, ax : optional
        As in `scores`.

    Returns
    -------
    Figure

    Raises
    ------
    ConfigError
        If the model or the scores have no such components; if labels do not fit the rows.
    """
    fitted = model if isinstance(model, PCAModel) else None
    categories = model if isinstance(model, Categories) else analyses.categories(model)
    places = component_places(components, categories.coordinates.shape[1])
    tables, row_labels, column = tables_and_labels(parties, labels, fitted)
    points = {name: points_of(name, table, fitted, components) for name, table in tables.items()}
    figure, axes = style.canvas(6.8, 5.2, ax)
    handles = _row_dots(axes, points, row_labels, column)
    shown = np.argsort(-categories.squared_cosines[:, places].sum(axis=1), kind="stable")[:SHOWN]
    tips = categories.coordinates[shown][:, places]
    axes.plot(*tips.T, "s", color=style.COLOURS[3], markersize=5)
    axes.set(xlabel=f"score on PC{places[0] + 1}", ylabel=f"score on PC{places[1] + 1}")
    levels_text = f"levels: mean of their rows{_part_text(len(shown), len(categories.levels))}"
    square = Line2D([], [], linestyle="none", marker="s", markersize=5, color=style.COLOURS[3], label=levels_text)
    style.add_title(axes, title, model_title(fitted))
    style.add_legend(ax or figure, [*handles, square], below=labels is None)
    figure.draw_without_rendering()  # makes the layout, by which names are measured
    columns, values = zip(*(categories.levels[j].rsplit("=", 1) for j in shown.tolist()), strict=True)
    names = zip(style.short_names(columns, 16), style.short_names(values, 16), strict=True)
    _name_tips(axes, tips, [f"{column}={value}" for column, value in names])
    return figure


@_draws("categories", Categories, analyses.categories)
def squared_correlations(
    categories: Categories, *, components: Sequence[int] = (1, 2), title: str | None = None, ax: Axes | None = None
) -> Figure:
    """Draw each column's squared correlation with two components, categories included.

    Parameters
    ----------
    categories : Categories, or PCAModel of a mixed table
        Result for at least two components.
    components, title, ax : optional
        As in `scores`.

    Returns
    -------
    Figure

    Raises
    ------
    ConfigError
        If the result has no such components.
    """
    places = component_places(components, categories.coordinates.shape[1])
    figure, axes = style.canvas(5.6, 5.4, ax)
    shown = np.argsort(-categories.squared_correlations[:, places].sum(axis=1), kind="stable")[:SHOWN]
    tips = categories.squared_correlations[shown][:, places]
    axes.plot(*tips.T, "s", color=style.COLOURS[3], markersize=5)
    axes.set(xlim=(-0.12, 1.12), ylim=(-0.05, 1.08))
    x, y = (f"squared correlation with PC{place + 1}" for place in places)
    axes.set(xlabel=f"{x}{_part_text(len(shown), len(categories.columns))}", ylabel=y)
    style.add_title(axes, title)
    figure.draw_without_rendering()
    _name_tips(axes, tips, style.short_names(categories.columns[j] for j in shown.tolist()))
    return figure


@_draws("reading", Reading, analyses.read)
def contributions(reading: Reading, component: int = 1, *, title: str | None = None, ax: Axes | None = None) -> Figure:
    """Draw each feature's share in a component, largest first, and a line at the share of 1 / d.

    Parameters
    ----------
    reading : Reading, or PCAModel that keeps moments
    component : int, default 1
        Number of the component, from 1.
    title, ax : optional
        As in `scores`.

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
    names = style.short_names(reading.features[j] if reading.features else j for j in shown.tolist())
    figure, axes = style.canvas(4.6 + 0.085 * max(map(len, names)), 1.4 + 0.21 * shown.size, ax)
    axes.barh(range(shown.size), percentages[shown], color=style.COLOURS[0])
    share_text = f"{100 / d:.3g} %, if all features had the same"
    mean = axes.axvline(100 / d, color=style.GREY, linestyle="--", label=share_text)
    axes.set_yticks(range(shown.size), names)
    axes.set_ylim(shown.size - 0.5, -0.5)
    axes.set(xlabel=f"contribution to PC{component} (%)")
    axes.set_ylabel("" if shown.size == d else f"the largest {shown.size} of {d} features")
    style.add_title(axes, title)
    style.add_legend(ax or figure, [mean], below=True)
    return figure


def _part_text(shown: int, total: int) -> str:
    """Return text that says how many of all are shown; empty if all are."""
    return "" if shown == total else f" ({shown} of {total})"


def _row_dots(axes: Axes, points: Mapping[str, Array], labels: Any, title: str) -> list[Line2D]:
    """Draw at most `MAX_PLOTTED_ROWS` rows as dots in the colours of their labels; return the legend's entries."""
    every = np.concatenate(list(points.values()))
    step = style.thin_rows(len(every), style.MAX_PLOTTED_ROWS)
    how: dict[str, Any] = {"s": 9, "alpha": 0.5, "linewidths": 0}
    dots = Line2D([], [], linestyle="none", marker="o", markersize=4, color=style.COLOURS[5], label="rows")
    if labels is None:
        axes.scatter(*every[step].T, color=style.COLOURS[5], **how)
        return [dots]
    shown = label_rows(labels, {name: len(part) for name, part in points.items()}, title)
    scatter(axes, every[step], shown.of(step), **{**how, "s": 16, "alpha": 0.6})
    dots.set_color(style.GREY)
    return [dots, *shown.entries(axes)]


def _arrows(axes: Axes, reading: Reading, places: Sequence[int], handles: list[Line2D], place: Figure | Axes) -> None:
    """Draw the features' correlations with two components as named arrows, and a legend after ``handles``."""
    x, y = reading.correlations[places]
    shown = np.argsort(-(x**2 + y**2), kind="stable")[:SHOWN]
    first = x.size - reading.supplementary
    for j in shown.tolist():
        colour, line = (style.COLOURS[3], "-") if j < first else (style.COLOURS[0], "--")
        how = {"arrowstyle": "->", "color": colour, "linestyle": line, "alpha": 0.7}
        axes.annotate("", (x[j], y[j]), (0, 0), arrowprops=how)
    axes.set(xlim=(-1.3, 1.3), ylim=(-1.3, 1.3), aspect="equal")
    axes.set(xlabel=f"correlation with PC{places[0] + 1}", ylabel=f"correlation with PC{places[1] + 1}")
    names = [str(reading.features[j] if reading.features else j) for j in shown.tolist()]
    text = f"features{_part_text(shown.size, x.size)}"
    arrow: dict[str, Any] = {"color": style.COLOURS[3], "marker": ">", "markevery": (1, 2), "markersize": 4}
    handles.append(Line2D([], [], label=f"{text}: correlations", **arrow))
    if (shown >= first).any():
        handles.append(Line2D([], [], color=style.COLOURS[0], linestyle="--", label="without part in the components"))
    style.add_legend(place, handles, below=len(handles) <= 3)
    if (figure := axes.get_figure(root=True)) is not None:
        figure.draw_without_rendering()  # makes the layout, by which names are measured
    tips = np.column_stack([x, y])[shown]
    shafts = np.concatenate([share * tips for share in (0.3, 0.5, 0.7, 0.9)])
    _name_tips(axes, tips, style.short_names(names), avoid=shafts)


def _name_tips(axes: Axes, tips: Array, names: Sequence[str], avoid: Array | None = None) -> None:
    """Write each name near its point (n, 2), clear of names, points and ``avoid`` (m, 2), and draw a line between."""
    inside, dots = axes.get_window_extent(), np.diff(axes.transData.transform([(0, 0), (1, 1)]), axis=0)[0]  # per unit
    low, high = axes.transData.inverted().transform([inside.min, inside.max])
    marks = tips if avoid is None else np.concatenate([tips, avoid])
    occupied = np.column_stack([marks, np.broadcast_to(5 / dots, marks.shape)])  # 5 dots of a mark
    for tip, name in zip(tips, names, strict=True):
        text = axes.annotate(name, (0, 0), ha="center", va="center", fontsize=8)
        half = np.array(text.get_window_extent().size) / dots / 2 + 0.01
        grid = np.stack(np.meshgrid(*(np.linspace(low + half, high - half, 61).T)), axis=-1).reshape(-1, 2)
        ideal = tip * (1 + 0.06 / max(np.hypot(*tip), 1e-9)) + np.sign(tip) * half * [1, 0]
        within = (np.hypot(*tip) - np.hypot(*grid.T)).clip(min=0.0)  # arrows are there, so it counts as farther away
        order = np.argsort(np.sum((grid - ideal) ** 2, axis=1) + 9 * within**2, kind="stable")
        clear = np.abs(grid[order, None] - occupied[:, :2]) >= half + occupied[:, 2:]
        place = grid[order[np.argmax(clear.any(axis=2).all(axis=1))]]
        text.set_position(place)
        near = np.clip(tip, place - half, place + half)  # of the name's box
        axes.plot(*np.stack([tip, near]).T, color=style.GREY, linewidth=0.4, zorder=0)
        occupied = np.vstack([occupied, np.concatenate([place, half])])
