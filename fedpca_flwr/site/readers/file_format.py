"""Formats of files, of which each is imported when a site's file has it."""

import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedpca_flwr.config.entries import Entries
from fedpca_flwr.config.node_config import DUCKDB, OTHER_DATABASE, POSTGRESQL
from fedpca_flwr.data.table import Table, labels_text
from fedpca_flwr.errors import DataError
from fedpca_flwr.maths.rows import Rows


@dataclass(frozen=True)
class FileFormat:
    """Kind of file (such as .csv): functions that read its rows, and its ids, and keys that apply.

    ``read_rows`` returns the rows and the names of their columns, given a path, a `ColumnSelection` and the
    ``settings`` by name. Rows that need no memory for all of them are `Blocks` whose ``read`` opens the file anew.
    ``read_ids`` returns the cells of a column without surrounding spaces, given a path, a column, the number of rows
    and the column of labels, and of a text also ``csv_keys`` and ``selection``; None: files of this kind have no texts.
    ``settings`` are arguments that only this kind of file has: keys of the node-config; ``csv_keys``, the `CsvKeys` of
    a text; ``notes``, a list for what a reader of the rows must know. ``row_names`` returns, given a path, a name for
    each row ("family person"); None: rows of such files have numbers only. ``folders``: may the path be a folder?
    """

    read_rows: Callable[..., tuple[Rows, list[str]]]
    read_ids: Callable[..., list[str]] | None = None
    settings: tuple[str, ...] = ()
    row_names: Callable[[Path], Sequence[str]] | None = None
    folders: bool = False


_READERS = "fedpca_flwr.site.readers"
FORMATS: Entries[FileFormat] = Entries(
    {
        ".npy": f"{_READERS}.numpy_files:NPY",
        ".npz": f"{_READERS}.numpy_files:NPZ",
        **dict.fromkeys((".csv", ".tsv", ".csv.gz", ".tsv.gz"), f"{_READERS}.csv_file:CSV"),
        ".parquet": f"{_READERS}.parquet_file:PARQUET",
        ".h5ad": "fedpca_flwr.cells.h5ad_file:H5AD",
        ".bed": "fedpca_flwr.genetics.bed_file:BED",
        **dict.fromkeys((".xlsx", ".xls"), f"{_READERS}.office_files:SPREADSHEET"),
        **dict.fromkeys((".sav", ".dta", ".sas7bdat", ".xpt"), f"{_READERS}.office_files:STATISTICS"),
    },
    "fedpca_flwr.readers",
)
"""Kinds of files (`FileFormat`), by the ending of their names."""

DATABASE_READERS: Entries[Callable[..., tuple[Table, list[str]]]] = Entries(
    dict.fromkeys((POSTGRESQL, DUCKDB, OTHER_DATABASE), f"{_READERS}.databases:read_query")
)
"""Functions that read the rows of a query, by the kind of the database."""


def file_suffix(path: str | os.PathLike[str]) -> str:
    """Return the longest suffix of a file's name in `FORMATS`, such as ".csv.gz"; empty for an unknown kind."""
    name = Path(path).name.lower()
    return max((suffix for suffix in FORMATS if name.endswith(suffix)), key=len, default="")


def require_unique_names(names: Sequence[str], fault: str) -> None:
    """Raise DataError with the text `fault` if a name occurs twice; the names go to the site's own log."""
    duplicates = [name for name, times in Counter(names).items() if times > 1]
    if duplicates:
        raise DataError(fault, local=labels_text(duplicates))
