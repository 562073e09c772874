"""What a person hands over as the parties of a run: data frames too, their columns in one order."""

import re
from collections.abc import Hashable, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedpca_flwr.data.column_notes import column_fault_notes, count_isolated, isolated_text
from fedpca_flwr.data.frames import Frame, as_rows, column_labels, is_frame, labels_text, match_labels, open_frame
from fedpca_flwr.data.table import Table
from fedpca_flwr.errors import ConfigError, DataError
from fedpca_flwr.maths.rows import Blocks, Rows, join_blocks, select_columns, sparse_rows, to_array

Labels = tuple[Hashable, ...]


class Parties(NamedTuple):
    """The parties of a run: rows (n_i, d) of each, their names if they have any, and what was done to them."""

    rows: list[Rows]
    keys: list[str]
    labels: list[Labels]  # of each party's columns; empty where it has none
    notes: list[str]
    places: list[NDArray[np.int64] | None]  # (n,) of each party: where its rows are in `rows`; None: in their order

    @property
    def names(self) -> list[tuple[str, ...]]:
        """Of each party's columns, where all its labels are texts."""
        return [tuple(map(str, labels)) if _are_texts(labels) else () for labels in self.labels]

    def features(self, weights: Any) -> tuple[str, ...]:
        """The names of the model's features: those of the first party that has names, but for the column of weights."""
        return tuple(name for name in next(filter(None, self.names), ()) if name != weights)


def _are_texts(labels: Labels) -> bool:
    return all(isinstance(label, str) for label in labels)


def parties_of(given: Any, split: str) -> Parties:
    """The parties that a caller of `fedpca_flwr.run` gives; a mapping gives them their names.

    With ``split="rows"`` columns in another order than those of the first party that has labels are put into its order,
    with ``split="columns"`` rows in another order than those of the first party that has an index.
    A `ConfigError` or `DataError` is of all parties at once.
    """
    _require_parties(given)
    keys = list(given) if isinstance(given, Mapping) else []
    tables = list(given.values() if isinstance(given, Mapping) else given)
    if not tables:
        raise ConfigError("there are no parties; give at least one array of rows")
    called = list(by_text(given))
    rows: list[Rows] = []
    faults = []
    for name, table in zip(called, tables, strict=True):
        try:
            rows.append(as_rows(table, name))
        except DataError as error:
            faults.append(str(error))
    if faults:
        raise DataError("\n".join(faults))
    found = Parties(rows, keys, [column_labels(table) for table in tables], [], [None] * len(tables))
    found = _in_one_order(found, called) if split == "rows" else _of_same_rows(found, tables, called)
    read = [
        f"{name}: {note}"
        for name, one in zip(called, tables, strict=True)
        if isinstance(one, Table)
        for note in one.notes
    ]
    rows_of, names_of = dict(zip(called, found.rows, strict=True)), dict(zip(called, found.names, strict=True))
    odd = column_fault_notes(rows_of, names_of, same_columns=split == "rows")
    return found._replace(notes=[*found.notes, *read, *_far_off(found, called), *odd])


def by_text(given: Any) -> dict[str, Any]:
    """Return the parties of a list or a mapping by how texts call them."""
    if isinstance(given, Mapping):
        return {f"party '{key}'": table for key, table in given.items()}
    return {f"party {i}": table for i, table in enumerate(given)}


def _far_off(parties: Parties, called: list[str]) -> list[str]:
    """A note that names columns in which some values lie far from all others, where there are any."""
    told = [isolated_text(count_isolated(rows), names) for rows, names in zip(parties.rows, parties.names, strict=True)]
    held = [f"{text} ({name})" for name, text in zip(called, told, strict=True) if text]
    if not held:
        return []
    what = "far from all others of their column: codes for missing values, or errors? docs/data.md says what to do"
    return [f"{'; '.join(held)} lie {what}"]


def is_name(key: object) -> bool:
    """Whether a party may be called so."""
    return isinstance(key, str) and re.fullmatch(r"[\w .-]{1,64}", key) is not None


def _require_parties(given: Any) -> None:
    one_table = is_frame(given) or getattr(given, "ndim", None) == 2  # an array, a sparse matrix, or blocks
    if one_table or isinstance(given, str | bytes) or not isinstance(given, Iterable):
        kind = type(given).__name__
        told = f"{kind}, one table" if one_table else kind
        do = "; [X] makes it one party" if one_table else ""
        if hasattr(given, "ngroups"):  # what groupby gives
            do = "; {str(name): rows.drop(columns='site') for name, rows in parties} makes each group one"
        elif hasattr(given, "groupby"):
            do += ", {str(name): rows.drop(columns='site') for name, rows in X.groupby('site')} one for each site"
        raise ConfigError(
            f"'parties' is of type {told}, expected a list of arrays, one for each party, or {{name: array}}{do}"
        )
    if isinstance(given, Mapping):
        wrong = [key for key in given if not is_name(key)]
        if wrong:
            others = any(not isinstance(key, str) for key in wrong)
            texts = "; names are texts: {str(key): rows for key, rows in parties.items()}" if others else ""
            raise ConfigError(
                f"'parties' has the keys {labels_text(wrong)}, expected names of the parties: at most 64 letters, "
                f"digits, spaces, '.', '-' and '_'{texts}"
            )


def _in_one_order(parties: Parties, called: list[str]) -> Parties:
    """The columns of all parties that have labels in the order of the first of these; a note names those without.

    Labels that a party lacks, or has alone, are refused; and columns in another order whose labels are not all texts: a
    model does not keep these, so it would take new rows by position.
    """
    known = [place for place, labels in enumerate(parties.labels) if labels]
    if not known:
        return parties
    first = parties.labels[known[0]]
    rows, labels, turned, faults = list(parties.rows), list(parties.labels), [], []
    for place in known[1:]:
        own = parties.labels[place]
        if own == first:
            continue
        lacking, alone, order = match_labels(own, first)
        if order is None or alone:
            what = [f"lacks {labels_text(lacking)}"] * bool(lacking) + [f"alone has {labels_text(alone)}"] * bool(alone)
            faults.append(f"{called[place]} {' and '.join(what)}")
            continue
        rows[place] = select_columns(rows[place], order)
        labels[place] = first
        turned.append(called[place])
    if faults:
        raise ConfigError(
            f"the parties' column names differ from those of {called[known[0]]}: {'; '.join(faults)}. Rename them, "
            "leave out what not all parties have, or give who lacks a column one of NaN and take method='em'"
        )
    if turned and not _are_texts(first):
        raise ConfigError(
            f"{', '.join(turned)} has the columns of {called[known[0]]} in another order, and their names are not all "
            "texts: make them so (X.columns = X.columns.astype(str)), so that the model knows them"
        )
    notes = [f"columns are in the order of {called[known[0]]}; {', '.join(turned)} had the same ones in another"]
    notes = notes if turned else []
    if bare := [name for name, own in zip(called, labels, strict=True) if not own]:
        notes.append(f"columns without names are taken by position, as those of {called[known[0]]}: {', '.join(bare)}")
    return parties._replace(rows=rows, labels=labels, notes=notes)


def _of_same_rows(parties: Parties, tables: list[Any], called: list[str]) -> Parties:
    """The rows of all parties, which are the same ones, in the order of the first party that has an index.

    Rows of arrays, and of frames whose index is a plain range of other labels, are taken by position: a note names
    them. Other labels are refused, and labels that occur twice in another order.
    """
    frames = [open_frame(table) for table in tables]
    first = next(
        (place for place, frame in enumerate(frames) if frame is not None and not frame.has_default_index), None
    )
    if first is None:
        return parties
    witness, labels = called[first], tuple(_index(frames[first]))
    rows, places, turned, bare, faults = list(parties.rows), list(parties.places), [], [], []
    for place, frame in enumerate(frames):
        own = tuple(_index(frame))
        if own == labels:
            continue
        lacking, alone, order = match_labels(own, labels)
        if (lacking or alone) and (frame is None or frame.has_default_index):
            bare.append(called[place])
        elif lacking or alone:
            faults.append(f"{called[place]} lacks {len(lacking)} of the labels, and alone has {len(alone)}")
        elif order is None or len(set(own)) < len(own) or len(own) != len(labels):
            faults.append(f"{called[place]} has labels that occur twice, in another order")
        else:
            rows[place], places[place] = _in_order(rows[place], order), np.argsort(order)
            turned.append(called[place])
    if faults:
        raise ConfigError(
            f"the parties hold columns of the same rows, whose index differs from that of {witness}: "
            f"{'; '.join(faults)}. Keep the rows that all have, under the same labels, or take them by position "
            "(X.reset_index(drop=True))"
        )
    notes = [f"rows are in the order of {witness}; {', '.join(turned)} had the same ones in another"] if turned else []
    if bare:
        notes.append(
            f"rows without the index of {witness} are taken by position, as if it were theirs: {', '.join(bare)}"
        )
    return parties._replace(rows=rows, places=places, notes=notes)


def _index(frame: Frame | None) -> Iterable[Hashable]:
    """The labels of rows, if there are any."""
    return () if frame is None else frame.index


def _in_order(rows: Rows, order: list[int]) -> Rows:
    """The rows in another order."""
    if isinstance(rows, Blocks) and rows.sparse:
        return sparse_rows(join_blocks(list(rows.read()))[order])
    found: Rows = to_array(rows)[order]
    return found
