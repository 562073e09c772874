"""The rows of a .parquet file, row group by row group."""

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedpca_flwr.data.frames import KINDS, arrow_column, arrow_kind, listed
from fedpca_flwr.data.table import INEXACT, inexact
from fedpca_flwr.errors import DataError
from fedpca_flwr.maths.rows import CACHE_ELEMENTS, Blocks, Rows
from fedpca_flwr.site.columns import DO_INSTEAD, Selection, column_position
from fedpca_flwr.site.file_format import Format, require_own_names


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
    require_own_names(names, "the .parquet file has columns of the same name; give each a name of its own")


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


PARQUET = Format(read_parquet, parquet_cells)
