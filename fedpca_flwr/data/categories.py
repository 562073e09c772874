"""Columns of categories as indicators, for the principal components of mixed tables (FAMD) and of categories (MCA).

Of a column with levels a, b there are four columns of 0 and 1: ``column=a``, ``column=b``, ``column=other`` for every
other level, and ``column=missing``. All parties declare the same levels, so that they have the same columns. A level
that fewer rows of a party have than its minimum counts as other, and is so never told, in no run and by no difference
of two runs.

A level is a value, and not how a library or a file holds it (`level_of`): 1, 1.0, True and the texts '1', '1.0' and
'True' are one level.
"""

import math
import numbers
import re
import sys
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any

import numpy as np

from fedpca_flwr.data.frames import Frame, as_array, as_rows, column_names, frame_of, listed
from fedpca_flwr.data.table import Table, check
from fedpca_flwr.errors import DataError
from fedpca_flwr.maths.rows import column_sums, whole

OTHER, MISSING = "other", "missing"
Levels = Mapping[str, Sequence[str]]
"""By the name of a column, the levels that are told apart."""


def indicator_names(levels: Levels) -> tuple[str, ...]:
    """The names of the columns of indicators, which stand after the columns of numbers."""
    return tuple(f"{column}={level}" for column, own in levels.items() for level in (*own, OTHER, MISSING))


def encoded(frame: Any, levels: Levels, name: str, least: int = 1, round_rows: int = 1) -> Table:
    """A data frame (pandas, Arrow, polars) as numbers: its columns of numbers, then the indicators of its categories.

    ``least`` is the smallest number of rows in which a level is told, among those that take part: the last rows do not
    where the number of rows is a multiple of ``round_rows``. A `DataError`, which calls the frame by its ``name``, has
    the columns that are lacking.
    """
    opened = frame_of(frame)
    if opened is None:
        raise DataError(f"{name} has no names of columns, and the run declares levels of some: give a data frame")
    own = column_names(frame)
    lacking = [column for column in levels if column not in own]
    if lacking:
        raise DataError(f"{name} lacks columns whose levels the run declares: {listed(lacking)}")
    numeric = [column for column in own if column not in levels]
    held = opened.values()
    parts = [_indicators(_cells(held, column), known, least, round_rows) for column, known in levels.items()]
    if numeric:
        parts = [as_array(held.select(numeric).to_native(), name), *parts]
    return check(np.column_stack(parts), (*numeric, *indicator_names(levels)))


def joined(
    table: Table, cells: Mapping[str, Sequence[Any]], levels: Levels, least: int = 1, round_rows: int = 1
) -> Table:
    """A ``table`` of numbers with the indicators of its ``cells``, which are given by column, behind them.

    ``least`` and ``round_rows`` are as of `encoded`.
    """
    parts = [_indicators(cells[column], known, least, round_rows) for column, known in levels.items()]
    return check(np.column_stack([whole(table.rows), *parts]), (*table.names, *indicator_names(levels)))


MISSING_TEXTS = frozenset({"", "na", "nan", "n/a", "#n/a", "<na>", "null", "none"})
"""Texts that mean that nothing is there, in small letters: those of a .csv file."""

WHOLE = re.compile(r"-?(0|[1-9]\d*)\.0+")  # as pandas writes whole numbers into a file where some are missing
LOGICAL = {"true": "1", "false": "0"}


def level_of(cell: Any) -> str | None:
    """Return the level that a cell holds, the same whatever holds it; None where nothing is there.

    Texts are in Unicode's composed form (NFC), without spaces around them. Whole numbers have no decimals, logical
    values are 0 and 1, as in columns of numbers. A day is one whether it has a time of 0:00 or none.
    """
    pandas = sys.modules.get("pandas")
    if cell is None or (pandas and (cell is pandas.NA or cell is pandas.NaT)):
        return None
    if isinstance(cell, bytes):
        cell = cell.decode(errors="replace")
    if isinstance(cell, str):
        text = unicodedata.normalize("NFC", cell).strip()
        small = text.lower()
        if small in MISSING_TEXTS:
            return None
        text = LOGICAL.get(small, text)
        text = text.partition(".")[0] if WHOLE.fullmatch(text) else text
        return "0" if text == "-0" else text
    if isinstance(cell, numbers.Integral | bool | np.bool_):
        return str(int(cell))
    if isinstance(cell, numbers.Real | Decimal):
        if not math.isfinite(cell):
            return None if math.isnan(cell) else str(cell)
        shortest = str(cell) if isinstance(cell, np.floating) else repr(float(cell))
        return shortest if cell % 1 else f"{cell + 0:.0f}"
    if hasattr(cell, "isoformat"):
        return str(cell.isoformat()).removesuffix("T00:00:00")
    return str(cell)


def found_levels(cells: Sequence[Any], least: int) -> list[str]:
    """The levels that at least so many of a column's ``cells`` have, in the order of the alphabet."""
    counts = Counter(map(level_of, cells))
    return sorted(
        level
        for level, count in counts.items()
        if level is not None and count >= least and level not in {OTHER, MISSING}
    )


def agreed_levels(frames: Mapping[str, Any], columns: Sequence[str], least: int) -> dict[str, list[str]]:
    """Of these columns of data frames, by how texts call them, the levels that one of them has in so many rows.

    A `DataError` names what a frame lacks, and columns without any such level.
    """
    opened, faults = dict[str, Frame](), []
    for name, frame in frames.items():
        own = column_names(frame)
        if lacking := [column for column in columns if column not in own]:
            faults.append(f"{name} lacks columns whose levels the run asks for: {listed(lacking)}")
        elif (found := frame_of(frame)) is not None:
            opened[name] = found
    if faults:
        raise DataError("\n".join(faults))
    held = [frame.values() for frame in opened.values()]
    return union({column: found_levels(_cells(one, column), least) for column in columns} for one in held)


def union(told: Iterable[Levels]) -> dict[str, list[str]]:
    """All levels that somebody told, by column; a `DataError` names columns of which nobody told any."""
    found: dict[str, set[str]] = {}
    for one in told:
        for column, levels in one.items():
            found.setdefault(column, set()).update(levels)
    empty = [column for column, levels in found.items() if not levels]
    if empty:
        raise DataError(f"no level of {listed(empty)} has as many rows at any party as the least that it tells of")
    return {column: sorted(levels) for column, levels in found.items()}


def others_in(table: Table, levels: Levels) -> int:
    """How many cells of an encoded table have a level that is not declared."""
    places = [place for place, name in enumerate(table.names) if name in {f"{column}={OTHER}" for column in levels}]
    return int(column_sums(as_rows(table, "X"))[places].sum())


def level_notes(tables: Mapping[str, Table], levels: Levels) -> list[str]:
    """Return what a reader must know of the levels in encoded tables, by how texts call the tables.

    A note names a column all of whose values are others at a table, and one of which two tables have each a level that
    the other lacks, as 'F' and 'M' beside 'female' and 'male'.
    """
    notes = []
    sums = {name: column_sums(table.rows)[-len(indicator_names(levels)) :] for name, table in tables.items()}
    told: dict[str, dict[str, list[str]]] = {name: {} for name in tables}
    start = 0
    for column, declared in levels.items():
        own = {name: counts[start : start + len(declared) + 2] for name, counts in sums.items()}
        start += len(declared) + 2
        unknown = [name for name, counts in own.items() if counts[-2] > 0 and not counts[:-2].any()]
        if unknown:
            notes.append(
                f"all values of {column!r} are 'other' at {', '.join(unknown)}: none of the run's levels occurs there "
                f"in enough rows ({listed(declared)})"
            )
        for name, counts in own.items():
            told[name][column] = [level for level, count in zip(declared, counts, strict=False) if count]
    return [*notes, *unlike_levels(told)]


def unlike_levels(told: Mapping[str, Levels]) -> list[str]:
    """Return a note for each column of which two of those that ``told`` levels have each one that the other lacks."""
    notes = []
    for column in next(iter(told.values()), {}):
        own = {name: set(levels.get(column, ())) for name, levels in told.items()}
        pairs = ((one, other) for i, other in enumerate(own) for one in list(own)[:i])
        unlike = next(((one, other) for one, other in pairs if own[one] - own[other] and own[other] - own[one]), None)
        if unlike:
            one, other = unlike
            notes.append(
                f"levels of {column!r} differ: of the two {one} alone has {listed(sorted(own[one] - own[other]))}, and "
                f"{other} alone {listed(sorted(own[other] - own[one]))}. If these mean the same, give them one name"
            )
    return notes


def _cells(held: Any, column: str) -> list[Any]:
    """Return the cells of a column of a data frame of narwhals; float32 as such, for its shortest digits."""
    cells: list[Any] = held[column].to_list()
    single = str(held[column].dtype) == "Float32"
    return [np.float32(cell) if isinstance(cell, float) else cell for cell in cells] if single else cells


def _indicators(
    cells: Sequence[Any], known: Sequence[str], least: int, round_rows: int
) -> np.ndarray[Any, np.dtype[np.float64]]:
    """The indicators (n, m + 2) of cells of which ``known`` (m,) levels are told apart, each in no few rows of those
    that take part."""
    levels = [*map(level_of, known), OTHER, MISSING]
    if None in levels or len(set(levels)) < len(levels):
        raise DataError(
            f"the levels {listed(known)} of a column are not all values of their own: one level is what differs in "
            "value (1, 1.0 and True are one), and no level is a mark of missing values"
        )
    found = [level_of(cell) for cell in cells]
    part = found[: len(found) - len(found) % round_rows]
    pooled = _always_others(Counter(part), least) | (set(found) - set(part))
    place: dict[str | None, int] = {level: number for number, level in enumerate(levels[:-2])}
    place[None] = len(levels) - 1
    place.update(dict.fromkeys(pooled, len(known)))
    indicators = np.zeros((len(found), len(levels)))
    indicators[np.arange(len(found)), [place.get(level, len(known)) for level in found]] = 1.0
    return indicators


def _always_others(counts: Mapping[str | None, int], least: int) -> set[str | None]:
    """The levels that are others whatever a run declares: those of few rows, then the rarest until they are not few.

    If they depended on the run, two runs that declare different levels could differ by few rows.
    """
    pooled: set[str | None] = set()
    rows = 0
    for level in sorted(counts, key=lambda one: (counts[one], one is None, one or "")):
        if counts[level] >= least and (rows == 0 or rows >= least):
            break
        pooled.add(level)
        rows += counts[level]
    return pooled
