"""The rows of a .parquet file, row group by row group."""

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedpca_flwr.data.column_numbers import NON_NUMERIC_KINDS, arrow_non_numeric_kind, arrow_numbers
from fedpca_flwr.data.table import INEXACT_INTEGERS, inexact_integers, labels_text
from fedpca_flwr.errors import Advice, DataError
from fedpca_flwr.maths.rows import CACHE_ELEMENTS, Blocks, Rows
from fedpca_flwr.site.readers.columns import INEXACT_ADVICE, ColumnSelection, column_positions, join_items
from fedpca_flwr.site.readers.file_format import FileFormat, require_unique_names
from fedpca_flwr.site.readers.unpacking import MAX_COLUMN_RATIO, require_unpacked_size


def read_parquet(file: Path, selection: ColumnSelection) -> tuple[Rows, list[str]]:
    """Read a .parquet file, or a folder of such files, as lazy blocks of rows, and the names of its features.

    An index of pandas is no feature. The dtype is the smallest that holds all columns and NaN for missing values.
    """
    schemas, metadata = zip(*map(_contents, parts := _parts(file)), strict=True)
    schema = schemas[0]
    if others := [part.name for part, other in zip(parts, schemas, strict=True) if not other.equals(schema)]:
        raise DataError("files of the folder have other columns, or other types of columns", local=labels_text(others))
    column_names = list(schema.names)
    pandas_index = (schema.pandas_metadata or {}).get("index_columns", ())  # where a data frame's index was written
    index = {name for name in pandas_index if isinstance(name, str)}  # a range of numbers is no column, but a mapping
    positions = selection.positions(column_names, len(column_names))
    features = [position for position in positions if column_names[position] not in index]
    names = [column_names[position] for position in features]
    if not features or any(name.startswith("__index_level_") for name in names):
        raise DataError("a column is an index without a name, or there is no feature: write it without its index")
    by_kind: dict[str, list[object]] = {}
    for position, name in zip(features, names, strict=True):
        if kind := arrow_non_numeric_kind(schema.field(position).type):
            by_kind.setdefault(kind, []).append(name)
    if by_kind:
        faults = "; ".join(f"{kind} ({NON_NUMERIC_KINDS[kind]})" for kind in by_kind)
        raise DataError(
            f"columns are not numbers: {faults}; or name one as 'label'",
            local="; ".join(f"{kind} in {labels_text(columns)}" for kind, columns in by_kind.items()),
            advice=[Advice({"leave_out": join_items(selection.leave_out, itertools.chain(*by_kind.values()))})],
        )
    require_unique_names(names, "columns have the same name; give each a name of its own")
    dtype = np.result_type(*(_column_dtype(schema.field(position).type, metadata, position) for position in features))
    for part, content in zip(parts, metadata, strict=True):
        nbytes = content.num_rows * len(features) * dtype.itemsize
        require_unpacked_size(part, nbytes, "save it as .csv or .npy", max_ratio=MAX_COLUMN_RATIO)
    return Blocks(lambda: _read_blocks(parts, features, len(column_names), dtype), len(features), dtype), names


def _parts(file: Path) -> list[Path]:
    """Return the file, or the .parquet files of a folder as Spark and dask write it, ordered by name."""
    if not file.is_dir():
        return [file]
    if not (parts := sorted(file.rglob("[!._]*.parquet"))):
        raise DataError("the folder has no .parquet file")
    return parts


def _contents(file: Path) -> tuple[Any, Any]:
    """Return the schema and the metadata of a .parquet file."""
    from pyarrow import parquet

    with parquet.ParquetFile(file) as source:
        return source.schema_arrow, source.metadata


def _column_dtype(kind: Any, metadata: Sequence[Any], position: int) -> np.dtype[Any]:
    """Return a column's own dtype if it is floating, or by its statistics no value is missing; else float64."""
    from pyarrow import types

    groups = (
        part.row_group(group).column(position).statistics for part in metadata for group in range(part.num_row_groups)
    )
    complete = all(group is not None and group.has_null_count and not group.null_count for group in groups)
    is_native = types.is_floating(kind) or (complete and (types.is_integer(kind) or types.is_boolean(kind)))
    return np.dtype(kind.to_pandas_dtype() if is_native else np.float64)


def _batches(parts: Sequence[Path], width: int, columns: list[str] | None = None) -> Iterator[Any]:
    """Yield all rows of files of ``width`` columns, or these columns by name, as batches of Arrow."""
    from pyarrow import parquet

    for part in parts:
        with parquet.ParquetFile(part) as source:
            yield from source.iter_batches(max(64, CACHE_ELEMENTS // width), columns=columns)


def _read_blocks(
    parts: Sequence[Path], features: list[int], width: int, dtype: np.dtype[Any]
) -> Iterator[NDArray[Any]]:
    """Yield blocks (m, d) of the features in this dtype; raise DataError at integers that float64 would round."""
    for batch in _batches(parts, width):
        columns = [arrow_numbers(batch.column(position)) for position in features]
        lost = [isinstance(part, str) or (dtype.kind == "f" and inexact_integers(part).any()) for part in columns]
        if any(lost):
            names = [batch.schema.names[position] for position in itertools.compress(features, lost)]
            raise DataError(f"there are {INEXACT_INTEGERS}: {INEXACT_ADVICE}", local=labels_text(names))
        yield np.column_stack(columns).astype(dtype, copy=False)


def read_parquet_cells(file: Path, column: str, rows: int, label: str) -> list[str]:
    """Return all values of a column (name or number from 0) as stripped texts, with "" for a missing value."""
    names = list(_contents(_parts(file)[0])[0].names)
    position = column_positions(column, names, len(names), "ids")[0]
    cells = (cell for batch in _batches(_parts(file), 1, [names[position]]) for cell in batch.column(0).to_pylist())
    return ["" if value is None else str(value).strip() for value in cells]


PARQUET = FileFormat(read_parquet, read_parquet_cells, folders=True)
