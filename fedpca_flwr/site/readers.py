"""A site's own file of rows: the kinds of file in one table, read without leaking a value into an error.

A kind of file is an entry of `FORMATS`. `read` checks the rows that its reader gives, keeps those that are small, and
words whatever goes wrong in any reader: its own error may quote the file.
"""

import itertools
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from fedpca_flwr.data.frames import KINDS, arrow_column, arrow_kind, listed
from fedpca_flwr.data.table import INEXACT, Table, check, inexact
from fedpca_flwr.errors import ConfigError, DataError, FedPCAError
from fedpca_flwr.maths.rows import (
    CACHE_ELEMENTS,
    ENTRIES,
    Block,
    Blocks,
    Rows,
    as_blocks,
    csr,
    of_columns,
    sparse_rows,
)
from fedpca_flwr.site import csv_file
from fedpca_flwr.site.bed_file import read_bed
from fedpca_flwr.site.columns import DO_INSTEAD, Selection, column_position, extra
from fedpca_flwr.site.csv_format import CsvKeys, is_missing, opener
from fedpca_flwr.site.office_files import Text, spreadsheet, statistics_file


def read_parquet(file: Path, selection: Selection) -> tuple[Rows, list[str]]:
    """The rows, of the dtype that holds all columns and what is missing in them, and the names of these."""
    from pyarrow import parquet

    with parquet.ParquetFile(file) as source:
        schema, metadata = source.schema_arrow, source.metadata
    every = list(schema.names)
    of_pandas = (schema.pandas_metadata or {}).get("index_columns", ())  # where a data frame's index was written
    index = {name for name in of_pandas if isinstance(name, str)}  # a range of numbers is no column, but a mapping
    features = [place for place in selection.positions(every, len(every)) if every[place] not in index]
    names = [every[position] for position in features]
    _require_numbers(schema, features, names)
    dtype = np.result_type(*(_dtype(schema.field(position).type, metadata, position) for position in features))
    return Blocks(lambda: _parquet_blocks(file, features, len(every), dtype), len(features), dtype), names


def _require_numbers(schema: Any, features: Sequence[int], names: Sequence[str]) -> None:
    if not features or any(name.startswith("__index_level_") for name in names):
        raise DataError("the .parquet file has an unnamed index as a column, or no feature: write it without its index")
    by_kind: dict[str, list[object]] = {}
    for position, name in zip(features, names, strict=True):
        if kind := arrow_kind(schema.field(position).type):
            by_kind.setdefault(kind, []).append(name)
    if by_kind:
        advice = "; ".join(f"{kind} ({KINDS[kind]})" for kind in by_kind)
        raise DataError(
            f"the .parquet file has columns that are not numbers: {advice}. Or leave them out, or name one as "
            "node-config 'label'",
            local="; ".join(f"{kind} in {listed(own)}" for kind, own in by_kind.items()),
        )
    _require_own_names(names, "the .parquet file has columns of the same name; give each a name of its own")


def _require_own_names(names: Sequence[str], fault: str) -> None:
    """Refuse names of which one occurs twice, by the text of the ``fault``."""
    doubled = [name for name, times in Counter(names).items() if times > 1]
    if doubled:
        raise DataError(fault, local=listed(doubled))


def _dtype(kind: Any, metadata: Any, position: int) -> np.dtype[Any]:
    """The dtype of a column: that of its kind where this has NaN, or the file says that no value is missing."""
    from pyarrow import types

    groups = (metadata.row_group(group).column(position).statistics for group in range(metadata.num_row_groups))
    complete = all(group is not None and group.has_null_count and not group.null_count for group in groups)
    as_it_is = types.is_floating(kind) or (complete and (types.is_integer(kind) or types.is_boolean(kind)))
    found: np.dtype[Any] = np.dtype(kind.to_pandas_dtype() if as_it_is else np.float64)
    return found


def _parquet_blocks(file: Path, features: list[int], width: int, dtype: np.dtype[Any]) -> Iterator[NDArray[Any]]:
    from pyarrow import parquet

    with parquet.ParquetFile(file) as source:
        for batch in source.iter_batches(max(64, CACHE_ELEMENTS // width)):
            columns = [arrow_column(batch.column(position)) for position in features]
            lost = [isinstance(one, str) or (dtype.kind == "f" and bool(inexact(one).any())) for one in columns]
            if any(lost):
                names = [batch.schema.names[position] for position in itertools.compress(features, lost)]
                raise DataError(f"the .parquet file holds {INEXACT}: {DO_INSTEAD}", local=listed(names))
            yield np.column_stack(columns).astype(dtype, copy=False)


def parquet_cells(file: Path, column: str, rows: int, label: str) -> list[str]:
    """The values of one column as texts; an empty one for what is missing."""
    from pyarrow import parquet

    table = parquet.read_table(file)
    position = column_position(column, table.column_names, table.num_columns, "ids")
    return ["" if value is None else str(value).strip() for value in table.column(position).to_pylist()]


def read_h5ad(file: Path, selection: Selection, layer: str = "") -> tuple[Rows, list[str]]:
    """The rows of ``X`` or of a layer, and the names of its variables."""
    with extra("cells", "an .h5ad file needs anndata"):
        import anndata  # noqa: F401
        import h5py
    with h5py.File(file) as held:
        if layer and layer not in held.get("layers", {}):
            raise ConfigError(
                "node-config: 'layer' names no layer of the .h5ad file",
                local=f"layer '{layer}', layers {list(held.get('layers', {}))} of {file}",
            )
        if not layer and "X" not in held:
            raise DataError("the .h5ad file has no X; name a layer of it as node-config 'layer'", local=str(file))
        matrix = _matrix(held, layer)
        width, dtype, sparse = matrix.shape[1], matrix.dtype, not isinstance(matrix, h5py.Dataset)
        every = _variable_names(held["var"])
    fault = "the .h5ad file has genes of the same name; give each a name of its own: cells.var_names_make_unique()"
    _require_own_names(every, fault)
    columns = np.asarray(selection.positions(every, width), np.int64)
    rows = Blocks(lambda: _h5ad_blocks(file, layer, columns), columns.size, dtype, sparse=sparse)
    return rows, [every[position] for position in columns]


def _variable_names(variables: Any) -> list[str]:
    """Return the names of the variables; a file from before anndata 0.7 has them in the first field of its records."""
    from anndata.io import read_elem

    if hasattr(variables, "dtype"):
        first = variables[variables.dtype.names[0]].tolist()
        return [name.decode() if isinstance(name, bytes) else str(name) for name in first]
    return list(map(str, read_elem(variables).index))


def _matrix(held: Any, layer: str) -> Any:
    from anndata.io import sparse_dataset

    found = held[f"layers/{layer}" if layer else "X"]
    return found if hasattr(found, "dtype") else sparse_dataset(found)


def _h5ad_blocks(file: Path, layer: str, columns: NDArray[np.int64]) -> Iterator[Block]:
    import h5py

    with h5py.File(file) as held:
        matrix = _matrix(held, layer)
        n, d = matrix.shape
        few = max(64, ENTRIES // d)
        if not isinstance(matrix, h5py.Dataset):
            few = max(64, ENTRIES * n // max(1, len(matrix.group["data"])))
            if matrix.format == "csc":  # its rows are all over the file
                matrix = csr(matrix.to_memory())
        for start in range(0, n, few):
            block = matrix[start : start + few]
            block = block if isinstance(block, np.ndarray) else csr(block)
            yield block if columns.size == d else block[:, columns]


def _npy(file: Path, selection: Selection) -> tuple[Rows, list[str]]:
    try:
        rows = np.load(file, mmap_mode="r", allow_pickle=False)
    except ValueError:
        rows = None
    if not isinstance(rows, np.ndarray):  # NumPy opens an archive under any name
        raise DataError("the .npy file is not a plain array of numbers", local=str(file))
    return _without(rows, selection), []


def _npz(file: Path, selection: Selection) -> tuple[Rows, list[str]]:
    with np.load(file, allow_pickle=False) as archive:
        if {"format", "shape", "data"} <= set(archive.files):
            return _without(sparse_rows(sparse.load_npz(file)), selection), []
        key = "X" if "X" in archive.files else archive.files[0] if len(archive.files) == 1 else None
        if key is None:
            raise DataError(f"the .npz file holds {len(archive.files)} arrays and none is named 'X'", local=str(file))
        try:
            rows = archive[key]
            if not isinstance(rows, np.ndarray):  # NumPy gives the bytes of what is no array
                raise ValueError
        except ValueError:
            raise DataError("the .npz file does not hold a plain array of numbers", local=str(file)) from None
    return _without(rows, selection), []


def _without(rows: Rows, selection: Selection) -> Rows:
    """The rows without columns that are told by their numbers."""
    if not selection.keys or rows.ndim != 2:
        return rows
    return of_columns(rows, np.asarray(selection.positions([], rows.shape[1]), np.int64))


@dataclass(frozen=True)
class Format:
    """A kind of file.

    Parameters
    ----------
    rows : callable
        Makes of a path, a `Selection` of the columns and the ``settings`` by name the rows, and the names of their
        columns. What needs no memory for all rows gives `Blocks` whose ``read`` opens the file anew.
    ids : callable, optional
        Makes of a path, a column, the number of rows and the column of labels the cells of the column, without spaces
        around them; of a text also of the ``written`` and the ``selection``.
    settings : tuple of str
        What only this kind of file has: keys of the node-config; ``written``, the `CsvKeys` of a text; ``notes``, a
        list for what a reader of the rows must know.
    """

    rows: Callable[..., tuple[Rows, list[str]]]
    ids: Callable[..., list[str]] | None = None
    settings: tuple[str, ...] = ()


def _format_of_texts(as_text: Callable[[Path], Text]) -> Format:
    """The kind of a file of which a text is made, that is written as .csv files are."""

    def rows(file: Path, selection: Selection, *, written: CsvKeys, notes: list[str]) -> tuple[Rows, list[str]]:
        text = as_text(file)
        table = csv_file.open_csv(text.open, text.keys(written), selection, file.name)
        notes += filter(None, (text.note, table.note))
        return table.rows, table.feature_names

    def ids(file: Path, column: str, count: int, label: str, *, written: CsvKeys, selection: Selection) -> list[str]:
        text = as_text(file)
        return csv_file.cells_of(text.open, text.keys(written), selection, column, file.name)[-count:]

    return Format(rows, ids, ("written", "notes"))


FORMATS = {
    ".npy": Format(_npy),
    ".npz": Format(_npz),
    **dict.fromkeys((".csv", ".tsv", ".csv.gz", ".tsv.gz"), _format_of_texts(lambda file: Text(opener(file)))),
    ".parquet": Format(read_parquet, parquet_cells),
    ".h5ad": Format(read_h5ad, settings=("layer",)),
    ".bed": Format(read_bed, settings=("variants", "ambiguous")),
    **dict.fromkeys((".xlsx", ".xls"), _format_of_texts(spreadsheet)),
    **dict.fromkeys((".sav", ".dta", ".sas7bdat", ".xpt"), _format_of_texts(statistics_file)),
}


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
