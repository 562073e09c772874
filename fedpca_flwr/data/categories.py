"""Columns of categories as indicators, for the principal components of mixed tables (FAMD) and of categories (MCA).

Of a column with levels a, b there are four columns of 0 and 1: ``column=a``, ``column=b``, ``column=other`` for every
other level, and ``column=missing``. All parties declare the same levels, so that they have the same columns. A level
that fewer rows of a party have than its minimum counts as other, and is so never told, in no run and by no difference
of two runs.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from fedpca_flwr.data.frames import as_array, column_names, is_frame, listed
from fedpca_flwr.data.table import Table, check
from fedpca_flwr.errors import DataError
from fedpca_flwr.maths.rows import whole

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
    if not is_frame(frame):
        raise DataError(f"{name} has no names of columns, and the run declares levels of some: give a data frame")
    own = column_names(frame)
    lacking = [column for column in levels if column not in own]
    if lacking:
        raise DataError(f"{name} lacks columns whose levels the run declares: {listed(lacking)}")
    numbers = [column for column in own if column not in levels]
    parts = [_indicators(_cells(frame, column), known, least, round_rows) for column, known in levels.items()]
    if numbers:
        chosen = frame.select(numbers) if hasattr(type(frame), "column_names") else frame[numbers]
        parts = [as_array(chosen, name), *parts]
    return check(np.column_stack(parts), (*numbers, *indicator_names(levels)))


def joined(
    numbers: Table, cells: Mapping[str, Sequence[Any]], levels: Levels, least: int = 1, round_rows: int = 1
) -> Table:
    """A table of numbers with the indicators of its ``cells``, which are given by column, behind them.

    ``least`` and ``round_rows`` are as of `encoded`.
    """
    parts = [_indicators(cells[column], known, least, round_rows) for column, known in levels.items()]
    return check(np.column_stack([whole(numbers.rows), *parts]), (*numbers.names, *indicator_names(levels)))


def found_levels(cells: Sequence[Any], least: int) -> list[str]:
    """The levels that at least so many of a column's ``cells`` have, in the order of the alphabet."""
    counts = Counter(str(cell) for cell in cells if not _is_missing(cell))
    return sorted(level for level, count in counts.items() if count >= least and level not in {"", OTHER, MISSING})


def agreed_levels(frames: Sequence[Any], columns: Sequence[str], least: int) -> dict[str, list[str]]:
    """Of these columns of several data frames the levels that at least one of them has in so many rows.

    A `DataError` names columns that a frame lacks, and columns without any such level.
    """
    lacking = [one for one in columns if not all(is_frame(frame) and one in column_names(frame) for frame in frames)]
    if lacking:
        raise DataError(f"not every party has the columns whose levels the run asks for: {listed(lacking)}")
    return union({one: found_levels(_cells(frame, one), least) for one in columns} for frame in frames)


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
    return int(as_array(table, "X")[:, places].sum())


def _cells(frame: Any, column: str) -> list[Any]:
    if hasattr(type(frame), "column_names"):
        return list(frame.column(column).to_pylist())
    return list(frame[column].to_list())


def _is_missing(cell: Any) -> bool:
    return cell is None or str(cell) == "<NA>" or cell != cell  # whether pandas.NA is itself is missing, too


def _indicators(
    cells: Sequence[Any], known: Sequence[str], least: int, round_rows: int
) -> np.ndarray[Any, np.dtype[np.float64]]:
    """The indicators (n, m + 2) of cells of which ``known`` (m,) levels are told apart, each in no few rows of those
    that take part."""
    levels = [*known, OTHER, MISSING]
    found = [None if _is_missing(cell) else str(cell) for cell in cells]
    part = found[: len(found) - len(found) % round_rows]
    pooled = _always_others(Counter(part), least) | (set(found) - set(part))
    place = {level: number for number, level in enumerate(known)} | {None: len(levels) - 1}
    place |= dict.fromkeys(pooled, len(known))
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
