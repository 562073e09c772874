"""Workbooks of Excel and files of SPSS, Stata and SAS, as the text of a .csv file, by pandas.

So their faults are named, and their columns chosen, as those of a .csv file; a line of the text is a row of the sheet.
"""

import csv
import io
import itertools
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from fedpca_flwr.errors import ConfigError, DataError
from fedpca_flwr.site.csv_file import CsvText, text_format
from fedpca_flwr.site.csv_format import Opener


@contextmanager
def _import_pandas(suffix: str) -> Iterator[Any]:
    """Import pandas for a with statement; an ImportError becomes a ConfigError that names packages to install."""
    try:
        import pandas

        yield pandas
    except ImportError as error:
        package = {".xlsx": "openpyxl", ".xls": "xlrd", ".sav": "pyreadstat"}.get(suffix)
        packages = " and ".join(filter(None, ("pandas", package)))
        raise ConfigError(
            f"a {suffix} file needs {packages}, which is not installed: run pip install '.[tables]' in the repository "
            f"({error.name or 'a package'} is missing), or save the table as .csv"
        ) from None


def read_spreadsheet(file: Path) -> CsvText:
    """Read the first sheet of an Excel workbook, as .csv text.

    Raise DataError if the sheet is empty, or has integers of more than 15 digits, which Excel has rounded.
    """
    with _import_pandas(file.suffix.lower()) as pandas, pandas.ExcelFile(file) as book:
        sheets = list(book.sheet_names)
        frame = book.parse(sheets[0], header=None, dtype=object, na_filter=False)
    if not frame.size:
        raise DataError("the first sheet of the workbook is empty")
    if any(isinstance(cell, int) and abs(cell) >= 2**53 for row in frame.to_numpy() for cell in row):
        raise DataError(
            "the sheet has whole numbers of more than 15 digits, which Excel has rounded: leave these columns out"
        )
    note = f"of a workbook of {len(sheets)} sheets the first is read" if len(sheets) > 1 else ""
    return CsvText(_csv_opener(frame.itertuples(index=False, name=None)), generated=True, note=note)


def read_statistics_file(file: Path) -> CsvText:
    """Read an SPSS, Stata or SAS file as .csv text, with codes for labelled values; refuse a file without columns."""
    suffix, labelled_columns = file.suffix.lower(), []
    with _import_pandas(suffix) as pandas:
        if suffix == ".sav":
            import pyreadstat

            frame, metadata = pyreadstat.read_sav(str(file))
            labelled_columns = list(metadata.variable_value_labels)
        elif suffix == ".dta":
            with pandas.io.stata.StataReader(file, convert_categoricals=False) as reader:
                frame = reader.read()
                values = reader.value_labels()
            labelled_columns = list(values)
        else:
            frame = pandas.read_sas(file, encoding="latin-1")
    n_labelled = len(labelled_columns)
    note = f"values of {n_labelled} columns have labels in the file, and are taken as the numbers that stand for these"
    header = [str(name) for name in frame.columns]
    if not header:
        raise DataError(f"the {suffix} file has no column")
    rows = frame.astype(object).itertuples(index=False, name=None)
    return CsvText(
        _csv_opener(itertools.chain([header], rows)), generated=True, header=True, note=note if labelled_columns else ""
    )


def _csv_opener(rows: Iterable[Sequence[Any]]) -> Opener:
    """Write rows as .csv text in memory, and return a function that opens this text for reading."""
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
    """Return a value as text without loss of digits; empty for a missing value."""
    if value is None or value != value:  # NaN, NaT
        return ""
    if isinstance(value, float | np.floating):
        number = float(value)
        return str(int(number)) if number.is_integer() and abs(number) < 2**53 else repr(number)
    return str(value)


SPREADSHEET, STATISTICS = text_format(read_spreadsheet), text_format(read_statistics_file)
