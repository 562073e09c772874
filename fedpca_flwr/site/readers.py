"""A site's own file of rows: the kinds of file in one table, read without leaking a value into an error.

A kind of file is an entry of `FORMATS`. `read` checks the rows that its reader gives, keeps those that are small, and
words whatever goes wrong in any reader: its own error may quote the file.
"""

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
from fedpca_flwr.data.table import Table, check
from fedpca_flwr.errors import ConfigError, DataError, FedPCAError
from fedpca_flwr.maths.rows import CACHE_ELEMENTS, ENTRIES, Block, Blocks, Rows, csr, of_columns, sparse_rows
from fedpca_flwr.site.bed_file import read_bed
from fedpca_flwr.site.columns import LeftOut, column_position, extra, feature_positions
from fedpca_flwr.site.csv_file import cells_of, read_csv
from fedpca_flwr.site.csv_format import is_missing


def read_parquet(file: Path, left_out: LeftOut) -> tuple[Rows, list[str]]:
    """The rows, of the dtype that holds all columns and what is missing in them, and the names of these."""
    from pyarrow import parquet

    with parquet.ParquetFile(file) as source:
        schema, metadata = source.schema_arrow, source.metadata
    every = list(schema.names)
    index = _index_columns(schema)
    features = [place for place in feature_positions(left_out, every, len(every)) if every[place] not in index]
    names = [every[position] for position in features]
    _require_numbers(schema, features, names)
    held = [_dtype(schema.field(position).type, _is_complete(metadata, position)) for position in features]
    dtype = np.result_type(*held)
    return Blocks(lambda: _parquet_blocks(file, features, len(every), dtype), len(features), dtype), names


def _index_columns(schema: Any) -> set[str]:
    """Return the names of the columns that hold the index of the data frame that pandas has written, if it was one."""
    of_pandas = (schema.pandas_metadata or {}).get("index_columns", ())
    return {name for name in of_pandas if isinstance(name, str)}  # a range of numbers is no column, but a mapping


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


def _is_complete(metadata: Any, position: int) -> bool:
    """Whether the file says that no value of a column is missing."""
    groups = (metadata.row_group(group).column(position).statistics for group in range(metadata.num_row_groups))
    return all(group is not None and group.has_null_count and not group.null_count for group in groups)


def _dtype(kind: Any, complete: bool) -> np.dtype[Any]:
    from pyarrow import types

    as_it_is = types.is_floating(kind) or (complete and (types.is_integer(kind) or types.is_boolean(kind)))
    found: np.dtype[Any] = np.dtype(kind.to_pandas_dtype() if as_it_is else np.float64)
    return found


def _parquet_blocks(file: Path, features: list[int], width: int, dtype: np.dtype[Any]) -> Iterator[NDArray[Any]]:
    from pyarrow import parquet

    with parquet.ParquetFile(file) as source:
        for batch in source.iter_batches(max(64, CACHE_ELEMENTS // width)):
            columns = [arrow_column(batch.column(position)) for position in features]
            yield np.column_stack(columns).astype(dtype, copy=False)


def parquet_cells(file: Path, column: str, rows: int, label: str) -> list[str]:
    """The values of one column as texts; an empty one for what is missing."""
    from pyarrow import parquet

    table = parquet.read_table(file)
    position = column_position(column, table.column_names, table.num_columns, "ids")
    return ["" if value is None else str(value).strip() for value in table.column(position).to_pylist()]


def read_h5ad(file: Path, left_out: LeftOut, layer: str = "") -> tuple[Rows, list[str]]:
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
    columns = np.asarray(feature_positions(left_out, every, width), np.int64)
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


def _npy(file: Path, left_out: LeftOut) -> tuple[Rows, list[str]]:
    try:
        rows = np.load(file, mmap_mode="r", allow_pickle=False)
    except ValueError:
        rows = None
    if not isinstance(rows, np.ndarray):  # NumPy opens an archive under any name
        raise DataError("the .npy file is not a plain array of numbers", local=str(file))
    return _without(rows, left_out), []


def _npz(file: Path, left_out: LeftOut) -> tuple[Rows, list[str]]:
    with np.load(file, allow_pickle=False) as archive:
        if {"format", "shape", "data"} <= set(archive.files):
            return _without(sparse_rows(sparse.load_npz(file)), left_out), []
        key = "X" if "X" in archive.files else archive.files[0] if len(archive.files) == 1 else None
        if key is None:
            raise DataError(f"the .npz file holds {len(archive.files)} arrays and none is named 'X'", local=str(file))
        try:
            rows = archive[key]
            if not isinstance(rows, np.ndarray):  # NumPy gives the bytes of what is no array
                raise ValueError
        except ValueError:
            raise DataError("the .npz file does not hold a plain array of numbers", local=str(file)) from None
    return _without(rows, left_out), []


def _without(rows: Rows, left_out: LeftOut) -> Rows:
    """The rows without columns that are told by their numbers."""
    if not left_out or rows.ndim != 2:
        return rows
    return of_columns(rows, np.asarray(feature_positions(left_out, [], rows.shape[1]), np.int64))


@dataclass(frozen=True)
class Format:
    """A kind of file.

    ``rows`` makes of a path, the columns that are no features and the ``settings`` by name the rows, and the names of
    their columns. What needs no memory for all rows gives `Blocks` whose ``read`` opens the file anew. ``ids`` makes of
    a path, a column, the number of rows and the column of labels the cells of the column, without spaces around them.
    """

    rows: Callable[..., tuple[Rows, list[str]]]
    ids: Callable[[Path, str, int, str], list[str]] | None = None
    settings: tuple[str, ...] = ()  # keys of the node-config that only this kind of file has


FORMATS = {
    ".npy": Format(_npy),
    ".npz": Format(_npz),
    ".csv": Format(read_csv, cells_of),
    ".parquet": Format(read_parquet, parquet_cells),
    ".h5ad": Format(read_h5ad, settings=("layer",)),
    ".bed": Format(read_bed, settings=("variants", "ambiguous")),
}

Keep = Callable[[Blocks], Blocks]
"""Takes rows as a file gives them, and returns the same rows, of which it may keep a copy."""


def as_they_are(rows: Blocks) -> Blocks:
    """The rows, of which nothing is kept."""
    return rows


SETTINGS = {"layer": "a layer", "variants": "a list of variants"}
"""Keys of the node-config that not all kinds of file have, and what they name."""


def read(
    path: str,
    label: str = "",
    ids: str = "",
    layer: str = "",
    variants: str = "",
    *,
    ambiguous: bool = False,
    texts: Sequence[str] = (),
    keep: Keep = as_they_are,
) -> Table:
    """Read a site's rows, checked; the rest is as in `NodeConfig`. No error has a value or a path in its text, which
    travels to the server.

    ``.npy`` is memory-mapped; ``.npz`` must hold one array, or one named ``X``, or a sparse matrix as
    `scipy.sparse.save_npz` writes it; ``.csv`` is comma-separated with or without a header line; ``.h5ad`` needs the
    extra ``cells``, ``.bed`` the extra ``genotypes``. Columns of ``texts`` are left out (`read_texts`).
    """
    file = Path(path).expanduser()
    suffix = file.suffix.lower()
    if suffix not in FORMATS:
        raise ConfigError(
            f"node-config: 'data' names a file of unknown kind, expected one of: {', '.join(FORMATS)}", local=str(file)
        )
    if not file.is_file():
        raise DataError("the file that node-config 'data' names does not exist", local=str(file))
    kind, given = FORMATS[suffix], {"layer": layer, "variants": variants, "ambiguous": ambiguous}
    for key, named in SETTINGS.items():
        if given[key] and key not in kind.settings:
            having = " and ".join(suffix for suffix, other in FORMATS.items() if key in other.settings)
            raise ConfigError(f"node-config: '{key}' names {named}, which only {having} files have")
    settings = {key: given[key] for key in kind.settings}
    left_out = {key: name for key, name in (("label", label), ("ids", ids)) if name}
    left_out |= {f"levels of {name}": name for name in texts}
    with _in_words(file):
        rows, names = kind.rows(file, left_out, **settings)
    if isinstance(rows, Blocks):
        rows = keep(replace(rows, read=partial(_read_in_words, file, rows.read)))
    return check(rows, names)


def read_ids(path: str, column: str, rows: int, label: str = "") -> list[str]:
    """The ids in a column of a file of so many ``rows``, stripped of spaces; the ``label`` is no feature either.

    No error has an id in its text, which travels to the server.
    """
    file = Path(path).expanduser()
    cells = FORMATS[file.suffix.lower()].ids
    if cells is None:
        having = " and ".join(suffix for suffix, kind in FORMATS.items() if kind.ids)
        raise ConfigError(f"node-config: 'ids' names a column, which only {having} files have")
    return cells(file, column, rows, label)


def holds_texts(path: str) -> bool:
    """Whether a file of this kind can hold columns of texts."""
    kind = FORMATS.get(Path(path).suffix.lower())
    return kind is not None and kind.ids is not None


def read_texts(path: str, column: str, rows: int, label: str = "") -> list[str | None]:
    """The texts in a column of a file of so many ``rows``, stripped of spaces; None for what is missing."""
    file = Path(path).expanduser()
    with _in_words(file):
        return [None if is_missing(cell) else cell for cell in read_ids(path, column, rows, label)]


def _read_in_words(file: Path, read: Callable[[], Iterable[Block]]) -> Iterator[Block]:
    with _in_words(file):
        yield from read()


@contextmanager
def _in_words(file: Path) -> Iterator[None]:
    """Tell an error of a reader in our own words: its own may quote the file."""
    try:
        yield
    except FedPCAError:
        raise
    except Exception as error:  # whatever a damaged file does to its reader
        raise DataError(
            f"the {file.suffix.lower()} file cannot be read: it is damaged or not what its name says",
            local=f"{type(error).__name__} in {file}",
        ) from None
