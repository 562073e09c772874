"""A .csv file as blocks of rows, which Arrow reads in a single pass.

At a cell that Arrow refuses, the reader goes on with the rows from there as texts, and converts these itself.
"""

import csv
import io
import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from typing_extensions import override

from fedpca_flwr.config.node_config import TEXT_KEYS
from fedpca_flwr.data.categories import MISSING_TEXTS
from fedpca_flwr.data.table import INEXACT_INTEGERS
from fedpca_flwr.errors import Advice, DataError
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.rows import Blocks, Rows
from fedpca_flwr.site.readers.columns import INEXACT_ADVICE, ColumnSelection, column_positions, join_items
from fedpca_flwr.site.readers.csv_detection import detect_format
from fedpca_flwr.site.readers.csv_faults import TOTALS_PATTERN, CsvFaults, name_fault
from fedpca_flwr.site.readers.csv_format import CsvFormat, CsvKeys, Opener, file_opener, plural, refuse_long_cells
from fedpca_flwr.site.readers.csv_header import detect_header
from fedpca_flwr.site.readers.file_format import FileFormat

BLOCK_CHARACTERS = 2**20  # that Arrow reads at a time; more if many columns would each take time in every block
TAIL_BYTES = 4096  # of the end of a file, in which the last line is examined for totals
MAX_ROW_CHARACTERS = 2**30
LONG_ROW_WORD = "straddling"  # in Arrow's error for a row that is longer than a block
MISSING_SPELLINGS = sorted({spelling for word in MISSING_TEXTS for spelling in (word, word.upper(), word.title())})


@dataclass(frozen=True)
class CsvTable:
    """Description of a .csv file, sufficient to read its rows."""

    format: CsvFormat
    width: int  # cells in each line
    names: list[str]  # of all columns; empty without a header
    start: int  # lines before the first row
    features: list[int]  # positions of the feature columns
    notes: list[str]  # what the reader decided, and how many lines a complete pass skipped
    keys: CsvKeys
    selection: ColumnSelection

    @property
    def feature_names(self) -> list[str]:
        """Names of the feature columns; empty if the file has no header."""
        return [self.names[position] for position in self.features] if self.names else []

    @property
    def rows(self) -> Rows:
        """Lazy rows (n, d) of the features as float64, with NaN for missing values; DataError at a faulty cell."""
        return Blocks(partial(_numeric_blocks, self), len(self.features), np.dtype(np.float64))


def open_csv(open_: Opener, keys: CsvKeys, selection: ColumnSelection, name: str = "") -> CsvTable:
    """Detect format, header and feature columns of a .csv file from its first lines; read no rows yet."""
    csv_format = detect_format(open_, keys, selection, name)
    header = detect_header(csv_format, keys, selection)
    features = [place for place in selection.positions(header.names, header.width) if place != header.surplus]
    names = [header.names[position] for position in features] if header.names else []
    if names and (fault := name_fault(names, features, selection.leave_out)):
        raise fault
    return CsvTable(csv_format, header.width, header.names, header.start, features, header.notes, keys, selection)


def read_cells(open_: Opener, keys: CsvKeys, selection: ColumnSelection, column: str, name: str = "") -> list[str]:
    """Return all cells of a column (name or number from 0) as stripped texts, with "" for a missing value."""
    table = open_csv(open_, keys, selection, name)
    table = replace(table, features=column_positions(column, table.names, table.width, "ids")[:1])
    cells = ((cell or "").strip() for batch in _all_batches(table) for cell in batch.column(0).to_pylist())
    return ["" if table.format.is_missing(cell) else cell for cell in cells]


def _numeric_blocks(table: CsvTable) -> Iterator[Array]:
    """Yield blocks (m, d) of numbers; raise DataError for cells that are no numbers, and without rows."""
    count = 0
    for batch in _all_batches(table):
        try:
            yield np.column_stack([_parse_numbers(table.format, column) for column in batch.columns])
        except ValueError as error:  # Arrow's own, which may quote a cell, are of this class
            raise error if isinstance(error, DataError) else _find_faults(table).error() from None
        count += len(batch)
    if not count:
        raise DataError("there are names of columns, but no rows")


def _all_batches(table: CsvTable) -> Iterator[Any]:
    """Yield the feature columns as batches of texts; begin anew, with larger blocks, at a row longer than a block."""
    size, count, is_read = BLOCK_CHARACTERS, 0, False
    while not is_read:
        start = 0
        try:
            for batch in _batches(table, size):
                new = batch.slice(min(len(batch), max(0, count - start)))
                start += len(batch)
                if len(new):
                    count += len(new)
                    yield new
            is_read = True
        except ValueError as error:
            if isinstance(error, DataError):
                raise
            if LONG_ROW_WORD in str(error) and size < MAX_ROW_CHARACTERS:
                size *= 16
            elif "UTF8" in str(error) and not table.keys.encoding and table.format.encoding != "cp1252":
                # an invalid byte after the sample from which the encoding was detected
                table = replace(table, format=replace(table.format, encoding="cp1252"))
            else:
                raise _find_faults(table).error() from None


def _batches(table: CsvTable, size: int) -> Iterator[Any]:
    """Yield the feature columns as Arrow record batches of texts, read from blocks of about `size` bytes."""
    import pyarrow as pa
    from pyarrow import csv as arrow

    csv_format, names = table.format, list(map(str, range(table.width)))
    features = [names[position] for position in table.features]
    dropped = [line for line in sorted(csv_format.skipped) if line <= table.start]
    if csv_format.comments or csv_format.separator == " " or len(dropped) < len(csv_format.skipped):
        dropped.clear()
        as_it_is = "surrogateescape"  # bytes that are no text stay such, so that Arrow refuses them as in other files
        parts: Iterator[bytes] = (line.encode(errors=as_it_is) for line in csv_format.lines(dropped, as_it_is))
        encoding = "utf8"
    else:
        parts = csv_format.parts()
        encoding = "utf8" if csv_format.encoding == "utf-8-sig" else csv_format.encoding
    rows = 0
    with _CountedStream(parts) as source:
        for batch in arrow.open_csv(
            source,
            arrow.ReadOptions(
                column_names=names,
                use_threads=False,
                encoding=encoding,
                skip_rows=table.start,
                block_size=max(size, min(16 * size, 4096 * table.width)),
            ),
            arrow.ParseOptions(
                delimiter=csv_format.separator,
                newlines_in_values=True,
                invalid_row_handler=lambda row: "error" if row.text.strip() else "skip",
            ),
            arrow.ConvertOptions(
                column_types=dict.fromkeys(features, pa.string()),
                include_columns=features,
                null_values=[*MISSING_SPELLINGS, *csv_format.missing_marks],
                strings_can_be_null=True,
            ),
        ):
            rows += len(batch)
            yield batch
    if source.has_quotes and source.lines > rows + table.start:
        _require_closed_quotes(table)
    _require_no_totals(table, source.tail)
    note = f"{plural(len(dropped), 'line')} skipped, the first is line {dropped[0]}" if dropped else ""
    table.notes.extend({note} - {"", *table.notes})


def _require_no_totals(table: CsvTable, end: bytes) -> None:
    """Raise DataError if a label of totals that no other row has is in the last line, in the bytes ``end``."""
    csv_format = table.format
    lines = [line for line in re.split(r"[\r\n]+", end.decode(csv_format.encoding, "replace")) if line.strip()]
    separator = csv_format.separator
    cells = next(csv.reader(lines[-1:], delimiter=separator), [])
    if len(cells) != table.width:
        return
    other_columns = {*range(table.width)} - {*table.features}
    labels = [position for position in other_columns if TOTALS_PATTERN.fullmatch(cells[position].strip())]
    if not labels:
        return
    with refuse_long_cells():
        rows = filter(lambda row: len(row) == table.width, csv.reader(csv_format.lines(), delimiter=separator))
        counts = Counter(position for row in rows for position in labels if row[position] == cells[position])
    if 1 in counts.values():
        number = max(number for number, line in enumerate(csv_format.lines(), 1) if line.strip())
        advice = Advice({"skip": join_items(table.keys.skip, [number])})
        raise DataError("the last line has totals, as a left-out column shows; remove it", advice=[advice])


def _require_closed_quotes(table: CsvTable) -> None:
    """Raise DataError for a quoted cell that spans whole rows: its closing quote is missing."""
    csv_format, separator = table.format, table.format.separator
    with refuse_long_cells():
        reader = csv.reader(csv_format.lines(), delimiter=separator)
        for lines in (cell.split("\n")[1:] for row in reader for cell in row):
            for number, cells in enumerate(csv.reader(lines, delimiter=separator), reader.line_num - len(lines) + 1):
                if len(cells) == table.width and all(csv_format.is_number(cells[place]) for place in table.features):
                    fault = "a cell in quotes contains lines which look like rows: does a closing quote lack?"
                    raise DataError(fault, local=f"line {number}")


class _CountedStream(io.RawIOBase):
    """Stream of bytes from an iterator, which counts lines, and keeps its last bytes and whether a quote occurred."""

    def __init__(self, parts: Iterator[bytes]) -> None:
        self._parts, self._rest, self._newlines, self.tail, self.has_quotes = parts, bytearray(), 0, b"", False

    @property
    def lines(self) -> int:
        """Number of lines read so far, including a last line without a line feed."""
        return self._newlines + (self.tail[-1:] not in (b"", b"\n"))

    @override
    def readable(self) -> bool:
        """Return True, as Python's interface of raw streams demands."""
        return True

    @override
    def read(self, size: int = -1) -> bytes:
        """Read bytes, and update the count of lines, the last bytes and the mark of quotes."""
        while len(self._rest) < size and (part := next(self._parts, b"")):
            self._rest += part
        content = bytes(self._rest[:size])
        del self._rest[:size]
        self._newlines += content.count(b"\n")
        self.tail = (self.tail + content[-TAIL_BYTES:])[-TAIL_BYTES:]
        self.has_quotes = self.has_quotes or b'"' in content
        return content


def _parse_numbers(csv_format: CsvFormat, column: Any) -> Array:
    """Convert an Arrow column of texts to float64 (m,), NaN if missing; true is 1, and false 0."""
    import pyarrow as pa
    from pyarrow import compute

    def cast(cells: Any) -> Any:
        """Convert texts as Arrow does; a mark makes a point invalid where commas are decimal."""
        if csv_format.decimal == ",":
            validity, offsets, text = cells.buffers()
            points = pa.py_buffer((text.to_pybytes() if text else b"").translate(bytes.maketrans(b".,", b"?.")))
            cells = pa.StringArray.from_buffers(len(cells), offsets, points, validity, -1, cells.offset)
        return compute.cast(cells, pa.float64())

    with suppress(ValueError):
        numbers = np.asarray(cast(column).to_numpy(zero_copy_only=False))
        if not csv_format.thousands and np.fmax.reduce(np.abs(numbers), initial=0.0) < 2**53:
            return numbers  # of larger whole numbers, float64 may round some
    cells = compute.utf8_trim_whitespace(column)
    cells = compute.replace_substring_regex(cells, r"^\+([0-9.])", r"\1")  # drop a plus sign
    cells = compute.replace_substring(cells, "\u2212", "-")
    if csv_format.thousands:
        grouped = compute.match_substring_regex(cells, f"^{csv_format.grouped_number_pattern}$")
        ungrouped = compute.replace_substring_regex(cells, csv_format.group_sign_pattern, "")
        cells = compute.if_else(grouped, ungrouped, cells)
    lowered = compute.utf8_lower(cells)
    for word, number in {"true": "1", "false": "0"}.items():
        cells = compute.if_else(compute.equal(lowered, word), number, cells)
    missing = compute.is_in(lowered, pa.array(sorted(MISSING_TEXTS)))
    if csv_format.missing_marks:
        marked = compute.is_in(compute.utf8_trim_whitespace(column), pa.array(csv_format.missing_marks))
        missing = compute.or_(missing, marked)
    cells = compute.if_else(missing, None, cells)
    converted = cast(cells)
    large = compute.fill_null(compute.greater_equal(compute.abs(converted), 2.0**53), False)
    digits = (cell for cell in cells.filter(large).to_pylist() if cell.lstrip("-").isdigit())
    if any(int(float(cell)) != int(cell) for cell in digits):
        raise DataError(f"there are {INEXACT_INTEGERS}: {INEXACT_ADVICE}")
    return np.asarray(converted.to_numpy(zero_copy_only=False))


def _find_faults(table: CsvTable) -> CsvFaults:
    """Read the whole file cell by cell, and collect its faults with line numbers; DataError at an overlong cell."""
    faults = CsvFaults(table.width, table.names, table.format, table.keys, table.selection)
    with refuse_long_cells():
        reader = csv.reader(table.format.lines(), delimiter=table.format.separator)
        line = 1
        for row in reader:
            if line > table.start:
                faults.add_line(line, row, table.features)
            line = reader.line_num + 1
    return faults


@dataclass(frozen=True)
class CsvText:
    """Table as .csv text, from a .csv file or converted from a workbook or statistics file."""

    open: Opener  # opens the bytes anew
    keys: CsvKeys  # of the text
    note: str = ""  # what was left out, or converted to numbers


def text_format(open_text: Callable[[Path, CsvKeys], CsvText]) -> FileFormat:
    """Return a `FileFormat` for files that `open_text` opens as .csv text."""

    def read_rows(
        file: Path, selection: ColumnSelection, *, csv_keys: CsvKeys, notes: list[str]
    ) -> tuple[Rows, list[str]]:
        """Return the rows of a file and the names of its features, if it has any; add messages to `notes`."""
        text = open_text(file, csv_keys)
        table = open_csv(text.open, text.keys, selection, file.name)
        notes += [*filter(None, [text.note]), *table.notes]
        return replace(table, notes=notes).rows, table.feature_names

    def read_ids(
        file: Path, column: str, count: int, label: str, *, csv_keys: CsvKeys, selection: ColumnSelection
    ) -> list[str]:
        """Return the last `count` cells of a column as stripped texts, "" if missing: a header above is dropped."""
        text = open_text(file, csv_keys)
        return read_cells(text.open, text.keys, selection, column, file.name)[-count:]

    return FileFormat(read_rows, read_ids, ("csv_keys", "notes"))


def _open_text(file: Path, keys: CsvKeys) -> CsvText:
    """Return a text file as it is, with the site's keys for texts."""
    keys.require_unset("text files", *TEXT_KEYS)
    return CsvText(file_opener(file), keys)


CSV = text_format(_open_text)
