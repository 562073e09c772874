"""The figure of scores: rows of all parties in two components, or a strip of each party in one."""

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
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
from fedpca_flwr.data.frames import column_labels, labels_text, open_frame
from fedpca_flwr.errors import ConfigError, DataError, value_text
from fedpca_flwr.figures.style import (
    COLOURS,
    GREY,
    STYLE,
    add_legend,
    canvas,
    looks,
    short_names,
    thin_rows,
    wrapped_names,
)
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.model.model import PCAModel
from fedpca_flwr.model.tables import component_labels, tables_by_name

MAX_SCORE_MARKS = 3000  # rows of all parties together that are drawn, a mark each
MAX_RASTER_FREE_MARKS = 300  # marks beyond which they are an image in a vector file
MAX_PANELS = 36  # parties or classes that have a panel, or a strip, of their own; all smaller ones share the last
MIN_ELLIPSE_ROWS = 10  # rows below which a covariance says too little for an ellipse
Ellipses = Literal["rows", "mean", "none"]
Names = NDArray[np.str_]
Texts = Sequence[str]

ELLIPSE_TEXTS = {"rows": "ellipse: 95 % of rows,\nif they are normal"}  # entries of the legend by kind of ellipse
ELLIPSE_TEXTS |= {"mean": "ellipse: the mean,\nwith 95 % confidence"}


@rc_context(STYLE)
def scores(
    parties: Any,
    model: PCAModel | None = None,
    *,
    labels: Any = None,
    components: tuple[int, int] | None = None,
    ellipses: Ellipses = "rows",
) -> Figure:
    """Draw the scores of all parties' rows in two components, each party in its own colour and marker.

    If there are more than ten parties (or classes), each has its own panel, among all rows in grey. If there are more
    than `MAX_PANELS`, the smallest share the last panel. A single component is drawn as one strip for each party. Rows
    that form several clouds, and fewer than `MIN_ELLIPSE_ROWS` rows, have no ellipse of rows.

    Parameters
    ----------
    parties : mapping of str to table, or list of tables
        Rows (n_i, d) of each party; or scores: an array (n_i, k) if there is no model, the file (``.npy`` or ``.csv``)
        that a run wrote at the site, or what `PCAModel.scores_frame` returns.
    model : PCAModel or FederatedPCA, optional
        Model that computes the scores of tables, and the shares of variance in the axes' labels.
    labels : str, or mapping of str to array-like, or list of array-like, of shape (n_i,), optional
        Class of each row, or the name of the column with the classes in the parties' data frames. Colours and ellipses
        then stand for classes, and marks for parties, if there are at most ten.
    components : (int, int), optional
        Numbers of the components to draw, from 1; by default the first two, or the only component.
    ellipses : {"rows", "mean", "none"}, default "rows"
        Ellipse for each colour: it holds 95 % of normal rows with the mean and covariance of the colour's rows
        ("rows"), or is the 95 % confidence region of their mean ("mean"). The legend says which.

    Returns
    -------
    Figure

    Raises
    ------
    ConfigError
        If components, labels or ellipses do not fit the scores, or the model is none.
    DataError
        If a file does not hold scores.

    Examples
    --------
    >>> from sklearn.datasets import load_wine
    >>> from fedpca_flwr import run
    >>> from fedpca_flwr.figures import plots
    >>> wine = load_wine(as_frame=True).data
    >>> parties = {"north": wine[:90], "south": wine[90:]}
    >>> figure = plots.scores(parties, run("p-cov", parties, n_components=2, scale=True))
    """
    if ellipses not in ("rows", "mean", "none"):
        raise ConfigError(f"'ellipses' is {value_text(ellipses)}, expected 'rows', 'mean' or 'none'")
    if components is not None and (not isinstance(components, Sequence) or len(components) not in (1, 2)):
        raise ConfigError(f"'components' is {components!r}, expected one or two numbers from 1, such as (1, 2)")
    model = model_of(model)
    if not isinstance(model, PCAModel | None) or isinstance(model_of(parties), PCAModel):
        raise ConfigError("'parties' are tables of rows and 'model' is a PCAModel: give scores(parties, model)")
    tables = tables_by_name(parties, {} if model is None else model.log)
    if isinstance(labels, str):
        labels, tables = _take_column(tables, labels, model)
    points = {name: _points(name, item, model, components) for name, item in tables.items()}
    widths = {name: part.shape[1] for name, part in points.items()}
    if len(set(widths.values())) > 1:
        raise ConfigError(f"the parties' scores have one component here and several there: {widths}; name 'components'")
    names = np.repeat(list(points), [len(part) for part in points.values()])
    classes = names if labels is None else np.array([item for part in _classes(points, labels) for item in part])
    order = list(points) if labels is None else sorted(set(classes.tolist()), key=_natural_key)
    everything = np.concatenate(list(points.values()))
    titles = [component_title(model, component) for component in components or (1, 2)]
    if 1 in widths.values():
        return _strips(everything[:, 0], names, list(points), classes, order, titles[0])
    if len(order) > len(COLOURS):
        return _panels(everything, classes, order, titles, ellipses)
    return _single(everything, names, list(points), classes, order, titles, ellipses)


def _take_column(
    tables: Mapping[str, Any], column: str, model: PCAModel | None
) -> tuple[dict[str, list[Any]], dict[str, Any]]:
    """Return a column's values, and the tables without it unless the model has it, by party, or raise ConfigError."""
    features = () if model is None or model.feature_names_in_ is None else tuple(model.feature_names_in_)
    values, rest = dict[str, list[Any]](), dict[str, Any]()
    for name, table in tables.items():
        frame = open_frame(table)
        data: Any = None if frame is None or column not in frame.labels else frame.values()
        if frame is None or not hasattr(data, "drop"):
            has = f"has the columns {labels_text(frame.labels)}" if frame else "is no data frame"
            raise ConfigError(
                f"'labels' is {value_text(column)}, but the table of '{name}' {has}; name a column of every table, "
                "or give a list of classes for each party"
            )
        values[name] = data[column].to_list()
        rest[name] = table if column in features else data.drop(column).to_native()
    return values, rest


def _points(name: str, table: Any, model: PCAModel | None, components: tuple[int, int] | None) -> Array:
    """Return the scores (n, 2) of a party's rows in two components, or (n, 1) if there is a single component.

    The table is a file of a run's scores, scores if there is no model or its columns are "PC1", "PC2" ..., or else
    rows. Components count from 1; None: the first two. Raise ConfigError for components that the scores do not have,
    and DataError for another file.
    """
    if isinstance(table, str | os.PathLike):
        path = Path(table)
        try:
            values = np.load(path) if path.suffix == ".npy" else np.loadtxt(path, delimiter=",", skiprows=1, ndmin=2)
        except (OSError, ValueError) as error:  # whose text may quote a cell
            raise DataError(f"{path} of '{name}' is no file of a run's scores ({type(error).__name__})") from None
    else:
        is_scores = model is None or column_labels(table) == tuple(component_labels(model.n_components_))
        values = np.asarray(table) if model is None or is_scores else model.transform(table)
    k = values.shape[-1] if values.ndim == 2 else 0
    shown = components or ((1,) if k == 1 else (1, 2))
    if not all(1 <= component <= k for component in shown):
        raise ConfigError(f"the scores of '{name}' have shape {values.shape}, but the components {shown} are asked")
    return np.asarray(values[:, [component - 1 for component in shown]], dtype=np.float64)


def _classes(points: Mapping[str, Array], labels: Any) -> list[list[str]]:
    """Return the class of each row by party, as texts; raise ConfigError for labels of another number of rows."""
    party_labels = [labels[name] for name in points] if isinstance(labels, Mapping) else labels
    classes = [[str(label) for label in part] for part in party_labels]
    rows = [len(part) for part in points.values()]
    if [len(part) for part in classes] != rows:
        raise ConfigError(f"'labels' are of {[len(part) for part in classes]} rows of the parties, expected {rows}")
    return classes


def _natural_key(text: str) -> list[tuple[int, str]]:
    """Return a key by which "kind 2" comes before "kind 10"."""
    return [(int(part or 0) if i % 2 else 0, part) for i, part in enumerate(re.split(r"([0-9]+)", text))]


def component_title(model: PCAModel | None, component: int) -> str:
    """Return the axis label of a component (from 1), with its share of the variance unless unknown (NaN, no model)."""
    shares = [] if model is None else model.explained_variance_ratio_[component - 1 : component].tolist()
    return f"PC{component}" + "".join(f" ({share:.1%} of the variance)" for share in shares if share == share)


def _single(
    points: Array, names: Names, parties: Texts, classes: Names, order: Texts, titles: Texts, ellipses: Ellipses
) -> Figure:
    """Draw all rows (n, 2) into the same axes: colours are of at most ten classes, and marks of at most ten parties.

    ``names`` (n,) and ``classes`` (n,) are each row's, ``parties`` and ``order`` list the different ones.
    """
    colours, by_party = dict(zip(order, COLOURS, strict=False)), list(order) == list(parties)
    few = len(parties) <= len(COLOURS)
    marks = {name: mark if few else "o" for name, (_, mark) in zip(parties, looks(), strict=False)}
    figure, axes = canvas(5.2, 4.6)
    for name in parties:
        own = np.flatnonzero(names == name)
        shown = own[thin_rows(len(own), max(1, MAX_SCORE_MARKS // len(parties)))]
        paint: dict[str, Any] = {"c": [colours[item] for item in classes[shown].tolist()], "alpha": 0.6}
        raster = len(points) > MAX_RASTER_FREE_MARKS
        size = 18 if len(points) <= 1000 else 8
        x, y = points[shown].T
        axes.scatter(x, y, size, marker=marks[name], linewidths=0, rasterized=raster, **paint)
    with_ellipse = [_draw_ellipse(axes, points[classes == item], ellipses, colours[item]) for item in order]
    axes.set(xlabel=titles[0], ylabel=titles[1])
    axes.set_aspect("equal", adjustable="datalim")

    def texts(items: Sequence[str], of: NDArray[np.str_]) -> list[str]:
        return [f"{text} ({np.sum(of == item)} rows)" for item, text in zip(items, wrapped_names(items), strict=True)]

    dot: dict[str, Any] = {"linestyle": "none", "markersize": 5}
    named = list(parties) if by_party or (few and len(parties) > 1) else []
    handles: list[Artist] = [
        Line2D([], [], marker=marks[name], color=colours[name] if by_party else GREY, label=text, **dot)
        for name, text in zip(named, texts(named, names), strict=True)
    ]
    if not by_party:  # patches of colours, because a square is the mark of a party
        entries = zip(order, texts(order, classes), strict=True)
        handles = [*(Patch(color=colours[item], label=text) for item, text in entries), *handles]
    add_legend(figure, [*handles, *_ellipse_entries(ellipses, with_ellipse)])
    return figure


def _ellipse_entries(ellipses: Ellipses, drawn: Sequence[bool]) -> list[Line2D]:
    """Return the entries of a legend on what ellipses hold, and on why any is not ``drawn``; [] for "none"."""
    if ellipses == "none":
        return []
    handles = [Line2D([], [], color=GREY, linewidth=1.2, label=ELLIPSE_TEXTS[ellipses])] if any(drawn) else []
    if not all(drawn):
        why = f"no ellipse: below {MIN_ELLIPSE_ROWS} rows" + ("\nor several clouds" if ellipses == "rows" else "")
        handles.append(Line2D([], [], linestyle="none", label=why))
    return handles


def _panels(points: Array, classes: Names, order: Texts, titles: Texts, ellipses: Ellipses) -> Figure:
    """Draw a panel of each class among all rows (n, 2) in grey; arguments as of `_single`."""
    merged, order = _merge_smallest(classes, order)
    columns = 6
    lines = -(-len(order) // columns)
    figure = Figure(figsize=(1.55 * columns + 0.6, 1.75 * lines + 0.6))
    grid = figure.subplots(lines, columns, sharex=True, sharey=True, squeeze=False).ravel()
    everywhere = points[thin_rows(len(points), 500)].T
    drawn = []
    for axes, item, name in zip(grid, order, short_names(order, 22), strict=False):
        own = points[merged == item]
        axes.plot(*everywhere, "o", color=GREY, alpha=0.4, markersize=1.8, markeredgewidth=0, rasterized=True)
        shown = own[thin_rows(len(own), MAX_SCORE_MARKS // len(order))].T
        axes.plot(*shown, "o", color=COLOURS[0], alpha=0.7, markersize=3.5, markeredgewidth=0, rasterized=True)
        drawn.append(_draw_ellipse(axes, own, ellipses, COLOURS[3]))
        axes.set_title(f"{name}\n{len(own)} rows", fontsize=7, pad=3)
        axes.tick_params(labelsize=7)
    for axes in grid[len(order) :]:
        axes.set_visible(False)
    figure.supxlabel(titles[0], fontsize=10)
    figure.supylabel(titles[1], fontsize=10)
    handles = [
        Line2D([], [], linestyle="none", marker="o", markersize=4, color=COLOURS[0], label="rows of the panel"),
        Line2D([], [], linestyle="none", marker="o", markersize=2, color=GREY, label="rows of all"),
    ]
    for handle in (entries := _ellipse_entries(ellipses, drawn)):
        handle.set_color(COLOURS[3])
    add_legend(figure, handles + entries)
    return figure


def _merge_smallest(classes: Names, order: Texts) -> tuple[Names, list[str]]:
    """Return classes and their order; if they are more than `MAX_PANELS`, the smallest are one class, the last."""
    if len(order) <= MAX_PANELS:
        return classes, list(order)
    sizes = [int(np.sum(classes == item)) for item in order]
    largest = set(np.argsort([-size for size in sizes], kind="stable")[: MAX_PANELS - 1].tolist())
    own = [item for i, item in enumerate(order) if i in largest]
    rest = f"{len(order) - len(own)} others"
    return np.array([item if item in own else rest for item in classes.tolist()]), [*own, rest]


def _strips(points: Array, names: Names, parties: Texts, classes: Names, order: Texts, title: str) -> Figure:
    """Draw a strip of each party, in which rows (n,) lie one above the other only to be seen, coloured by classes."""
    by_party = list(order) == list(parties)
    merged, strips = _merge_smallest(names, parties)
    figure, axes = canvas(5.8, max(2.4, 0.9 + 0.45 * len(strips) if len(strips) <= 8 else 1.2 + 0.24 * len(strips)))
    look = dict(zip(strips if by_party else order, looks(), strict=False))
    for place, strip in enumerate(strips):
        own = np.flatnonzero(merged == strip)
        own = own[thin_rows(len(own), MAX_SCORE_MARKS // len(strips))]
        height = place + 0.7 * (np.arange(len(own)) * 0.618034 % 1 - 0.5)
        keys = merged[own] if by_party else classes[own]
        for item in dict.fromkeys(keys.tolist()):
            members, (colour, mark) = keys == item, look[item]
            raster = len(points) > MAX_RASTER_FREE_MARKS
            paint: dict[str, Any] = {"color": colour, "marker": mark, "alpha": 0.6, "linewidths": 0}
            axes.scatter(points[own[members]], height[members], 16, rasterized=raster, **paint)
    texts = [f"{text} ({np.sum(merged == strip)})" for text, strip in zip(short_names(strips), strips, strict=True)]
    axes.set_yticks(range(len(strips)), texts)
    axes.set_ylim(len(strips) - 0.5, -0.5)
    axes.set(xlabel=title, ylabel="party (rows)")
    if not by_party:
        shown = [(text, *look[item]) for item, text in zip(order, short_names(order), strict=True)]
        add_legend(figure, [Line2D([], [], linestyle="none", marker=m, color=c, label=t) for t, c, m in shown])
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
