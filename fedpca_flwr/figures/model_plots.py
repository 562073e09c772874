"""Figures of models and of their parties' rows, as in `fedpca_flwr.figures.plots`."""

from collections.abc import Mapping, Sequence
from textwrap import wrap
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from scipy.sparse import issparse

from fedpca_flwr.analyses.components import pca
from fedpca_flwr.analyses.inputs import MODEL_ADVICE, takes
from fedpca_flwr.data.frames import as_rows
from fedpca_flwr.data.table import Table
from fedpca_flwr.errors import ConfigError
from fedpca_flwr.figures import style
from fedpca_flwr.figures.rows import (
    Labels,
    component_places,
    component_title,
    label_rows,
    model_title,
    scatter,
    tables_and_labels,
)
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.model.model import PCAModel

MAX_BAR_FEATURES = 30  # features that have bars and names; of more, each component has its largest
MAX_LARGEST_FEATURES = 12  # features of a component that are drawn where not all are

MODELS_ADVICE = "give a model, or models by their names, first: {'p-cov': model}"
takes_model = takes("model", PCAModel, f"{MODEL_ADVICE}; a plot takes the model first: plots.NAME(model, parties)")


@takes_model
@rc_context(style.STYLE)
def loadings(
    model: PCAModel, *, components: Sequence[int] | None = None, title: str | None = None, ax: Axes | None = None
) -> Figure:
    """Draw the loadings of components as bars, a panel for each component.

    Parameters
    ----------
    model : PCAModel
        Model. Of more than `MAX_BAR_FEATURES` features each panel shows the `MAX_LARGEST_FEATURES` with the largest
        loadings of its component, the largest first. Fewer features are all shown, in the model's order.
    components : sequence of int, optional
        Numbers of the components to draw, from 1; by default the first three.
    title, ax : optional
        As in `scores`; ``ax`` for a single component.

    Returns
    -------
    Figure

    Raises
    ------
    ConfigError
        If the model has no such components.
    """
    k = model.n_components_
    places = component_places(components or range(1, min(k, 3) + 1), k, range(1, k + 1))
    values = model.loadings()[0][places]
    d = values.shape[1]
    names = style.short_names(range(d) if model.feature_names_in_ is None else model.feature_names_in_)
    all_shown, limit = d <= MAX_BAR_FEATURES, 1.05 * (float(np.abs(values).max()) or 1.0)
    largest = np.argsort(-np.abs(values), axis=1, kind="stable")[:, :MAX_LARGEST_FEATURES]
    orders = [np.arange(d)] * len(places) if all_shown else list(largest)
    columns, height = min(len(places), 4), 0.7 + 0.21 * orders[0].size
    width = max(3.2, 2.0 * columns) + _names_width(names) * (1 if all_shown else columns)
    size = width, 0.6 + -(-len(places) // columns) * height
    figure, grid = style.panel_grid(ax, len(places), columns, size, sharey=all_shown)
    for panel, place, row, order in zip(grid, places, values, orders, strict=True):
        colours = np.where(row[order] > 0, style.COLOURS[0], style.COLOURS[3]).tolist()
        panel.barh(range(order.size), row[order], color=colours)
        panel.set_title(component_title(model, place + 1).replace(" of the variance", ""), fontsize=10)
        panel.set_yticks(range(order.size), [names[j] for j in order.tolist()])
        panel.set(xlim=(-limit, limit), ylim=(order.size - 0.5, -0.5), xlabel="loading")
    if not all_shown:
        grid[0].set_ylabel(f"the largest {orders[0].size} of {d} features")
    if ax is None or title is not None:
        style.add_title(ax or figure, title, model_title(model))
    return figure


def _names_width(names: Sequence[str]) -> float:
    """Return the inches that names beside an axis take."""
    return 0.3 + 0.085 * max(map(len, names))


@takes("reference", PCAModel, MODEL_ADVICE)
@takes("models", (PCAModel, Mapping), MODELS_ADVICE)
@rc_context(style.STYLE)
def projection_overlay(
    models: PCAModel | Mapping[str, PCAModel],
    parties: Any,
    *,
    reference: PCAModel,
    labels: Any = None,
    components: Sequence[int] = (1, 2),
    title: str | None = None,
    ax: Axes | None = None,
) -> Figure:
    """Draw rows in two components by two models: open marks for the reference, crosses for the federated model.

    A line joins the two points of a row. If the models agree, every cross lies in its mark. Components of opposite sign
    are flipped, because the sign of a component is arbitrary. A single component is drawn against the number of the
    row. Several models have a panel each.

    Parameters
    ----------
    models : PCAModel or mapping of str to PCAModel
    parties : mapping of str to table, list of tables, or one table, of shape (n_i, d)
        Rows. The figure shows at most `MAX_PLOTTED_ROWS` of them, evenly spread. Columns of a data frame are matched by
        name.
    reference : PCAModel
        Model to compare with, such as the PCA of the pooled rows.
    labels, components, title, ax : optional
        As in `scores`. Each class has its own colour and mark.

    Returns
    -------
    Figure

    Raises
    ------
    ConfigError
        If there are no models; if components or labels do not fit the models or rows.
    """
    default = "" if isinstance(models, Mapping) else model_title(models)
    models = models if isinstance(models, Mapping) else {"": models}
    _require_models(models)
    columns = min(3, len(models))
    size = (5, 4.6) if len(models) == 1 else (3.2 * columns, 3.1 * -(-len(models) // columns))
    figure, grid = style.panel_grid(ax, len(models), columns, size, sharex=True, sharey=True)
    rows, shown = _thinned(parties, labels, reference)
    for axes, (name, model) in zip(grid, models.items(), strict=True):
        handles, (xlabel, ylabel) = _overlay(axes, reference, model, rows, shown, components)
        axes.set_title("\n".join(wrap(name, 34)[:3]), fontsize=10)
    style.label_edges(grid, columns, xlabel, ylabel)
    handles += [] if labels is None else shown.entries(grid[-1], hollow=True)
    style.add_title(grid[0] if len(models) == 1 and (title or default) else figure, title, default)
    style.add_legend(ax or figure, handles)
    return figure


@takes("models", (PCAModel, Mapping), MODELS_ADVICE)
@rc_context(style.STYLE)
def scree(models: PCAModel | Mapping[str, PCAModel], *, title: str | None = None, ax: Axes | None = None) -> Figure:
    """Draw each component's share of the total variance, and the cumulated shares, for one or several models.

    Parameters
    ----------
    models : PCAModel or mapping of str to PCAModel
        One model, or several by name. Models with equal shares have one common curve. A model that keeps moments has
        the shares of all d components, and a dashed line where its own end.
    title, ax : optional
        As in `scores`, the default title for a single model; ``ax`` shows the shares without the cumulated shares.

    Returns
    -------
    Figure
    """
    default = "" if isinstance(models, Mapping) else model_title(models)
    models = models if isinstance(models, Mapping) else {"the model": models}
    _require_models(models)
    curves: dict[tuple[float, ...], list[str]] = {}
    ratios = {name: 100 * _all_shares(model) for name, model in models.items()}
    for name, ratio in ratios.items():
        curves.setdefault(tuple(np.round(ratio, 4)), []).append(name)
    figure = Figure(figsize=(8, 3.6)) if ax is None else style.canvas(0, 0, ax)[0]
    panels = figure.subplots(1, 2) if ax is None else [ax]
    handles: list[Any] = []
    for names, (colour, marker) in zip(curves.values(), style.looks(), strict=False):
        ratio, k = ratios[names[0]], models[names[0]].n_components_
        number, name = np.arange(1, ratio.size + 1), " = ".join(names)
        how: dict[str, Any] = {"color": colour, "marker": marker, "markersize": 4, "fillstyle": "none"}
        label = f"{name} (unknown: no component stands out of the noise)" if np.isnan(ratio).any() else name
        handles += panels[0].plot(number, ratio, label="\n".join(wrap(label, 42)[:4]), **how)
        for panel in panels[1:]:
            panel.plot(number, ratio.cumsum(), **how)
        if k < ratio.size:
            end: dict[str, Any] = {"color": colour, "linestyle": "--", "label": f"end of {name}'s {k} components"}
            handles += [panel.axvline(k + 0.5, **end) for panel in panels][:1]
    for axes, what in zip(panels, ("explained variance (%)", "cumulative explained variance (%)"), strict=False):
        axes.set(xlabel="component", ylabel=what, ylim=(0, None if axes is panels[0] else 103))
        style.number_axis(axes.xaxis, max(ratio.size for ratio in ratios.values()))
    if len(handles) > 1 or "\n" in handles[0].get_label():
        style.add_legend(ax or figure, handles)
    style.add_title(ax or figure, title, default)
    return figure


def _all_shares(model: PCAModel) -> Array:
    """Return the shares of the variance of all components, from the moments if the model keeps them."""
    moments = None if model.adjustment_ is not None else model.moments_
    if moments is None:
        return model.explained_variance_ratio_
    return pca(moments, min(moments.n_features, moments.n_samples)).explained_variance_ratio_


MAX_NAMED_PARTIES = 36  # bars of parties that all have names; of more, evenly spread ones have


@takes_model
@rc_context(style.STYLE)
def heterogeneity(model: PCAModel, parties: Any, *, title: str | None = None) -> Figure:
    """Draw each party's number of rows, distance of its mean, and share of its variance that the model explains.

    Parameters
    ----------
    model : PCAModel
    parties : mapping of str to array-like, or sequence of array-like, of shape (n_i, d)
        Rows of the parties. Columns of data frames are matched by name.
    title : str, optional
        By default the method, the number of rows, and whether they are scaled.

    Returns
    -------
    Figure
    """
    tables, *_ = tables_and_labels(parties, None, model)
    quantities = ["rows", "distance of the mean\n(deviations of all rows)"]
    quantities.append("explained variance (%)\nabout the party's own mean")
    bars: list[tuple[float, ...]] = []
    for X in tables.values():
        rows = model.centred(X)
        shift = rows.mean(axis=0)
        centred = rows - shift
        total, scores = float(np.vdot(centred, centred)), centred @ model.loadings()[0].T
        explained = 100 * float(np.vdot(scores, scores)) / total if total else 0.0
        distance = float(np.linalg.norm(shift)) / (np.sqrt(model.total_variance) or 1.0)
        bars.append((len(rows), distance, explained))
    names = style.short_names(tables)
    height = min(0.22 * len(tables), 8.0)
    figure = Figure(figsize=(_names_width(names) + 6.3, 1.2 + max(1.0, height)))
    grid = figure.subplots(1, 3, sharey=True)
    for axes, quantity, values, colour in zip(grid, quantities, zip(*bars, strict=True), style.COLOURS, strict=False):
        axes.barh(range(len(tables)), values, color=colour)
        axes.set_xlabel(quantity)
        axes.locator_params(axis="x", nbins=5)
    named = range(0, len(tables), -(-len(tables) // MAX_NAMED_PARTIES))
    grid[0].set_yticks(named, [names[i] for i in named], fontsize=10 if len(tables) <= MAX_NAMED_PARTIES else 8)
    grid[0].set_ylim(len(tables) - 0.5, -0.5)
    style.add_title(figure, title, model_title(model))
    return figure


@takes_model
def component_images(
    model: PCAModel, shape: tuple[int, ...], *, components: Sequence[int] | None = None, title: str | None = None
) -> Figure:
    """Draw components as images.

    Parameters
    ----------
    model : PCAModel
    shape : (int, int) or (int, int, int)
        Height, width, and channels if there are several.
    components, title : optional
        As in `scores`; by default the first ten components.

    Returns
    -------
    Figure

    Raises
    ------
    ConfigError
        If the shape does not have the model's number of features, or the model has no such components.
    """
    sizes = shape if isinstance(shape, Sequence) else ()
    if len(sizes) not in (2, 3) or not all(isinstance(size, int | np.integer) for size in sizes):
        raise ConfigError(f"'shape' is {shape!r}, expected (height, width) or (height, width, channels)")
    if np.prod(shape) != model.n_features_in_:
        raise ConfigError(f"an image of shape {shape} has {np.prod(shape)} values, the model {model.n_features_in_}")
    k = model.n_components_
    places = component_places(components or range(1, min(k, 10) + 1), k, range(1, k + 1))
    count = len(places)
    columns = min(5, count)
    with rc_context({**style.STYLE, "axes.grid": False}):
        size = 1.6 * columns + (1.3 if len(shape) == 2 else 0), 1.8 * -(-count // columns)
        figure, grid = style.panel_grid(None, count, columns, size)
        for axes in grid:
            axes.set_axis_off()
            axes.set_anchor("S")  # below the title, which else is cut where an image fills its place
        for i, axes, loadings in zip(places, grid, model.loadings()[0][places], strict=True):
            largest = np.abs(loadings).max() or 1.0
            if len(shape) == 2:
                image = axes.imshow(loadings.reshape(shape), cmap="PuOr", vmin=-largest, vmax=largest)
            else:
                axes.imshow(loadings.reshape(shape) / (2 * largest) + 0.5)
            axes.set_title(f"PC{i + 1}", fontsize=9)
        if len(shape) == 2:
            bar = figure.colorbar(image, ax=figure.axes, ticks=[-largest, 0, largest], shrink=0.9)
            bar.ax.set_yticklabels(["-largest", "0", "largest"], fontsize=8)
            bar.set_label("loading", fontsize=9)
        style.add_title(figure, title, model_title(model))
        return figure


def _require_models(models: Mapping[str, Any]) -> None:
    """Raise ConfigError for an empty mapping, and for values that are no models."""
    if not models:
        raise ConfigError("'models' is empty, expected at least one model by its name")
    if others := [name for name, model in models.items() if not isinstance(model, PCAModel)]:
        expected = f"expected a PCAModel for each name; {MODEL_ADVICE}"
        raise ConfigError(f"'models' has no model of the names {others}, {expected}")


def _thinned(parties: Any, labels: Any, model: PCAModel) -> tuple[list[Any], Labels]:
    """Return at most `MAX_PLOTTED_ROWS` evenly spread rows, a table for each party, and their labels."""
    tables, row_labels, column = tables_and_labels(parties, labels, model)
    lazy = {name: as_rows(table, name) for name, table in tables.items() if issparse(table) or isinstance(table, Table)}
    tables |= lazy
    rows = {name: len(table) for name, table in tables.items()}
    every = Labels(np.full(sum(rows.values()), ""), [""]) if labels is None else label_rows(row_labels, rows, column)
    starts = np.cumsum([0, *rows.values()]).tolist()
    step = style.thin_rows(starts[-1], style.MAX_PLOTTED_ROWS).step
    parts = [table[-start % step :: step] for table, start in zip(tables.values(), starts, strict=False)]
    return [part for part in parts if len(part)], every.of(slice(None, None, step))


def _overlay(
    axes: Axes, reference: PCAModel, model: PCAModel, rows: Sequence[Any], labels: Labels, components: Sequence[int]
) -> tuple[list[Line2D], list[str]]:
    """Draw rows by both models, with aligned signs, joined by lines; return the marks' entries and the axes' labels."""
    k = min(reference.n_components_, model.n_components_)
    places = [0] if k == 1 else component_places(components, k)
    theirs, ours = (np.vstack([one.transform(part)[:, places] for part in rows]) for one in (reference, model))
    ours = ours * np.where((ours * theirs).sum(axis=0) < 0, -1.0, 1.0)
    theirs, ours = _on_plane(theirs), _on_plane(ours)
    pairs = list(np.stack([theirs, ours], axis=1))
    axes.add_collection(LineCollection(pairs, colors=style.GREY, linewidths=0.4, rasterized=True))
    how: dict[str, Any] = {"linewidths": 0.7, "rasterized": True, "zorder": 2}
    scatter(axes, theirs, labels, hollow=True, s=26, **how)
    scatter(axes, ours, labels, mark="x", s=12, **how)
    look: dict[str, Any] = {"linestyle": "none", "fillstyle": "none", "markersize": 5, "color": style.GREY}
    texts = {"o": "pooled PCA", "x": "federated"}
    marks = [Line2D([], [], marker=mark, label=text, **look) for mark, text in texts.items()]
    titles = [f"score on PC{place + 1}" for place in places]
    return marks, [*titles, "number of the row"][:2]


def _on_plane(points: Array) -> Array:
    """Return points (n, 2); points with a single coordinate get their row numbers as the second."""
    return points if points.shape[1] > 1 else np.column_stack([points, np.arange(len(points))])
