"""What a person should know of columns before a run: codes for missing values, running numbers, identifiers.

Values that lie apart from all others of their column are such codes (-999), or slips of a unit. No text here has a
value of the rows.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

import numpy as np
from numpy.typing import NDArray

from fedpca_flwr.data.frames import listed
from fedpca_flwr.maths.rows import Blocks, Rows

FEWEST = 20  # rows; of fewer nobody can tell what is usual
MOST = 0.1  # share of a column that may lie apart
TIMES = 10  # so many times the range of all others lies between them and those apart
SAMPLE = 1000  # rows by which columns are chosen that are worth sorting

MAX_BYTES = 10**7  # entries of a table of bytes, which pixels are, up to which it is looked at
MAX_CODES = 3  # different codes at one end of a column
MAX_IDENTIFIERS = 3  # columns; where more hold unique whole numbers these are counts
MIN_CONSTANT = 5  # rows of a column that is one code throughout
ONE_COLUMN = 0.99  # share of a component, or of the variance, from which it is one column

NINES = re.compile(r"-?(9+|8+|7+|9+[5-8])")
"""How codes for missing values are written: 99, -999, 998, 77."""

Called = Mapping[str, Rows]
"""The rows of parties by what they are called; of one party by an empty text."""


def notes_of(parties: Called, names: Mapping[str, Sequence[str]], *, same_columns: bool = True) -> list[str]:
    """Return what is odd in the columns of the parties' rows.

    Parameters
    ----------
    parties : mapping of str to Rows
        Rows that are sparse, or read in blocks, are not looked at.
    names : mapping of str to sequence of str
        The names of each party's columns; empty where they have none.
    same_columns : bool
        Whether all parties have the same columns, in one order, so that these can be compared.
    """
    tables = {called: rows for called, rows in parties.items() if _are_numbers(rows)}
    with np.errstate(all="ignore"):  # what is not finite is refused elsewhere
        codes = {called: codes_in(rows) for called, rows in tables.items()}
        for called, columns in _constants_apart(tables).items() if same_columns else ():
            codes[called] |= columns
        identifiers = {called: identifiers_in(rows) for called, rows in tables.items()}
    running = {called: [c for c, one in own.items() if one] for called, own in identifiers.items()}
    unique = {called: [c for c, one in own.items() if not one] for called, own in identifiers.items()}

    def text(columns: Mapping[str, Sequence[int]]) -> str:
        parts = (
            f"{listed([names[called][c] if names[called] else c for c in own])}{f' ({called})' if called else ''}"
            for called, own in columns.items()
            if own
        )
        return ", ".join(parts)

    notes = []
    if found := text({called: sorted(own) for called, own in codes.items()}):
        counts = sum(sum(own.values()) for own in codes.values())
        notes.append(
            f"{counts} values of {found} are repeated and far from all others of their column: codes for missing "
            "values? Make them NaN (of a file: missing='-999')"
        )
    if found := text(running):
        notes.append(
            f"a running number is in {found}: leave it out (of a file, leave-out='...') if it numbers the rows"
        )
    if found := text(unique):
        notes.append(f"each row has a whole number of its own in {found}: leave it out if it is an identifier")
    return notes


def one_column_notes(components: NDArray[Any], names: Sequence[str]) -> list[str]:
    """Return a note where components (k, d) are each one column to 99 %."""
    shares = np.square(components)
    if shares.shape[1] < 3 or not shares.size:
        return []
    found = [(int(k), int(row.argmax())) for k, row in enumerate(shares) if row.max() >= ONE_COLUMN]
    if not found:
        return []
    text = ", ".join(f"{k + 1} ({names[c]!r})" if len(names) else f"{k + 1} (column {c})" for k, c in found[:10])
    return [
        f"components that are one column to 99 %: {text}. Is that an identifier (leave it out), or in a smaller unit "
        "than others (scale=True)?"
    ]


def one_column_text(rows: Rows, names: Sequence[str]) -> str:
    """Return which column has 99 % of the variance of all; empty where none has."""
    if not _are_numbers(rows) or rows.shape[1] < 3 or len(rows) < 2:
        return ""
    columns = (rows[:, column].astype(np.float64) for column in range(rows.shape[1]))
    finite = (column[np.isfinite(column)] for column in columns)
    variances = np.array([column.var() if column.size else 0.0 for column in finite])
    largest = int(variances.argmax())
    if not variances[largest] > ONE_COLUMN * variances.sum():
        return ""
    name = repr(names[largest]) if names else f"column {largest}"
    return f"{name} has 99 % of the variance: is it an identifier, or in a smaller unit than others?"


def codes_in(rows: NDArray[Any]) -> dict[int, int]:
    """Return how many values of each column (n, d) are codes, of the columns that have some."""
    n = len(rows)
    if n < MIN_CONSTANT or not rows.shape[1]:
        return {}
    low, high = np.fmin.reduce(rows, axis=0).astype(np.float64), np.fmax.reduce(rows, axis=0).astype(np.float64)
    constant = np.flatnonzero((low == high) & np.isfinite(low)).tolist()
    constant = [c for c in constant if _is_code(low[c]) and not 0 < low[c] < 10]
    found = {c: int(np.sum(rows[:, c] == low[c])) for c in constant}
    if n < FEWEST:
        return found
    ordered = np.sort(np.vstack([_sample(rows), low, high]), axis=0)
    gaps = np.nan_to_num(np.diff(ordered, axis=0))
    worth = (gaps.max(axis=0) >= (high - low) / 2) & ((gaps > 0).sum(axis=0) > 1)
    for column in np.flatnonzero(worth).tolist():
        values = rows[:, column].astype(np.float64)
        if count := _codes_of(*np.unique(values[np.isfinite(values)], return_counts=True)):
            found[column] = count
    return dict(sorted(found.items()))


def _codes_of(values: NDArray[np.float64], counts: NDArray[np.int64]) -> int:
    """How many values of a column are codes: what is repeated at an end, beyond a gap that is wider than all others."""
    start, stop, looked = 0, len(values), (-1, -1)
    while (start, stop) != looked:
        looked = start, stop
        for few in range(1, MAX_CODES + 1):
            if stop - start - few < 2:
                break
            if _far(values[start : start + few], counts[start : start + few], values[start + few : stop], counts):
                start += few
            elif _far(values[stop - few : stop], counts[stop - few : stop], values[start : stop - few], counts):
                stop -= few
    return int(counts[:start].sum() + counts[stop:].sum())


def _far(codes: NDArray[Any], times: NDArray[Any], others: NDArray[Any], counts: NDArray[Any]) -> bool:
    """Whether values that occur so many ``times`` are far from the ``others``, which are all on one side of them.

    The ``counts`` are of all values. A nine among numbers of one digit is a code where these are answers: several, of
    which none has most rows.
    """
    gap, reach = max(others[0] - codes[-1], codes[0] - others[-1]), others[-1] - others[0]
    nines = all(map(_is_code, codes.tolist()))
    known = nines or all(code < 0 <= others[0] and code == int(code) for code in codes.tolist())
    needed = len(codes) + 1
    if known and 0 < codes[0] < 10:
        known = codes[0] == 9 and len(others) > 2 and counts.max() < 0.8 * counts.sum()
        needed = max(3, counts.sum() / 100)
    if times.sum() < needed or (codes == 0).any():  # zeros are no codes where they are many
        return False
    return bool(gap > (1 if known else TIMES) * reach or (nines and known and gap == reach))


def _is_code(value: float) -> bool:
    return value == int(value) and NINES.fullmatch(str(int(value))) is not None


def _constants_apart(tables: Mapping[str, NDArray[Any]]) -> dict[str, dict[int, int]]:
    """By party the columns that are constant there, and far from all that other parties have."""
    widths = {rows.shape[1] for rows in tables.values()}
    long = {called: rows for called, rows in tables.items() if len(rows) >= MIN_CONSTANT}
    if len(widths) > 1 or len(long) < 2:
        return {}
    low = np.array([np.fmin.reduce(rows, axis=0) for rows in long.values()], dtype=np.float64)
    high = np.array([np.fmax.reduce(rows, axis=0) for rows in long.values()], dtype=np.float64)
    varies = high > low
    least = np.where(varies, low, np.inf).min(axis=0)
    most = np.where(varies, high, -np.inf).max(axis=0)
    found: dict[str, dict[int, int]] = {}
    for called, rows, values, vary in zip(long, long.values(), low, varies, strict=True):
        distance = np.fmax(least - values, values - most)
        negative = (values < 0) & (least >= 0) & (values % 1 == 0)
        far = ~vary & np.isfinite(values) & varies.any(axis=0) & (distance > np.where(negative, 0, most - least))
        found[called] = {c: int(np.sum(rows[:, c] == values[c])) for c in np.flatnonzero(far).tolist()}
    return found


def identifiers_in(rows: NDArray[Any]) -> dict[int, bool]:
    """Return the few columns of unique whole numbers (n, d), and whether these are consecutive."""
    if len(rows) < FEWEST or not rows.shape[1]:
        return {}
    sample = np.sort(_sample(rows), axis=0)
    worth = np.flatnonzero((np.diff(sample, axis=0) > 0).all(axis=0) & (sample % 1 == 0).all(axis=0))
    found = {}
    for column in worth.tolist():
        values = np.sort(rows[:, column]).astype(np.float64)
        steps = np.diff(values)
        if (steps > 0).all() and (values % 1 == 0).all() and not _differ_by_chance(values):
            found[column] = bool((steps == 1).all())
    return found if len(found) <= MAX_IDENTIFIERS else {}


def _differ_by_chance(values: NDArray[np.float64]) -> bool:
    """Whether whole numbers, in order, may all differ although they count or measure something.

    So many numbers drawn from their range seldom differ. Long numbers do, and are identifiers where all are as long.
    """
    first, last = values[0], values[-1]
    collisions = len(values) ** 2 / 2 / (last - first + 1)
    as_long = first >= 10**4 and len(str(int(first))) == len(str(int(last)))
    return bool(collisions < 4.6 and not as_long)  # of which there is none once in 100 tables


def _sample(rows: NDArray[Any]) -> NDArray[np.float64]:
    return rows[:: -(-len(rows) // SAMPLE)].astype(np.float64)


def _are_numbers(rows: Rows) -> TypeGuard[NDArray[Any]]:
    if isinstance(rows, Blocks) or rows.ndim != 2 or rows.dtype.kind not in "fiu":
        return False
    return rows.dtype.itemsize > 1 or rows.size <= MAX_BYTES


def apart(rows: Rows) -> dict[int, int]:
    """How many values of each column of ``rows`` (n, d) lie apart, of the columns in which some do.

    The largest or the smallest values, a tenth of the column at most, lie apart where the gap to all others is more
    than ten times the range of these. Rows that are sparse, read in blocks, or in bytes are not looked at.
    """
    if isinstance(rows, Blocks) or rows.dtype.itemsize == 1 or rows.dtype.kind not in "fiu":
        return {}
    if rows.ndim != 2 or not rows.shape[1] or len(rows) < FEWEST:
        return {}
    with np.errstate(all="ignore"):  # what is not finite is refused elsewhere
        counts = {int(column): _count(rows[:, column].astype(np.float64)) for column in _worth_sorting(rows)}
    return {column: count for column, count in counts.items() if count}


def text_of(counts: dict[int, int], names: tuple[str, ...]) -> str:
    """The columns and how many of their values lie apart, or nothing."""
    if not counts:
        return ""
    columns = [names[column] if names else column for column in counts]
    values = sum(counts.values())
    return f"{values} {'value' if values == 1 else 'values'} of {listed(columns)}"


def _worth_sorting(rows: NDArray[np.generic]) -> NDArray[np.intp]:
    """Columns whose extremes are far from where most of their values are."""
    sample = rows[:: -(-len(rows) // SAMPLE)].astype(np.float64)
    ordered = np.sort(sample.T, axis=1)  # (d, n); what is missing comes last
    last = np.maximum(0, len(sample) - np.isnan(sample).sum(axis=0) - 1)
    columns = np.arange(rows.shape[1])
    low, high = ordered[columns, last // 5], ordered[columns, last - last // 5]  # a fifth lies below, a fifth above
    reach = TIMES * (high - low)
    outside = (np.fmax.reduce(rows, axis=0) - high > reach) | (low - np.fmin.reduce(rows, axis=0) > reach)
    return np.flatnonzero(outside & (reach > 0))


def _count(column: NDArray[np.float64]) -> int:
    """How many values of one column lie apart: what is left as its middle grows over all gaps that are not so large."""
    values = np.sort(column[np.isfinite(column)])
    most = int(MOST * len(values))
    low, high, last = most, len(values) - most, (0, 0)
    while values[high - 1] > values[low] and (low, high) != last:
        last, reach = (low, high), TIMES * (values[high - 1] - values[low])
        while high < len(values) and values[high] - values[high - 1] <= reach:
            high += 1
        while low and values[low] - values[low - 1] <= reach:
            low -= 1
    count = len(values) - (high - low)
    return count if count <= most and values[high - 1] > values[low] else 0
