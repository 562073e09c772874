"""A .csv file as blocks of rows, which Arrow reads in one pass.

Arrow makes numbers of cells. Where it meets a cell that it does not take, it reads the rows from there on as texts, and
makes numbers of these: booleans, spaces around what is missing, signs between thousands. What is no number then either
is looked up by `fedpca_flwr.site.csv_faults`, which names lines and columns.
"""

import csv
import io
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np

from fedpca_flwr.data.categories import MISSING_TEXTS
from fedpca_flwr.data.table import INEXACT
from fedpca_flwr.errors import DataError
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.rows import Blocks, Rows
from fedpca_flwr.site.columns import DO_INSTEAD, Selection, column_position
from fedpca_flwr.site.csv_faults import TOTALS, Faults, nameless_or_doubled
from fedpca_flwr.site.csv_format import CsvFormat, CsvKeys, Opener, cells_within_limits, format_of, opener
from fedpca_flwr.site.csv_header import header_of
from fedpca_flwr.site.file_format import Format

CHARACTERS = 2**20  # of a block; more where there are many columns, each of which takes its time in every block
END = 4096  # bytes of the end of a file, in which its last line is looked at
MAX_CHARACTERS = 2**30  # of a row
STRADDLING = "straddling"  # with which Arrow says that a row is longer than a block
SPELLINGS = sorted({spelling for word in MISSING_TEXTS for spelling in (word, word.upper(), word.title())})
TRUE, FALSE, MINUS = "1", "0", "\u2212"


@dataclass(frozen=True)
class CsvTable:
    """A .csv file of rows."""

    format: CsvFormat
    keys: CsvKeys
    selection: Selection
    width: int  # cells of each line
    names: list[str]  # of all columns; empty without a header
    start: int  # lines before the first row
    features: list[int]  # the columns that are features
    note: str = ""  # what was decided by numbers alone

    @property
    def feature_names(self) -> list[str]:
        """The names of the columns that are features."""
        return [self.names[position] for position in self.features] if self.names else []

    @property
    def rows(self) -> Rows:
        """The rows, which are float64 with NaN for what is missing."""
        return Blocks(partial(_blocks, self), len(self.features), np.dtype(np.float64))


def open_csv(open_: Opener, keys: CsvKeys, selection: Selection, name: str = "") -> CsvTable:
    """Return the table in a text that ``open_`` opens, of which the first lines are read.

    Parameters
    ----------
    open_ : callable
        Opens the bytes of the text anew.
    keys : CsvKeys
        What is said of how it is written.
    selection : Selection
        Which columns are features.
    name : str
        The name of the file, by whose ending its separator may be known.
    """
    written = format_of(open_, keys, selection, name)
    header = header_of(written, keys, selection)
    features = selection.positions(header.names, header.width)
    if header.names and (fault := nameless_or_doubled([header.names[position] for position in features], features)):
        raise fault
    return CsvTable(written, keys, selection, header.width, header.names, header.start, features, header.note)


def cells_of(open_: Opener, keys: CsvKeys, selection: Selection, column: str, name: str = "") -> list[str]:
    """Return the cells of one column, without spaces around them; an empty one for what is missing."""
    import pyarrow as pa

    table = open_csv(open_, keys, selection, name)
    table = replace(table, features=[column_position(column, table.names, table.width, "ids")])
    size = CHARACTERS
    while True:
        try:
            batches = list(_batches(table, pa.string(), size))
        except ValueError as error:
            if isinstance(error, DataError):
                raise
            if "UTF8" in str(error) and not keys.encoding:  # bytes behind those by which the encoding is known
                return cells_of(open_, replace(keys, encoding="cp1252"), selection, column, name)
            if STRADDLING not in str(error) or size >= MAX_CHARACTERS:
                raise _faults(replace(table, features=[])).error() from None
            size *= 16
        else:
            cells = (cell.strip() for batch in batches for cell in batch.column(0).to_pylist())
            return ["" if table.format.is_missing(cell) else cell for cell in cells]


def _blocks(table: CsvTable) -> Iterator[Array]:
    """Blocks of the columns that are features. Where a pass does not go on, the next one goes on behind its rows."""
    import pyarrow as pa

    texts, size, seen, done = bool(table.format.thousands), CHARACTERS, 0, False
    while not done:
        skipped = 0
        try:
            for batch in _batches(table, pa.string() if texts else pa.float64(), size):
                ahead = min(len(batch), seen - skipped)
                skipped += ahead
                if ahead == len(batch):
                    continue
                columns = batch.slice(ahead).columns
                rows = _stacked([_number_column(table.format, one) for one in columns] if texts else columns)
                if not texts and np.fmax.reduce(np.abs(rows), axis=None, initial=0.0) >= 2**53:
                    raise ValueError  # what whole numbers of so many digits are, their texts say
                yield rows
                seen += len(rows)
                skipped += len(rows)
            done = True
        except ValueError as error:  # Arrow's own, which may quote a cell, are of this class
            if isinstance(error, DataError):
                raise
            if STRADDLING in str(error) and size < MAX_CHARACTERS:
                size *= 16
            elif texts:
                raise _faults(table).error() from None
            else:
                texts = True
    if not seen:
        raise DataError("the .csv file has column names, but no rows")


def _batches(table: CsvTable, kind: Any, size: int) -> Iterator[Any]:
    """The features of the rows, as columns of a ``kind``, in batches of about so many bytes."""
    from pyarrow import csv as arrow

    written, names = table.format, [str(place) for place in range(table.width)]
    features = [names[place] for place in table.features]
    in_arrow = written.encoding if not written.comments else "utf8"
    source = _Counted(written.open() if not written.comments else cast(BinaryIO, _Lines(written.lines())))
    rows = 0
    with source:
        for batch in arrow.open_csv(
            source,
            arrow.ReadOptions(
                column_names=names,
                use_threads=False,
                encoding="utf8" if in_arrow == "utf-8-sig" else in_arrow,
                skip_rows=table.start if not written.comments else table.start - written.skipped,
                block_size=max(size, min(16 * size, 4096 * table.width)),
            ),
            arrow.ParseOptions(
                delimiter=written.separator,
                newlines_in_values=True,
                invalid_row_handler=lambda row: "error" if row.text.strip() else "skip",
            ),
            arrow.ConvertOptions(
                column_types=dict.fromkeys(features, kind),
                include_columns=features,
                null_values=[*SPELLINGS, *written.marks],
                decimal_point=written.decimal,
            ),
        ):
            rows += len(batch)
            yield batch
    if source.quotes and source.lines > rows + table.start:
        _require_closed_quotes(table)
    _require_no_totals(table, source.end)


def _require_no_totals(table: CsvTable, end: bytes) -> None:
    """Refuse a last line that holds totals, where only a column that is left out says so."""
    written = table.format
    lines = [line for line in re.split(r"[\r\n]+", end.decode(written.encoding, "replace")) if line.strip()]
    cells = next(csv.reader(lines[-1:], delimiter=written.separator), [])
    others = {*range(table.width)} - {*table.features} if len(cells) == table.width else set()
    said = [position for position in others if TOTALS.fullmatch(cells[position].strip())]
    if not said:
        return
    with cells_within_limits():
        rows = (row for row in csv.reader(written.lines(), delimiter=written.separator) if len(row) == table.width)
        times = [sum(own) for own in zip(*([row[p] == cells[p] for p in said] for row in rows), strict=True)]
    if 1 in times:  # else it is a level of a category
        raise DataError(
            "the last line of the .csv file holds totals, as a column that is left out says: remove it, or say how it "
            "begins (comment='Total')"
        )


def _require_closed_quotes(table: CsvTable) -> None:
    """Refuse a cell in quotes that holds whole rows: its quote was not closed, and they would be lost."""
    written, before, lines = table.format, 0, list[str]()

    def kept() -> Iterator[str]:
        for line in written.lines():
            lines.append(line)
            yield line

    with cells_within_limits():
        for row in csv.reader(kept(), delimiter=written.separator):
            del row
            for at, line in enumerate(lines[1:], before + 2 + written.skipped):
                cells = next(csv.reader([line], delimiter=written.separator), [])
                as_row = len(cells) == table.width and line.count('"') % 2 == 0  # the last one closes the quote
                if as_row and all(written.number(cells[place]) for place in table.features):
                    raise DataError(
                        "the .csv file has a cell in quotes that goes on over lines that look like rows: is a quote "
                        "not closed?",
                        local=f"line {at}",
                    )
            before += len(lines)
            lines.clear()


class _Counted(io.RawIOBase):
    """A stream of bytes that knows how many lines were read, the last of them, and whether a quote was."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream, self._ends, self.end, self.quotes = stream, 0, b"", False

    @property
    def lines(self) -> int:
        """How many lines were read, also one that does not end."""
        return self._ends + (self.end[-1:] not in (b"", b"\n"))

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        content = self._stream.read(size)
        self._ends += content.count(b"\n")
        self.end = (self.end + content[-END:])[-END:]
        self.quotes = self.quotes or b'"' in content
        return content

    def close(self) -> None:
        self._stream.close()
        super().close()


class _Lines(io.RawIOBase):
    """Lines as a stream of bytes in UTF-8."""

    def __init__(self, lines: Iterator[str]) -> None:
        self._lines, self._rest = lines, b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        parts, size = [self._rest], len(self._rest)
        while size < len(buffer) and (line := next(self._lines, "")):
            parts.append(line.encode())
            size += len(parts[-1])
        held = b"".join(parts)
        own = held[: len(buffer)]
        buffer[: len(own)] = own
        self._rest = held[len(own) :]
        return len(own)


def _stacked(columns: Any) -> Array:
    """Columns of Arrow's as an array (n, d)."""
    return np.column_stack([column.to_numpy(zero_copy_only=False) for column in columns])


def _number_column(written: CsvFormat, column: Any) -> Any:
    """The numbers in a column of texts; a `ValueError` where a cell holds none."""
    import pyarrow as pa
    from pyarrow import compute

    cells = compute.utf8_trim_whitespace(column)
    cells = compute.replace_substring_regex(cells, r"^\+([0-9.])", r"\1")
    cells = compute.replace_substring(cells, MINUS, "-")
    if written.thousands:
        grouped = compute.match_substring_regex(cells, f"^{written.groups}$")
        cells = compute.if_else(grouped, compute.replace_substring_regex(cells, written.group_signs, ""), cells)
    small = compute.utf8_lower(cells)
    for word, number in {"true": TRUE, "false": FALSE}.items():
        cells = compute.if_else(compute.equal(small, word), number, cells)
    if written.decimal == ",":
        cells = compute.replace_substring(cells, ".", "?")  # that is no number then
        cells = compute.replace_substring(cells, ",", ".")
    missing = compute.is_in(small, pa.array(sorted(MISSING_TEXTS)))
    if written.marks:
        missing = compute.or_(missing, compute.is_in(compute.utf8_trim_whitespace(column), pa.array(written.marks)))
    cells = compute.if_else(missing, None, cells)
    found = compute.cast(cells, pa.float64())
    large = compute.fill_null(compute.greater_equal(compute.abs(found), 2.0**53), False)
    digits = (cell for cell in cells.filter(large).to_pylist() if cell.lstrip("-").isdigit())
    if any(int(float(cell)) != int(cell) for cell in digits):
        raise DataError(f"the .csv file holds {INEXACT}: {DO_INSTEAD}")
    return found


def _faults(table: CsvTable) -> Faults:
    """All that is wrong in the file, cell by cell."""
    faults, written = Faults(table.width, table.names), table.format
    with cells_within_limits():
        reader = csv.reader(written.lines(), delimiter=written.separator)
        line = written.skipped + 1
        for row in reader:
            if line > table.start:
                faults.take(line, row, table.features, written)
            line = written.skipped + reader.line_num + 1
    return faults


@dataclass(frozen=True)
class Text:
    """The text of a file.

    Parameters
    ----------
    open : callable
        Opens its bytes anew.
    plain : bool
        Whether it was written here: with commas, decimal points, in UTF-8.
    header : bool, optional
        Whether its first line holds names, where the kind of file says so.
    note : str
        What was left out, or taken as numbers.
    """

    open: Opener
    plain: bool = False
    header: bool | None = None
    note: str = ""

    def keys(self, keys: CsvKeys) -> CsvKeys:
        """Return what a site says of the text, where this is not known."""
        if not self.plain:
            return keys
        keys.require_none("workbooks and files of statistics", "header", "comment", "missing", "thousands", "decimal")
        known = replace(keys, delimiter=",", encoding="utf-8")
        return known if self.header is None else replace(known, header=self.header)


def format_of_texts(as_text: Callable[[Path], Text]) -> Format:
    """Return the kind of a file of which a text is made, that is written as .csv files are."""

    def rows(file: Path, selection: Selection, *, written: CsvKeys, notes: list[str]) -> tuple[Rows, list[str]]:
        text = as_text(file)
        table = open_csv(text.open, text.keys(written), selection, file.name)
        notes += filter(None, (text.note, table.note))
        return table.rows, table.feature_names

    def ids(file: Path, column: str, count: int, label: str, *, written: CsvKeys, selection: Selection) -> list[str]:
        text = as_text(file)
        return cells_of(text.open, text.keys(written), selection, column, file.name)[-count:]

    return Format(rows, ids, ("written", "notes"))


CSV = format_of_texts(lambda file: Text(opener(file)))
