"""Figures: each function returns a matplotlib `Figure` of its own (no global state), to show or to save.

The figures need the extra ``plots``. A figure is dark on white paper; ``savefig(..., facecolor="none")`` makes the
paper transparent.
"""

from collections.abc import Mapping, Sequence, Sized
from textwrap import wrap
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import issparse

from fedpca_flwr.analyses.inputs import MODEL_ADVICE, takes, takes_model
from fedpca_flwr.data.frames import as_rows
from fedpca_flwr.errors import ConfigError
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.eigen import EXACT_ANGLE_DEGREES
from fedpca_flwr.model.model import PCAModel
from fedpca_flwr.model.tables import tables_by_name

try:
    from matplotlib import rc_context
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.collections import LineCollection
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
    from matplotlib.ticker import NullFormatter

    from fedpca_flwr.figures.interactive import hover
    from fedpca_flwr.figures.score_plots import component_title, scores
    from fedpca_flwr.figures.style import (
        COLOURS,
        GREY,
        STYLE,
        add_legend,
        canvas,
        few_ticks,
        looks,
        number_axis,
        short_names,
        thin_rows,
    )
except ImportError:
    raise ConfigError("plots need matplotlib: pip install '.[plots]' in the repository") from None

__all__ = [
    "angle_by_round",
    "bytes_against_error",
    "component_images",
    "heterogeneity",
    "hover",
    "loadings",
    "projection_grid",
    "projection_overlay",
    "results_over",
    "scores",
    "scree",
]


def __dir__() -> list[str]:
    """Return the names of the plots alone."""
    return __all__


MAX_PLOTTED_ROWS = 300  # rows of a scatter plot; more hide each other
MAX_BAR_FEATURES = 30  # features that have bars and names; of more, those with the largest loadings


@takes_model
@rc_context(STYLE)
def loadings(model: PCAModel, *, most: int = 3) -> Figure:
    """Draw the loadings of the first components: bars, or a heat map of more than four components.

    Parameters
    ----------
    model : PCAModel
        Model. If it has more than `MAX_BAR_FEATURES` features, the bars show those with the largest loadings, in the
        model's order.
    most : int, default 3
        Largest number of components to draw.

    Returns
    -------
    Figure
    """
    components = model.loadings()[0][:most]
    k, d = components.shape
    names = short_names(range(d) if model.feature_names_in_ is None else model.feature_names_in_)
    largest = float(np.abs(components).max()) or 1.0
    if k <= 4:
        shown = np.sort(np.argsort(-np.abs(components).max(axis=0), kind="stable")[:MAX_BAR_FEATURES])
        figure = Figure(figsize=(_names_width(names) + max(3.2, 2.0 * k), 1.1 + 0.21 * shown.size))
        grid = figure.subplots(1, k, sharey=True, squeeze=False)[0]
        for i, panel in enumerate(grid):
            values = components[i, shown]
            panel.barh(range(shown.size), values, color=np.where(values > 0, COLOURS[0], COLOURS[3]).tolist())
            title = component_title(model, i + 1).replace(" of the variance", "")
            panel.set(title=title, xlim=(-1.05 * largest, 1.05 * largest))
        grid[0].set_yticks(range(shown.size), [names[j] for j in shown.tolist()])
        grid[0].set_ylim(shown.size - 0.5, -0.5)
        grid[0].set_ylabel("" if d == shown.size else f"{shown.size} of {d} features, of the largest loadings")
        figure.supxlabel("loading", fontsize=10)
        return figure
    figure, axes = canvas(_names_width(names) + 1.5 + 0.4 * k, min(8, 1.5 + 0.16 * d))
    image = axes.imshow(components.T, cmap="PuOr", vmin=-largest, vmax=largest, aspect="auto", interpolation="none")
    axes.grid(visible=False)
    axes.set_xticks(range(k), [f"PC{i + 1}" for i in range(k)], rotation=90 if k > 12 else 0)
    if d <= 2 * MAX_BAR_FEATURES:
        axes.set_yticks(range(d), names, fontsize=8)
    else:
        axes.set_ylabel("number of the feature, from 0")
    figure.colorbar(image, label="loading")
    return figure


def _names_width(names: Sequence[str]) -> float:
    """Return the inches that names beside an axis take."""
    return 0.3 + 0.085 * max(map(len, names))


@takes("reference", PCAModel, MODEL_ADVICE)
@takes_model
@takes("X", Sized, "give rows: an array, or a data frame")
@rc_context(STYLE)
def projection_overlay(
    reference: PCAModel, model: PCAModel, X: ArrayLike, labels: ArrayLike | None = None, *, title: str = ""
) -> Figure:
    """Draw rows in two components by two models: open marks for the reference, crosses for the federated model.

    A line joins the two points of a row. If the models agree, every cross lies in its mark. Components of opposite sign
    are flipped, because the sign of a component is arbitrary. A single component is drawn against the number of the
    row.

    Parameters
    ----------
    reference, model : PCAModel
    X : array-like of shape (n, d)
        Rows. The figure shows at most `MAX_PLOTTED_ROWS` of them, evenly spread. Columns of a data frame are matched by
        name.
    labels : array-like of shape (n,), optional
        Labels of the rows. Each label has its own colour and mark.
    title : str, optional

    Returns
    -------
    Figure
    """
    figure, axes = canvas(5, 4.6)
    handles = _overlay(axes, reference, model, X, None if labels is None else np.asarray(labels))
    axes.set(xlabel="score on PC1", ylabel=_second_label(reference, model))
    axes.set_title("\n".join(wrap(title, 50)))
    add_legend(figure, handles)
    return figure


@takes("reference", PCAModel, MODEL_ADVICE)
@takes("models", Mapping, "give models by their names: {'p-cov': model}")
@takes("X", Sized, "give rows: an array, or a data frame")
@rc_context(STYLE)
def projection_grid(
    reference: PCAModel, models: Mapping[str, PCAModel], X: ArrayLike, labels: ArrayLike | None = None
) -> Figure:
    """Draw rows in two components by several models, each in its own panel beside the reference's scores.

    Parameters
    ----------
    reference : PCAModel
    models : mapping of str to PCAModel
    X : array-like of shape (n, d)
        Rows, as in `projection_overlay`.
    labels : array-like of shape (n,), optional

    Returns
    -------
    Figure

    Raises
    ------
    ConfigError
        If there are no models.
    """
    _require_models(models)
    marks = None if labels is None else np.asarray(labels)
    columns = min(3, len(models))
    rows = -(-len(models) // columns)
    figure = Figure(figsize=(3.2 * columns, 3.1 * rows))
    grid = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).ravel()
    for axes, (name, model) in zip(grid, models.items(), strict=False):
        handles = _overlay(axes, reference, model, X, marks)
        axes.set_title("\n".join(wrap(name, 34)[:3]), fontsize=10)
    for axes in grid[len(models) :]:
        axes.set_visible(False)
    for axes in grid[max(0, len(models) - columns) : len(models)]:  # the lowest of each column
        axes.tick_params(labelbottom=True)
    figure.supxlabel("score on PC1", fontsize=10)
    figure.supylabel(_second_label(reference, *models.values()), fontsize=10)
    add_legend(figure, handles)
    return figure


@takes("models", (PCAModel, Mapping), "give a model, or models by their names: {'p-cov': model}")
@rc_context(STYLE)
def scree(models: PCAModel | Mapping[str, PCAModel]) -> Figure:
    """Draw each component's share of the total variance, and the cumulated shares, for one or several models.

    Parameters
    ----------
    models : PCAModel or mapping of str to PCAModel
        One model, or several by name. Models with equal shares have one common curve.

    Returns
    -------
    Figure
    """
    models = models if isinstance(models, Mapping) else {"model": models}
    _require_models(models)
    curves: dict[tuple[float, ...], list[str]] = {}
    for name, model in models.items():
        curves.setdefault(tuple(np.round(100 * model.explained_variance_ratio_, 4)), []).append(name)
    groups = [(" = ".join(names), 100 * models[names[0]].explained_variance_ratio_) for names in curves.values()]
    figure = Figure(figsize=(8, 3.6))
    share_axes, cumulative_axes = figure.subplots(1, 2)
    handles = []
    for (name, ratio), (colour, marker) in zip(groups, looks(), strict=False):
        number = np.arange(1, ratio.size + 1)
        how: dict[str, Any] = {"color": colour, "marker": marker, "markersize": 4, "fillstyle": "none"}
        label = f"{name} (unknown: no component stands out of the noise)" if np.isnan(ratio).any() else name
        handles += share_axes.plot(number, ratio, label="\n".join(wrap(label, 42)[:4]), **how)
        cumulative_axes.plot(number, ratio.cumsum(), **how)
    share_axes.set(xlabel="component", ylabel="explained variance (%)", ylim=(0, None))
    cumulative_axes.set(xlabel="component", ylabel="cumulative explained variance (%)", ylim=(0, 103))
    for axes in (share_axes, cumulative_axes):
        number_axis(axes.xaxis, max(ratio.size for _, ratio in groups))
    if len(groups) > 1 or "\n" in handles[0].get_label():
        add_legend(figure, handles)
    return figure


@takes("curves", Mapping, "give the angle after each round by the method's name: {'sub-it': [9.1, 0.2]}")
@rc_context(STYLE)
def angle_by_round(curves: Mapping[str, Sequence[float]], *, tolerance: float | None = None) -> Figure:
    """Draw the largest angle to the exact components after each round.

    Parameters
    ----------
    curves : mapping of str to sequence of float
        Angles in degrees after each round, by the name of the method.
    tolerance : float, optional
        Angle in degrees at which the figure has a line.

    Returns
    -------
    Figure
    """
    figure, axes = canvas(5.4, 4)
    for name, angles, (colour, marker) in zip(short_names(curves), curves.values(), looks(), strict=False):
        axes.semilogy(range(1, len(angles) + 1), np.maximum(angles, 1e-14), color=colour, marker=marker, label=name)
    if tolerance is not None:
        axes.axhline(tolerance, color=GREY, linestyle="--", label=f"tolerance: {tolerance:g} degrees")
    axes.set(xlabel="round", ylabel="largest angle to the exact components (degrees)")
    number_axis(axes.xaxis, max(map(len, curves.values())))
    add_legend(figure, axes.get_legend_handles_labels()[0])
    return figure


@takes("points", Mapping, "give pairs of MB and degrees by the method's name: {'sub-it': [(0.5, 1e-3)]}")
@rc_context(STYLE)
def bytes_against_error(points: Mapping[str, Sequence[tuple[float, ...]]]) -> Figure:
    """Draw bytes sent per client against the largest angle to the exact components, with the Pareto front.

    The line joins the points that no other point beats in both numbers. Angles below `EXACT_ANGLE_DEGREES` are drawn as
    equal, because they are only rounding. An arrow points down from a mean whose interval reaches zero.

    Parameters
    ----------
    points : mapping of str to sequence of (MB, degrees) or (MB, degrees, half of the interval)
        By method. The third number is half of the 95 % interval of an angle that is a mean over several runs.

    Returns
    -------
    Figure
    """
    curves = {name: np.array([(*point, 0.0)[:3] for point in line]) for name, line in points.items()}
    everything = np.concatenate(list(curves.values()))
    unit = 1e3 if (small := everything[:, 0].max() < 1) else 1.0
    sizes = unit * everything[:, 0]
    figure, axes = canvas(5.2, 4.2)
    axes.set(xscale="log", yscale="log")
    handles = list[Artist]()
    for name, line, (colour, marker) in zip(short_names(curves), curves.values(), looks(), strict=False):
        how = {"color": colour, "marker": marker, "label": name, "linestyle": "none"}
        handles.append(_draw_intervals(axes, unit * line[:, 0], line[:, 1], line[:, 2], EXACT_ANGLE_DEGREES, how))
    front = _pareto_front(everything[:, :2] * [unit, 1.0])
    handles += axes.step(*np.transpose(front), where="post", color=GREY, linewidth=1, zorder=0, label="front")
    exact = f"exact: within {EXACT_ANGLE_DEGREES:g} degrees"
    band: dict[str, Any] = {"color": GREY, "alpha": 0.2, "linewidth": 0, "label": exact}
    handles.append(axes.axhspan(EXACT_ANGLE_DEGREES / 3, EXACT_ANGLE_DEGREES * 3, **band))
    axes.set(
        xlabel=f"{'kB' if small else 'MB'} up per client",
        ylabel="largest angle to the exact components (degrees)",
        xlim=(sizes.min() / 1.3, 1.3 * sizes.max()),
        ylim=(EXACT_ANGLE_DEGREES / 5, 10 * max(1e-3, everything[:, 1:].sum(axis=1).max())),
    )
    few_ticks(axes.xaxis, sizes)
    add_legend(figure, handles + _interval_entries(everything[:, 1:], EXACT_ANGLE_DEGREES, logarithmic=True))
    return figure


@rc_context(STYLE)
def results_over(
    panels: Mapping[str, Mapping[str, Sequence[tuple[float, float, float]]]],
    *,
    xlabel: str,
    ylabel: str,
    angles: bool = False,
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

    Returns
    -------
    Figure
    """
    columns = 2 if len(panels) == 4 else min(3, len(panels))
    lines = -(-len(panels) // columns)
    figure = Figure(figsize=(6.5 if columns == 1 else 3.6 * columns, 1 + 3.2 * lines))
    grid = np.atleast_1d(figure.subplots(lines, columns, sharex=True, sharey=True)).ravel()
    points = np.array([point for curves in panels.values() for line in curves.values() for point in line])
    floor = EXACT_ANGLE_DEGREES if angles else -np.inf
    positions, means = np.unique(points[:, 0]), points[:, 1].clip(min=floor)
    names = list(dict.fromkeys(name for curves in panels.values() for name in curves))
    on_log = [values.min() > 0 and values.max() >= 10 * values.min() for values in (positions, means)]
    for axes, (title, curves) in zip(grid, panels.items(), strict=False):
        axes.set(xscale="log" if on_log[0] else "linear", yscale="log" if on_log[1] else "linear", title=title)
        if angles and means.min() <= floor:
            axes.axhspan(floor / 3, floor * 3, color=GREY, alpha=0.2, linewidth=0, label="exact")
        for i, (name, label, (colour, marker)) in enumerate(zip(names, short_names(names), looks(), strict=False)):
            if name in curves:
                shift = (i - (len(names) - 1) / 2) / len(names)
                how = {"color": colour, "marker": marker, "label": label}
                _draw_means(axes, np.array(curves[name]), positions, shift, floor, how)
        axes.set_xticks(positions, [f"{position:g}" for position in positions], minor=False)
        axes.xaxis.set_minor_formatter(NullFormatter())
    for axes in grid[len(panels) :]:
        axes.set_visible(False)
    for axes in grid[max(0, len(panels) - columns) : len(panels)]:
        axes.set_xlabel(xlabel)
        axes.tick_params(labelbottom=True)
    for axes in grid[::columns]:
        axes.set_ylabel(ylabel)
    entries = {label: handle for axes in grid for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    add_legend(figure, list(entries.values()) + _interval_entries(points[:, 1:], floor, logarithmic=on_log[1]))
    return figure


def _interval_entries(points: Array, floor: float, *, logarithmic: bool) -> list[Line2D]:
    """Return the entries of a legend that say what bars and arrows are, for means and half widths (n, 2)."""
    how: dict[str, Any] = {"linestyle": "none", "markersize": 14, "color": GREY}
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
    """Draw means with their intervals as bars; means below the floor are drawn at the floor, without a bar.

    On a logarithmic axis an arrow points down where an interval reaches zero. Return the entry of the legend.
    """
    shown = means.clip(min=floor)
    low, high = np.where((means > floor) & (half_widths > 0), [means - half_widths, means + half_widths], shown)
    endless = _reaches_zero(means, half_widths, floor) & (axes.get_yscale() == "log")
    bars: dict[str, Any] = {"fmt": "none", "ecolor": how["color"], "color": how["color"]}
    entry = axes.plot(x, shown, fillstyle="none", **how)[0]
    if half_widths.any():
        axes.errorbar(x, shown, yerr=[np.where(endless, 0.0, shown - low), high - shown], capsize=3, **bars)
    if endless.any():
        axes.errorbar(x[endless], shown[endless], yerr=shown[endless] * 2 / 3, uplims=True, **bars)
    return entry


MAX_NAMED_PARTIES = 36  # bars of parties that all have names; of more, evenly spread ones have


@takes_model
@rc_context(STYLE)
def heterogeneity(parties: Any, model: PCAModel) -> Figure:
    """Draw each party's number of rows, distance of its mean, and share of its variance that the model explains.

    Parameters
    ----------
    parties : mapping of str to array-like, or sequence of array-like, of shape (n_i, d)
        Rows of the parties. Columns of data frames are matched by name.
    model : PCAModel

    Returns
    -------
    Figure
    """
    tables = tables_by_name(parties, model.log)
    titles = ["rows", "distance of the mean\n(deviations of all rows)"]
    titles.append("explained variance (%)\nabout the party's own mean")
    bars: list[tuple[float, ...]] = []
    for X in tables.values():
        rows = model.centred(X)
        shift = rows.mean(axis=0)
        centred = rows - shift
        total, scores = float(np.vdot(centred, centred)), centred @ model.loadings()[0].T
        explained = 100 * float(np.vdot(scores, scores)) / total if total else 0.0
        distance = float(np.linalg.norm(shift)) / (np.sqrt(model.total_variance) or 1.0)
        bars.append((len(rows), distance, explained))
    names = short_names(tables)
    height = min(0.22 * len(tables), 8.0)
    figure = Figure(figsize=(_names_width(names) + 6.3, 1.2 + max(1.0, height)))
    grid = figure.subplots(1, 3, sharey=True)
    for axes, title, values, colour in zip(grid, titles, zip(*bars, strict=True), COLOURS, strict=False):
        axes.barh(range(len(tables)), values, color=colour)
        axes.set_xlabel(title)
        axes.locator_params(axis="x", nbins=5)
    named = range(0, len(tables), -(-len(tables) // MAX_NAMED_PARTIES))
    grid[0].set_yticks(named, [names[i] for i in named], fontsize=10 if len(tables) <= MAX_NAMED_PARTIES else 8)
    grid[0].set_ylim(len(tables) - 0.5, -0.5)
    return figure


@takes_model
def component_images(model: PCAModel, shape: tuple[int, ...], *, count: int = 10) -> Figure:
    """Draw the first components as images.

    Parameters
    ----------
    model : PCAModel
    shape : (int, int) or (int, int, int)
        Height, width, and channels if there are several.
    count : int, default 10
        Largest number of components to draw.

    Returns
    -------
    Figure

    Raises
    ------
    ConfigError
        If the shape does not have the model's number of features.
    """
    sizes = shape if isinstance(shape, Sequence) else ()
    if len(sizes) not in (2, 3) or not all(isinstance(size, int | np.integer) for size in sizes):
        raise ConfigError(f"'shape' is {shape!r}, expected (height, width) or (height, width, channels)")
    if np.prod(shape) != model.n_features_in_:
        raise ConfigError(f"an image of shape {shape} has {np.prod(shape)} values, the model {model.n_features_in_}")
    count = min(count, model.n_components_)
    columns = min(5, count)
    with rc_context({**STYLE, "axes.grid": False}):
        figure = Figure(figsize=(1.6 * columns + (1.3 if len(shape) == 2 else 0), 1.8 * -(-count // columns)))
        grid = figure.subplots(-(-count // columns), columns, squeeze=False).ravel()
        for axes in grid:
            axes.set_axis_off()
            axes.set_anchor("S")  # below the title, which else is cut where an image fills its place
        for i, (axes, loadings) in enumerate(zip(grid, model.loadings()[0][:count], strict=False)):
            largest = np.abs(loadings).max() or 1.0
            if len(shape) == 2:
                image = axes.imshow(loadings.reshape(shape), cmap="PuOr", vmin=-largest, vmax=largest)
            else:
                axes.imshow(loadings.reshape(shape) / (2 * largest) + 0.5)
            axes.set_title(f"PC{i + 1}", fontsize=9)
        if len(shape) == 2:
            bar = figure.colorbar(image, ax=grid, ticks=[-largest, 0, largest], shrink=0.9)
            bar.ax.set_yticklabels(["-largest", "0", "largest"], fontsize=8)
            bar.set_label("loading", fontsize=9)
        return figure


def _require_models(models: Mapping[str, Any]) -> None:
    """Raise ConfigError for an empty mapping, and for values that are no models."""
    others = [name for name, model in models.items() if not isinstance(model, PCAModel)]
    if others or not models:
        raise ConfigError(
            f"'models' has no model of the names {others}, expected a PCAModel for each name; {MODEL_ADVICE}"
            if others
            else "'models' is empty, expected at least one model by its name"
        )


def _overlay(axes: Axes, reference: PCAModel, model: PCAModel, X: Any, labels: NDArray[Any] | None) -> list[Line2D]:
    """Draw rows by both models into axes, joined by lines, with the model's signs aligned; return legend handles."""
    X = as_rows(X, "X") if issparse(X) else X
    shown = thin_rows(len(X), MAX_PLOTTED_ROWS)
    rows = X[shown]  # of an array, a list, a data frame
    theirs, ours = reference.transform(rows)[:, :2], model.transform(rows)[:, :2]
    width = min(theirs.shape[1], ours.shape[1])
    theirs, ours = theirs[:, :width], ours[:, :width]
    marks = np.zeros(len(theirs), int) if labels is None else labels[shown]
    ours = ours * np.where((ours * theirs).sum(axis=0) < 0, -1.0, 1.0)
    theirs, ours = _on_plane(theirs), _on_plane(ours)
    pairs = list(np.stack([theirs, ours], axis=1))
    axes.add_collection(LineCollection(pairs, colors=GREY, linewidths=0.4, rasterized=True))
    classes = np.unique(marks)
    look: dict[str, Any] = {"linestyle": "none", "fillstyle": "none", "markersize": 5}
    handles = [
        Line2D([], [], marker="o", color=GREY, label="pooled PCA", **look),
        Line2D([], [], marker="x", color=GREY, label="federated", **look),
    ]
    for label, name, (colour, marker) in zip(classes, short_names(classes), looks(), strict=False):
        members = marks == label
        how: dict[str, Any] = {"linewidths": 0.7, "rasterized": True, "zorder": 2}
        (x, y), (ours_x, ours_y) = theirs[members].T, ours[members].T
        axes.scatter(x, y, s=26, marker=marker, facecolors="none", edgecolors=colour, **how)
        axes.scatter(ours_x, ours_y, s=12, marker="x", color=colour, **how)
        if labels is not None:
            handles.append(Line2D([], [], marker=marker, color=colour, label=name, **look))
    return handles


def _second_label(*models: PCAModel) -> str:
    """Return the label of an overlay's second axis: the number of the row if a model has a single component."""
    return "score on PC2" if min(model.n_components_ for model in models) > 1 else "number of the row"


def _on_plane(points: Array) -> Array:
    """Return points (n, 2); points with a single coordinate get their row numbers as the second."""
    return points if points.shape[1] > 1 else np.column_stack([points, np.arange(len(points))])


def _pareto_front(pairs: Array) -> list[tuple[float, float]]:
    """Return the pairs (size, degrees) of (n, 2) that no other beats in both, by size; exact angles count as equal."""
    best, front = np.inf, []
    for size, degrees in sorted((size, max(degrees, EXACT_ANGLE_DEGREES)) for size, degrees in pairs.tolist()):
        if degrees < best:
            best = degrees
            front.append((size, degrees))
    return front
