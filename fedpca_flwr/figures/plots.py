"""Figures: each function returns a matplotlib `Figure` of its own (no global state), to show or to save.

Needs the extra ``plots``. Colours are those of `fedpca_flwr.figures.style`; markers differ too. A figure is dark text
on white paper; ``savefig(..., facecolor="none")`` leaves the paper out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle
from textwrap import wrap
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import issparse

from fedpca_flwr.data.frames import as_rows
from fedpca_flwr.errors import ConfigError
from fedpca_flwr.figures.style import COLOURS, GREY, MARKERS, STYLE
from fedpca_flwr.model.model import PCAModel

try:
    from matplotlib import rc_context
    from matplotlib.axes import Axes
    from matplotlib.collections import LineCollection
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    from fedpca_flwr.figures.style import few_ticks
except ImportError:
    raise ConfigError("plots need matplotlib: pip install '.[plots]' in the repository") from None

EXACT = 1e-6  # degrees within which components are the same for every purpose: drawn as one
MOST = 300  # Rows of a scatter plot; more hide each other.


@rc_context(STYLE)
def projection_overlay(
    reference: PCAModel, model: PCAModel, X: ArrayLike, labels: ArrayLike | None = None, *, title: str = ""
) -> Figure:
    """Rows in the first two components: open marks by the reference, crosses by the federated model, a line between.

    Where the two agree, every cross stands in its mark. Components that point the other way are turned round: a sign
    means nothing.

    Parameters
    ----------
    reference, model : PCAModel
        With at least two components.
    X : array-like of shape (n, d)
        At most `MOST` of its rows are drawn, evenly spread. Columns of a data frame are matched by their names.
    labels : array-like of shape (n,), optional
        A colour and a mark for each, and its name where its rows are on the average.
    title : str, optional
    """
    figure = Figure(figsize=(6, 5))
    axes = figure.subplots()
    _overlay(axes, reference, model, X, None if labels is None else np.asarray(labels))
    axes.set(title=title, xlabel="first component", ylabel="second component")
    axes.legend(*_legend(axes), loc="center left", bbox_to_anchor=(1, 0.5))
    return figure


@rc_context(STYLE)
def projection_grid(
    reference: PCAModel, models: Mapping[str, PCAModel], X: ArrayLike, labels: ArrayLike | None = None
) -> Figure:
    """`projection_overlay` of several models by name, side by side."""
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
    figure.supylabel("second component")
    figure.legend(*_legend(grid[0]), loc="outside right upper")
    return figure


@rc_context(STYLE)
def scree(models: PCAModel | Mapping[str, PCAModel]) -> Figure:
    """Share of the total variance of each component, and all up to it.

    Of a model, or of several by name; equal ones are one curve.
    """
    models = models if isinstance(models, Mapping) else {"model": models}
    curves: dict[tuple[float, ...], list[str]] = {}
    for name, model in models.items():
        curves.setdefault(tuple(np.round(100 * model.explained_variance_ratio_, 4)), []).append(name)
    alike = [(" = ".join(names), 100 * models[names[0]].explained_variance_ratio_) for names in curves.values()]
    figure = Figure(figsize=(8, 3.6))
    left, right = figure.subplots(1, 2)
    for (name, ratio), colour, marker in zip(alike, cycle(COLOURS), cycle(MARKERS), strict=False):
        number = np.arange(1, ratio.size + 1)
        how: dict[str, Any] = {"color": colour, "marker": marker, "markersize": 4, "fillstyle": "none"}
        label = f"{name} (unknown: no component stands out of the noise)" if np.isnan(ratio).any() else name
        left.plot(number, ratio, label="\n".join(wrap(label, 60)), **how)
        right.plot(number, ratio.cumsum(), **how)
    left.set(xlabel="component", ylabel="explained variance (%)")
    right.set(xlabel="component", ylabel="explained variance, cumulative (%)")
    for axes in (left, right):
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    figure.legend(loc="outside lower center", ncols=2 if len(alike) > 1 else 1)
    return figure


@rc_context(STYLE)
def angle_by_round(curves: Mapping[str, Sequence[float]], *, tolerance: float | None = None) -> Figure:
    """Largest angle to the exact components (degrees) after each round, for methods by name."""
    figure = Figure(figsize=(6, 4))
    axes = figure.subplots()
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
    """Bytes up per client against the largest angle (degrees), for methods by name; in kB where none sends a MB.

    The line joins the points that no other beats in both. Angles within `EXACT` are one: below it is only rounding.

    Parameters
    ----------
    points : mapping of str to sequence of (MB, degrees)
    """
    small = max(megabytes for pairs in points.values() for megabytes, _ in pairs) < 1
    if small:
        points = {name: [(1e3 * megabytes, angle) for megabytes, angle in pairs] for name, pairs in points.items()}
    figure = Figure(figsize=(6.5, 4.2))
    axes = figure.subplots()
    for (name, pairs), colour, marker in zip(points.items(), cycle(COLOURS), cycle(MARKERS), strict=False):
        sizes, degrees = np.transpose(pairs)
        axes.loglog(sizes, np.maximum(degrees, EXACT), marker, color=colour, label=name, fillstyle="none")
    front = _front([pair for pairs in points.values() for pair in pairs])
    axes.step(*np.transpose(front), where="post", color=GREY, linewidth=1, zorder=0, label="front")
    axes.axhspan(EXACT / 3, EXACT * 3, color=GREY, alpha=0.2, linewidth=0, label="exact")
    axes.set(
        xlabel=f"{'kB' if small else 'MB'} up per client", ylabel="largest angle to the exact components (degrees)"
    )
    few_ticks(axes.xaxis, np.array([size for pairs in points.values() for size, _ in pairs]))
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5))
    return figure


@rc_context(STYLE)
def heterogeneity(parties: Sequence[ArrayLike], model: PCAModel) -> Figure:
    """How different the clients are: rows, the distance of their mean, and the variance that the model explains.

    Parameters
    ----------
    parties : sequence of array-like of shape (n_i, d)
        Columns of data frames are matched by their names.
    """
    counts, shift, explained = zip(*(_compared(model, X) for X in parties), strict=True)
    panels = (
        ("rows", counts),
        ("distance of the mean\n(in deviations of all rows)", shift),
        ("explained variance (%)\nabout the client's own mean", explained),
    )
    figure = Figure(figsize=(9, 3.2))
    for axes, (name, values), colour in zip(figure.subplots(1, 3), panels, COLOURS, strict=False):
        axes.bar(range(len(parties)), values, color=colour)
        axes.set(xlabel="client", title=name)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    return figure


def component_images(model: PCAModel, shape: tuple[int, ...], *, count: int = 10) -> Figure:
    """The first components as images: ``shape`` is (height, width) or (height, width, channels)."""
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
    X = as_rows(X, "X") if issparse(X) else X
    step = max(1, -(-len(X) // MOST))
    rows = X[::step]  # of an array, a list, a data frame
    theirs, ours = reference.transform(rows)[:, :2], model.transform(rows)[:, :2]
    marks = np.zeros(len(theirs), int) if labels is None else labels[::step]
    ours = ours * np.where((ours * theirs).sum(axis=0) < 0, -1.0, 1.0)
    axes.add_collection(
        LineCollection(list(np.stack([theirs, ours], axis=1)), colors=GREY, linewidths=0.4, rasterized=True)
    )
    for label, colour, marker in zip(np.unique(marks), cycle(COLOURS), cycle(MARKERS), strict=False):
        own = marks == label
        how: dict[str, Any] = {"linewidths": 0.7, "rasterized": True, "zorder": 2}
        (x, y), (ours_x, ours_y), middle = theirs[own].T, ours[own].T, theirs[own].mean(axis=0)
        axes.scatter(x, y, s=26, marker=marker, facecolors="none", edgecolors=colour, **how)
        axes.scatter(ours_x, ours_y, s=12, marker="x", color=colour, **how)
        if labels is not None:
            axes.text(middle[0], middle[1], str(label), weight="bold", ha="center", va="center", zorder=3)


def _legend(axes: Axes) -> tuple[list[Any], list[str]]:
    """What marks mean; classes are named where they are."""
    mark = axes.scatter([], [], s=26, facecolors="none", edgecolors=GREY)
    cross = axes.scatter([], [], s=12, marker="x", color=GREY)
    return [mark, cross], ["pooled PCA", "federated"]


def _front(pairs: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The pairs that no other beats in both, by the first."""
    best, front = np.inf, []
    for megabytes, degrees in sorted((megabytes, max(degrees, EXACT)) for megabytes, degrees in pairs):
        if degrees < best:
            best = degrees
            front.append((megabytes, degrees))
    return front


def _compared(model: PCAModel, X: ArrayLike) -> tuple[int, float, float]:
    """One client's rows, its mean's distance, and percent of its variance about that mean; 0 where it has none."""
    rows = model.centred(X)
    shift = rows.mean(axis=0)
    own = rows - shift
    total, scores = float(np.vdot(own, own)), own @ model.loadings()[0].T
    distance = float(np.linalg.norm(shift)) / (np.sqrt(model.total_variance) or 1.0)
    return len(rows), distance, 100 * float(np.vdot(scores, scores)) / total if total else 0.0
