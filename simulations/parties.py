"""Parties of a run as a person hands them over: data frames too, with their columns brought into one order."""

import os
import re
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence, ValuesView
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from fedpca_flwr.data.column_notes import column_fault_notes
from fedpca_flwr.data.frames import (
    as_rows,
    column_labels,
    column_names,
    is_table,
    match_labels,
    open_frame,
    row_labels,
)
from fedpca_flwr.data.table import Table, check_rows, labels_text, require_complete
from fedpca_flwr.errors import ConfigError, DataError, FedPCAError
from fedpca_flwr.maths.rows import Blocks, Rows, join_blocks, select_columns, sparse_rows, to_array


class Parties(NamedTuple):
    """Checked data of a run's parties: rows, party names, column names, notes, and the rows' original order."""

    rows: list[Rows]  # (n_i, d) of each party; of parties of columns (n, f_i)
    keys: list[str]  # names of the parties; empty if they have none
    names: list[tuple[str, ...]]  # of each party's columns; empty where it has none
    notes: list[str]  # on what was done to the tables, and on columns that may not be what they seem
    places: list[NDArray[np.int64] | None]  # (n,) of each party: where its rows are in `rows`; None: in their order
    tables: Sequence[Table] = ()  # of the rows, checked

    @property
    def features(self) -> tuple[str, ...]:
        """Names of the columns, from the first party that has names."""
        return next(filter(None, self.names), ())


def parties_of(data: Any, split: str, *, complete: bool = False) -> Parties:
    """Check the parties' tables that a caller gives, and bring their columns, or shared rows, into a single order.

    The first party with labels, or an index, has the order. The keys of a mapping are the parties' names. One error is
    of all parties: ConfigError for names and orders, DataError for tables that are no numbers, or not ``complete``.
    """
    _require_parties(data)
    keys = list(data) if isinstance(data, Mapping) else []
    by_party = by_text(data)
    party_names, tables = list(by_party), list(by_party.values())
    if not tables:
        raise ConfigError("there are no parties; give at least one array of rows")
    rows, faults = list[Rows](), list[str]()
    for name, table in by_party.items():
        try:
            rows.append(as_rows(table, name))
        except DataError as error:
            faults.append(str(error))
    if faults:
        raise DataError("\n".join(faults))
    result = Parties(rows, keys, list(map(column_labels, tables)), [], [None] * len(tables))
    result = _align_columns(result, party_names) if split == "rows" else _align_rows(result, tables, party_names)
    names = [aligned if column_names(table) else () for aligned, table in zip(result.names, tables, strict=True)]
    read = [f"{name}: {note}" for name, table in by_party.items() if isinstance(table, Table) for note in table.notes]
    checked = _check_tables(dict(zip(party_names, result.rows, strict=True)), names, complete)
    repeated = _repetition_notes(by_party, result.rows)
    fault_notes = column_fault_notes(checked, dict(zip(checked, names, strict=True)), same_columns=split == "rows")
    run_tables = [table._replace(summary=None) for table in checked.values()]  # a run needs no summary
    return result._replace(names=names, tables=run_tables, notes=[*result.notes, *repeated, *read, *fault_notes])


def _check_tables(rows: Mapping[str, Rows], names: Sequence[tuple[str, ...]], complete: bool) -> dict[str, Table]:
    """Return the parties' checked tables; raise a DataError with all parties' faults."""
    tables, faults = {}, []
    for (party, part), columns in zip(rows.items(), names, strict=True):
        try:
            tables[party] = check_rows(part, columns, sampled=True)
            if complete:
                require_complete(tables[party])
        except DataError as error:
            faults.append(f"{party}: {error}{f' ({error.local})' if error.local else ''}")
    if faults:
        raise DataError("\n".join(faults))
    return tables


def read_parties(data: Any) -> Any:
    """Return the parties' tables in a list or mapping, with files read (`_tables_of`); other objects unchanged."""
    data = list(data) if isinstance(data, Iterator | ValuesView) else data
    if hasattr(data, "ngroups"):
        _require_parties(data)
    if is_table(data) or not isinstance(data, Mapping | list | tuple):
        return data
    tables = dict(data) if isinstance(data, Mapping) else dict(enumerate(data))
    files = {key: str(table) for key, table in tables.items() if isinstance(table, str | os.PathLike)}
    if not files:
        return data
    by_file = _tables_of(files.values())
    tables |= zip(files, by_file.values(), strict=True)
    return tables if isinstance(data, Mapping) else by_file if len(files) == len(tables) else list(tables.values())


def _tables_of(files: Iterable[str]) -> dict[str, Any]:
    """Read each file's table, by the file's name without its ending; raise a ConfigError with all files' faults."""
    from fedpca_flwr.site.readers.file_format import file_suffix  # for files only
    from fedpca_flwr.site.readers.files import read

    tables, faults = dict[str, Any](), list[str]()
    for file in map(Path, files):
        stem = file.name[: -len(file_suffix(file))] or file.stem
        name = stem if stem not in tables else f"{stem} {len(tables)}"
        try:
            tables[name] = read(str(file))
        except FedPCAError as error:
            detail = f" ({error.local})" if error.local and error.local not in str(error) else ""
            faults.append(f"read({str(file)!r}): {error}{detail}")
    if faults:
        raise ConfigError("\n".join(faults))
    return tables


def by_text(data: Any) -> dict[str, Any]:
    """Return the tables by the names that errors use for the parties: ``party 0`` or ``party 'north'``."""
    if isinstance(data, Mapping):
        return {f"party '{key}'": table for key, table in data.items()}
    return {f"party {i}": table for i, table in enumerate(data)}


class _Content:
    """An array by its values: equal bytes are equal, and the bytes are compared only where the first row is equal."""

    def __init__(self, rows: NDArray[Any]) -> None:
        self.rows = rows
        self.start = rows.shape, rows.dtype, rows[0].tobytes()

    @override
    def __hash__(self) -> int:
        return hash(self.start)

    @override
    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Content) and self.start == other.start and self.rows.tobytes() == other.rows.tobytes()


def _repetition_notes(tables: Mapping[str, Any], rows_by_party: Sequence[Rows]) -> list[str]:
    """Return notes if one party holds all data, or several hold the same object or equal bytes of two rows or more."""
    if len(tables) == 1:
        return ["one party holds all data: pass a table for each party (of FederatedPCA, 'groups' of fit says whose)"]
    groups: dict[Hashable, list[str]] = {}
    for party, rows in zip(tables, rows_by_party, strict=True):
        key: Hashable = _Content(rows) if isinstance(rows, np.ndarray) and len(rows) > 1 else id(tables[party])
        groups.setdefault(key, []).append(party)
    same = [", ".join(names) for names in groups.values() if len(names) > 1]
    return [f"{names} hold the same table, which counts once for each of them" for names in same]


WRONG_SIGN = re.compile(r"[^\w .-]")  # sign that no name of a party has


def is_name(key: object) -> bool:
    """Return whether an object is a valid party name: 1 to 64 letters, digits, spaces or any of ``_.-``."""
    return isinstance(key, str) and 1 <= len(key) <= 64 and not WRONG_SIGN.search(key)


def _require_parties(data: Any) -> None:
    """Raise ConfigError, with advice, for data that are no list or mapping of tables, or wrong names of parties."""
    is_grouped = hasattr(data, "ngroups")  # what groupby gives
    one_table = is_table(data) and not is_grouped
    if one_table or is_grouped or isinstance(data, str | bytes) or not isinstance(data, Iterable):
        advice = "; [X] makes it one party" if one_table else ""
        if is_grouped:
            column = data.keys if isinstance(data.keys, str) else []
            advice = f"; {{str(name): rows.drop(columns={column!r}) for name, rows in parties}} makes each group one"
        elif hasattr(data, "groupby"):
            advice += ", {str(name): rows.drop(columns='site') for name, rows in X.groupby('site')} one for each name"
        kind = type(data).__name__ + ", one table" * one_table
        expected = "expected a list of arrays, one for each party, or {name: array}"
        raise ConfigError(f"'parties' is of type {kind}, {expected}{advice}")
    if isinstance(data, Mapping) and (wrong_keys := [key for key in data if not is_name(key)]):
        text_keys = [key for key in wrong_keys if isinstance(key, str)]
        texts = "; names are texts: {str(key): rows for key, rows in parties.items()}" * (text_keys != wrong_keys)
        if wrong_signs := sorted({sign for key in text_keys for sign in WRONG_SIGN.findall(key)}):
            texts += f"; leave out {labels_text(wrong_signs)}"
        expected = f"expected names of the parties: at most 64 letters, digits, spaces, '.', '-' and '_'{texts}"
        raise ConfigError(f"'parties' has the keys {labels_text(wrong_keys)}, {expected}")


def _align_columns(parties: Parties, party_names: list[str]) -> Parties:
    """Put the columns of all parties with labels into the order of the first such party; or raise a ConfigError."""
    labelled = [place for place, labels in enumerate(parties.names) if labels]
    if not labelled:
        return parties
    first, first_name = parties.names[labelled[0]], party_names[labelled[0]]
    rows, labels, reordered, faults = list(parties.rows), list(parties.names), [], []
    for place in labelled[1:]:
        local_labels = parties.names[place]
        if local_labels == first:
            continue
        missing, extra, order = match_labels(local_labels, first)
        if order is None or extra:
            what = [f"lacks {labels_text(missing)}"] * bool(missing) + [f"alone has {labels_text(extra)}"] * bool(extra)
            faults.append(f"{party_names[place]} {' and '.join(what)}")
            continue
        rows[place] = select_columns(rows[place], order)
        labels[place] = first
        reordered.append(party_names[place])
    if faults:
        advice = "Rename them, leave out what not all parties have, or give who lacks a column one of NaN and run 'em'"
        if all(str(label).count(":") == 3 for label in first):  # chromosome:position:counted:other
            advice = "Read all .bed files with one list of variants, variants='common.bim' ('site variants' makes it)"
        raise ConfigError(f"the parties' column names differ from those of {first_name}: {'; '.join(faults)}. {advice}")
    notes = [f"columns are in the order of {first_name}; {', '.join(reordered)} had the same ones in another"]
    notes = notes if reordered else []
    if unlabelled := [name for name, local_labels in zip(party_names, labels, strict=True) if not local_labels]:
        notes.append(f"columns without names are taken by position, as those of {first_name}: {', '.join(unlabelled)}")
    return parties._replace(rows=rows, names=labels, notes=notes)


def _align_rows(parties: Parties, tables: list[Any], party_names: list[str]) -> Parties:
    """Put the parties' rows, the same items at each party, into the order of the first party with an index.

    Rows of arrays, and of frames with a plain range as index, are taken by position. Raise ConfigError for other
    labels.
    """
    frames = [open_frame(table) for table in tables]
    indexed = (place for place, frame in enumerate(frames) if frame is not None and not frame.has_default_index)
    first = next(indexed, None)
    if first is None:
        return parties
    reference, labels = party_names[first], row_labels(tables[first])
    rows, places, reordered, unlabelled, faults = list(parties.rows), list(parties.places), [], [], []
    for place, frame in enumerate(frames):
        local_labels = row_labels(tables[place])
        if local_labels == labels:
            continue
        missing, extra, order = match_labels(local_labels, labels)
        if (missing or extra) and (frame is None or frame.has_default_index):
            unlabelled.append(party_names[place])
        elif missing or extra:
            faults.append(f"{party_names[place]} lacks {len(missing)} of the labels, and alone has {len(extra)}")
        elif order is None or len(set(local_labels)) < len(local_labels) or len(local_labels) != len(labels):
            faults.append(f"{party_names[place]} has labels that occur twice, in another order")
        else:
            values = rows[place]
            if isinstance(values, Blocks) and values.sparse:
                rows[place] = sparse_rows(join_blocks(list(values.read()))[order])
            else:
                rows[place] = to_array(values)[order]
            places[place] = np.argsort(order)
            reordered.append(party_names[place])
    if faults:
        raise ConfigError(
            f"the parties hold columns of the same rows, whose index differs from that of {reference}: "
            f"{'; '.join(faults)}. Keep the rows that all have, under the same labels, or take them by position "
            "(X.reset_index(drop=True))"
        )
    notes = [f"rows are in the order of {reference}; {', '.join(reordered)} had the same ones in another"]
    notes = notes if reordered else []
    if unlabelled:
        names = ", ".join(unlabelled)
        notes.append(f"rows without the index of {reference} are taken by position, as if it were theirs: {names}")
    return parties._replace(rows=rows, places=places, notes=notes)
