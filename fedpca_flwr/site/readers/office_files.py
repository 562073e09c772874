"""Workbooks of Excel and files of SPSS, Stata and SAS, as the text of a .csv file, of which a line is a row."""

import csv
import io
import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from fedpca_flwr.errors import ConfigError, DataError
from fedpca_flwr.site.readers.csv_file import CsvText, text_format
from fedpca_flwr.site.readers.csv_format import Opener
from fedpca_flwr.site.readers.unpacking import require_archive_size, require_unpacked_size

MIN_CELL_LIMIT = 2**24  # cells, also empty, that any sheet may have; a larger one as many as bytes unpacked
PACKAGES = {".xlsx": "openpyxl", ".xls": "pandas and xlrd", ".sav": "pandas and pyreadstat"}  # others: pandas alone


@contextmanager
def _reword_import_error(suffix: str) -> Iterator[None]:
    """Replace an ImportError in a with statement by a ConfigError that names packages to install."""
    try:
        yield
    except ImportError as error:
        packages = PACKAGES.get(suffix, "pandas")
        raise ConfigError(
            f"a {suffix} file needs {packages}, which is not installed: run pip install '.[tables]' in the repository "
            f"({error.name or 'a package'} is missing), or save the table as .csv"
        ) from None


def read_spreadsheet(file: Path) -> CsvText:
    """Read the first sheet of an Excel workbook, as .csv text with a note if there are others.

    Raise DataError if the sheet is empty, has numbers of 2^53 or more in size, which Excel has rounded, or is too large
    for what it holds; raise ConfigError if a package that reads it is not installed.
    """
    n_sheets, rows = (_xlsx_rows if file.suffix.lower() == ".xlsx" else _xls_rows)(file)
    if not rows:
        raise DataError("the sheet is empty")
    if any(isinstance(cell, int | float) and abs(cell) >= 2**53 for row in rows for cell in row):
        raise DataError(
            "the sheet has whole numbers of more than 15 digits, which Excel has rounded: leave these columns out"
        )
    note = f"of a workbook of {n_sheets} sheets the first is read" if n_sheets > 1 else ""
    return CsvText(_csv_opener(rows), generated=True, note=note)


def _xls_rows(file: Path) -> tuple[int, list[tuple[Any, ...]]]:
    """Return the number of sheets of an .xls workbook, and the rows of the first sheet."""
    with _reword_import_error(".xls"):
        import pandas

        with pandas.ExcelFile(file) as book:
            sheets = list(book.sheet_names)
            frame = book.parse(sheets[0], header=None, dtype=object, na_filter=False)
    return len(sheets), list(frame.itertuples(index=False, name=None))


def _xlsx_rows(file: Path) -> tuple[int, list[list[Any]]]:
    """Return the number of sheets of an .xlsx workbook, and the rows of the first sheet, all of one length.

    Errors are NaN. Raise DataError for too many cells: one far from the table makes billions of empty cells.
    """
    with _reword_import_error(".xlsx"):
        from openpyxl import load_workbook
    max_cells = max(MIN_CELL_LIMIT, require_archive_size(file, "save its first sheet as .csv"))
    with closing(load_workbook(file, read_only=True, data_only=True, keep_links=False)) as book:
        sheet = book.worksheets[0]
        sheet.reset_dimensions()
        rows, height, width = list[list[Any]](), 0, 0
        for row in sheet.rows:
            rows.append([math.nan if cell.data_type == "e" else cell.value for cell in row])
            while rows[-1] and rows[-1][-1] in (None, ""):
                rows[-1].pop()
            height, width = len(rows) if rows[-1] else height, max(width, len(rows[-1]))
            if height * width > max_cells:
                raise DataError(
                    f"the sheet reaches to row {height:,} and column {width:,}, and most cells "
                    "are empty: delete the cells that are far from the table, or save the table as .csv"
                )
    return len(book.worksheets), [row + [None] * (width - len(row)) for row in rows[:height]]


def read_statistics_file(file: Path) -> CsvText:
    """Read an SPSS, Stata or SAS file as .csv text with a header, with codes, and a note, for labelled values.

    Raise DataError if the file has no column or is too large for its size, and ConfigError without its packages.
    """
    suffix, labelled_columns = file.suffix.lower(), []
    with _reword_import_error(suffix):
        import pandas

        if suffix == ".sav":
            import pyreadstat

            _, contents = pyreadstat.read_sav(str(file), metadataonly=True)
            _require_table_size(file, contents.number_rows, contents.number_columns)
            frame, metadata = pyreadstat.read_sav(str(file))
            labelled_columns = list(metadata.variable_value_labels)
        elif suffix == ".dta":
            with pandas.io.stata.StataReader(file, convert_categoricals=False) as reader:
                frame = reader.read()
                values = reader.value_labels()
            labelled_columns = list(values)
        else:
            with pandas.read_sas(file, encoding="latin-1", iterator=True) as reader:
                if suffix == ".sas7bdat":
                    _require_table_size(file, reader.row_count, reader.column_count)
                frame = reader.read()
    n_labelled = len(labelled_columns)
    note = f"values of {n_labelled} columns have labels in the file, and are taken as the numbers that stand for these"
    header = [str(name) for name in frame.columns]
    if not header:
        raise DataError("there is no column")
    rows = frame.astype(object).itertuples(index=False, name=None)
    return CsvText(
        _csv_opener(itertools.chain([header], rows)), generated=True, header=True, note=note if labelled_columns else ""
    )


def _require_table_size(file: Path, rows: int | None, columns: int | None) -> None:
    """Raise DataError for a file of statistics with too many numbers for its size; a size that is unknown is 0."""
    require_unpacked_size(file, 8 * (rows or 0) * (columns or 0), "save the table as .csv")


def _csv_opener(rows: Iterable[Sequence[Any]]) -> Opener:
    """Write rows as .csv text in memory, and return a function that opens its bytes (UTF-8) for reading.

    A missing value becomes an empty cell, and a row of several cells that are all empty becomes an empty line.
    """
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    for row in rows:
        cells = list(map(_cell_text, row))
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
