"""Notes on columns that a person should read before a run: codes for missing values, running numbers, identifiers.

Codes (-999) and slips of a unit lie far from all other values; only codes are values of rows that a text here has.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedpca_flwr.data.table import ColumnSummary, Table, labels_text
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.rows import Rows, chunks, select_columns, to_array

MIN_ROWS = 20  # rows; of fewer nobody can tell what is usual
MAX_ISOLATED_SHARE = 0.1  # share of a column that may lie apart
MIN_GAP_RATIO = 10  # so many times the range of all others lies between them and those apart
MAX_COLUMN_ELEMENTS = 2**23  # values of columns that are read in full at a time
MAX_BYTES = 10**7  # entries of a table of bytes, which pixels are, up to which it is looked at
MAX_CODES = 3  # different codes at one end of a column
MAX_IDENTIFIERS = 3  # columns; where more hold unique whole numbers these are counts
MAX_CLASSES = 12  # whole numbers of a covariate, up to which they may be codes of classes
MAX_CHANCE_COLLISIONS = 4.6  # expected pairs of equal draws; there is none with probability exp(-4.6) = 1 %
MIN_CONSTANT = 5  # rows of a column that is one code throughout
SINGLE_COLUMN_SHARE = 0.99  # share of a component, or of the variance, from which it is one column

CODE_PATTERN = re.compile(r"-?(9+|8+|7+|9+[5-8])")  # how codes for missing values are written: 99, -999, 998, 77


class ColumnFaults(NamedTuple):
    """Columns of a table that may not be what they seem, by number."""

    codes: dict[int, tuple[int, list[float]]]  # number of values that are codes for missing values, and the codes
    isolated: dict[int, int]  # number of values far from all others
    identifiers: dict[int, bool]  # whether whole numbers, different in all rows, are consecutive


def column_fault_notes(
    tables: Mapping[str, Table], names: Mapping[str, Sequence[str]], *, same_columns: bool = True
) -> list[str]:
    """Write notes, if any, on columns with far-off values, codes, running numbers or identifiers, in this order.

    The keys are the parties' names, or empty. ``same_columns`` compares a party's constant values with other parties'.
    """
    faults = {party: find_faults(table) for party, table in tables.items()}
    examined = {party: table for party, table in tables.items() if same_columns and _are_numbers(table)}
    for party, columns in constant_codes(examined).items():
        faults[party].codes.update(columns)

    def columns_text(columns_by_party: Mapping[str, Iterable[int]]) -> str:
        """Write the labels of each party's columns, with the party's name."""
        texts = []
        for party, columns in columns_by_party.items():
            if labels := [names[party][c] if names[party] else c for c in sorted(columns)]:
                texts.append(f"{labels_text(labels)} ({party})" if party else labels_text(labels))
        return ", ".join(texts)

    notes = []
    isolated = {party: found.isolated.keys() - found.codes.keys() for party, found in faults.items()}
    if listing := columns_text(isolated):
        count = sum(faults[party].isolated[column] for party, columns in isolated.items() for column in columns)
        values = f"{count} value{'s' * (count != 1)} of {listing}"
        notes.append(f"{values}, far from all others of their column: errors? docs/data.md says what to do")
    if listing := columns_text({party: found.codes for party, found in faults.items()}):
        codes = [code for found in faults.values() for code in found.codes.values()]
        marks = sorted({mark for _, marks in codes for mark in marks})
        text = ", ".join(str(int(mark)) if mark == int(mark) else repr(mark) for mark in marks)
        values = f"{sum(count for count, _ in codes)} values of {listing} are repeated and beyond all others"
        notes.append(f"{values} of their column: codes for missing values? Make them NaN (of a file: missing='{text}')")
    for is_running, text in (
        (True, "a running number is in {}: leave it out (of a file, leave_out='...') if it numbers the rows"),
        (False, "each row has a whole number of its own in {}: leave it out if it is an identifier"),
    ):
        identifiers = {party: found.identifiers for party, found in faults.items()}
        if listing := columns_text({x: [c for c in ids if ids[c] == is_running] for x, ids in identifiers.items()}):
            notes.append(text.format(listing))
    return notes


def split_at_commas(text: str) -> set[str]:
    """Return the names in a text that are separated by commas."""
    return {name.strip() for name in text.split(",")} - {""}


def class_code_notes(parties: Mapping[str, Rows], names: Sequence[str], covariates: set[str]) -> list[str]:
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
    """Return whether values may be codes: 3 to 12 whole numbers, or identifiers that recur evenly or lie far apart."""
    values, counts = np.unique(column[np.isfinite(column)].astype(np.float64), return_counts=True)
    if len(values) < 3 or (values % 1).any() or np.abs(values).max() > 2**53 or np.mean(counts > 1) <= 0.5:
        return False
    steps = (values[-1] - values[0]) / np.gcd.reduce(np.diff(values).astype(np.int64))
    sparse = counts.sum() ** 2 < 2 * steps * MAX_CHANCE_COLLISIONS
    return bool(len(values) <= MAX_CLASSES or sparse or (counts.min() > 1 and np.var(counts) < np.mean(counts) / 4))


def find_faults(table: Table) -> ColumnFaults:
    """Find columns that may not be what they seem, by extremes and a sample; none of booleans or of many bytes."""
    faults, summary, n = ColumnFaults({}, {}, {}), table.summary, len(table.rows)
    if summary is None or not _are_numbers(table) or n < MIN_CONSTANT:
        return faults
    for column in np.flatnonzero(summary.low == summary.high).tolist():
        value = float(summary.low[column])
        if _is_code(value) and not 0 < value < 10:
            faults.codes[column] = n - int(summary.missing[column]), [value]
    if n < MIN_ROWS:
        return faults
    sample = np.sort(np.array(summary.sample).T.astype(np.float64), axis=1)  # missing values come last
    wide, far, unique, coded = _suspects(summary, sample)
    low_codes: dict[float, dict[int, int]] = {}  # the only negative value of columns, and how often each has it
    for column, values in _read_columns(table.rows, np.flatnonzero(wide | far | unique | coded)):
        ordered, counts = np.unique(values, return_counts=True)
        if coded[column] and (ordered[1:] >= 0).all():
            low_codes.setdefault(float(ordered[0]), {})[column] = int(counts[0])
        if wide[column] and (codes := _end_codes(ordered, counts)):
            faults.codes[column] = codes
        if far[column] and (count := _count_isolated(sample[column], values)):
            faults.isolated[column] = count
        is_numbered = unique[column] and len(ordered) == n and not (ordered % 1).any()
        if is_numbered and not _differ_by_chance(ordered[0], ordered[-1], n):
            faults.identifiers[column] = bool(ordered[-1] - ordered[0] == n - 1)
    for code, columns in low_codes.items():
        if len(columns) > 1 and columns.keys() & {*faults.codes, *faults.isolated}:  # far off in one of them
            faults.codes.update({c: (count, [code]) for c, count in columns.items() if c not in faults.codes})
    return faults if len(faults.identifiers) <= MAX_IDENTIFIERS else faults._replace(identifiers={})


def _are_numbers(table: Table) -> bool:
    """Return whether rows are numbers, and neither packed nor a large matrix of single bytes, such as images."""
    rows = table.rows
    is_small = rows.dtype.itemsize > 1 or len(rows) * len(table.missing) <= MAX_BYTES
    return table.summary is not None and rows.dtype.kind in "fiu" and is_small


def _suspects(summary: ColumnSummary, sample: Array) -> NDArray[np.bool_]:
    """Return masks (4, d) of columns with a wide gap, far extremes, or different numbers in a sample; or a low code."""
    low, high, columns = summary.low, summary.high, np.arange(len(sample))
    last = np.maximum(0, sample.shape[1] - np.isnan(sample).sum(axis=1) - 1)
    steps, above = np.diff(sample, axis=1, prepend=low[:, None]), high - sample[columns, last]
    widest = np.fmax(np.fmax.reduce(steps, axis=1), above)
    wide = (widest >= (high - low) / 2) & ((steps > 0).sum(axis=1) + (above > 0) > 1)
    near = wide & (widest < 0.9 * (high - low))
    ends = np.array([low[near], high[near]])
    coded = np.array([any(map(_is_code, pair)) for pair in ends.T.tolist()], bool)
    wide[near] = coded | ((ends[0] < 0) & (ends[0] % 1 == 0))
    outer = (MAX_ISOLATED_SHARE * (last + 1)).astype(np.int64)  # the range that `_count_isolated` extends
    first, final = sample[columns, outer], sample[columns, last - outer]
    far = (high - final > MIN_GAP_RATIO * (final - first)) | (first - low > MIN_GAP_RATIO * (final - first))
    far &= sample[columns, last - last // 5] > sample[columns, last // 5]
    unique: NDArray[np.bool_] = np.asarray((steps[:, 1:] > 0).all(axis=1))
    unique[unique] = (sample[unique] % 1 == 0).all(axis=1)
    codes = [value for value in np.unique(low[(low < 0) & (low % 1 == 0)]).tolist() if _is_code(value)]
    return np.array([wide, far, unique, np.isin(low, codes) & (high > low)])


def _read_columns(rows: Rows, columns: NDArray[np.intp]) -> Iterator[tuple[int, Array]]:
    """Yield columns of rows with their finite values, from as few passes as memory allows."""
    step = max(1, MAX_COLUMN_ELEMENTS // len(rows))
    for start in range(0, len(columns), step):
        part = columns[start : start + step]
        values = to_array(select_columns(rows, part)).T.astype(np.float64, order="C")
        for column, cells in zip(part.tolist(), values, strict=True):
            yield column, cells[np.isfinite(cells)]


def one_column_notes(components: NDArray[Any], names: Sequence[str]) -> list[str]:
    """Write a note if one of three or more columns has 99 % of a component's squared loadings (k, d), else none."""
    shares = np.square(components)
    single = [(k, int(row.argmax())) for k, row in enumerate(shares) if row.max(initial=0) >= SINGLE_COLUMN_SHARE]
    if shares.shape[1] < 3 or not single:
        return []
    text = ", ".join(f"{k + 1} ({names[c]!r})" if len(names) else f"{k + 1} (column {c})" for k, c in single[:10])
    return [
        f"components that are one column to 99 %: {text}. Is that an identifier (leave it out), or in a smaller unit "
        "than others (scale=True)?"
    ]


def one_column_text(table: Table) -> str:
    """Write which column of a table (n, d) has 99 % of the variance of all columns; empty if none has."""
    summary = table.summary
    if summary is None or len(summary.low) < 3:
        return ""
    sums, squares = np.zeros((2, len(summary.low)))
    for chunk in chunks(table.rows):
        values = np.nan_to_num(chunk - summary.low)
        sums += values.sum(axis=0)
        squares += (values**2).sum(axis=0)
    counts = np.maximum(1, len(table.rows) - summary.missing)
    variances = squares / counts - (sums / counts) ** 2
    largest = int(variances.argmax())
    if not variances[largest] > SINGLE_COLUMN_SHARE * variances.sum():
        return ""
    name = repr(table.names[largest]) if table.names else f"column {largest}"
    return f"{name} has 99 % of the variance: is it an identifier, or in a smaller unit than others?"


def _end_codes(values: Array, counts: NDArray[np.int64]) -> tuple[int, list[float]] | None:
    """Return how many rows have codes at either end of sorted unique values, and the codes; None without codes."""
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
    codes = [*values[:start].tolist(), *values[stop:].tolist()]
    return (int(counts[:start].sum() + counts[stop:].sum()), codes) if codes else None


def _are_codes(codes: NDArray[Any], times: NDArray[Any], rest: NDArray[Any], counts: NDArray[Any]) -> bool:
    """Return whether values at an end, which occur ``times``, are codes for missing values, far from the ``rest``.

    The ``counts`` are of all values. A nine among digits is a code if these are answers, of which none has most rows.
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


def constant_codes(tables: Mapping[str, Table]) -> dict[str, dict[int, tuple[int, list[float]]]]:
    """Find, by party and column, values constant at a party and far from all others'; none for unequal widths."""
    by_party = ((party, table.summary) for party, table in tables.items())
    summaries = {party: summary for party, summary in by_party if summary is not None and summary.count >= MIN_CONSTANT}
    if len(summaries) < 2 or len({len(table.missing) for table in tables.values()}) > 1:
        return {}
    low, high = (np.array([getattr(summary, end) for summary in summaries.values()]) for end in ("low", "high"))
    varies = high > low
    lowest, highest = np.where(varies, low, np.inf).min(axis=0), np.where(varies, high, -np.inf).max(axis=0)
    codes: dict[str, dict[int, tuple[int, list[float]]]] = {}
    for (party, summary), vary in zip(summaries.items(), varies, strict=True):
        values = summary.low
        distance = np.fmax(lowest - values, values - highest)
        negative = (values < 0) & (lowest >= 0) & (values % 1 == 0)
        is_far = distance > np.where(negative, 0, highest - lowest)
        is_code = ~vary & np.isfinite(values) & varies.any(axis=0) & is_far
        for column in np.flatnonzero(is_code).tolist():
            count = summary.count - int(summary.missing[column])
            codes.setdefault(party, {})[column] = count, [float(values[column])]
    return codes


def _differ_by_chance(first: float, last: float, n: int) -> bool:
    """Return whether n whole numbers may all differ by chance, as counts do; long numbers of one length do not."""
    collisions = n**2 / 2 / (last - first + 1)
    as_long = first >= 10**4 and len(str(int(first))) == len(str(int(last)))
    return bool(collisions < MAX_CHANCE_COLLISIONS and not as_long)


def _count_isolated(sample: Array, values: Array) -> int:
    """Count the values beyond gaps of ten times the range of the middle of a sorted ``sample``; 0 if they are many."""
    sample = sample[np.isfinite(sample)]
    outer = int(MAX_ISOLATED_SHARE * len(sample))
    low, high = _extend_range(sample, outer, len(sample) - outer)
    ends = sample[[low, high - 1]]
    tails = np.sort(values[(values < ends[0]) | (values > ends[1])])
    below = int(np.searchsorted(tails, ends[0]))
    low, high = _extend_range(np.insert(tails, below, ends), below, below + 2)
    count = len(tails) + 2 - (high - low)
    return count if count <= int(MAX_ISOLATED_SHARE * len(values)) and ends[1] > ends[0] else 0


def _extend_range(values: Array, low: int, high: int) -> tuple[int, int]:
    """Extend a range of positions of sorted values up to gaps of more than ten times the range of its values."""
    last = (0, 0)
    while values[high - 1] > values[low] and (low, high) != last:
        last, reach = (low, high), MIN_GAP_RATIO * (values[high - 1] - values[low])
        above = np.flatnonzero(np.diff(values[high - 1 :]) > reach)
        high = high + int(above[0]) if above.size else len(values)
        below = np.flatnonzero(np.diff(values[: low + 1]) > reach)
        low = int(below[-1]) + 1 if below.size else 0
    return low, high
