"""A .parquet file as blocks of rows (extra ``parquet``)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedpca_flwr.column_labels import listed
from fedpca_flwr.data_frames import KINDS, arrow_column, arrow_kind
from fedpca_flwr.errors import ConfigError, DataError
from fedpca_flwr.maths.blocks import CACHE_ELEMENTS, Blocks, Rows
from fedpca_flwr.site.columns import LeftOut, column_position


def read_parquet(file: Path, left_out: LeftOut) -> tuple[Rows, list[str]]:
    """The rows, of the dtype that holds all columns and what is missing in them, and the names of these."""
    try:
        from pyarrow import parquet
    except ImportError:
        raise ConfigError(
            "a .parquet file needs pyarrow, which is not installed; pip install '.[parquet]' in the repository"
        ) from None
    with parquet.ParquetFile(file) as source:
        schema, metadata = source.schema_arrow, source.metadata
    every = list(schema.names)
    dropped = {column_position(name, every, len(every), key) for key, name in left_out.items()}
    kept = [position for position in range(len(every)) if position not in dropped]
    names = [every[position] for position in kept]
    _require_numbers(schema, kept, names)
    held = [_dtype(schema.field(position).type, _is_complete(metadata, position)) for position in kept]
    dtype = np.result_type(*held)
    return Blocks(lambda: _blocks(file, kept, len(every), dtype), len(kept), dtype), names


def _require_numbers(schema: Any, kept: Sequence[int], names: Sequence[str]) -> None:
    if not kept or any(name.startswith("__index_level_") for name in names):
        raise DataError("the .parquet file has an index column, or no feature: write it without its index")
    by_kind: dict[str, list[object]] = {}
    for position, name in zip(kept, names, strict=True):
        if kind := arrow_kind(schema.field(position).type):
            by_kind.setdefault(kind, []).append(name)
    if by_kind:
        advice = "; ".join(f"{kind} ({KINDS[kind]})" for kind in by_kind)
        raise DataError(
            f"the .parquet file has columns that are not numbers: {advice}. Or leave them out, or name one as "
            "node-config 'label'",
            local="; ".join(f"{kind} in {listed(own)}" for kind, own in by_kind.items()),
        )
    doubled = [name for name, times in Counter(names).items() if times > 1]
    if doubled:
        raise DataError(
            "the .parquet file has columns of the same name; give each a name of its own", local=listed(doubled)
        )


def _is_complete(metadata: Any, position: int) -> bool:
    """Whether the file says that no value of a column is missing."""
    groups = (metadata.row_group(group).column(position).statistics for group in range(metadata.num_row_groups))
    return all(group is not None and group.has_null_count and not group.null_count for group in groups)


def _dtype(kind: Any, complete: bool) -> np.dtype[Any]:
    from pyarrow import types

    as_it_is = types.is_floating(kind) or (complete and (types.is_integer(kind) or types.is_boolean(kind)))
    found: np.dtype[Any] = np.dtype(kind.to_pandas_dtype() if as_it_is else np.float64)
    return found


def _blocks(file: Path, kept: list[int], width: int, dtype: np.dtype[Any]) -> Iterator[NDArray[Any]]:
    from pyarrow import parquet

    with parquet.ParquetFile(file) as source:
        for batch in source.iter_batches(max(64, CACHE_ELEMENTS // width)):
            columns = [arrow_column(batch.column(position)) for position in kept]
            yield np.column_stack(columns).astype(dtype, copy=False)
