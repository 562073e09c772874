"""A .parquet file as blocks of rows (extra ``parquet``)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedpca_flwr.errors import ConfigError, DataError
from fedpca_flwr.maths.blocks import CACHE_ELEMENTS, Blocks, Rows
from fedpca_flwr.site.columns import LeftOut, column_position


def read_parquet(file: Path, left_out: LeftOut) -> tuple[Rows, list[str]]:
    """The rows, of the dtype that holds all columns, and the names of these."""
    try:
        from pyarrow import parquet, types
    except ImportError:
        raise ConfigError(
            "a .parquet file needs pyarrow, which is not installed; pip install 'fedpca-flwr[parquet]'"
        ) from None
    schema = parquet.read_schema(file)
    every = list(schema.names)
    dropped = {column_position(name, every, len(every), key) for key, name in left_out.items()}
    kept = [position for position in range(len(every)) if position not in dropped]
    names = [every[position] for position in kept]
    if not kept or any(name.startswith("__index_level_") for name in names):
        raise DataError("the .parquet file has an index column, or no feature: write it without its index")
    kinds = [schema.field(position).type for position in kept]
    if not all(types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind) for kind in kinds):
        raise DataError("the .parquet file has columns that are not numbers", local=str(file))
    dtype = np.result_type(*(kind.to_pandas_dtype() for kind in kinds))
    return Blocks(lambda: _blocks(file, kept, len(every), dtype), len(kept), dtype), names


def _blocks(file: Path, kept: list[int], width: int, dtype: np.dtype[Any]) -> Iterator[NDArray[Any]]:
    from pyarrow import parquet, types

    with parquet.ParquetFile(file) as source:
        for batch in source.iter_batches(max(64, CACHE_ELEMENTS // width)):
            columns = [batch.column(position) for position in kept]
            if any(column.null_count for column in columns if not types.is_floating(column.type)):
                raise DataError(
                    "the .parquet file has missing values in columns of whole numbers or booleans: fill or drop them, "
                    "or write these columns as float64",
                    local=str(file),
                )
            numbers = [column.to_numpy(zero_copy_only=False) for column in columns]
            yield np.column_stack(numbers).astype(dtype, copy=False)
