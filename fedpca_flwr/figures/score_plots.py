"""The figure of scores: rows of all parties in two components, or a strip of each party in one."""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from matplotlib import rc_context
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from numpy.typing import NDArray
from scipy.special import fdtri

from fedpca_flwr.analyses.inputs import model_of
from fedpca_flwr.errors import ConfigError, value_text
from fedpca_flwr.figures import style
from fedpca_flwr.figures.rows import (
    Labels,
    component_title,
    label_rows,
    model_title,
    points_of,
    scatter,
    tables_and_labels,
)
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.model.model import PCAModel

MAX_SCORE_MARKS = 3000  # rows of all parties together that are drawn, a mark each
MAX_RASTER_FREE_MARKS = 300  # marks beyond which they are an image in a vector file
MAX_PANELS = 36  # parties or classes that have a panel, or a strip, of their own; all smaller ones share the last
MIN_ELLIPSE_ROWS = 10  # rows below which a covariance says too little for an ellipse
Ellipses = Literal["rows", "mean", "none"]
Texts = Sequence[str]

ELLIPSE_TEXTS = {"rows": "ellipse: 95 % of rows,\nif they are normal"}  # entries of the legend by kind of ellipse
ELLIPSE_TEXTS |= {"mean": "ellipse: the mean,\nwith 95 % confidence"}


@rc_context(style.STYLE)
def scores(
    model: PCAModel | None,
    parties: Any,
    *,
    labels: Any = None,
    components: Sequence[int] | None = None,
    ellipses: Ellipses = "rows",
    title: str | None = None,
    ax: Axes | None = None,
) -> Figure:
    """Draw the scores of all parties' rows in two components, each party in its own colour and marker.

    If there are more than ten parties (or classes), each has its own panel, among all rows in grey. If there are more
    than `MAX_PANELS`, the smallest share the last panel. A single component is drawn as one strip for each party. Rows
    that form several clouds, and fewer than `MIN_ELLIPSE_ROWS` rows, have no ellipse of rows.

    Parameters
    ----------
    model : PCAModel, FederatedPCA or None
        Model that computes the scores of tables, and the shares of variance in the axes' labels. None if the parties
        are scores.
    parties : mapping of str to table, or list of tables
        Rows (n_i, d) of each party; or scores: an array (n_i, k) if there is no model, the file (``.npy`` or ``.csv``)
        that a run wrote at the site, or what `PCAModel.scores_frame` returns.
    labels : str, mapping or list of array-like of shape (n_i,), or array-like of shape (n,), optional
        Label of each row, or the name of the column with the labels in the parties' data frames. Colours and ellipses
        then stand for classes, and marks for parties, if there are at most ten. Numbers of more than ten different
        values have a bar of colours.
    components : (int, int), optional
        Numbers of the components to draw, from 1; by default the first two, or the only component.
    ellipses : {"rows", "mean", "none"}, default "rows"
        Ellipse for each colour: it holds 95 % of normal rows with the mean and covariance of the colour's rows
        ("rows"), or is the 95 % confidence region of their mean ("mean"). The legend says which.
    title : str, optional
        By default the method, the number of rows, and whether they are scaled.
    ax : Axes, optional
        Axes to draw into.

    Returns
    -------
    Figure

    Raises
    ------
    ConfigError
        If components, labels or ellipses do not fit the scores, the model is none, or ``ax`` is given for panels.
    DataError
        If a file does not hold scores.

    Examples
    --------
    >>> from sklearn.datasets import load_wine
    >>> from fedpca_flwr import run
    >>> from fedpca_flwr.figures import plots
    >>> wine = load_wine(as_frame=True).data
    >>> parties = {"north": wine[:90], "south": wine[90:]}
    >>> figure = plots.scores(run("p-cov", parties, n_components=2, scale=True), parties)
    """
    if ellipses not in ("rows", "mean", "none"):
        raise ConfigError(f"'ellipses' is {value_text(ellipses)}, expected 'rows', 'mean' or 'none'")
    if components is not None and (not isinstance(components, Sequence) or len(components) not in (1, 2)):
        raise ConfigError(f"'components' is {components!r}, expected one or two numbers from 1, such as (1, 2)")
    model = model_of(model)
    if not isinstance(model, PCAModel | None):
        kind = type(model).__name__
        raise ConfigError(f"'model' is of type {kind}, expected PCAModel or None; it is first: scores(model, parties)")
    tables, row_labels, column = tables_and_labels(parties, labels, model)
    points = {name: points_of(name, item, model, components) for name, item in tables.items()}
    widths = {name: part.shape[1] for name, part in points.items()}
    if len(set(widths.values())) > 1:
        raise ConfigError(f"the parties' scores have one component here and several there: {widths}; name 'components'")
    rows = {name: len(part) for name, part in points.items()}
    names = np.repeat(list(rows), list(rows.values()))
    by_party = Labels(names, list(rows))
    shown = by_party if labels is None else label_rows(row_labels, rows, column)
    everything = np.concatenate(list(points.values()))
    axis_titles = [component_title(model, component) for component in components or (1, 2)]
    if 1 in widths.values():
        figure = _strips(everything[:, 0], by_party, shown, axis_titles[0], ax)
    elif len(shown.classes) > len(style.COLOURS):
        style.refuse_axes(ax, len(shown.classes))
        figure = _panels(everything, shown, axis_titles, ellipses)
    else:
        figure = _single(everything, by_party, shown, axis_titles, ellipses, ax)
    single = len(shown.classes) <= len(style.COLOURS) or 1 in widths.values()
    style.add_title((ax or figure.axes[0]) if single else figure, title, model_title(model))
    return figure


def _single(
    points: Array, by_party: Labels, labels: Labels, titles: Texts, ellipses: Ellipses, ax: Axes | None
) -> Figure:
    """Draw all rows (n, 2) into the same axes: colours are of labels, of at most ten classes, and marks of parties."""
    names, parties = by_party.values, by_party.classes
    few, alike = len(parties) <= len(style.COLOURS), by_party.classes == labels.classes
    marks = {name: mark if few else "o" for name, (_, mark) in by_party.looks.items()}
    figure, axes = style.canvas(5.2, 4.6, ax)
    size, raster = 18 if len(points) <= 1000 else 8, len(points) > MAX_RASTER_FREE_MARKS
    colours = labels.colours
    for name in parties:
        own = np.flatnonzero(names == name)
        shown = own[style.thin_rows(len(own), max(1, MAX_SCORE_MARKS // len(parties)))]
        how: dict[str, Any] = {"marker": marks[name], "linewidths": 0, "alpha": 0.6, "rasterized": raster}
        x, y = points[shown].T
        axes.scatter(x, y, size, colours[shown], **how)
    hues = {item: colour for item, (colour, _) in labels.looks.items()}
    with_ellipse = [_draw_ellipse(axes, points[labels.values == item], ellipses, hues[item]) for item in hues]
    axes.set(xlabel=titles[0], ylabel=titles[1])
    axes.set_aspect("equal", adjustable="datalim")

    def texts(items: Sequence[str], of: NDArray[np.str_]) -> list[str]:
        pairs = zip(items, style.wrapped_names(items), strict=True)
        return [f"{text} ({np.sum(of == item)} rows)" for item, text in pairs]

    dot: dict[str, Any] = {"linestyle": "none", "markersize": 5}
    named = list(parties) if alike or (few and len(parties) > 1) else []
    handles: list[Artist] = [
        Line2D([], [], marker=marks[name], color=hues[name] if alike else style.GREY, label=text, **dot)
        for name, text in zip(named, texts(named, names), strict=True)
    ]
    if not alike:  # patches of colours, because a square is the mark of a party
        entries = zip(labels.classes, texts(labels.classes, labels.values), strict=True)
        handles = [*(Patch(color=hues[item], label=text) for item, text in entries), *handles]
    if not labels.classes:
        labels.entries(axes)
    style.add_legend(ax or figure, [*handles, *_ellipse_entries(ellipses, with_ellipse)])
    return figure


def _ellipse_entries(ellipses: Ellipses, drawn: Sequence[bool]) -> list[Line2D]:
    """Return the entries of a legend on what ellipses hold, and on why any is not ``drawn``; [] for "none"."""
    if ellipses == "none":
        return []
    handles = [Line2D([], [], color=style.GREY, linewidth=1.2, label=ELLIPSE_TEXTS[ellipses])] if any(drawn) else []
    if not all(drawn):
        why = f"no ellipse: below {MIN_ELLIPSE_ROWS} rows" + ("\nor several clouds" if ellipses == "rows" else "")
        handles.append(Line2D([], [], linestyle="none", label=why))
    return handles


def _panels(points: Array, labels: Labels, titles: Texts, ellipses: Ellipses) -> Figure:
    """Draw a panel of each class among all rows (n, 2) in grey; arguments as of `_single`."""
    merged, order, *_ = _merge_smallest(labels)
    columns = 6
    size = 1.55 * columns + 0.6, 1.75 * -(-len(order) // columns) + 0.6
    figure, grid = style.panel_grid(None, len(order), columns, size, sharex=True, sharey=True)
    everywhere = points[style.thin_rows(len(points), 500)].T
    drawn = []
    for axes, item, name in zip(grid, order, style.short_names(order, 22), strict=True):
        own = points[merged == item]
        axes.plot(*everywhere, "o", color=style.GREY, alpha=0.4, markersize=1.8, markeredgewidth=0, rasterized=True)
        shown = own[style.thin_rows(len(own), MAX_SCORE_MARKS // len(order))].T
        axes.plot(*shown, "o", color=style.COLOURS[0], alpha=0.7, markersize=3.5, markeredgewidth=0, rasterized=True)
        drawn.append(_draw_ellipse(axes, own, ellipses, style.COLOURS[3]))
        axes.set_title(f"{name}\n{len(own)} rows", fontsize=7, pad=3)
        axes.tick_params(labelsize=7)
    figure.supxlabel(titles[0], fontsize=10)
    figure.supylabel(titles[1], fontsize=10)
    handles = [
        Line2D([], [], linestyle="none", marker="o", markersize=4, color=style.COLOURS[0], label="rows of the panel"),
        Line2D([], [], linestyle="none", marker="o", markersize=2, color=style.GREY, label="rows of all"),
    ]
    for handle in (entries := _ellipse_entries(ellipses, drawn)):
        handle.set_color(style.COLOURS[3])
    style.add_legend(figure, handles + entries)
    return figure


def _merge_smallest(labels: Labels) -> Labels:
    """Return classes and their order; if they are more than `MAX_PANELS`, the smallest are one class, the last."""
    classes, order = labels.values, labels.classes
    if len(order) <= MAX_PANELS:
        return labels
    sizes = [int(np.sum(classes == item)) for item in order]
    largest = set(np.argsort([-size for size in sizes], kind="stable")[: MAX_PANELS - 1].tolist())
    own = [item for i, item in enumerate(order) if i in largest]
    rest = f"{len(order) - len(own)} others"
    return Labels(np.array([item if item in own else rest for item in classes.tolist()]), [*own, rest])


def _strips(points: Array, by_party: Labels, labels: Labels, title: str, ax: Axes | None) -> Figure:
    """Draw a strip of each party, in which rows (n,) lie one above the other only to be seen, coloured by labels."""
    alike = by_party.classes == labels.classes
    merged = _merge_smallest(by_party)
    strips, painted = merged.classes, merged if alike else labels
    height = max(2.4, 0.9 + 0.45 * len(strips) if len(strips) <= 8 else 1.2 + 0.24 * len(strips))
    figure, axes = style.canvas(5.8, height, ax)
    for place, strip in enumerate(strips):
        own = np.flatnonzero(merged.values == strip)
        own = own[style.thin_rows(len(own), MAX_SCORE_MARKS // len(strips))]
        marks = np.column_stack([points[own], place + 0.7 * (np.arange(len(own)) * 0.618034 % 1 - 0.5)])
        raster = len(points) > MAX_RASTER_FREE_MARKS
        scatter(axes, marks, painted.of(own), s=16, alpha=0.6, linewidths=0, rasterized=raster)
    counts = [np.sum(merged.values == strip) for strip in strips]
    names = zip(style.short_names(strips), counts, strict=True)
    axes.set_yticks(range(len(strips)), [f"{text} ({n})" for text, n in names])
    axes.set_ylim(len(strips) - 0.5, -0.5)
    axes.set(xlabel=title, ylabel="party (rows)")
    style.add_legend(ax or figure, [] if alike else labels.entries(axes))
    return figure


def _draw_ellipse(axes: Axes, points: Array, ellipses: Ellipses, colour: str) -> bool:
    """Draw the ellipse of points (n, 2); return False if there is none: too few rows, several clouds, or "none"."""
    n = len(points)
    if ellipses == "none" or n < MIN_ELLIPSE_ROWS or (ellipses == "rows" and _several_clouds(points)):
        return False
    chi_squared = -2 * np.log(0.05)  # the quantile with 2 degrees of freedom
    t_squared = 2 * (n - 1) / (n - 2) / n * fdtri(2, n - 2, 0.95)  # Hotelling's, of a mean
    squared_radius = chi_squared if ellipses == "rows" else t_squared
    values, vectors = np.linalg.eigh(np.cov(points.T))
    turn = np.linspace(0, 2 * np.pi, 100)
    radii = np.sqrt(values.clip(min=0.0) * squared_radius)
    outline = points.mean(axis=0)[:, None] + (vectors * radii) @ np.array([np.cos(turn), np.sin(turn)])
    axes.plot(*outline, color=colour, linewidth=1.2)
    return True


# Sarle's coefficient of bimodality, (skewness^2 + 1) / kurtosis, beyond which points lie in several clouds: a normal
# distribution has 1/3, a uniform one 5/9, two or three equal clouds that do not touch 0.7 and more
BIMODALITY = 0.65


def _several_clouds(points: Array) -> bool:
    """Return whether points (n, 2) lie in several clouds along any direction, by their moments; not if on a line."""
    centred = points - points.mean(axis=0)
    left, singular, _ = np.linalg.svd(centred, full_matrices=False)
    if singular[-1] <= 1e-9 * singular[0]:
        return False
    turn = np.linspace(0, np.pi, 24, endpoint=False)
    z = left @ np.array([np.cos(turn), np.sin(turn)]) * np.sqrt(len(points))
    coefficients = (np.mean(z**3, axis=0) ** 2 + 1) / np.mean(z**4, axis=0)
    return float(coefficients.max()) > BIMODALITY + 2.5 / len(points)  # of few normal rows it is larger by chance
