"""The header of a .csv file, whose names may themselves be numbers.

A first line of numbers (wavelengths, years, ids) is refused, with the key that decides, where a row of the file would
hardly look so: only its cells are in quotes, its cells stand above texts or far from the numbers of their columns, or
its cells rise or fall throughout. A first line that is not refused is a row, and a note says so.
"""

import csv
import itertools
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedpca_flwr.errors import DataError
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.site.readers.columns import ColumnSelection
from fedpca_flwr.site.readers.csv_detection import SAMPLE_BYTES, SAMPLE_LINES
from fedpca_flwr.site.readers.csv_format import CsvFormat, CsvKeys, refuse_long_cells

MAX_DEVIATIONS = 10.0  # standard deviations of a cell of a row from its column's mean
STUDENT_QUANTILES = {1: 3183.0, 2: 70.7, 3: 22.2, 4: 13.0}  # deviations of one in 10,000, by degrees of freedom
MAX_PROBABILITY = 0.005  # of a row that rises throughout by chance; with falling rows 1 %
HEADER_ADVICE = "say header=true if it holds the names of the columns, header=false if it is a row"


@dataclass(frozen=True)
class Header:
    """Header of a .csv file."""

    names: list[str]  # of all columns; empty if the first line is a row
    width: int  # cells in the line
    start: int  # lines of the file before the first row
    note: str = ""  # what was decided from numbers alone; empty if nothing


def holds_cells(row: Sequence[str]) -> bool:
    """Check that a parsed line is not blank: several cells, or a nonempty cell."""
    return len(row) > 1 or any(map(str.strip, row))


def detect_header(csv_format: CsvFormat, keys: CsvKeys, selection: ColumnSelection) -> Header:
    """Decide whether the first line of a .csv file is a header or a row, by the keys or by its cells.

    Raise DataError if it may be either, or all cells are empty. A row taken for names would be lost, and names taken
    for a row would be wrong numbers.
    """
    rows, start, end = [], 0, 0
    with refuse_long_cells():
        reader = csv.reader(csv_format.lines(), delimiter=csv_format.separator)
        for row in filter(holds_cells, reader):
            rows.append(row)
            end = reader.line_num
            start = start or end
            if len(rows) > SAMPLE_LINES or (len(rows) > 5 and sum(map(len, row)) * len(rows) > SAMPLE_BYTES):
                break
    if not rows:
        raise DataError("all cells of the .csv file are empty")
    first, rest = rows[0], [row for row in rows[1:] if len(row) == len(rows[0])]
    width, start = len(first), start + csv_format.skipped_lines
    names = Header([cell.strip() for cell in first], width, start)
    if keys.header is not None:
        return names if keys.header else Header([], width, csv_format.skipped_lines)
    features = selection.positions(names.names, width, strict=False) or selection.positions(names.names, width)
    numbers = [position for position in features if csv_format.is_number(first[position])]
    non_numbers = [p for p in features if not (csv_format.is_number(first[p]) or csv_format.is_missing(first[p]))]
    if not numbers and not non_numbers:
        raise DataError(f"the first line of the .csv file holds neither names nor numbers: {HEADER_ADVICE}")
    if not numbers:
        return names
    if non_numbers:
        raise DataError(
            f"the first line of the .csv file is neither all names nor all numbers: {HEADER_ADVICE}. Leave out a "
            "column of labels (node-config 'label' or 'leave-out'), by its number from 0 if columns have no names"
        )
    with refuse_long_cells():
        lines = list(itertools.islice(csv_format.lines(), end))
        reason = _name_above_numbers(csv_format, first, rest, features)
        reason = reason or _quoted_alone(csv_format, lines, width, numbers)
    if not reason and len(numbers) == len(features):
        cells = [[row[position] for position in features] for row in [first, *rest]]
        values = np.array([[_parse_cell(csv_format, cell) for cell in row] for row in cells])
        decimals = np.array([max(len(cell.partition(csv_format.decimal)[2]) for cell in row) for row in cells])
        reason = header_evidence(values[0], values[1:], decimals)
    if reason:
        raise DataError(f"the first line of the .csv file has numbers that may be names ({reason}): {HEADER_ADVICE}")
    note = "the first line of the .csv file holds numbers and is taken for a row: say header=true if it holds names"
    return Header([], width, csv_format.skipped_lines, note)


def _parse_cell(csv_format: CsvFormat, cell: str) -> float:
    """Return the number in a cell; NaN if the cell is not a number in this format."""
    if not csv_format.is_number(cell):
        return np.nan
    return float(csv_format.ungroup(cell).replace("\u2212", "-").replace(",", "."))


def _name_above_numbers(
    csv_format: CsvFormat, first: Sequence[str], rest: Sequence[Sequence[str]], features: list[int]
) -> str:
    """Return a reason why the first line is a header: a non-feature column has text above numbers; else ""."""
    for position in {*range(len(first))} - {*features}:
        below = [row[position] for row in rest]
        name = not (csv_format.is_number(first[position]) or csv_format.is_missing(first[position]))
        if name and below and sum(map(csv_format.is_number, below)) > len(below) / 2:
            return "a column that is left out has a name"
    return ""


def _quoted_alone(csv_format: CsvFormat, lines: Sequence[str], width: int, numbers: Collection[int]) -> str:
    """Return a reason why the first line is a header: its numbers are quoted, and no numbers below are; else "".

    ``numbers`` are the positions of the first line's cells that are numbers; lines without ``width`` cells are skipped.
    """
    raw = csv.reader(lines, delimiter=csv_format.separator, quoting=csv.QUOTE_NONE)
    rows = [row for row in raw if holds_cells(row) and len(row) == width]
    quoted = [[row[position].strip().startswith('"') for position in numbers] for row in rows]
    alone = len(rows) > 1 and all(quoted[0]) and not any(map(any, quoted[1:]))
    return "they alone are in quotes" if alone else ""


def header_evidence(first: Array, rest: Array, decimals: NDArray[np.int64]) -> str:
    """Return a reason why a first line of numbers is a header (counting, rising or far-off numbers); else "".

    NaN is a missing value; ``decimals`` has the largest number of decimals of a cell in the first line and in each row.

    Shapes: first (d,), rest (n, d), decimals (n + 1,).
    """
    d = len(first)
    if not len(rest) or not np.isfinite(first).all():
        return ""
    of_counts = d > 3 or bool((rest % 1 > 0).any())
    if d > 1 and of_counts and np.array_equal(first, np.arange(d)) and not (rest == first).all(axis=1).any():
        return "it counts the columns"
    # a header is far from the rows below; the second line as far away means that the column itself is spread
    distances, second_distances = _relative_distances(first, rest), _relative_distances(rest[0], rest[1:])
    comparable = np.isfinite(distances)
    distant = (distances > 1) & ~(distances < 5 * np.nan_to_num(second_distances, nan=0.0, posinf=0.0))
    if d > 1 and comparable.any() and distant.sum() > comparable.sum() / 2:
        return "most of them are far from the numbers below them"
    steps = np.diff(first)
    if d < 3 or not ((steps > 0).all() or (steps < 0).all()):
        return ""
    rows = rest[np.isfinite(rest).all(axis=1)]
    row_steps = np.diff(rows, axis=1) * np.sign(steps[0])
    rises = row_steps > 0
    # chance that all d - 1 steps of a row rise: the first by their share, each other by how often a rise follows a rise
    persistence = (np.sum(rises[:, 1:] & rises[:, :-1]) + 1) / (np.sum(rises[:, :-1]) + 2)
    by_model = (rises.sum() + 1) / (rises.size + 2) * persistence ** (d - 2)
    probability = max(by_model, float(np.mean(rises.all(axis=1))) if len(rows) else 0)
    if _are_even(steps[None])[0]:
        probability *= (_are_even(row_steps).sum() + 1) / max(1, len(row_steps) + 2)
    probability *= ((decimals[1:] == decimals[0]).sum() + 1) / (len(rest) + 2)
    return "they rise or fall throughout" if probability < MAX_PROBABILITY else ""


def _relative_distances(row: Array, rows: Array) -> Array:
    """Return distances (d,) of a row from the means of `rows`, over the usual maximum; NaN if a column is constant."""
    counts = np.isfinite(rows).sum(axis=0)
    if not len(rows):
        return np.full(len(row), np.nan)
    with np.errstate(all="ignore"):
        means = np.nansum(rows, axis=0) / counts
        deviations = np.sqrt(np.nansum((rows - means) ** 2, axis=0) / (counts - 1))
        limits = np.array([max(MAX_DEVIATIONS, STUDENT_QUANTILES.get(count - 1, 0.0)) for count in counts.tolist()])
        distances = np.abs(row - means) / deviations / (limits * np.sqrt(1 + 1 / counts))
    return np.where((counts > 1) & (deviations > 1e-9 * np.abs(means)), distances, np.nan)


def _are_even(steps: Array) -> NDArray[np.bool_]:
    """Return for each row of `steps` (n, d - 1) whether all steps have equal size within 1 %, not zero."""
    means = np.abs(steps.mean(axis=1, keepdims=True))
    return np.asarray((np.abs(np.abs(steps) - means) <= 0.01 * means).all(axis=1) & (means[:, 0] > 0))
