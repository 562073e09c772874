"""A site's own file of rows: all kinds of files in a single table (`FORMATS`), without a value in any error."""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fedpca_flwr.data.table import INEXACT_INTEGERS, Table, check_rows, inexact_integers
from fedpca_flwr.errors import ConfigError, DataError, FedPCAError, in_node_config, name_file
from fedpca_flwr.maths.rows import CACHE_ELEMENTS, Block, Blocks, Rows, as_blocks
from fedpca_flwr.site.readers.columns import INEXACT_ADVICE, ColumnSelection, join_items
from fedpca_flwr.site.readers.csv_format import CsvKeys, is_missing
from fedpca_flwr.site.readers.file_format import FORMATS, FileFormat, file_suffix

RowsHook = Callable[[Blocks], Blocks]  # receives rows as a file gives them, and returns them; may store a copy


def keep_nothing(rows: Blocks) -> Blocks:
    """Return rows unchanged: the default for `keep`, a function that may copy rows as they are read."""
    return rows


FORMAT_SETTINGS = {"layer": "a layer", "variants": "a list of variants"}  # keys of some kinds of file, and what for
Names = str | int | float | Sequence[str | int | float] | None
"""Names, numbers or marks: several in a text, separated by commas, or one by one; None for none."""


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
    skip: Names = "",
    sheet: str | int = "",
    ambiguous: bool = False,
    texts: Sequence[str] = (),
    keep: RowsHook = keep_nothing,
    site: bool = False,
) -> Table:
    """Read and check the rows of a data file (such as .csv), as a site of a run does.

    The parameters are keys of a site's node-config (`NodeConfig`). The text of an error never contains a value. Its
    attribute `advice` has the keys that it names, with values.

    Parameters
    ----------
    path : str or path
        File in one of the formats of docs/data.md (`FORMATS`), which its ending names.
    label, ids : str
        Column of class labels, and column of row ids, by name or number from 0. Neither is a feature.
    layer : str
        Layer of an .h5ad file.
    variants : str
        List of variants (.bim) for a .bed file.
    columns, leave_out : str, or sequence of str
        Columns that are features (by default all), and columns that are not: names, numbers from 0, or patterns such
        as ``gene_*``.
    header : bool, optional
        Whether the first line of a text file or a sheet has the names of the columns. With None the function detects
        it, or raises an error if it cannot tell.
    delimiter, decimal, thousands, encoding : str
        Format of a text file. With an empty text the function detects it. ``delimiter`` may be ``"tab"``.
    comment, missing, skip : str, or sequence of str
        Beginnings of comment lines, marks of missing values (``"NA, -999, ?"``), and numbers from 1 of lines that are
        no rows (``"1-3, 5"``). A line of numbers is no comment.
    sheet : str or int
        Sheet of a workbook, by name or number from 1; by default the first.
    ambiguous : bool
        Whether a .bed file may have variants whose alleles look the same on both strands.
    texts : sequence of str
        Columns of categories, which the function does not read (`read_texts` reads them).
    keep : callable
        Function that receives the rows as they are read in blocks, stores them in another place, and returns them.
    site : bool
        Whether the text of an error may travel: it then names the keys of a node-config, and neither the file nor what
        is inside.

    Returns
    -------
    Table
        Rows and names of columns. Rows are float64 with NaN for missing values, or have the dtype of the file.

    Raises
    ------
    ConfigError, DataError
        If a parameter does not fit the file, or if the file cannot be read or could be read in two ways.
    """
    settings: dict[str, Any] = {"layer": layer, "variants": variants, "ambiguous": ambiguous}
    file, notes = Path(path).expanduser(), list[str]()
    with _reword_errors(file, site):
        selection = ColumnSelection(label, ids, texts, *map(_join_items, (columns, leave_out)))
        texts_of_keys = map(_join_items, (comment, missing, skip, sheet))
        csv_keys = CsvKeys(header, delimiter, decimal, thousands, encoding, *texts_of_keys)
        kind = _format_of(file)
        for key, meaning in FORMAT_SETTINGS.items():
            if settings[key] and key not in kind.settings:
                suffixes = " and ".join(suffix for suffix, other in FORMATS.items() if key in other.settings)
                raise ConfigError(f"'{key}' names {meaning}, which only {suffixes} files have")
        if "csv_keys" not in kind.settings:
            csv_keys.require_unset(f"{file_suffix(file)} files")
        available = {**settings, "csv_keys": csv_keys, "notes": notes}
        rows, names = kind.read_rows(file, selection, **{key: available[key] for key in kind.settings})
        rows = _replace_marks(rows, csv_keys)
        if isinstance(rows, Blocks):
            rows = keep(replace(rows, read=partial(_read_rewording_errors, file, site, rows.read)))
        table = check_rows(rows, names)
    return table._replace(notes=tuple(map(in_node_config, notes) if site else notes))


def _format_of(file: Path) -> FileFormat:
    """Return the kind of a file by its ending; raise ConfigError for another, and DataError if there is no file."""
    suffix, kinds = file_suffix(file), ", ".join(FORMATS)
    if not suffix:
        raise ConfigError(f"a file of unknown kind, expected a name that ends in one of: {kinds}", local=str(file))
    if file.is_dir() and not FORMATS[suffix].folders:
        raise DataError("it is a folder, expected a file; name one of those inside")
    if not file.exists():
        raise DataError("it does not exist", local=str(file))
    return FORMATS[suffix]


def _join_items(items: Names) -> str:
    """Return one item as text, or names or numbers joined with commas, a name that contains a comma in quotes."""
    return str(items) if isinstance(items, str | int | float) else join_items("", items or ())


def _replace_marks(rows: Rows, keys: CsvKeys) -> Rows:
    """Return rows with NaN in place of numbers that mark missing values, such as -999; ConfigError for sparse rows."""
    marks = keys.missing_numbers
    if not marks or rows.dtype.kind not in "fiu" or rows.ndim != 2:
        return rows
    blocks = as_blocks(rows, CACHE_ELEMENTS)
    if blocks.sparse:
        raise ConfigError("'missing' names numbers, but the rows are sparse: write NaN instead of these numbers")
    dtype = rows.dtype if rows.dtype.kind == "f" else np.dtype(np.float64)
    values = np.array(marks).astype(dtype)

    def read_blocks() -> Iterator[Block]:
        """Yield the blocks with marks replaced by NaN; raise DataError at integers that float64 would round."""
        for block in blocks.read():
            if inexact_integers(block).any():
                raise DataError(f"there are {INEXACT_INTEGERS}: {INEXACT_ADVICE}")
            yield np.where(np.isin(block, values), np.nan, block).astype(dtype)

    return replace(blocks, read=read_blocks, dtype=dtype)


def read_ids(
    path: str, column: str, rows: int, label: str = "", ids: str = "", texts: Sequence[str] = (), **keys: Any
) -> list[str]:
    """Return the stripped cells of a column, a name or number from 0, that is no feature, "" for a missing value."""
    file = Path(path).expanduser()
    kind = FORMATS[file_suffix(path)]
    if kind.read_ids is None:
        suffixes = " and ".join(suffix for suffix, kind in FORMATS.items() if kind.read_ids)
        raise ConfigError(f"'ids' names a column, which only {suffixes} files have")
    arguments: dict[str, Any] = {}
    if "csv_keys" in kind.settings:
        text_keys: dict[str, Any] = {
            key: value if key == "header" else _join_items(value) for key, value in keys.items()
        }
        selection_keys = {key: text_keys.pop(key, "") for key in ("columns", "leave_out")}
        arguments = {
            "csv_keys": CsvKeys(**text_keys),
            "selection": ColumnSelection(label, ids, (*texts, column), **selection_keys),
        }
    with _reword_errors(file, site=True):
        return kind.read_ids(file, column, rows, label, **arguments)


def holds_texts(path: str) -> bool:
    """Check that files of this kind (by suffix) can have columns of texts; False for a kind that is unknown."""
    suffix = file_suffix(path)
    return bool(suffix) and FORMATS[suffix].read_ids is not None


def read_texts(path: str, column: str, rows: int, label: str = "", **keys: Any) -> list[str | None]:
    """Return the cells of a column as `read_ids` does, with None for a missing value."""
    return [None if is_missing(cell) else cell for cell in read_ids(path, column, rows, label, **keys)]


def _read_rewording_errors(file: Path, site: bool, read: Callable[[], Iterable[Block]]) -> Iterator[Block]:
    """Yield blocks from ``read()``; errors of the reader become a DataError, since they may quote data."""
    with _reword_errors(file, site):
        yield from read()


@contextmanager
def _reword_errors(file: Path, site: bool) -> Iterator[None]:
    """Let errors name the file, or for a site its kind; errors of its reader, which may quote data, lose their text."""
    suffix = file_suffix(file)
    kind = "workbook" if suffix in (".xlsx", ".xls") else f"{suffix} file".lstrip()
    name = f"the {kind} that 'data' names" if site else f"the {kind} {file.name}"
    try:
        yield
    except FedPCAError as error:
        raise error if error.fault.startswith(name) else name_file(error, name, travels=site) from None
    except Exception as error:  # whatever a damaged file does to its reader
        fault = DataError("it is damaged or not what its name says", local=f"{type(error).__name__} in {file}")
        raise name_file(fault, name, travels=site) from None
