"""Whether the first line of a .csv file holds the names of its columns, where these may be numbers.

Wavelengths, masses, years and ids are names that look like a row. A first line of numbers is refused, with the key that
decides it, where a row of the file would hardly be so: its cells alone are in quotes, they stand above texts or apart
from their columns, or they rise or fall throughout. What is not refused is a row, and a note says so.
"""

import csv
import itertools
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedpca_flwr.errors import DataError
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.site.columns import Selection
from fedpca_flwr.site.csv_format import SAMPLE, START, CsvFormat, CsvKeys, cells_within_limits

MAX_DEVIATIONS = 10.0  # of a cell of a row from its column
STUDENT = {1: 3183.0, 2: 70.7, 3: 22.2, 4: 13.0}
"""By degrees of freedom, how many deviations one in 10,000 lies above: more than `MAX_DEVIATIONS` for few rows."""
MAX_CHANCE = 0.005  # that a row rises or falls so; together with the other direction 1 %
DECIDES = "say header=true if it holds the names of the columns, header=false if it is a row"


@dataclass(frozen=True)
class Header:
    """The first line that holds cells.

    Parameters
    ----------
    names : list of str
        Of all columns; empty where the line is a row.
    width : int
        Cells of the line.
    start : int
        Lines of the file before the first row.
    note : str
        What was decided by numbers alone; else empty.
    """

    names: list[str]
    width: int
    start: int
    note: str = ""


def holds_cells(row: Sequence[str]) -> bool:
    """Whether a line holds cells, and is not blank."""
    return len(row) > 1 or any(map(str.strip, row))


def header_of(written: CsvFormat, keys: CsvKeys, selection: Selection) -> Header:
    """Return the names in the first line of a file, or that it is a row.

    Raises
    ------
    DataError
        Where that cannot be told: a row that is taken for names is lost, and names taken for a row are wrong.
    """
    rows, start, end = [], 0, 0
    with cells_within_limits():
        reader = csv.reader(written.lines(), delimiter=written.separator)
        for row in filter(holds_cells, reader):
            rows.append(row)
            end = reader.line_num
            start = start or end
            if len(rows) > SAMPLE or (len(rows) > 5 and sum(map(len, row)) * len(rows) > START):
                break
    if not rows:
        raise DataError("the .csv file has no cell that holds anything")
    first, rest = rows[0], [row for row in rows[1:] if len(row) == len(rows[0])]
    width, start = len(first), start + written.skipped
    names = Header([cell.strip() for cell in first], width, start)
    if keys.header is not None:
        return names if keys.header else Header([], width, written.skipped)
    features = selection.positions(names.names, width, strict=False) or selection.positions(names.names, width)
    numbers = [position for position in features if written.number(first[position])]
    others = [p for p in features if not (written.number(first[p]) or written.is_missing(first[p]))]
    if not numbers and not others:
        raise DataError(f"the first line of the .csv file holds neither names nor numbers: {DECIDES}")
    if not numbers:
        return names
    if others:
        raise DataError(
            f"the first line of the .csv file is neither all names nor all numbers: {DECIDES}. Leave out a column of "
            "labels (node-config 'label' or 'leave-out'), by its number from 0 where no column has a name"
        )
    with cells_within_limits():
        lines = list(itertools.islice(written.lines(), end))
        why = _above_texts(written, first, rest, features) or _in_quotes(written, lines, width, numbers)
    if not why and len(numbers) == len(features):
        cells = [[row[position] for position in features] for row in [first, *rest]]
        held = np.array([[_value(written, cell) for cell in row] for row in cells])
        decimals = np.array([max(len(cell.partition(written.decimal)[2]) for cell in row) for row in cells])
        why = unlike_a_row(held[0], held[1:], decimals)
    if why:
        raise DataError(f"the first line of the .csv file holds numbers that may be names ({why}): {DECIDES}")
    return Header(
        [],
        width,
        written.skipped,
        "the first line of the .csv file holds numbers and is taken for a row: say header=true if it holds names",
    )


def _value(written: CsvFormat, cell: str) -> float:
    if not written.number(cell):
        return np.nan
    cell = written.plain(cell).replace("\u2212", "-")
    return float(cell.replace(",", "."))


def _above_texts(written: CsvFormat, first: Sequence[str], rest: Sequence[Sequence[str]], features: list[int]) -> str:
    """Why the line is no row, if a cell without a number stands above numbers in a column that is left out."""
    for position in {*range(len(first))} - {*features}:
        below = [row[position] for row in rest]
        name = not (written.number(first[position]) or written.is_missing(first[position]))
        if name and below and sum(map(written.number, below)) > len(below) / 2:
            return "a column that is left out has a name"
    return ""


def _in_quotes(written: CsvFormat, lines: Sequence[str], width: int, numbers: Collection[int]) -> str:
    """Why the line is no row, if its numbers alone stand in quotes."""
    raw = csv.reader(lines, delimiter=written.separator, quoting=csv.QUOTE_NONE)
    rows = [row for row in raw if holds_cells(row) and len(row) == width]
    quoted = [[row[position].strip().startswith('"') for position in numbers] for row in rows]
    alone = len(rows) > 1 and all(quoted[0]) and not any(map(any, quoted[1:]))
    return "they alone are in quotes" if alone else ""


def unlike_a_row(first: Array, rest: Array, decimals: NDArray[np.int64]) -> str:
    """Return why numbers are hardly a row of a table; empty where they may be one.

    Parameters
    ----------
    first : array of shape (d,)
    rest : array of shape (n, d)
        Rows of the table, with NaN for what is missing.
    decimals : array of shape (n + 1,)
        The most decimals of a cell of each of them.
    """
    d = len(first)
    if not len(rest) or not np.isfinite(first).all():
        return ""
    of_counts = d > 3 or bool((rest % 1 > 0).any())
    if d > 1 and of_counts and np.array_equal(first, np.arange(d)) and not (rest == first).all(axis=1).any():
        return "it counts the columns"
    own, second = _deviations(first, rest), _deviations(rest[0], rest[1:])
    comparable = np.isfinite(own)
    far = (own > 1) & ~(own < 5 * np.nan_to_num(second, nan=0.0, posinf=0.0))
    if d > 1 and comparable.any() and far.sum() > comparable.sum() / 2:
        return "most of them are far from the numbers below them"
    steps = np.diff(first)
    if d < 3 or not ((steps > 0).all() or (steps < 0).all()):
        return ""
    rows = rest[np.isfinite(rest).all(axis=1)]
    below = np.diff(rows, axis=1) * np.sign(steps[0])
    rises, pairs = below > 0, max(1, len(below) + 2)
    again = (np.sum(rises[:, 1:] & rises[:, :-1]) + 1) / (np.sum(rises[:, :-1]) + 2)
    chance = max(
        (rises.sum() + 1) / (rises.size + 2) * again ** (d - 2), float(np.mean(rises.all(axis=1))) if len(rows) else 0
    )
    if _even(steps[None])[0]:
        chance *= (_even(below).sum() + 1) / pairs
    chance *= ((decimals[1:] == decimals[0]).sum() + 1) / (len(rest) + 2)
    return "they rise or fall throughout" if chance < MAX_CHANCE else ""


def _deviations(row: Array, others: Array) -> Array:
    """How far each cell (d,) of a row is from the mean of its column, by how far a row may be; NaN of constant ones."""
    counts = np.isfinite(others).sum(axis=0)
    if not len(others):
        return np.full(len(row), np.nan)
    with np.errstate(all="ignore"):
        means = np.nansum(others, axis=0) / counts
        deviations = np.sqrt(np.nansum((others - means) ** 2, axis=0) / (counts - 1))
        limits = np.array([max(MAX_DEVIATIONS, STUDENT.get(count - 1, 0.0)) for count in counts.tolist()])
        found = np.abs(row - means) / deviations / (limits * np.sqrt(1 + 1 / counts))
    return np.where((counts > 1) & (deviations > 1e-9 * np.abs(means)), found, np.nan)


def _even(steps: Array) -> NDArray[np.bool_]:
    """Whether the steps of each row (n, d - 1) are even, and not zero."""
    means = np.abs(steps.mean(axis=1, keepdims=True))
    even: NDArray[np.bool_] = (np.abs(np.abs(steps) - means) <= 0.01 * means).all(axis=1) & (means[:, 0] > 0)
    return even
