"""Rows that figures show: their scores as points, and their labels as the colours of classes or of numbers."""

import os
import re
from collections.abc import Mapping, Sequence, Sized
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize, to_rgba_array
from matplotlib.lines import Line2D
from numpy.typing import NDArray

from fedpca_flwr.analyses.inputs import model_of
from fedpca_flwr.data.column_numbers import object_numbers
from fedpca_flwr.data.frames import column_labels, pop_column
from fedpca_flwr.data.table import Table, labels_text
from fedpca_flwr.errors import ConfigError, DataError, value_text
from fedpca_flwr.figures.style import COLOURS, looks, number_colours, short_names
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.model.measurements import is_scaled
from fedpca_flwr.model.model import PCAModel
from fedpca_flwr.model.tables import component_labels, tables_by_name


class Labels(NamedTuple):
    """Labels of rows: classes (texts), or numbers, of which more than ten differ."""

    values: NDArray[Any]  # (n,) texts or numbers
    classes: list[str]  # that differ, in the order of a legend; empty for numbers
    title: str = ""  # of a bar of colours
    limits: tuple[float, float] = (0.0, 1.0)  # of the bar of colours

    @property
    def scale(self) -> ScalarMappable:
        """Colours of the numbers, grey for those that are missing."""
        return ScalarMappable(Normalize(*self.limits), number_colours())

    @property
    def looks(self) -> dict[str, tuple[str, str]]:
        """Colour and marker of each class."""
        return dict(zip(self.classes, looks(), strict=False))

    @property
    def colours(self) -> NDArray[Any]:
        """Colours (n, 4) of the rows."""
        if not self.classes:
            return np.asarray(self.scale.to_rgba(np.ma.masked_invalid(self.values)))
        return to_rgba_array([self.looks[label][0] for label in self.values.tolist()])

    @property
    def markers(self) -> NDArray[np.str_]:
        """Markers (n,) of the rows: those of their classes, dots for numbers."""
        return np.array([self.looks[label][1] if self.classes else "o" for label in self.values.tolist()])

    def of(self, places: Any) -> "Labels":
        """Return the labels of some rows, with the colours that they have among all."""
        return self._replace(values=self.values[places])

    def entries(self, axes: Axes, *, hollow: bool = False) -> list[Line2D]:
        """Return the legend's entries of classes; for numbers return none, and draw a bar of colours at the axes."""
        if not self.classes:
            axes.figure.colorbar(self.scale, ax=axes, label=self.title, shrink=0.8)
        how: dict[str, Any] = {"linestyle": "none", "fillstyle": "none" if hollow else "full", "markersize": 5}
        names = zip(short_names(self.classes), self.looks.values(), strict=True)
        return [Line2D([], [], marker=marker, color=colour, label=name, **how) for name, (colour, marker) in names]


def label_rows(labels: Any, rows: Mapping[str, int], title: str = "") -> Labels:
    """Return the labels of rows, given by party or in a list of all; ConfigError for another number of rows."""
    parts: list[Any] = [labels[name] for name in rows] if isinstance(labels, Mapping) else list(labels)
    by_party = len(parts) == len(rows) and all(hasattr(part, "__len__") and not isinstance(part, str) for part in parts)
    counts = [len(part) for part in parts] if by_party else [len(parts)]
    expected = list(rows.values()) if by_party else [sum(rows.values())]
    if counts != expected:
        advice = "one for each row, by party or of all rows"
        raise ConfigError(f"'labels' are of {counts} rows, expected {expected}: {advice}")
    values = [value for part in parts for value in part] if by_party else parts
    numbers = object_numbers(values)
    if not isinstance(numbers, str):
        finite = np.unique(numbers[np.isfinite(numbers)])
        if finite.size > len(COLOURS):
            return Labels(numbers, [], title, (float(finite[0]), float(finite[-1])))
    texts = [str(value) for value in values]
    return Labels(np.array(texts), sorted(set(texts), key=_natural_key), title)


def _natural_key(text: str) -> list[tuple[int, str]]:
    """Return a key by which "kind 2" comes before "kind 10"."""
    return [(int(part or 0) if i % 2 else 0, part) for i, part in enumerate(re.split(r"([0-9]+)", text))]


def tables_and_labels(parties: Any, labels: Any, model: PCAModel | None) -> tuple[dict[str, Any], Any, str]:
    """Return the tables by party, the labels of rows (a column of that name is taken out), and a title."""
    if isinstance(model_of(parties), PCAModel):
        raise ConfigError("'parties' is a model, expected tables of rows; the model is first: scores(model, parties)")
    tables = tables_by_name(parties, {} if model is None else model.log)
    kinds = (Sized, os.PathLike, Table)
    if wrong := [name for name, table in tables.items() if not isinstance(table, kinds)]:
        raise ConfigError(f"'parties' has {type(tables[wrong[0]]).__name__} for '{wrong[0]}', expected a table of rows")
    if not isinstance(labels, str):
        return tables, labels, ""
    features = () if model is None or model.feature_names_in_ is None else tuple(model.feature_names_in_)
    values, rest = dict[str, list[Any]](), dict[str, Any]()
    for name, table in tables.items():
        popped = pop_column(table, labels)
        if popped is None:
            has = f"has the columns {labels_text(names)}" if (names := column_labels(table)) else "is no data frame"
            advice = "name a column of every table, or give a list of labels for each party"
            raise ConfigError(f"'labels' is {value_text(labels)}, but the table of '{name}' {has}; {advice}")
        values[name] = popped[0]
        rest[name] = table if labels in features else popped[1]
    return rest, values, labels


def points_of(name: str, table: Any, model: PCAModel | None, components: Sequence[int] | None) -> Array:
    """Return the scores (n, 2) of a party's rows in two components, from 1, or (n, 1) if there is a single component.

    The table is a file of scores, scores if there is no model or its columns are "PC1", "PC2" ..., or else rows. Raise
    ConfigError for components that the scores do not have, and DataError for another file.
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


def component_places(components: Any, k: int, counts: Sequence[int] = (2,)) -> list[int]:
    """Return positions from 0 of the components of a figure, or raise ConfigError unless they are 1 to k, each once."""
    numbers = list(components) if isinstance(components, Sequence) and not isinstance(components, str) else []
    whole = all(isinstance(number, int | np.integer) and 1 <= number <= k for number in numbers)
    if not whole or len(set(numbers)) != len(numbers) or len(numbers) not in counts:
        count = "" if len(counts) > 1 else f"{counts[0]} "
        raise ConfigError(f"'components' is {components!r}, expected {count}different numbers from 1 to {k}")
    return [number - 1 for number in numbers]


def component_title(model: PCAModel | None, component: int) -> str:
    """Return the axis label of a component (from 1), with its share of the variance unless unknown (NaN, no model)."""
    shares = [] if model is None else model.explained_variance_ratio_[component - 1 : component].tolist()
    return f"PC{component}" + "".join(f" ({share:.1%} of the variance)" for share in shares if share == share)


def model_title(model: PCAModel | None) -> str:
    """Return the default title of a figure: the model's method, its number of rows, and whether they are scaled."""
    if model is None:
        return ""
    return f"{model.log.get('method', 'PCA')}, {model.n_samples_:,.10g} rows{', scaled' if is_scaled(model) else ''}"


def scatter(axes: Axes, points: Array, labels: Labels, *, mark: str = "", hollow: bool = False, **how: Any) -> None:
    """Draw points (n, 2) in the colours of their labels, with the labels' markers or ``mark``, filled or ``hollow``."""
    colours, markers = labels.colours, labels.markers
    for marker in dict.fromkeys(markers.tolist()):
        members = markers == marker
        paint: dict[str, Any] = {"facecolors": "none", "edgecolors": colours[members]}
        paint = {**how, **(paint if hollow else {"c": colours[members]})}
        x, y = points[members].T
        axes.scatter(x, y, marker=mark or marker, **paint)
