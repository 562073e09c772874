"""Notes on columns that a person should read before a run: codes for missing values, running numbers, identifiers.

Values that are isolated from all other values of their column are such codes (-999), or slips of a unit. No text here
has a value of the rows.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeGuard

import numpy as np
from numpy.typing import NDArray

from fedpca_flwr.data.frames import labels_text
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.rows import Blocks, Rows, chunks, select_columns, to_array

MIN_ROWS = 20  # rows; of fewer nobody can tell what is usual
MAX_ISOLATED_SHARE = 0.1  # share of a column that may lie apart
MIN_GAP_RATIO = 10  # so many times the range of all others lies between them and those apart
SAMPLE_ROWS = 1000  # rows by which columns are chosen that are worth sorting
PREFIX_ROWS = 50  # rows of the sample by which most columns are ruled out

MAX_BYTES = 10**7  # entries of a table of bytes, which pixels are, up to which it is looked at
MAX_CODES = 3  # different codes at one end of a column
MAX_IDENTIFIERS = 3  # columns; where more hold unique whole numbers these are counts
MAX_CLASSES = 12  # whole numbers of a covariate, up to which they may be codes of classes
MAX_CHANCE_COLLISIONS = 4.6  # expected pairs of equal draws; there is none with probability exp(-4.6) = 1 %
MIN_CONSTANT = 5  # rows of a column that is one code throughout
SINGLE_COLUMN_SHARE = 0.99  # share of a component, or of the variance, from which it is one column

CODE_PATTERN = re.compile(r"-?(9+|8+|7+|9+[5-8])")  # how codes for missing values are written: 99, -999, 998, 77

PartyRows = Mapping[str, Rows]
"""Rows of the parties by name; those of a single party by an empty text."""


def column_fault_notes(
    parties: PartyRows, names: Mapping[str, Sequence[str]], *, same_columns: bool = True
) -> list[str]:
    """Write notes, if any, on columns with codes for missing values, running numbers or identifiers, in this order.

    The keys are the parties' names, empty for a single party. Rows that are sparse or read in blocks are not looked at.
    With ``same_columns`` values that are constant at one party are compared with the other parties' values.
    """
    tables = {party: rows for party, rows in parties.items() if _are_numbers(rows)}
    codes: dict[str, dict[int, int]] = {}
    extremes: dict[str, tuple[Array, Array]] = {}
    running: dict[str, list[int]] = {}  # consecutive numbers
    unique: dict[str, list[int]] = {}
    with np.errstate(all="ignore"):  # what is not finite is refused elsewhere
        for party, rows in tables.items():
            extremes[party] = _extremes(rows)
            codes[party] = _count_codes(rows, *extremes[party])
            for column, consecutive in find_identifiers(rows).items():
                (running if consecutive else unique).setdefault(party, []).append(column)
        for party, columns in _constant_codes(tables, extremes).items() if same_columns else ():
            codes[party] |= columns

    def columns_text(columns: Mapping[str, Iterable[int]]) -> str:
        """Write the labels of each party's columns, with the party's name."""
        texts = []
        for party, positions in columns.items():
            if labels := [names[party][c] if names[party] else c for c in sorted(positions)]:
                texts.append(f"{labels_text(labels)} ({party})" if party else labels_text(labels))
        return ", ".join(texts)

    notes = []
    if listing := columns_text(codes):
        counts = sum(sum(counts_by_column.values()) for counts_by_column in codes.values())
        notes.append(
            f"{counts} values of {listing} are repeated and far from all others of their column: codes for missing "
            "values? Make them NaN (of a file: missing='-999')"
        )
    if listing := columns_text(running):
        notes.append(
            f"a running number is in {listing}: leave it out (of a file, leave-out='...') if it numbers the rows"
        )
    if listing := columns_text(unique):
        notes.append(f"each row has a whole number of its own in {listing}: leave it out if it is an identifier")
    return notes


def split_at_commas(text: str) -> set[str]:
    """Return the names in a text that are separated by commas."""
    return {name.strip() for name in text.split(",")} - {""}


def class_code_notes(parties: PartyRows, names: Sequence[str], covariates: set[str]) -> list[str]:
    """Write a note on each covariate, by its name or number, whose values look like codes of classes at some party."""
    notes, positions = [], {name: column for column, name in enumerate(names)}
    for label in sorted(covariates):
        column = positions.get(label, int(label) if label.isdecimal() else None)
        suspects = {} if column is None else {x: select_columns(rows, [column]) for x, rows in parties.items()}
        if where := [party for party, rows in suspects.items() if _are_class_codes(to_array(rows))]:
            notes.append(
                f"the covariate {label!r} may be a code of classes ({', '.join(where)}), and counts as an amount: if "
                f"it holds categories, declare them (levels=[{label!r}]), and if amounts, say so (numbers=[{label!r}])"
            )
    return notes


def _are_class_codes(column: NDArray[Any]) -> bool:
    """Return whether values may be codes: 3 to 12 whole numbers, or identifiers of which most occur several times.

    Identifiers recur evenly, or lie so far apart that amounts would not recur.
    """
    values, counts = np.unique(column[np.isfinite(column)].astype(np.float64), return_counts=True)
    if len(values) < 3 or (values % 1).any() or np.abs(values).max() > 2**53 or np.mean(counts > 1) <= 0.5:
        return False
    steps = (values[-1] - values[0]) / np.gcd.reduce(np.diff(values).astype(np.int64))
    sparse = counts.sum() ** 2 < 2 * steps * MAX_CHANCE_COLLISIONS
    return bool(len(values) <= MAX_CLASSES or sparse or (counts.min() > 1 and np.var(counts) < np.mean(counts) / 4))


def one_column_notes(components: NDArray[Any], names: Sequence[str]) -> list[str]:
    """Write a note if one of three or more columns has 99 % of a component's squared loadings (k, d), else none."""
    shares = np.square(components)
    if shares.shape[1] < 3 or not shares.size:
        return []
    single = [(k, int(row.argmax())) for k, row in enumerate(shares) if row.max() >= SINGLE_COLUMN_SHARE]
    if not single:
        return []
    text = ", ".join(f"{k + 1} ({names[c]!r})" if len(names) else f"{k + 1} (column {c})" for k, c in single[:10])
    return [
        f"components that are one column to 99 %: {text}. Is that an identifier (leave it out), or in a smaller unit "
        "than others (scale=True)?"
    ]


def one_column_text(rows: Rows, names: Sequence[str]) -> str:
    """Write which column of rows (n, d) has 99 % of the variance of all columns; empty if none has."""
    if not _are_numbers(rows) or rows.shape[1] < 3 or len(rows) < 2:
        return ""
    columns = (rows[:, column].astype(np.float64) for column in range(rows.shape[1]))
    finite = (column[np.isfinite(column)] for column in columns)
    variances = np.array([column.var() if column.size else 0.0 for column in finite])
    largest = int(variances.argmax())
    if not variances[largest] > SINGLE_COLUMN_SHARE * variances.sum():
        return ""
    name = repr(names[largest]) if names else f"column {largest}"
    return f"{name} has 99 % of the variance: is it an identifier, or in a smaller unit than others?"


def _extremes(rows: NDArray[Any]) -> tuple[Array, Array]:
    """Return the least and the largest value of each column, in one pass; NaN for a column without values."""
    low, high = np.full(rows.shape[1], np.nan), np.full(rows.shape[1], np.nan)
    for chunk in chunks(rows):
        np.fmin(low, np.fmin.reduce(chunk, axis=0), out=low)
        np.fmax(high, np.fmax.reduce(chunk, axis=0), out=high)
    return low, high


def _count_codes(rows: NDArray[Any], low: Array, high: Array) -> dict[int, int]:
    """Count, by column with any, the values that are codes for missing values, given each column's extremes (d,)."""
    n = len(rows)
    if n < MIN_CONSTANT or not rows.shape[1]:
        return {}
    counts = {}
    for column in np.flatnonzero((low == high) & np.isfinite(low)).tolist():
        if _is_code(low[column]) and not 0 < low[column] < 10:
            counts[column] = int(np.sum(rows[:, column] == low[column]))
    if n < MIN_ROWS:
        return counts
    columns, sample = np.arange(rows.shape[1]), _sample(rows)
    for part in (sample[:PREFIX_ROWS], sample):  # further rows only divide gaps
        ordered = np.sort(np.vstack([part[:, columns], low[columns], high[columns]]).T, axis=1)
        gaps = np.nan_to_num(np.diff(ordered, axis=1))
        wide = gaps.max(axis=1) >= (high - low)[columns] / 2
        columns, gaps = columns[wide], gaps[wide]
    for column in columns[(gaps > 0).sum(axis=1) > 1].tolist():
        values = rows[:, column].astype(np.float64)
        if count := _count_end_codes(*np.unique(values[np.isfinite(values)], return_counts=True)):
            counts[column] = count
    return dict(sorted(counts.items()))


def _count_end_codes(values: Array, counts: NDArray[np.int64]) -> int:
    """Count the rows with codes for missing values, at either end of sorted unique values with ``counts``."""
    start, stop, previous = 0, len(values), (-1, -1)
    while (start, stop) != previous:
        previous = start, stop
        for width in range(1, MAX_CODES + 1):
            if stop - start - width < 2:
                break
            low_end, high_start = start + width, stop - width
            if _are_codes(values[start:low_end], counts[start:low_end], values[low_end:stop], counts):
                start = low_end
            elif _are_codes(values[high_start:stop], counts[high_start:stop], values[start:high_start], counts):
                stop = high_start
    return int(counts[:start].sum() + counts[stop:].sum())


def _are_codes(codes: NDArray[Any], times: NDArray[Any], rest: NDArray[Any], counts: NDArray[Any]) -> bool:
    """Return whether values at an end, which occur ``times``, are codes for missing values, far from the ``rest``.

    The ``counts`` are of all values. A nine among numbers of one digit is a code if these are answers: several, of
    which none has most rows.
    """
    gap, reach = max(rest[0] - codes[-1], codes[0] - rest[-1]), rest[-1] - rest[0]
    if gap < reach:
        return False
    nines = all(map(_is_code, codes.tolist()))
    marked = nines or all(code < 0 <= rest[0] and code == int(code) for code in codes.tolist())
    min_repeats = len(codes) + 1
    if marked and 0 < codes[0] < 10:
        marked = codes[0] == 9 and len(rest) > 2 and counts.max() < 0.8 * counts.sum()
        min_repeats = max(3, counts.sum() / 100)
    if times.sum() < min_repeats or (codes == 0).any():  # zeros are no codes where they are many
        return False
    return bool(gap > (1 if marked else MIN_GAP_RATIO) * reach or (nines and marked and gap == reach))


def _is_code(value: float) -> bool:
    """Return whether a number is written like a code for missing values, such as 99, -999 or 77."""
    return value == int(value) and CODE_PATTERN.fullmatch(str(int(value))) is not None


def _constant_codes(
    tables: Mapping[str, NDArray[Any]], extremes: Mapping[str, tuple[Array, Array]]
) -> dict[str, dict[int, int]]:
    """Count, by party and column, values constant at a party and far from all others'; empty for unequal widths."""
    long = {party: rows for party, rows in tables.items() if len(rows) >= MIN_CONSTANT}
    if len(long) < 2 or len({rows.shape[1] for rows in tables.values()}) > 1:
        return {}
    low, high = np.stack([extremes[party] for party in long], axis=1)
    varies = high > low
    lowest = np.where(varies, low, np.inf).min(axis=0)
    highest = np.where(varies, high, -np.inf).max(axis=0)
    codes: dict[str, dict[int, int]] = {}
    for party, rows, values, vary in zip(long, long.values(), low, varies, strict=True):
        distance = np.fmax(lowest - values, values - highest)
        negative = (values < 0) & (lowest >= 0) & (values % 1 == 0)
        min_distance = np.where(negative, 0, highest - lowest)
        is_code = ~vary & np.isfinite(values) & varies.any(axis=0) & (distance > min_distance)
        for column in np.flatnonzero(is_code).tolist():
            codes.setdefault(party, {})[column] = int(np.sum(rows[:, column] == values[column]))
    return codes


def find_identifiers(rows: NDArray[Any]) -> dict[int, bool]:
    """Find columns of unique whole numbers, and whether these are consecutive; none if more than `MAX_IDENTIFIERS`."""
    if len(rows) < MIN_ROWS or not rows.shape[1]:
        return {}
    columns, sample = np.arange(rows.shape[1]), _sample(rows)
    for part in (sample[:PREFIX_ROWS], sample):  # numbers that occur twice in a part do so in all rows
        ordered = np.sort(part[:, columns].T, axis=1)
        columns = columns[(np.diff(ordered, axis=1) > 0).all(axis=1) & (ordered % 1 == 0).all(axis=1)]
    identifiers = {}
    for column in columns.tolist():
        values = np.sort(rows[:, column]).astype(np.float64)
        steps = np.diff(values)
        if (steps > 0).all() and (values % 1 == 0).all() and not _differ_by_chance(values):
            identifiers[column] = bool((steps == 1).all())
    return identifiers if len(identifiers) <= MAX_IDENTIFIERS else {}


def _differ_by_chance(values: Array) -> bool:
    """Return whether sorted whole numbers may all differ by chance, as counts do; long numbers of one length do not."""
    first, last = values[0], values[-1]
    collisions = len(values) ** 2 / 2 / (last - first + 1)
    as_long = first >= 10**4 and len(str(int(first))) == len(str(int(last)))
    return bool(collisions < MAX_CHANCE_COLLISIONS and not as_long)


def _sample(rows: NDArray[Any]) -> Array:
    """Return every m-th row as float64, with m such that at most `SAMPLE_ROWS` rows remain."""
    return rows[:: -(-len(rows) // SAMPLE_ROWS)].astype(np.float64)


def _are_numbers(rows: Rows) -> TypeGuard[NDArray[Any]]:
    """Return whether rows are a dense matrix of numbers, and not a large matrix of single bytes, such as images."""
    if isinstance(rows, Blocks) or rows.ndim != 2 or rows.dtype.kind not in "fiu":
        return False
    return rows.dtype.itemsize > 1 or rows.size <= MAX_BYTES


def count_isolated(rows: Rows) -> dict[int, int]:
    """Count, by column of rows (n, d), the extreme values that lie far from all other values of their column.

    The largest or smallest values, a tenth of the column at most, are isolated if the gap to all others is more than
    ten times the range of these. Columns without any, and rows that are sparse, in blocks, or in bytes have no entry.
    """
    if isinstance(rows, Blocks) or rows.dtype.itemsize == 1 or rows.dtype.kind not in "fiu":
        return {}
    if rows.ndim != 2 or not rows.shape[1] or len(rows) < MIN_ROWS:
        return {}
    counts = {}
    with np.errstate(all="ignore"):  # what is not finite is refused elsewhere
        for column in _columns_with_extremes(rows).tolist():
            if count := _count_isolated_values(rows[:, column].astype(np.float64)):
                counts[column] = count
    return counts


def isolated_text(counts: dict[int, int], names: tuple[str, ...]) -> str:
    """Write how many values are isolated and in which columns, given the counts by column; empty if there are none."""
    if not counts:
        return ""
    columns = [names[column] if names else column for column in counts]
    values = sum(counts.values())
    return f"{values} {'value' if values == 1 else 'values'} of {labels_text(columns)}"


def _columns_with_extremes(rows: NDArray[np.generic]) -> NDArray[np.intp]:
    """Return the columns with a value far outside the middle three fifths of their values."""
    sample = _sample(rows)
    ordered = np.sort(sample.T, axis=1)  # (d, n); missing values come last
    last = np.maximum(0, len(sample) - np.isnan(sample).sum(axis=0) - 1)
    columns = np.arange(rows.shape[1])
    low, high = ordered[columns, last // 5], ordered[columns, last - last // 5]  # a fifth lies below, a fifth above
    reach = MIN_GAP_RATIO * (high - low)
    least, largest = _extremes(rows)
    outside = (largest - high > reach) | (low - least > reach)
    return np.flatnonzero(outside & (reach > 0))


def _count_isolated_values(column: Array) -> int:
    """Count the values of a column beyond gaps of more than ten times the range of its middle; 0 if they are many."""
    values = np.sort(column[np.isfinite(column)])
    max_count = int(MAX_ISOLATED_SHARE * len(values))
    low, high, last = max_count, len(values) - max_count, (0, 0)
    while values[high - 1] > values[low] and (low, high) != last:
        last, reach = (low, high), MIN_GAP_RATIO * (values[high - 1] - values[low])
        above = np.flatnonzero(np.diff(values[high - 1 :]) > reach)
        high = high + int(above[0]) if above.size else len(values)
        below = np.flatnonzero(np.diff(values[: low + 1]) > reach)
        low = int(below[-1]) + 1 if below.size else 0
    count = len(values) - (high - low)
    return count if count <= max_count and values[high - 1] > values[low] else 0
