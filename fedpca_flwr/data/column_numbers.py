"""Numbers of a column of narwhals, Arrow or objects, or the kind of what it holds; decimals count, if exact."""

from __future__ import annotations

import math
import numbers
import sys
from collections.abc import Iterable
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedpca_flwr.data.table import INEXACT_INTEGERS, inexact_integers

if TYPE_CHECKING:
    import narwhals.stable.v2 as nw

NON_NUMERIC_KINDS = {
    "texts": "numbers that are written as texts: pandas.to_numeric, of decimal commas after .str.replace(',', '.'); "
    "categories: name the columns in 'levels'",
    "categories": "name the columns in 'levels', or make a column of 0 and 1 of each (pandas.get_dummies)",
    "dates or times": "turn them into numbers, such as days since a date",
    "complex numbers": "take their real and imaginary parts",
    INEXACT_INTEGERS: "subtract a whole number that is near all of them first; ids are no features",
    "objects": "turn them into numbers; of lists give numpy.stack(list(column)) as the party's array",
}
"""Kinds of cells that a column may hold instead of numbers, and advice besides leaving it out."""


NumbersOrKind = NDArray[Any] | str  # the numbers (n,) of a column, or which of `NON_NUMERIC_KINDS` it holds instead


def series_numbers(series: nw.Series[Any]) -> NumbersOrKind:
    """Convert a narwhals column to numbers (n,), NaN where they are missing, or name the kind of its values."""
    import narwhals.stable.v2 as nw

    dtype, missing = series.dtype, series.null_count()
    if missing == len(series) and dtype in (nw.Unknown, nw.Object, nw.String):  # which pandas infers of nothing
        return np.full(missing, np.nan)
    if dtype in (nw.Decimal, nw.Int128, nw.UInt128):
        floats = np.asarray(series.cast(nw.Float64).to_numpy(), dtype=np.float64)
        large = np.flatnonzero(np.abs(floats) > 2.0**53).tolist()  # whole numbers among these must not be rounded
        cells = series.to_list() if large else []
        return INEXACT_INTEGERS if any(isinstance(_cell_number(cells[row]), str) for row in large) else floats
    if dtype.is_float() or (not missing and (dtype.is_integer() or dtype == nw.Boolean)):
        return np.asarray(series.to_numpy() if not missing else series.cast(nw.Float64).to_numpy())
    if dtype.is_integer() or dtype == nw.Boolean:
        lost = inexact_integers(np.asarray(series.drop_nulls().to_numpy())).any()
        return INEXACT_INTEGERS if lost else np.asarray(series.cast(nw.Float64).to_numpy(), dtype=np.float64)
    if kind := non_numeric_kind(dtype):
        return kind
    array = np.asarray(series.to_numpy())  # of objects, of complex numbers, or of a sparse column
    if array.dtype.kind == "c":
        return "complex numbers"
    return array if array.dtype.kind in "fiub" else object_numbers(array)


def non_numeric_kind(dtype: nw.dtypes.DType) -> str:
    """Name the kind of values of a narwhals dtype, a key of `NON_NUMERIC_KINDS`; empty if they may be numbers."""
    import narwhals.stable.v2 as nw

    if dtype in (nw.Categorical, nw.Enum):
        return "categories"
    if dtype.is_temporal():
        return "dates or times"
    if dtype.is_nested() or dtype == nw.Binary:
        return "objects"
    return "texts" if dtype == nw.String else ""


def arrow_numbers(column: Any) -> NumbersOrKind:
    """Convert an Arrow array as `series_numbers` does."""
    import narwhals.stable.v2 as nw
    import pyarrow as pa

    chunked = column if isinstance(column, pa.ChunkedArray) else pa.chunked_array([column])
    return series_numbers(nw.from_native(chunked, series_only=True))


def arrow_non_numeric_kind(kind: Any) -> str:
    """Name the kind of values of an Arrow type as `non_numeric_kind` does."""
    import narwhals.stable.v2 as nw
    import pyarrow as pa

    return non_numeric_kind(nw.from_native(pa.chunked_array([], type=kind), series_only=True).dtype)


def object_numbers(column: Iterable[Any]) -> NumbersOrKind:
    """Convert Python objects to floats (n,), NaN if missing, or name the kind of the first cell that is no number."""
    values = []
    for cell in column:
        number = _cell_number(cell)
        if isinstance(number, str):
            return number
        values.append(number)
    return np.array(values, dtype=np.float64)


def _cell_number(cell: Any) -> float | str:
    """Return a cell as a float, NaN if missing, or name its kind, a key of `NON_NUMERIC_KINDS`."""
    pandas = sys.modules.get("pandas")
    if cell is None or cell is np.ma.masked or (pandas and cell is pandas.NA):
        return math.nan
    if isinstance(cell, numbers.Real | Decimal | np.bool_):
        try:
            number = float(cell)
        except OverflowError:
            return "objects"
        if isinstance(cell, Decimal) and cell.is_finite() and cell == cell.to_integral_value():
            cell = int(cell)
        return INEXACT_INTEGERS if isinstance(cell, numbers.Integral) and int(number) != int(cell) else number
    if isinstance(cell, str | bytes):
        return "texts"
    if isinstance(cell, numbers.Complex):
        return "complex numbers"
    return "dates or times" if hasattr(cell, "isoformat") or hasattr(cell, "total_seconds") else "objects"
