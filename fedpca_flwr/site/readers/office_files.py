"""Workbooks of Excel and files of SPSS, Stata and SAS, as the text of a .csv file, of which a line is a row."""

import csv
import io
import itertools
import math
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fedpca_flwr.data.table import labels_text
from fedpca_flwr.errors import Advice, ConfigError, DataError
from fedpca_flwr.site.readers.columns import require_extra
from fedpca_flwr.site.readers.csv_faults import MISSING_MARK_PATTERN
from fedpca_flwr.site.readers.csv_file import CsvText, text_format
from fedpca_flwr.site.readers.csv_format import CsvKeys, Opener
from fedpca_flwr.site.readers.unpacking import require_archive_size, require_unpacked_size

MIN_CELL_LIMIT = 2**24  # cells, also empty, that any sheet may have; a larger one as many as bytes unpacked
READERS = {".sav": "read_sav", ".dta": "read_dta", ".sas7bdat": "read_sas7bdat", ".xpt": "read_xport"}


def read_spreadsheet(file: Path, keys: CsvKeys) -> CsvText:
    """Read the sheet of an Excel workbook that `keys` name, by default the first, as .csv text with a note."""
    sheets, rows = (_xlsx_rows if file.suffix.lower() == ".xlsx" else _xls_rows)(file, keys.sheet)
    others = [Advice({"sheet": str(number)}) for number in range(2, len(sheets) + 1)] if not keys.sheet else []
    if not rows:
        raise DataError("the sheet is empty", advice=others)
    if any(isinstance(cell, int | float) and abs(cell) >= 2**53 for row in rows for cell in row):
        raise DataError("the sheet has whole numbers of more than 15 digits, which Excel rounded: leave them out")
    keys.require_unset("workbooks", "header", "comment", "thousands", "decimal", "skip", "sheet")
    text_keys = replace(keys, delimiter=",", encoding="utf-8")
    note = f"of a workbook of {len(sheets)} sheets the first is read; sheet='2' is the next" if others else ""
    return CsvText(_csv_opener(rows, keys.decimal), text_keys, note)


def _sheet_position(sheets: Sequence[str], sheet: str) -> int:
    """Return the position from 0 of a sheet, by its name or number from 1 (empty: 1); ConfigError if none."""
    numbers = {str(number): number - 1 for number in range(1, len(sheets) + 1)} | {"": 0}
    if sheet not in sheets and sheet not in numbers:
        raise ConfigError("'sheet' names no sheet, expected a name or a number from 1", local=labels_text(sheets))
    return list(sheets).index(sheet) if sheet in sheets else numbers[sheet]


def _xls_rows(file: Path, sheet: str) -> tuple[list[str], list[tuple[Any, ...]]]:
    """Return the names of the sheets of an .xls workbook, and the rows of one of them."""
    with require_extra("tables", "an .xls file needs pandas and xlrd"):
        import pandas

        with pandas.ExcelFile(file) as book:
            sheets = list(map(str, book.sheet_names))
            frame = book.parse(_sheet_position(sheets, sheet), header=None, dtype=object, na_filter=False)
    return sheets, list(frame.itertuples(index=False, name=None))


def _xlsx_rows(file: Path, sheet: str) -> tuple[list[str], list[list[Any]]]:
    """Return the names of the sheets of an .xlsx workbook, and the rows of one of them, all of one length.

    Errors are NaN.
    """
    with require_extra("tables", "an .xlsx file needs openpyxl"):
        from openpyxl import load_workbook
    max_cells = max(MIN_CELL_LIMIT, require_archive_size(file, "save its sheet as .csv"))
    with closing(load_workbook(file, read_only=True, data_only=True, keep_links=False)) as book:
        sheets = [each.title for each in book.worksheets]
        cells = book.worksheets[_sheet_position(sheets, sheet)]
        cells.reset_dimensions()
        rows, height, width = list[list[Any]](), 0, 0
        for row in cells.rows:
            rows.append([math.nan if cell.data_type == "e" else cell.value for cell in row])
            while rows[-1] and rows[-1][-1] in (None, ""):
                rows[-1].pop()
            height, width = len(rows) if rows[-1] else height, max(width, len(rows[-1]))
            if height * width > max_cells:
                raise DataError(
                    f"the sheet reaches to row {height:,} and column {width:,}, and most cells are empty: delete the "
                    "cells that are far from the table, or save the table as .csv"
                )
    return sheets, [row + [None] * (width - len(row)) for row in rows[:height]]


def read_statistics_file(file: Path, keys: CsvKeys) -> CsvText:
    """Read an SPSS, Stata or SAS file as .csv text with a header, with codes, and a note, for labelled values."""
    suffix = file.suffix.lower()
    keys.require_unset("files of statistics", "comment", "thousands", "decimal", "skip", "header")
    with require_extra("tables", f"a {suffix} file needs pandas and pyreadstat"):
        import pandas  # noqa: F401  # which the other needs
        import pyreadstat
    read = partial(getattr(pyreadstat, READERS[suffix]), str(file))
    read = partial(read, encoding="ISO-8859-1") if suffix == ".xpt" else read  # of other files, their own
    _, contents = read(metadataonly=True)
    nbytes = 8 * (contents.number_rows or 0) * (contents.number_columns or 0)
    require_unpacked_size(file, nbytes, "save the table as .csv")
    frame, metadata = read()
    labels = metadata.variable_value_labels
    note = f"values of {len(labels)} columns have labels in the file, and are read as the numbers of these labels"
    notes, is_mark = [note] if labels else [], MISSING_MARK_PATTERN.fullmatch
    unmeasured = {
        column: [code for code, label in codes.items() if is_mark(label) and (frame[column] == code).any()]
        for column, codes in labels.items()
    }
    if columns := [column for column, codes in unmeasured.items() if codes]:
        marks = dict.fromkeys(_cell_text(code) for codes in unmeasured.values() for code in codes)
        notes.append(f"labels of {labels_text(columns)} say that values are missing: set missing='{', '.join(marks)}'")
    header = [str(name) for name in frame.columns]
    if not header:
        raise DataError("there is no column")
    rows = frame.astype(object).itertuples(index=False, name=None)
    text_keys = replace(keys, delimiter=",", encoding="utf-8", header=True)
    return CsvText(_csv_opener(itertools.chain([header], rows)), text_keys, "; ".join(notes))


def _csv_opener(rows: Iterable[Sequence[Any]], decimal: str = "") -> Opener:
    """Write rows as .csv text in memory, and return a function that opens its bytes (UTF-8) for reading.

    Numbers get the sign ``decimal``, as texts among them may have. Cells without a value, and rows of such, are empty.
    """
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    for row in rows:
        cells = [
            _cell_text(cell).replace(".", decimal or ".") if isinstance(cell, float) else _cell_text(cell)
            for cell in row
        ]
        if len(cells) == 1 or any(cells):
            writer.writerow(cells)
        else:
            stream.write("\n")
    content = stream.getvalue().encode()
    return lambda: io.BytesIO(content)


def _cell_text(value: Any) -> str:
    """Return a value as text without loss of digits, empty for a missing value; 3.0 (below 2^53) becomes "3"."""
    if value is None or value != value:  # NaN, NaT
        return ""
    if isinstance(value, float | np.floating):
        number = float(value)
        return str(int(number)) if number.is_integer() and abs(number) < 2**53 else repr(number)
    return str(value)


SPREADSHEET, STATISTICS = text_format(read_spreadsheet), text_format(read_statistics_file)
