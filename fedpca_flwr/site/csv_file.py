"""A .csv file as blocks of rows.

Arrow reads the numbers. A block in which it meets anything else is read cell by cell: booleans and spaces around what
is missing are good, and of faults the site's log tells the lines and columns.
"""

import csv
import io
import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from fedpca_flwr.errors import DataError
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.rows import Blocks, Rows
from fedpca_flwr.site.columns import LeftOut, column_position, feature_positions
from fedpca_flwr.site.csv_format import MISSING, CsvFormat, Faults, cells_within_limits, format_of, is_missing

CHARACTERS = 2**20  # of a block; more where there are many columns, each of which takes its time in every block
LONGEST_CELL = 1000  # lines over which a cell in quotes may go at the end of a block
SPELLINGS = sorted({spelling for word in MISSING for spelling in (word, word.upper(), word.title())})
BOOLEANS = {"true": 1.0, "false": 0.0}


@dataclass(frozen=True)
class CsvTable:
    """A .csv file of rows."""

    file: Path
    format: CsvFormat
    width: int  # cells of each line
    names: list[str]  # of all columns; empty without a header
    start: int  # lines before the first row
    features: list[int]  # the columns that are features


def read_csv(file: Path, left_out: LeftOut) -> tuple[Rows, list[str]]:
    """The rows, which are float64 with NaN for what is missing, and the names of their columns."""
    written = format_of(file, left_out.values())
    with cells_within_limits():
        reader = csv.reader(written.lines(file), delimiter=written.separator)
        first = next(filter(_holds_cells, reader), [])
    if not first:
        raise DataError("the .csv file has no cell that holds anything", local=str(file))
    width, names = len(first), _header(first, left_out, written)
    features = feature_positions(left_out, names, width)
    table = CsvTable(file, written, width, names, reader.line_num if names else 0, features)
    rows = Blocks(partial(_blocks, table), len(features), np.dtype(np.float64))
    return rows, [names[position] for position in features] if names else []


def cells_of(file: Path, column: str, rows: int, label: str) -> list[str]:
    """The cells of one column of a file's last ``rows`` lines, stripped of spaces; ``label`` is no feature too."""
    written = format_of(file, [column, label])
    with cells_within_limits():
        lines = [line for line in csv.reader(written.lines(file), delimiter=written.separator) if _holds_cells(line)]
    position = column_position(column, [cell.strip() for cell in lines[0]], len(lines[0]), "ids")
    return [line[position].strip() for line in lines[len(lines) - rows :]]


def _blocks(table: CsvTable) -> Iterator[Array]:
    """Blocks of the columns that are features; the others may be no numbers. After a fault no rows follow."""
    seen, faults = 0, Faults(table.width, table.names)
    for before, text in _texts(table):
        rows = _as_numbers(table, text)
        if rows is None:
            with cells_within_limits():
                rows = _cell_by_cell(table, before, text, faults)
        faults.good |= bool(len(rows))
        if not faults and len(rows):
            yield rows
            seen += len(rows)
    if faults:
        raise faults.error()
    if not seen:
        raise DataError("the .csv file has column names, but no rows", local=str(table.file))


def _texts(table: CsvTable) -> Iterator[tuple[int, str]]:
    """The file's text in blocks of whole rows, and how many of its lines come before each."""
    size = min(max(CHARACTERS, 4096 * table.width), 16 * CHARACTERS)
    before = table.format.skipped + table.start
    with open(table.file, encoding=table.format.encoding) as stream:
        for _ in range(before):
            stream.readline()
        while lines := stream.readlines(size):
            text = "".join(lines)
            open_quote = '"' in text and text.count('"') % 2  # to look for one first takes a tenth of counting
            for line in itertools.islice(stream, LONGEST_CELL if open_quote else 0):
                lines.append(line)
                if line.count('"') % 2:
                    break
            yield before, "".join(lines) if open_quote else text
            before += len(lines)


def _as_numbers(table: CsvTable, text: str) -> Array | None:
    """The rows of a text whose cells are all numbers, or missing; None of others."""
    import pyarrow as pa
    from pyarrow import csv as arrow

    content, names = text.encode(), [str(place) for place in range(table.width)]
    features = [names[place] for place in table.features]
    try:
        found = arrow.read_csv(
            pa.BufferReader(content),
            arrow.ReadOptions(column_names=names, use_threads=False, block_size=len(content) + 1),
            arrow.ParseOptions(delimiter=table.format.separator, newlines_in_values=True),
            arrow.ConvertOptions(
                column_types=dict.fromkeys(features, pa.float64()),
                include_columns=features,
                null_values=SPELLINGS,
                decimal_point="," if table.format.decimal_comma else ".",
            ),
        )
        return np.column_stack([column.to_numpy() for column in found.columns] if features else [])
    except ValueError:  # Arrow's own, which may quote a cell, are of this class
        return None


def _cell_by_cell(table: CsvTable, before: int, text: str, faults: Faults) -> Array:
    """The rows of any text: what is missing is NaN, and what is no number is noted."""
    reader = csv.reader(io.StringIO(text), delimiter=table.format.separator)
    found, line = [], before + 1
    for row in reader:
        if len(row) == table.width:
            values = [_number(table.format, row[position]) for position in table.features]
            for position, value in zip(table.features, values, strict=True):
                if value is None:
                    faults.cell(line, position, row[position])
            found.append([np.nan if value is None else value for value in values])
        elif _holds_cells(row):
            faults.length(line, row)
        line = before + reader.line_num + 1
    return np.array(found, dtype=np.float64).reshape(len(found), len(table.features))


def _holds_cells(row: Sequence[str]) -> bool:
    return len(row) > 1 or any(map(str.strip, row))


def _number(written: CsvFormat, cell: str) -> float | None:
    """The number in a cell, NaN where it is missing, None where there is none."""
    if written.decimal_comma:
        cell = cell.replace(".", "\0").replace(",", ".")
    try:
        if cell.isascii() and "_" not in cell:  # Python's own 1_000, and digits of other scripts
            return float(cell)
    except ValueError:
        pass
    return np.nan if is_missing(cell) else BOOLEANS.get(cell.strip().lower())


def _header(first: list[str], left_out: LeftOut, written: CsvFormat) -> list[str]:
    """The column names of a .csv file, or none where its first line holds rows already.

    Refused where that cannot be told: a row that is taken for names is lost, and names taken for a row are wrong.
    """
    own = [cell for j, cell in enumerate(first) if str(j) not in left_out.values()]
    numbers = [cell for cell in own if written.number(cell)]
    others = [cell for cell in own if not (written.number(cell) or is_missing(cell))]
    if not numbers and not others:
        raise DataError("the first line of the .csv file holds neither names nor numbers: give the columns names")
    if not numbers:
        return _names(first)
    if others:
        raise DataError(
            "the first line of the .csv file is neither all names nor all numbers: give every column a name, or name a "
            "column of labels as node-config 'label', by its number from 0 where no column has a name"
        )
    if len(own) > 1 and [cell.strip() for cell in own] == [str(place) for place in range(len(own))]:
        raise DataError("the first line of the .csv file counts its columns; give them names, or leave that line out")
    return []


def _names(first: Sequence[str]) -> list[str]:
    names = [cell.strip() for cell in first]
    nameless = [place + 1 for place, name in enumerate(names) if not name]
    if nameless:
        what = "do lines end with a separator?" if nameless == [len(names)] else "is it an index? leave it out"
        raise DataError(
            f"the .csv file has a column without a name; {what}", local=f"columns {', '.join(map(str, nameless))}"
        )
    doubled = [name for name, times in Counter(names).items() if times > 1]
    if doubled:
        places = [
            f"{name!r} in columns {', '.join(str(j + 1) for j, other in enumerate(names) if other == name)}"
            for name in doubled
        ]
        raise DataError(
            "the .csv file has columns of the same name; give each a name of its own, or leave out what is there twice",
            local="; ".join(places),
        )
    return names
