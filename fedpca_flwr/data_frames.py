"""Data frames of pandas, Arrow and polars, and AnnData, as arrays of numbers; none of them is imported here first.

Booleans are numbers, and so are nullable integers and booleans; what is missing becomes NaN. Texts, categories, dates
and whatever else is no number are refused by the names of their columns, all at once.
"""

from __future__ import annotations

import math
import numbers
import sys
from collections import Counter
from collections.abc import Iterator
from decimal import Decimal
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from fedpca_flwr.column_labels import column_labels, is_cells, listed
from fedpca_flwr.errors import DataError

KINDS = {
    "texts": "encode them as numbers",
    "categories": "encode them, one column of 0 and 1 for each (pandas.get_dummies)",
    "dates or times": "turn them into numbers, such as days since a date",
    "complex numbers": "take their real and imaginary parts",
    "objects": "turn them into numbers",
}
"""What a column may hold instead of numbers, and what to do besides leaving it out."""


class NotNumbers(NamedTuple):
    """A column that does not hold numbers.

    Attributes
    ----------
    kind : str
        Of `KINDS`.
    """

    kind: str


Column = NDArray[Any] | NotNumbers


def numbers_of(frame: Any, name: str) -> Any:
    """The numbers of a data frame (n, d): an array of the dtype that holds all columns, or a sparse matrix.

    Parameters
    ----------
    frame : data frame
        Of pandas, Arrow or polars, or AnnData, whose ``X`` it is. Sparse columns of pandas, with zeros left out, stay
        sparse.
    name : str
        What an error calls it.

    Raises
    ------
    DataError
        With the label of every column that holds no numbers, or that has the label of another.
    """
    labels = column_labels(frame)
    doubled = [label for label, times in Counter(labels).items() if times > 1]
    if doubled:
        raise DataError(f"{name} has columns of the same name: {listed(doubled)}; give each a name of its own")
    if is_cells(frame):
        return _numbers_of_cells(frame, name)
    if (dtypes := set(getattr(frame, "dtypes", ()))) and all(_is_plain(dtype) for dtype in dtypes):
        return frame.to_numpy(np.result_type(*dtypes))  # of pandas, not copied where all columns have one dtype
    columns = list(_columns(frame))
    by_kind: dict[str, list[object]] = {}
    for label, column in zip(labels, columns, strict=True):
        if isinstance(column, NotNumbers):
            by_kind.setdefault(column.kind, []).append(label)
    if by_kind:
        held = "; ".join(f"{kind} in {listed(own)} ({KINDS[kind]})" for kind, own in by_kind.items())
        raise DataError(f"{name} has columns that are not numbers: {held}. Or leave them out")
    if not columns:
        return np.empty((len(frame), 0))
    if all(sparse.issparse(column) for column in columns):
        return sparse.hstack(columns, format="csr")
    return np.column_stack([column.toarray().ravel() if sparse.issparse(column) else column for column in columns])


def _numbers_of_cells(cells: Any, name: str) -> Any:
    held = (cells.to_memory() if cells.isbacked else cells).X
    if held is None:
        raise DataError(f"{name} has no X; put what to take there, such as a layer: cells.X = cells.layers['counts']")
    return held


def _is_plain(dtype: object) -> bool:
    return isinstance(dtype, np.dtype) and dtype.kind in "fiub"


def _columns(frame: Any) -> Iterator[Any]:
    """Each column: numbers (n,), sparse ones (n, 1), or what it holds instead."""
    if hasattr(type(frame), "column_names"):
        return map(arrow_column, frame.columns)
    if hasattr(frame, "iter_columns"):
        return map(_polars_column, frame.iter_columns())
    return (_pandas_column(frame.iloc[:, place]) for place in range(frame.shape[1]))


def arrow_column(column: Any) -> Column:
    """The numbers of an array of Arrow's, as float64 where some are missing."""
    kind = arrow_kind(column.type)
    if kind:
        return NotNumbers(kind)
    import pyarrow as pa
    from pyarrow import compute

    if column.null_count or pa.types.is_decimal(column.type) or pa.types.is_null(column.type):
        column = compute.cast(column, pa.float64(), safe=False)
    array = column.to_numpy() if isinstance(column, pa.ChunkedArray) else column.to_numpy(zero_copy_only=False)
    return np.asarray(array)


def arrow_kind(kind: Any) -> str:
    """What a type of Arrow's holds instead of numbers; empty for numbers, booleans, and what is missing throughout."""
    from pyarrow import types

    if any(
        test(kind) for test in (types.is_integer, types.is_floating, types.is_boolean, types.is_decimal, types.is_null)
    ):
        return ""
    if types.is_dictionary(kind):
        return "categories"
    if types.is_temporal(kind):
        return "dates or times"
    return "texts" if "string" in str(kind) else "objects"


def _polars_column(column: Any) -> Column:
    import polars

    kind = column.dtype
    if kind.is_numeric() or kind in (polars.Boolean, polars.Null):
        real = column.null_count() or kind.is_decimal() or kind == polars.Null
        return np.asarray((column.cast(polars.Float64) if real else column).to_numpy())
    if kind.is_temporal():
        return NotNumbers("dates or times")
    if kind in (polars.Categorical, polars.Enum):
        return NotNumbers("categories")
    return NotNumbers("texts" if kind == polars.String else "objects")


def _pandas_column(column: Any) -> Any:
    """Of pandas, or of what behaves like it."""
    dtype = column.dtype
    if isinstance(dtype, np.dtype):
        return _numpy_column(column.to_numpy())
    text = str(dtype)
    if text.startswith("Sparse"):
        zeros_left_out = dtype.kind in "fiub" and dtype.fill_value == 0
        return _sparse_column(column.array) if zeros_left_out else _numpy_column(np.asarray(column))
    if text == "category":
        return NotNumbers("categories")
    if getattr(dtype, "kind", "O") in "fiub":
        given = column.to_numpy(dtype=np.float64, na_value=np.nan) if column.isna().any() else column.to_numpy()
        return _numpy_column(given)
    if getattr(dtype, "kind", "O") in "mM":
        return NotNumbers("dates or times")
    return NotNumbers("texts") if text.startswith(("string", "str")) else _of_objects(column.to_numpy())


def _sparse_column(held: Any) -> Any:
    """A sparse array of pandas as a matrix (n, 1)."""
    places = held.sp_index.to_int_index().indices
    return sparse.csc_array((held.sp_values, places, np.array([0, len(places)])), shape=(len(held), 1))


def _numpy_column(column: NDArray[Any]) -> Column:
    kind = column.dtype.kind
    if kind in "fiub":
        return column
    if kind in "mM":
        return NotNumbers("dates or times")
    if kind == "c":
        return NotNumbers("complex numbers")
    return _of_objects(column) if kind == "O" else NotNumbers("texts")


def _of_objects(column: NDArray[Any]) -> Column:
    """Cells that are objects: numbers where each is one, or missing."""
    found = np.empty(len(column))
    for place, cell in enumerate(column):
        number = _number(cell)
        if isinstance(number, NotNumbers):
            return number
        found[place] = number
    return found


def _number(cell: Any) -> float | NotNumbers:
    pandas = sys.modules.get("pandas")
    if cell is None or (pandas and cell is pandas.NA):
        return math.nan
    if isinstance(cell, numbers.Real | Decimal | np.bool_):
        try:
            return float(cell)
        except OverflowError:
            return NotNumbers("objects")
    if isinstance(cell, str | bytes):
        return NotNumbers("texts")
    if isinstance(cell, numbers.Complex):
        return NotNumbers("complex numbers")
    return NotNumbers("dates or times" if hasattr(cell, "isoformat") or hasattr(cell, "total_seconds") else "objects")
