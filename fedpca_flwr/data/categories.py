"""Columns of categories as indicators, for the principal components of mixed tables (FAMD) and of categories (MCA).

A column with levels a, b becomes four columns of 0 and 1: ``column=a``, ``column=b``, ``column=other`` and
``column=missing``. All parties declare the same levels. A level that fewer rows of a party have than its minimum counts
as other, and so is never told, in no run and by no difference of two runs.
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

from fedpca_flwr.data.frames import as_array, as_rows, column_names, open_frame
from fedpca_flwr.data.table import Table, check_rows, labels_text
from fedpca_flwr.errors import DataError
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.rows import column_sums, to_array

OTHER_LEVEL, MISSING_LEVEL = "other", "missing"
Levels = Mapping[str, Sequence[str]]
"""Levels of each column of categories, by the name of the column."""


def indicator_names(levels: Levels) -> tuple[str, ...]:
    """Return the names of the 0/1 indicator columns: by column its levels, ``column=other``, ``column=missing``."""
    all_levels = {column: (*declared, OTHER_LEVEL, MISSING_LEVEL) for column, declared in levels.items()}
    return tuple(f"{column}={level}" for column, declared in all_levels.items() for level in declared)


def encoded(frame: Any, levels: Levels, name: str, min_rows: int = 1, round_rows: int = 1) -> Table:
    """Encode a data frame as numbers: its numeric columns, then 0/1 indicators; levels of few rows count as 'other'."""
    opened = open_frame(frame)
    if opened is None:
        raise DataError(f"{name} has no names of columns, and the run declares levels of some: give a data frame")
    columns = column_names(frame)
    absent = [column for column in levels if column not in columns]
    if absent:
        raise DataError(f"{name} lacks columns whose levels the run declares: {labels_text(absent)}")
    numeric, data = [column for column in columns if column not in levels], opened.values()
    cells = [(_column_cells(data, column), declared) for column, declared in levels.items()]
    parts = [_indicator_columns(*pair, min_rows, round_rows) for pair in cells]
    if numeric:
        parts = [as_array(data.select(numeric).to_native(), name), *parts]
    return check_rows(np.column_stack(parts), (*numeric, *indicator_names(levels)))


def append_indicators(
    table: Table, cells: Mapping[str, Sequence[Any]], levels: Levels, min_rows: int = 1, round_rows: int = 1
) -> Table:
    """Append the 0/1 indicators of columns of categories to a table of numbers, and raise DataError, as `encoded`."""
    parts = [_indicator_columns(cells[column], declared, min_rows, round_rows) for column, declared in levels.items()]
    names = table.names or map(str, range(table.shape[1]))  # of a file without a header: positions
    return check_rows(np.column_stack([to_array(table.rows), *parts]), (*names, *indicator_names(levels)))


MISSING_TEXTS = frozenset({"", "na", "nan", "n/a", "#n/a", "<na>", "null", "none"})
"""Texts of missing values in small letters, as in a .csv file."""

INTEGRAL_TEXT = re.compile(r"-?(0|[1-9]\d*)\.0+")  # as pandas writes whole numbers into a file where some are missing
BOOLEAN_LEVELS = {"true": "1", "false": "0"}


def level_of(cell: Any) -> str | None:
    """Return the level that a cell holds, equal for equal values of any type and library; None for a missing value.

    Texts are stripped, in Unicode's form NFC; whole and logical values have no decimals, and days no time of 0:00.
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
        text = BOOLEAN_LEVELS.get(small, text)
        text = text.partition(".")[0] if INTEGRAL_TEXT.fullmatch(text) else text
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


def frequent_levels(cells: Sequence[Any], min_rows: int) -> list[str]:
    """Return the levels of a column that at least ``min_rows`` cells have, but 'other' and 'missing', sorted."""
    counts = Counter(map(level_of, cells))
    reserved = {None, OTHER_LEVEL, MISSING_LEVEL}
    return sorted(level for level in counts.keys() - reserved if level is not None and counts[level] >= min_rows)


def levels_of_frames(frames: Mapping[str, Any], columns: Sequence[str], min_rows: int) -> dict[str, list[str]]:
    """Return, by column, the levels that at least ``min_rows`` rows of any data frame have, sorted."""
    faults = []
    for name, frame in frames.items():
        names = column_names(frame)
        if absent := [column for column in columns if column not in names]:
            advice = "" if names else "; give a data frame with names, such as pandas.DataFrame(X, columns=names)"
            faults.append(f"{name} lacks columns whose levels the run asks for: {labels_text(absent)}{advice}")
    if faults:
        raise DataError("\n".join(faults))
    tables = [frame.values() for frame in map(open_frame, frames.values()) if frame]
    return union_of_levels(
        {column: frequent_levels(_column_cells(table, column), min_rows) for column in columns} for table in tables
    )


def union_of_levels(level_tables: Iterable[Levels]) -> dict[str, list[str]]:
    """Return, by column, all levels that any party has, sorted; raise DataError if a column has none."""
    merged: dict[str, set[str]] = {}
    for level_table in level_tables:
        for column, levels in level_table.items():
            merged.setdefault(column, set()).update(levels)
    empty = [column for column, levels in merged.items() if not levels]
    if empty:
        few = f"no level of {labels_text(empty)} has as many rows at any party as 'min-rows' asks for"
        raise DataError(f"{few}: leave out of 'levels' what is no category, or lower 'min-rows'")
    return {column: sorted(levels) for column, levels in merged.items()}


def count_other_cells(table: Table, levels: Levels) -> int:
    """Count the cells of an encoded table whose level counts as 'other'."""
    other_names = {f"{column}={OTHER_LEVEL}" for column in levels}
    columns = [position for position, name in enumerate(table.names) if name in other_names]
    return int(column_sums(as_rows(table, "X"))[columns].sum())


def level_notes(tables: Mapping[str, Table], levels: Levels) -> list[str]:
    """Write notes on columns that are all 'other' in a table, or of which two tables have each a level of its own."""
    notes = []
    sums = {name: column_sums(table.rows)[-len(indicator_names(levels)) :] for name, table in tables.items()}
    occurring: dict[str, dict[str, list[str]]] = {name: {} for name in tables}
    start = 0
    for column, declared in levels.items():
        table_counts = {name: counts[start : start + len(declared) + 2] for name, counts in sums.items()}
        start += len(declared) + 2
        unknown = [name for name, counts in table_counts.items() if counts[-2] > 0 and not counts[:-2].any()]
        if unknown:
            notes.append(
                f"all values of {column!r} are 'other' at {', '.join(unknown)}: none of the run's levels occurs there "
                f"in enough rows ({labels_text(declared)})"
            )
        for name, counts in table_counts.items():
            occurring[name][column] = [level for level, count in zip(declared, counts, strict=False) if count]
    return [*notes, *differing_level_notes(occurring)]


def differing_level_notes(levels_by_party: Mapping[str, Levels]) -> list[str]:
    """Write a note on each column of which two parties, the first such pair, each have a level that the other lacks."""
    notes = []
    for column in next(iter(levels_by_party.values()), {}):
        level_sets = {name: set(levels.get(column, ())) for name, levels in levels_by_party.items()}
        for second, first in ((b, a) for i, b in enumerate(level_sets) for a in list(level_sets)[:i]):
            only_first, only_second = level_sets[first] - level_sets[second], level_sets[second] - level_sets[first]
            if only_first and only_second:
                notes.append(
                    f"levels of {column!r} differ: of the two {first} alone has {labels_text(sorted(only_first))}, and "
                    f"{second} alone {labels_text(sorted(only_second))}. If these mean the same, give them one name"
                )
                break
    return notes


def _column_cells(data: Any, column: str) -> list[Any]:
    """Return the cells of a data frame's column; cells of float32 stay float32, to print their shortest digits."""
    cells: list[Any] = data[column].to_list()
    single = str(data[column].dtype) == "Float32"
    return [np.float32(cell) if isinstance(cell, float) else cell for cell in cells] if single else cells


def _indicator_columns(cells: Sequence[Any], declared: Sequence[str], min_rows: int, round_rows: int) -> Array:
    """Return 0/1 indicators (n, m + 2) of m ``declared`` levels, 'other' (rare ones too), and 'missing'.

    The rarest levels are rare too until those have enough rows together: whatever runs declare, few rows do not differ.
    """
    levels = [*map(level_of, declared), OTHER_LEVEL, MISSING_LEVEL]
    if None in levels or len(set(levels)) < len(levels):
        raise DataError(
            f"the levels {labels_text(declared)} of a column are not all values of their own: one level is what "
            "differs in value (1, 1.0 and True are one), and no level is a mark of missing values"
        )
    cell_levels = [level_of(cell) for cell in cells]
    counted = cell_levels[: len(cell_levels) - len(cell_levels) % round_rows]
    counts, rare_rows = Counter(counted), 0
    rare = set(cell_levels) - set(counted)
    for level in sorted(counts, key=lambda name: (counts[name], name is None, name or "")):
        if counts[level] >= min_rows and (rare_rows == 0 or rare_rows >= min_rows):
            break
        rare.add(level)
        rare_rows += counts[level]
    column_of: dict[str | None, int] = {level: number for number, level in enumerate(levels[:-2])}
    column_of[None] = len(levels) - 1
    column_of.update(dict.fromkeys(rare, len(declared)))
    indicators = np.zeros((len(cell_levels), len(levels)))
    indicators[np.arange(len(cell_levels)), [column_of.get(level, len(declared)) for level in cell_levels]] = 1.0
    return indicators
