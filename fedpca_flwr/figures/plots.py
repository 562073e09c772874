"""Figures: each function returns a matplotlib `Figure` of its own (no global state), to show or to save.

Needs the extra ``plots``. Colours are those of `fedpca_flwr.figures.style`; markers differ too. A figure is dark text
on white paper; ``savefig(..., facecolor="none")`` leaves the paper out.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from itertools import count, cycle
from pathlib import Path
from textwrap import wrap
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import issparse

from fedpca_flwr.data.frames import as_rows
from fedpca_flwr.errors import ConfigError, DataError
from fedpca_flwr.figures.style import COLOURS, GREY, MARKERS, STYLE
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.model.model import PCAModel
from fedpca_flwr.model.tables import tables_by_name

try:
    from matplotlib import rc_context
    from matplotlib.axes import Axes
    from matplotlib.collections import LineCollection
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
    from matplotlib.ticker import MaxNLocator, NullFormatter

    from fedpca_flwr.figures.style import canvas, few_ticks, thin_rows
except ImportError:
    raise ConfigError("plots need matplotlib: pip install '.[plots]' in the repository") from None

EXACT_ANGLE_DEGREES = 1e-6  # degrees within which components are the same for every purpose: drawn as one
MAX_PLOTTED_ROWS = 300  # Rows of a scatter plot; more hide each other.
MAX_SCORE_MARKS = 3000  # Rows of all parties together, where each is one mark.


@rc_context(STYLE)
def scores(
    parties: Any, model: PCAModel | None = None, *, labels: Any = None, components: tuple[int, int] | None = None
) -> Figure:
    """Draw the scores of all parties' rows in two components, each party in its own colour and marker.

    The ellipses hold 95 % of normal rows with the mean and covariance of the rows of a colour. A single component
    is drawn against the number of the row, party after party, without ellipses.

    Parameters
    ----------
    parties : mapping of str to table, or list of tables
        Rows (n_i, d) of each party; or their scores: an array (n_i, k) if there is no model, or the file that a run
        wrote at the site (``.npy`` or ``.csv``).
    model : PCAModel, optional
        Gives the scores of tables, and the shares of the variance along the axes.
    labels : mapping of str to array-like, or list of array-like, of shape (n_i,), optional
        A class for each row. Colours and ellipses are then those of the classes, marks those of the parties.
    components : (int, int), optional
        The components to draw, from 1. None: the first two, or the only component.

    Returns
    -------
    Figure

    Raises
    ------
    ConfigError
        If components or labels do not fit the scores.
    DataError
        If a file holds no scores.

    Examples
    --------
    >>> from sklearn.datasets import load_wine
    >>> from fedpca_flwr import run
    >>> from fedpca_flwr.figures import plots
    >>> wine = load_wine(as_frame=True).data
    >>> parties = {"north": wine[:90], "south": wine[90:]}
    >>> figure = plots.scores(parties, run("p-cov", parties, n_components=2, scale=True))
    """
    tables = tables_by_name(parties, {} if model is None else model.log)
    points = {name: _points(name, item, model, components) for name, item in tables.items()}
    widths = {name: part.shape[1] for name, part in points.items()}
    if len(set(widths.values())) > 1:
        raise ConfigError(f"the parties' scores have one component here and several there: {widths}; name 'components'")
    single = 1 in widths.values()
    if single:
        ends = np.cumsum([len(part) for part in points.values()])
        for (name, part), end in zip(points.items(), ends, strict=True):
            points[name] = _on_plane(part, end - len(part))
    classes = [[name] * len(part) for name, part in points.items()] if labels is None else _classes(points, labels)
    of_class = np.array([item for part in classes for item in part])
    colours = dict(zip(points if labels is None else np.unique(of_class).tolist(), cycle(COLOURS), strict=False))
    all_points = np.concatenate(list(points.values()))
    figure, axes = canvas(7, 4.6)
    for part, part_classes, mark in zip(points.values(), classes, _marks(), strict=False):
        shown = thin_rows(len(part), max(1, MAX_SCORE_MARKS // len(points)))
        paint: dict[str, Any] = {"c": [colours[item] for item in part_classes[shown]], "alpha": 0.6, "linewidths": 0}
        axes.scatter(
            part[shown, 0], part[shown, 1], 18, marker=mark, rasterized=len(all_points) > MAX_PLOTTED_ROWS, **paint
        )
    for item, colour in {} if single else colours.items():
        axes.plot(*_ellipse(all_points[of_class == item]), color=colour, linewidth=1.2)
    if single:
        axes.set(xlabel=_component_title(model, 1), ylabel="row")
    else:
        first, second = components or (1, 2)
        axes.set(xlabel=_component_title(model, first), ylabel=_component_title(model, second))
        axes.set_aspect("equal", adjustable="datalim")
    _add_legend(axes, points, colours, classes_too=labels is not None)
    return figure


def _points(name: str, table: Any, model: PCAModel | None, components: tuple[int, int] | None) -> Array:
    """Return the scores (n, 2) of a party's rows in two components, or (n, 1) if there is a single component."""
    if isinstance(table, str | os.PathLike):
        path = Path(table)
        try:
            values = np.load(path) if path.suffix == ".npy" else np.loadtxt(path, delimiter=",", skiprows=1, ndmin=2)
        except (OSError, ValueError) as error:  # whose text may quote a cell
            raise DataError(f"{path} of '{name}' is no file of a run's scores ({type(error).__name__})") from None
    else:
        values = np.asarray(table) if model is None else model.transform(table)
    k = values.shape[-1] if values.ndim == 2 else 0
    shown = components or ((1,) if k == 1 else (1, 2))
    if not all(1 <= component <= k for component in shown):
        raise ConfigError(f"the scores of '{name}' have shape {values.shape}, but the components {shown} are asked")
    return np.asarray(values[:, [component - 1 for component in shown]], dtype=np.float64)


def _on_plane(points: Array, start: int = 0) -> Array:
    """Return points (n, 2); points with a single coordinate get their row numbers, from ``start``, as the second."""
    return points if points.shape[1] > 1 else np.column_stack([points, np.arange(start, start + len(points))])


def _classes(points: Mapping[str, Array], labels: Any) -> list[list[str]]:
    """Return the class of each row of each party, as texts, and refuse labels of another number of rows."""
    party_labels = [labels[name] for name in points] if isinstance(labels, Mapping) else labels
    classes = [[str(label) for label in part] for part in party_labels]
    rows = [len(part) for part in points.values()]
    if [len(part) for part in classes] != rows:
        raise ConfigError(f"'labels' are of {[len(part) for part in classes]} rows of the parties, expected {rows}")
    return classes


def _marks() -> Iterator[str]:
    """Yield a marker for each party, shifted after each cycle of the colours so that 100 parties differ."""
    return (MARKERS[(i + i // len(COLOURS)) % len(MARKERS)] for i in count())


def _ellipse(points: Array) -> Array:
    """Return the ellipse (2, 100) that holds 95 % of normal points with the moments of points (n, 2)."""
    if len(points) < 2:
        return np.full((2, 100), np.nan)
    values, vectors = np.linalg.eigh(np.cov(points.T))
    turn = np.linspace(0, 2 * np.pi, 100)
    radii = np.sqrt(values.clip(min=0.0) * -2 * np.log(0.05))  # the quantile of chi squared with 2 degrees of freedom
    outline: Array = points.mean(axis=0)[:, None] + (vectors * radii) @ np.array([np.cos(turn), np.sin(turn)])
    return outline


def _component_title(model: PCAModel | None, component: int) -> str:
    """Return the axis label of a component, counted from 1, with its share of the variance if known."""
    shares = [] if model is None else model.explained_variance_ratio_[component - 1 : component].tolist()
    return f"PC{component}" + "".join(f" ({share:.1%} of the variance)" for share in shares if share == share)


def _add_legend(axes: Axes, points: Mapping[str, Array], colours: Mapping[str, str], *, classes_too: bool) -> None:
    """Add a legend of the parties with their numbers of rows, and of the classes if colours are of classes."""
    entries = [
        (f"{name} ({len(part)} rows)", mark) for (name, part), mark in zip(points.items(), _marks(), strict=False)
    ]
    paint = [GREY] * len(points) if classes_too else [colours[name] for name in points]
    entries += [(name, "s") for name in colours] if classes_too else []
    paint += list(colours.values()) if classes_too else []
    handles = [
        Line2D([], [], linestyle="none", markersize=5, marker=mark, color=colour, label=label)
        for (label, mark), colour in zip(entries, paint, strict=True)
    ]
    axes.legend(handles=handles, loc="center left", bbox_to_anchor=(1, 0.5), ncols=-(-len(handles) // 20))


MAX_BAR_FEATURES = 30
"""Of more features than these the loadings are a heat map."""


@rc_context(STYLE)
def loadings(model: PCAModel, *, most: int = 3) -> Figure:
    """Draw the loadings of the first components: bars, or a heat map if features or components are many.

    Parameters
    ----------
    model : PCAModel
    most : int, default 3
        Largest number of components to draw.

    Returns
    -------
    Figure
    """
    components = model.loadings()[0][:most]
    k, d = components.shape
    names = [str(j) for j in (range(d) if model.feature_names_in_ is None else model.feature_names_in_)]
    largest = float(np.abs(components).max()) or 1.0
    if d <= MAX_BAR_FEATURES and k <= 4:
        figure = Figure(figsize=(2.2 + 1.9 * k, 1.1 + 0.21 * d))
        for i, panel in enumerate(figure.subplots(1, k, sharey=True, squeeze=False)[0]):
            panel.barh(range(d), components[i], color=np.where(components[i] > 0, COLOURS[0], COLOURS[3]).tolist())
            title = _component_title(model, i + 1).replace(" of the variance", "")
            panel.set(title=title, xlim=(-1.05 * largest, 1.05 * largest))
        panel.set_yticks(range(d), names)
        panel.invert_yaxis()
        figure.supxlabel("loading")
        return figure
    figure, axes = canvas(max(4.0, 2 + 0.45 * k), min(8, 1.5 + 0.16 * d))
    image = axes.imshow(components.T, cmap="PuOr", vmin=-largest, vmax=largest, aspect="auto", interpolation="none")
    axes.grid(visible=False)
    axes.set_xticks(range(k), [f"PC{i + 1}" for i in range(k)])
    if d <= 2 * MAX_BAR_FEATURES:
        axes.set_yticks(range(d), names, fontsize=8)
    figure.colorbar(image, label="loading")
    return figure


@rc_context(STYLE)
def projection_overlay(
    reference: PCAModel, model: PCAModel, X: ArrayLike, labels: ArrayLike | None = None, *, title: str = ""
) -> Figure:
    """Draw rows in two components: open marks by the reference, crosses by the federated model, a line between.

    If the two agree, every cross stands in its mark. Components that point the other way are turned round: a sign
    means nothing. A single component is drawn against the number of the row.

    Parameters
    ----------
    reference, model : PCAModel
    X : array-like of shape (n, d)
        At most `MAX_PLOTTED_ROWS` of its rows are drawn, evenly spread. Columns of a data frame are matched by their
        names.
    labels : array-like of shape (n,), optional
        Each label has a colour and a mark, and its name at the mean of its rows.
    title : str, optional

    Returns
    -------
    Figure
    """
    figure, axes = canvas(6, 5)
    _overlay(axes, reference, model, X, None if labels is None else np.asarray(labels))
    axes.set(title=title, xlabel="first component", ylabel=_second_label(reference, model))
    axes.legend(*_overlay_legend(axes), loc="center left", bbox_to_anchor=(1, 0.5))
    return figure


@rc_context(STYLE)
def projection_grid(
    reference: PCAModel, models: Mapping[str, PCAModel], X: ArrayLike, labels: ArrayLike | None = None
) -> Figure:
    """Draw rows in two components for several models, a panel each, with the reference's scores beside.

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
    """
    marks = None if labels is None else np.asarray(labels)
    columns = min(3, len(models))
    rows = -(-len(models) // columns)
    figure = Figure(figsize=(3.6 * columns, 3.4 * rows))
    grid = np.atleast_1d(figure.subplots(rows, columns, sharex=True, sharey=True)).ravel()
    for axes, (name, model) in zip(grid, models.items(), strict=False):
        _overlay(axes, reference, model, X, marks)
        axes.set_title("\n".join(wrap(name, 26)))
    for axes in grid[len(models) :]:
        axes.set_visible(False)
    figure.supxlabel("first component")
    figure.supylabel(_second_label(reference, *models.values()))
    figure.legend(*_overlay_legend(grid[0]), loc="outside right upper")
    return figure


@rc_context(STYLE)
def scree(models: PCAModel | Mapping[str, PCAModel]) -> Figure:
    """Draw each component's share of the total variance, and the cumulated shares, of a model or several.

    Parameters
    ----------
    models : PCAModel or mapping of str to PCAModel
        A model, or several by name; models of equal shares are a single curve.

    Returns
    -------
    Figure
    """
    models = models if isinstance(models, Mapping) else {"model": models}
    curves: dict[tuple[float, ...], list[str]] = {}
    for name, model in models.items():
        curves.setdefault(tuple(np.round(100 * model.explained_variance_ratio_, 4)), []).append(name)
    groups = [(" = ".join(names), 100 * models[names[0]].explained_variance_ratio_) for names in curves.values()]
    figure = Figure(figsize=(8, 3.6))
    share_axes, cumulative_axes = figure.subplots(1, 2)
    for (name, ratio), colour, marker in zip(groups, cycle(COLOURS), cycle(MARKERS), strict=False):
        number = np.arange(1, ratio.size + 1)
        how: dict[str, Any] = {"color": colour, "marker": marker, "markersize": 4, "fillstyle": "none"}
        label = f"{name} (unknown: no component stands out of the noise)" if np.isnan(ratio).any() else name
        share_axes.plot(number, ratio, label="\n".join(wrap(label, 60)), **how)
        cumulative_axes.plot(number, ratio.cumsum(), **how)
    share_axes.set(xlabel="component", ylabel="explained variance (%)")
    cumulative_axes.set(xlabel="component", ylabel="explained variance, cumulative (%)")
    for axes in (share_axes, cumulative_axes):
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    figure.legend(loc="outside lower center", ncols=2 if len(groups) > 1 else 1)
    return figure


@rc_context(STYLE)
def angle_by_round(curves: Mapping[str, Sequence[float]], *, tolerance: float | None = None) -> Figure:
    """Draw the largest angle to the exact components after each round.

    Parameters
    ----------
    curves : mapping of str to sequence of float
        Angles in degrees by round, by method.
    tolerance : float, optional
        Angle in degrees at which a line is drawn.

    Returns
    -------
    Figure
    """
    figure, axes = canvas(6, 4)
    for (name, angles), colour, marker in zip(curves.items(), cycle(COLOURS), cycle(MARKERS), strict=False):
        axes.semilogy(range(1, len(angles) + 1), np.maximum(angles, 1e-14), color=colour, marker=marker, label=name)
    if tolerance is not None:
        axes.axhline(tolerance, color=GREY, linestyle="--", label=f"{tolerance:g} degrees")
    axes.set(xlabel="round", ylabel="largest angle to the exact components (degrees)")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend()
    return figure


@rc_context(STYLE)
def bytes_against_error(points: Mapping[str, Sequence[tuple[float, float]]]) -> Figure:
    """Draw bytes sent per client against the largest angle to the exact components, with the Pareto front.

    The line joins the points that no other point beats in both. Angles within `EXACT_ANGLE_DEGREES` are drawn as equal:
    below is only rounding.

    Parameters
    ----------
    points : mapping of str to sequence of (MB, degrees)
        By method.

    Returns
    -------
    Figure
    """
    small = max(megabytes for pairs in points.values() for megabytes, _ in pairs) < 1
    if small:
        points = {name: [(1e3 * megabytes, angle) for megabytes, angle in pairs] for name, pairs in points.items()}
    figure, axes = canvas(6.5, 4.2)
    for (name, pairs), colour, marker in zip(points.items(), cycle(COLOURS), cycle(MARKERS), strict=False):
        sizes, degrees = np.transpose(pairs)
        axes.loglog(sizes, np.maximum(degrees, EXACT_ANGLE_DEGREES), marker, color=colour, label=name, fillstyle="none")
    front = _pareto_front([pair for pairs in points.values() for pair in pairs])
    axes.step(*np.transpose(front), where="post", color=GREY, linewidth=1, zorder=0, label="front")
    axes.axhspan(EXACT_ANGLE_DEGREES / 3, EXACT_ANGLE_DEGREES * 3, color=GREY, alpha=0.2, linewidth=0, label="exact")
    axes.set(
        xlabel=f"{'kB' if small else 'MB'} up per client", ylabel="largest angle to the exact components (degrees)"
    )
    few_ticks(axes.xaxis, np.array([size for pairs in points.values() for size, _ in pairs]))
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5))
    return figure


@rc_context(STYLE)
def results_over(
    panels: Mapping[str, Mapping[str, Sequence[tuple[float, float, float]]]],
    *,
    xlabel: str,
    ylabel: str,
    angles: bool = False,
) -> Figure:
    """Draw means of several methods along an axis, with bars for the intervals of the means.

    Methods stand side by side at each position. Axes over more than a factor of ten are logarithmic; an interval that
    reaches zero is drawn there to a third of its mean.

    Parameters
    ----------
    panels : mapping of str to mapping of str to sequence of (position, mean, half of the interval)
        By method, by the title of a panel.
    xlabel, ylabel : str
        What stands at the axes.
    angles : bool, default False
        Whether means are angles in degrees: those within `EXACT_ANGLE_DEGREES` are drawn as equal, below is only
        rounding.

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
        for i, name in enumerate(names):
            if name in curves:
                shift = (i - (len(names) - 1) / 2) / len(names)
                how = {"color": COLOURS[i % len(COLOURS)], "marker": MARKERS[i % len(MARKERS)], "label": name}
                _draw_means(axes, np.array(curves[name]), positions, shift, floor, how)
        axes.set_xticks(positions, [f"{position:g}" for position in positions], minor=False)
        axes.xaxis.set_minor_formatter(NullFormatter())
    for axes in grid[len(panels) :]:
        axes.set_visible(False)
    for axes in grid[max(0, len(panels) - columns) : len(panels)]:
        axes.set_xlabel(xlabel)
        axes.tick_params(labelbottom=True)
    figure.supylabel(ylabel)
    entries = {label: handle for axes in grid for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    labels = ["\n".join(wrap(name, 40)) for name in entries]
    figure.legend(list(entries.values()), labels, loc="outside lower center", ncols=min(3, len(entries)))
    return figure


def _draw_means(axes: Axes, line: Array, positions: Array, shift: float, floor: float, how: dict[str, Any]) -> None:
    """Draw the means of a method with their intervals, shifted by a share of the distance between positions."""
    x, means, half_widths = line.T
    low, shown = means - half_widths, means.clip(min=floor)
    if axes.get_yscale() == "log":
        low = np.where(low > max(floor, 0.0), low, shown / 3)  # one that reaches zero has no end on such an axis
    low, high = np.where(means > floor, [low, means + half_widths], floor)
    gap = np.diff(np.log(positions) if axes.get_xscale() == "log" else positions).min(initial=np.inf)
    step = 0.15 * shift * (gap if np.isfinite(gap) else 1.0)
    x = x * np.exp(step) if axes.get_xscale() == "log" else x + step
    axes.errorbar(x, shown, yerr=[shown - low, high - shown], capsize=3, linewidth=1.2, fillstyle="none", **how)


@rc_context(STYLE)
def heterogeneity(parties: Any, model: PCAModel) -> Figure:
    """Draw each party's number of rows, the distance of its mean, and its variance that the model explains.

    Parameters
    ----------
    parties : mapping of str to array-like, or sequence of array-like, of shape (n_i, d)
        Columns of data frames are matched by their names.
    model : PCAModel

    Returns
    -------
    Figure
    """
    tables = tables_by_name(parties, model.log)
    panels: dict[str, list[float]] = {
        "rows": [],
        "distance of the mean\n(in deviations of all rows)": [],
        "explained variance (%)\nabout the party's own mean": [],
    }
    for X in tables.values():
        rows = model.centred(X)
        shift = rows.mean(axis=0)
        centred = rows - shift
        total, scores = float(np.vdot(centred, centred)), centred @ model.loadings()[0].T
        explained = 100 * float(np.vdot(scores, scores)) / total if total else 0.0
        distance = float(np.linalg.norm(shift)) / (np.sqrt(model.total_variance) or 1.0)
        for values, value in zip(panels.values(), (len(rows), distance, explained), strict=True):
            values.append(value)
    figure = Figure(figsize=(9, 3.2))
    for axes, (name, values), colour in zip(figure.subplots(1, 3), panels.items(), COLOURS, strict=False):
        axes.bar(range(len(tables)), values, color=colour)
        axes.set_title(name)
        axes.set_xticks(range(len(tables)), tables, rotation=90 if sum(len(name) + 2 for name in tables) > 32 else 0)
    return figure


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
    if np.prod(shape) != model.n_features_in_:
        raise ConfigError(f"an image of shape {shape} has {np.prod(shape)} values, the model {model.n_features_in_}")
    count = min(count, model.n_components_)
    columns = min(5, count)
    with rc_context({**STYLE, "axes.grid": False}):
        figure = Figure(figsize=(1.6 * columns, 1.8 * -(-count // columns)))
        grid = np.atleast_1d(figure.subplots(-(-count // columns), columns)).ravel()
        for axes in grid:
            axes.set_axis_off()
        for i, (axes, loadings) in enumerate(zip(grid, model.loadings()[0][:count], strict=False)):
            largest = np.abs(loadings).max()
            if len(shape) == 2:
                axes.imshow(loadings.reshape(shape), cmap="PuOr", vmin=-largest, vmax=largest)
            else:
                axes.imshow(loadings.reshape(shape) / (2 * largest) + 0.5)
            axes.set_title(f"{i + 1}", fontsize=9)
        return figure


def _overlay(axes: Axes, reference: PCAModel, model: PCAModel, X: Any, labels: NDArray[Any] | None) -> None:
    """Draw rows by the reference and by the model into axes, joined by lines, with the model's signs aligned."""
    X = as_rows(X, "X") if issparse(X) else X
    shown = thin_rows(len(X), MAX_PLOTTED_ROWS)
    rows = X[shown]  # of an array, a list, a data frame
    theirs, ours = reference.transform(rows)[:, :2], model.transform(rows)[:, :2]
    width = min(theirs.shape[1], ours.shape[1])
    theirs, ours = theirs[:, :width], ours[:, :width]
    marks = np.zeros(len(theirs), int) if labels is None else labels[shown]
    ours = ours * np.where((ours * theirs).sum(axis=0) < 0, -1.0, 1.0)
    theirs, ours = _on_plane(theirs), _on_plane(ours)
    axes.add_collection(
        LineCollection(list(np.stack([theirs, ours], axis=1)), colors=GREY, linewidths=0.4, rasterized=True)
    )
    for label, colour, marker in zip(np.unique(marks), cycle(COLOURS), cycle(MARKERS), strict=False):
        members = marks == label
        how: dict[str, Any] = {"linewidths": 0.7, "rasterized": True, "zorder": 2}
        (x, y), (ours_x, ours_y), middle = theirs[members].T, ours[members].T, theirs[members].mean(axis=0)
        axes.scatter(x, y, s=26, marker=marker, facecolors="none", edgecolors=colour, **how)
        axes.scatter(ours_x, ours_y, s=12, marker="x", color=colour, **how)
        if labels is not None:
            axes.text(middle[0], middle[1], str(label), weight="bold", ha="center", va="center", zorder=3)


def _second_label(*models: PCAModel) -> str:
    """Return the label of an overlay's second axis: "row" if a model has a single component."""
    return "second component" if min(model.n_components_ for model in models) > 1 else "row"


def _overlay_legend(axes: Axes) -> tuple[list[Any], list[str]]:
    """Return legend handles and labels for marks of the pooled PCA and crosses of the federated model."""
    mark = axes.scatter([], [], s=26, facecolors="none", edgecolors=GREY)
    cross = axes.scatter([], [], s=12, marker="x", color=GREY)
    return [mark, cross], ["pooled PCA", "federated"]


def _pareto_front(pairs: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the pairs (MB, degrees) that no other pair beats in both, by MB; exact angles count as equal."""
    best, front = np.inf, []
    for megabytes, degrees in sorted((megabytes, max(degrees, EXACT_ANGLE_DEGREES)) for megabytes, degrees in pairs):
        if degrees < best:
            best = degrees
            front.append((megabytes, degrees))
    return front
