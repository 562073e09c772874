"""The header of a .csv file, whose names may themselves be numbers (wavelengths, years, ids).

A first line of numbers is refused if a row of the file would hardly look so, and else a row with a note.
"""

import csv
import itertools
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from fedpca_flwr.errors import Advice, DataError
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.site.readers.columns import ColumnSelection, join_items
from fedpca_flwr.site.readers.csv_detection import SAMPLE_BYTES, SAMPLE_LINES
from fedpca_flwr.site.readers.csv_format import CsvFormat, CsvKeys, plural, refuse_long_cells

MAX_DEVIATIONS = 10.0  # standard deviations of a cell of a row from its column's mean
STUDENT_QUANTILES = {1: 3183.0, 2: 70.7, 3: 22.2, 4: 13.0}  # deviations of one in 10,000, by degrees of freedom
MAX_PROBABILITY = 0.005  # of a row that rises throughout by chance; with falling rows 1 %
HEADER_ADVICE = (Advice({"header": True}, "if it holds names of columns"), Advice({"header": False}, "if it is a row"))


@dataclass(frozen=True)
class Header:
    """Header of a .csv file."""

    names: list[str]  # of all columns; empty if the first line is a row
    width: int  # cells in a row
    start: int  # lines of the file before the first row
    notes: list[str] = field(default_factory=list)  # what was decided from the cells alone
    surplus: int | None = None  # position of the column for which the line of names has no cell


def holds_cells(row: Sequence[str]) -> bool:
    """Check that a parsed line is not blank: several cells, or a nonempty cell."""
    return len(row) > 1 or any(map(str.strip, row))


def detect_header(csv_format: CsvFormat, keys: CsvKeys, selection: ColumnSelection) -> Header:
    """Decide whether the first line of a .csv file is a header or a row, by the keys or by its cells.

    Titles above are left out. A row taken for names would be lost, and names taken for a row would be wrong numbers.
    """
    rows, starts, end = list[list[str]](), list[int](), 0
    with refuse_long_cells():
        reader = csv.reader(csv_format.lines(), delimiter=csv_format.separator)
        for row in reader:
            if holds_cells(row):
                rows.append(row)
                starts.append(end)
            end = reader.line_num
            if len(rows) > SAMPLE_LINES or (len(rows) > 5 and sum(map(len, row)) * len(rows) > SAMPLE_BYTES):
                break
    if not rows:
        raise DataError("all cells are empty")
    starts.append(end)
    titles = _count_titles(csv_format, rows)
    notes = [f"{plural(titles, 'line')} above the names or rows skipped: titles"] if titles else []
    rows, starts = rows[titles:], starts[titles:]
    row_header = Header([], len(rows[0]), starts[0], notes)
    if keys.header is False:
        return row_header
    names, surplus = _complete_names(csv_format, rows, selection)
    names, n_lines = _join_name_lines(csv_format, names, rows[1:])
    if n_lines > 1:
        notes.append(f"names of columns are those of {n_lines} lines, joined")
    if surplus is not None:
        notes.append("a column without a name (names of rows, or ends of lines) is left out")
    if keys.header or surplus is not None or n_lines > 1 or _are_names(csv_format, rows, starts, selection):
        return Header(names, len(names), starts[n_lines], notes, surplus)
    notes.append("the first line holds numbers and is taken for a row: say header=True if it holds names")
    return row_header


def _count_titles(csv_format: CsvFormat, rows: Sequence[list[str]]) -> int:
    """Count the first lines that are a text, followed by empty cells only or by none, above a line of several cells."""
    count = next((i for i, row in enumerate(rows) if sum(map(bool, map(str.strip, row))) > 1), 0)
    are_texts = not any(csv_format.is_row(row[0]) or any(map(str.strip, row[1:])) for row in rows[:count])
    are_wide = all(len(row) > 2 for row in rows[:count])
    return count if are_texts and (are_wide or not any(map(csv_format.is_number, rows[count]))) else 0


def _complete_names(
    csv_format: CsvFormat, rows: Sequence[list[str]], selection: ColumnSelection
) -> tuple[list[str], int | None]:
    """Return the first line's cells, and the position of an empty one that was added if all rows have one cell more.

    The column without a name holds names of rows, as R writes them, or lines end with a separator. In a file with
    commas, numbers that do not count may be the first half of decimal commas, unless the column is left out.
    """
    names, body = [cell.strip() for cell in rows[0]], rows[1:]
    if {len(row) for row in body} != {len(names) + 1} or any(map(csv_format.is_number, names)):
        return names, None
    if not any(row[-1].strip() for row in body):
        return [*names, ""], len(names)
    cells = [row[0].strip() for row in body]
    counts = cells[0] in ("0", "1") and cells == [str(int(cells[0]) + i) for i in range(len(cells))]
    is_left_out = 0 not in selection.positions(["", *names], len(names) + 1, strict=False)
    is_label = counts or is_left_out or csv_format.separator != "," or not any(map(csv_format.is_number, cells))
    return (["", *names], 0) if is_label else (names, None)


def _join_name_lines(csv_format: CsvFormat, names: list[str], following: Sequence[list[str]]) -> tuple[list[str], int]:
    """Return names of columns and the number of their lines; two lines where the first has a name twice, or none.

    pandas writes such lines, with a third for the index's name, and a workbook has cells that are merged.
    """
    is_text = [
        len(row) == len(names)
        and not any(csv_format.is_number(cell) or csv_format.is_missing(cell or "-") for cell in row)
        for row in following
    ]
    are_unique = len({*names}) == len(names) and all(names[1:])
    if are_unique or not any(names) or not is_text or not is_text[0] or all(is_text):
        return names, 1
    for position in range(1, len(names)):
        names[position] = names[position] or names[position - 1]
    lines = [names, following[0], *(following[1:2] if is_text[1] and not any(following[1][1:]) else ())]
    parts = [[cell.strip() for cell in column if cell.strip()] for column in zip(*lines, strict=True)]
    return [", ".join(dict.fromkeys(column)) for column in parts], len(lines)


def _are_names(
    csv_format: CsvFormat, rows: Sequence[list[str]], starts: Sequence[int], selection: ColumnSelection
) -> bool:
    """Return whether the first of ``rows``, which begin after ``starts`` lines, is a header; DataError if it may be."""
    first, rest = rows[0], [row for row in rows[1:] if len(row) == len(rows[0])]
    names, width = [cell.strip() for cell in first], len(first)
    features = selection.positions(names, width, strict=False) or selection.positions(names, width)
    numbers = [position for position in features if csv_format.is_number(first[position])]
    non_numbers = [p for p in features if not (csv_format.is_number(first[p]) or csv_format.is_missing(first[p]))]
    if not numbers and not non_numbers:
        raise DataError("the first line holds neither names nor numbers", advice=HEADER_ADVICE)
    if not numbers:
        return True
    if non_numbers:
        labels = {"leave_out": join_items(selection.leave_out, non_numbers)}
        advice = [*HEADER_ADVICE, Advice(labels, "if it is a row, and these columns are labels")]
        raise DataError("the first line is neither all names nor all numbers", advice=advice)
    with refuse_long_cells():
        lines = list(itertools.islice(csv_format.lines(), starts[0], starts[-1]))
        reason = _name_above_numbers(csv_format, first, rest, features)
        reason = reason or _quoted_alone(csv_format, lines, width, numbers)
    if not reason and len(numbers) == len(features):
        cells = [[row[position] for position in features] for row in [first, *rest]]
        values = np.array([[_parse_cell(csv_format, cell) for cell in row] for row in cells])
        decimals = np.array([max(len(cell.partition(csv_format.decimal)[2]) for cell in row) for row in cells])
        reason = header_evidence(values[0], values[1:], decimals)
    if reason:
        raise DataError(f"the first line has numbers that may be names ({reason})", advice=HEADER_ADVICE)
    return False


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

    Shapes: first (d,), rest (n, d), with NaN for missing values, and largest numbers of decimals (n + 1,).
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
