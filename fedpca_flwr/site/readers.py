"""A site's own file of rows: the kinds of file in one table, read without leaking a value into an error.

A kind of file is an entry of `FORMATS`. `read` checks the rows that its reader gives, keeps those that are small, and
words whatever goes wrong in any reader: its own error may quote the file.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fedpca_flwr.config.node_config import DUCKDB, POSTGRESQL
from fedpca_flwr.data.table import INEXACT, Table, check, inexact
from fedpca_flwr.errors import ConfigError, DataError, FedPCAError
from fedpca_flwr.maths.rows import CACHE_ELEMENTS, Block, Blocks, Rows, as_blocks
from fedpca_flwr.site.bed_file import BED
from fedpca_flwr.site.columns import DO_INSTEAD, Selection
from fedpca_flwr.site.csv_file import CSV
from fedpca_flwr.site.csv_format import CsvKeys, is_missing
from fedpca_flwr.site.databases import read_query
from fedpca_flwr.site.h5ad_file import H5AD
from fedpca_flwr.site.numpy_files import NPY, NPZ
from fedpca_flwr.site.office_files import SPREADSHEET, STATISTICS
from fedpca_flwr.site.parquet_file import PARQUET

FORMATS = {
    ".npy": NPY,
    ".npz": NPZ,
    **dict.fromkeys((".csv", ".tsv", ".csv.gz", ".tsv.gz"), CSV),
    ".parquet": PARQUET,
    ".h5ad": H5AD,
    ".bed": BED,
    **dict.fromkeys((".xlsx", ".xls"), SPREADSHEET),
    **dict.fromkeys((".sav", ".dta", ".sas7bdat", ".xpt"), STATISTICS),
}
"""By the ending of a file's name, how its rows are read."""

DATABASES = {
    POSTGRESQL: read_query,
    DUCKDB: read_query,
}
"""By the kind of a database, how the rows of a query are read."""


def format_of(path: str | os.PathLike[str]) -> str:
    """Return the ending of a file's name by which its kind is known; empty where it is of none."""
    name = Path(path).name.lower()
    return max((suffix for suffix in FORMATS if name.endswith(suffix)), key=len, default="")


Keep = Callable[[Blocks], Blocks]
"""Takes rows as a file gives them, and returns the same rows, of which it may keep a copy."""


def as_they_are(rows: Blocks) -> Blocks:
    """The rows, of which nothing is kept."""
    return rows


SETTINGS = {"layer": "a layer", "variants": "a list of variants"}
"""Keys of the node-config that not all kinds of file have, and what they name."""

Names = str | int | float | Sequence[str | int | float]
"""Names, numbers or marks: several in a text, separated by commas, or one by one."""


def read(
    path: str | os.PathLike[str],
    label: str = "",
    ids: str = "",
    layer: str = "",
    variants: str = "",
    *,
    columns: Names = "",
    leave_out: Names = "",
    header: bool | None = None,
    delimiter: str = "",
    decimal: str = "",
    thousands: str = "",
    encoding: str = "",
    comment: Names = "",
    missing: Names = "",
    ambiguous: bool = False,
    texts: Sequence[str] = (),
    keep: Keep = as_they_are,
) -> Table:
    """Read the rows of a file, checked, as one party of `fedpca_flwr.run`.

    The keys are those of a site's node-config (`NodeConfig`). No error has a value or a path in its text.

    Parameters
    ----------
    path : str or path
        A file whose ending is one of `FORMATS` (docs/data.md).
    label, ids, columns, leave_out : str, or sequence of str
        Columns that are no features; those of ``columns`` alone are. Names, numbers from 0, or patterns (``gene_*``).
    layer, variants, ambiguous
        Of an .h5ad or a .bed file.
    header : bool, optional
        Whether the first line of a text or a sheet holds names. None: it is recognised, or refused.
    delimiter, decimal, thousands, encoding : str
        How a text is written; empty: recognised. ``"tab"`` is a delimiter, too.
    comment, missing : str, or sequence of str
        How lines begin that are no rows, and what stands for a missing value: ``"NA, -999, ?"``.
    texts : sequence of str
        Columns of categories, which are left out (`read_texts`).
    keep : callable
        Given the rows as they are read in blocks, returns the same rows.

    Returns
    -------
    Table
        The rows, float64 with NaN for what is missing or of the dtype of the file, and the names of their columns.

    Raises
    ------
    ConfigError, DataError
        Where a key does not fit the file, or the file cannot be read, or could be read in two ways.
    """
    selection = Selection(label, ids, texts, _listed(columns), _listed(leave_out))
    written = CsvKeys(header, delimiter, decimal, thousands, encoding, _listed(comment), _listed(missing))
    return _table(path, selection, written, {"layer": layer, "variants": variants, "ambiguous": ambiguous}, keep)


def _table(
    path: str | os.PathLike[str], selection: Selection, written: CsvKeys, given: dict[str, Any], keep: Keep
) -> Table:
    """The rows of a file, checked; ``given`` are keys that only some kinds of file have."""
    file, suffix = Path(path).expanduser(), format_of(path)
    if not suffix:
        raise ConfigError(
            f"node-config: 'data' names a file of unknown kind, expected one of: {', '.join(FORMATS)}", local=str(file)
        )
    if not file.is_file():
        raise DataError("the file that node-config 'data' names does not exist", local=str(file))
    kind = FORMATS[suffix]
    for key, named in SETTINGS.items():
        if given[key] and key not in kind.settings:
            having = " and ".join(suffix for suffix, other in FORMATS.items() if key in other.settings)
            raise ConfigError(f"node-config: '{key}' names {named}, which only {having} files have")
    if "written" not in kind.settings:
        written.require_none(f"{suffix} files")
    notes: list[str] = []
    available = {**given, "written": written, "notes": notes}
    with _in_words(file, suffix):
        rows, names = kind.rows(file, selection, **{key: available[key] for key in kind.settings})
    rows = _without_marks(rows, written)
    if isinstance(rows, Blocks):
        rows = keep(replace(rows, read=partial(_read_in_words, file, suffix, rows.read)))
    return check(rows, names)._replace(notes=tuple(notes))


def _listed(items: Names) -> str:
    """Items as the text of a node-config."""
    if isinstance(items, str | int | float):
        return str(items)
    return ", ".join(f'"{item}"' if "," in str(item) else str(item) for item in items)


def _without_marks(rows: Rows, keys: CsvKeys) -> Rows:
    """The rows with NaN for the numbers that stand for what is missing."""
    marks = keys.numbers
    if not marks or rows.dtype.kind not in "fiu" or rows.ndim != 2:
        return rows
    blocks = as_blocks(rows, CACHE_ELEMENTS)
    if blocks.sparse:
        raise ConfigError("'missing' names numbers, and the rows of the file are sparse: write NaN in their place")
    dtype = rows.dtype if rows.dtype.kind == "f" else np.dtype(np.float64)
    own = np.array(marks).astype(dtype)

    def read_blocks() -> Iterator[Block]:
        for block in blocks.read():
            if inexact(block).any():
                raise DataError(f"the file holds {INEXACT}: {DO_INSTEAD}")
            yield np.where(np.isin(block, own), np.nan, block).astype(dtype)

    return replace(blocks, read=read_blocks, dtype=dtype)


def read_ids(
    path: str, column: str, rows: int, label: str = "", ids: str = "", texts: Sequence[str] = (), **keys: Any
) -> list[str]:
    """Return the cells in a column of a file, stripped of spaces. No error has a cell in its text, which travels.

    Parameters
    ----------
    path, label, ids, texts
        As in `read`; the ``column`` is no feature either.
    column : str
        A column, by its name or its number from 0.
    rows : int
        The number of rows in the file.
    **keys
        How the file is written, as in `read`.
    """
    kind = FORMATS[format_of(path)]
    if kind.ids is None:
        having = " and ".join(suffix for suffix, kind in FORMATS.items() if kind.ids)
        raise ConfigError(f"node-config: 'ids' names a column, which only {having} files have")
    of_text: dict[str, Any] = {}
    if "written" in kind.settings:
        own: dict[str, Any] = {key: value if key == "header" else _listed(value) for key, value in keys.items()}
        chosen = {key: own.pop(key, "") for key in ("columns", "leave_out")}
        of_text = {"written": CsvKeys(**own), "selection": Selection(label, ids, (*texts, column), **chosen)}
    return kind.ids(Path(path).expanduser(), column, rows, label, **of_text)


def holds_texts(path: str) -> bool:
    """Whether a file of this kind can hold columns of texts."""
    suffix = format_of(path)
    return bool(suffix) and FORMATS[suffix].ids is not None


def read_texts(path: str, column: str, rows: int, label: str = "", **keys: Any) -> list[str | None]:
    """Return the texts in a column of a file, as `read_ids` does; None for what is missing."""
    with _in_words(Path(path).expanduser(), format_of(path)):
        return [None if is_missing(cell) else cell for cell in read_ids(path, column, rows, label, **keys)]


def _read_in_words(file: Path, suffix: str, read: Callable[[], Iterable[Block]]) -> Iterator[Block]:
    with _in_words(file, suffix):
        yield from read()


@contextmanager
def _in_words(file: Path, suffix: str) -> Iterator[None]:
    """Tell an error of a reader in our own words: its own may quote the file."""
    try:
        yield
    except FedPCAError:
        raise
    except Exception as error:  # whatever a damaged file does to its reader
        raise DataError(
            f"the {suffix} file cannot be read: it is damaged or not what its name says",
            local=f"{type(error).__name__} in {file}",
        ) from None
