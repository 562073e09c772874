"""Labels of the columns of what a user hands over as a table, and where those stand that a run or a model wants."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

MOST_NAMED = 20
"""Columns that an error names."""


class Match(NamedTuple):
    """How the labels of a table's columns go with those that are wanted.

    Attributes
    ----------
    lacking, alone : tuple of hashable
        Labels that are wanted and not there, and those that are there and not wanted.
    order : list of int or None
        Where each wanted label stands; None where the columns are as wanted, or labels are lacking.
    """

    lacking: tuple[Hashable, ...]
    alone: tuple[Hashable, ...]
    order: list[int] | None


def match(labels: Sequence[Hashable], wanted: Sequence[Hashable]) -> Match:
    """The columns with these labels against those that are wanted."""
    places, known = {label: place for place, label in enumerate(labels)}, set(wanted)
    lacking = tuple(label for label in wanted if label not in places)
    alone = tuple(label for label in labels if label not in known)
    as_wanted = lacking or tuple(labels) == tuple(wanted)
    return Match(lacking, alone, None if as_wanted else [places[label] for label in wanted])


def is_cells(X: object) -> bool:
    """Whether ``X`` is an AnnData: cells, and variables that have names."""
    return hasattr(type(X), "var_names") and hasattr(type(X), "obs_names")


def is_frame(X: object) -> bool:
    """Whether ``X`` is a table with labelled columns."""
    return is_cells(X) or hasattr(type(X), "column_names") or (hasattr(X, "columns") and hasattr(X, "shape"))


def column_labels(X: Any) -> tuple[Hashable, ...]:
    """Of a data frame; empty for anything else."""
    if is_cells(X):
        return tuple(X.var_names)
    if hasattr(type(X), "column_names"):  # an Arrow table
        return tuple(X.column_names)
    return tuple(X.columns) if is_frame(X) else ()


def column_names(X: object) -> tuple[str, ...]:
    """The labels of a data frame's columns, or none where not all are texts: scikit-learn ignores them then."""
    labels = column_labels(X)
    return tuple(map(str, labels)) if all(isinstance(label, str) for label in labels) else ()


def listed(labels: Sequence[object]) -> str:
    """Labels of columns for a text: no more than `MOST_NAMED`."""
    more = f" and {len(labels) - MOST_NAMED} more" if len(labels) > MOST_NAMED else ""
    return ", ".join(map(repr, labels[:MOST_NAMED])) + more
