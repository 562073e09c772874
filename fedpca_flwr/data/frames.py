"""Arrays and data frames that a user hands over: their numbers and column names, told without a value of theirs.

Data frames are those of pandas, Arrow and polars, and AnnData; none of these libraries is imported here first. Booleans
are numbers, and so are nullable integers and booleans; what is missing becomes NaN. Texts, categories, dates and
whatever else is no number are refused by the names of their columns, all at once. Columns are matched by their labels
with those of a run or a model.
"""

import math
import numbers
import os
import sys
import warnings
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence, Set
from decimal import Decimal
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse

from fedpca_flwr.data.table import Table, names_digest
from fedpca_flwr.errors import DataError
from fedpca_flwr.maths.rows import Blocks, Rows, of_columns, row_major, sparse_rows, whole

MOST_NAMED = 20  # how many columns an error names at most


class Match(NamedTuple):
    """How the labels of a table's columns go with those that are wanted."""

    lacking: tuple[Hashable, ...]  # wanted, and not there
    alone: tuple[Hashable, ...]  # there, and not wanted
    order: list[int] | None  # where each wanted label stands; None where columns are as wanted, or labels are lacking


def match(labels: Sequence[Hashable], wanted: Sequence[Hashable]) -> Match:
    """The columns with these labels against those that are wanted."""
    places = {label: place for place, label in enumerate(labels)}
    known = {label for label in wanted if label in places}  # of millions of names that a run may want, those that exist
    lacking = tuple(label for label in wanted if label not in places)
    alone = tuple(label for label in labels if label not in known)
    as_wanted = lacking or tuple(labels) == tuple(wanted)
    return Match(lacking, alone, None if as_wanted else [places[label] for label in wanted])


def is_cells(X: object) -> bool:
    """Whether ``X`` is an AnnData: cells, and variables that have names."""
    return hasattr(type(X), "var_names") and hasattr(type(X), "obs_names")


def is_frame(X: object) -> bool:
    """Whether ``X`` is a table with labelled columns."""
    return is_cells(X) or hasattr(type(X), "column_names") or (hasattr(X, "columns") and hasattr(X, "shape"))


def column_labels(X: Any) -> tuple[Hashable, ...]:
    """The labels of the columns of a data frame, or of a site's table; empty for anything else."""
    if isinstance(X, Table):
        return X.names
    if is_cells(X):
        return tuple(X.var_names)
    if hasattr(type(X), "column_names"):  # an Arrow table
        return tuple(X.column_names)
    return tuple(X.columns) if is_frame(X) else ()


def row_labels(X: Any) -> tuple[Hashable, ...]:
    """The labels of the rows of a data frame of pandas, or the cells of an AnnData; empty for anything else."""
    return tuple(X.obs_names) if is_cells(X) else tuple(X.index) if is_frame(X) and hasattr(X, "iloc") else ()


def column_names(X: object) -> tuple[str, ...]:
    """The labels of a data frame's columns, or none where not all are texts: scikit-learn ignores them then."""
    labels = column_labels(X)
    return tuple(map(str, labels)) if all(isinstance(label, str) for label in labels) else ()


def listed(labels: Sequence[object]) -> str:
    """Labels of columns for a text: no more than `MOST_NAMED`."""
    more = f" and {len(labels) - MOST_NAMED} more" if len(labels) > MOST_NAMED else ""
    return ", ".join(map(repr, labels[:MOST_NAMED])) + more


KINDS = {
    "texts": "numbers that are written as texts: pandas.to_numeric, of decimal commas after .str.replace(',', '.'); "
    "categories: name the columns in 'levels'",
    "categories": "name the columns in 'levels', or make a column of 0 and 1 of each (pandas.get_dummies)",
    "dates or times": "turn them into numbers, such as days since a date",
    "complex numbers": "take their real and imaginary parts",
    "objects": "turn them into numbers",
}
"""What a column may hold instead of numbers, and what to do besides leaving it out."""


Column = NDArray[Any] | str
"""The numbers (n,) of a column, or which of `KINDS` it holds instead."""


def numbers_of(frame: Any, name: str) -> Any:
    """The numbers of a data frame (n, d): an array of the dtype that holds all columns, or a sparse matrix.

    Of an AnnData it is its ``X``. Sparse columns of pandas, with zeros left out, stay sparse. An error, which calls the
    frame by its ``name``, has the label of every column that holds no numbers, or that has the label of another.
    """
    labels = column_labels(frame)
    doubled = [label for label, times in Counter(labels).items() if times > 1]
    if doubled:
        raise DataError(f"{name} has columns of the same name: {listed(doubled)}; give each a name of its own")
    if is_cells(frame):
        held = (frame.to_memory() if frame.isbacked else frame).X
        if held is None:
            advice = "put what to take there, such as a layer: cells.X = cells.layers['counts']"
            raise DataError(f"{name} has no X; {advice}")
        return held
    dtypes = set(getattr(frame, "dtypes", ()))
    if dtypes and all(isinstance(dtype, np.dtype) and dtype.kind in "fiub" for dtype in dtypes):
        return frame.to_numpy(np.result_type(*dtypes))  # of pandas, not copied where all columns have one dtype
    columns = list(_columns(frame))
    by_kind: dict[str, list[object]] = {}
    for label, column in zip(labels, columns, strict=True):
        if isinstance(column, str):
            by_kind.setdefault(column, []).append(label)
    if by_kind:
        held = "; ".join(f"{kind} in {listed(own)} ({KINDS[kind]})" for kind, own in by_kind.items())
        raise DataError(f"{name} has columns that are not numbers: {held}. Or leave them out")
    if not columns:
        return np.empty((len(frame), 0))
    if all(sparse.issparse(column) for column in columns):
        return sparse.hstack(columns, format="csr")
    return np.column_stack([column.toarray().ravel() if sparse.issparse(column) else column for column in columns])


def _columns(frame: Any) -> Iterator[Any]:
    """Each column: numbers (n,), sparse ones (n, 1), or what it holds instead."""
    if hasattr(type(frame), "column_names"):
        return map(arrow_column, frame.columns)
    if hasattr(frame, "iter_columns"):
        return map(_polars_column, frame.iter_columns())
    return (_pandas_column(frame.iloc[:, place]) for place in range(frame.shape[1]))


def arrow_column(column: Any) -> Column:
    """The numbers of an array of Arrow's, as float64 where some are missing."""
    if kind := arrow_kind(column.type):
        return kind
    import pyarrow as pa
    from pyarrow import compute

    if column.null_count or pa.types.is_decimal(column.type) or pa.types.is_null(column.type):
        column = compute.cast(column, pa.float64(), safe=False)
    array = column.to_numpy() if isinstance(column, pa.ChunkedArray) else column.to_numpy(zero_copy_only=False)
    return np.asarray(array)


def arrow_kind(kind: Any) -> str:
    """What a type of Arrow's holds instead of numbers; empty for numbers, booleans, and what is missing throughout."""
    from pyarrow import types

    numeric = (types.is_integer, types.is_floating, types.is_boolean, types.is_decimal, types.is_null)
    if any(test(kind) for test in numeric):
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
        return "dates or times"
    if kind in (polars.Categorical, polars.Enum):
        return "categories"
    return "texts" if kind == polars.String else "objects"


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
        return "categories"
    if getattr(dtype, "kind", "O") in "fiub":
        given = column.to_numpy(dtype=np.float64, na_value=np.nan) if column.isna().any() else column.to_numpy()
        return _numpy_column(given)
    if getattr(dtype, "kind", "O") in "mM":
        return "dates or times"
    return "texts" if text.startswith(("string", "str")) else _of_objects(column.to_numpy())


def _sparse_column(held: Any) -> Any:
    """A sparse array of pandas as a matrix (n, 1)."""
    places = held.sp_index.to_int_index().indices
    return sparse.csc_array((held.sp_values, places, np.array([0, len(places)])), shape=(len(held), 1))


def _numpy_column(column: NDArray[Any]) -> Column:
    kind = column.dtype.kind
    if kind in "fiub":
        return column
    if kind in "mM":
        return "dates or times"
    if kind == "c":
        return "complex numbers"
    return _of_objects(column) if kind == "O" else "texts"


def _of_objects(column: NDArray[Any]) -> Column:
    """Cells that are objects: numbers where each is one, or missing."""
    found = np.empty(len(column))
    for place, cell in enumerate(column):
        number = _number(cell)
        if isinstance(number, str):
            return number
        found[place] = number
    return found


def _number(cell: Any) -> float | str:
    pandas = sys.modules.get("pandas")
    if cell is None or (pandas and cell is pandas.NA):
        return math.nan
    if isinstance(cell, numbers.Real | Decimal | np.bool_):
        try:
            return float(cell)
        except OverflowError:
            return "objects"
    if isinstance(cell, str | bytes):
        return "texts"
    if isinstance(cell, numbers.Complex):
        return "complex numbers"
    return "dates or times" if hasattr(cell, "isoformat") or hasattr(cell, "total_seconds") else "objects"


FOREIGN = (
    "The feature names should match those that were passed during fit: these, or their order, are others (only a "
    "digest of the names at the parties is known)."
)

MOST_OF_A_KIND = 5  # how many names an error of other names lists at most, as scikit-learn's do


def as_array(X: Any, name: str) -> NDArray[Any]:
    """``X`` as an array; what is masked, or missing in a data frame, is NaN. An error calls it by its ``name``."""
    rows = as_rows(X, name)
    return whole(rows) if isinstance(rows, Blocks) else rows


def as_rows(X: Any, name: str) -> Rows:
    """``X`` as rows: an array as `row_major` orders it, or the blocks of a sparse matrix, or those that it has."""
    if isinstance(X, Table):
        return X.rows
    if isinstance(X, Blocks):
        return X
    if X is None or isinstance(X, str | bytes | os.PathLike | Mapping | Set | Iterator):
        first = " (read a file first, with pandas.read_csv or numpy.load)" if isinstance(X, str | os.PathLike) else ""
        raise DataError(
            f"{name} is of type {type(X).__name__}, expected an array, a data frame or a sparse matrix of rows{first}"
        )
    try:
        held = numbers_of(X, name) if is_frame(X) else X
        if sparse.issparse(held):
            return sparse_rows(held)
        return row_major(_unmasked(held) if isinstance(held, np.ma.MaskedArray) else np.asarray(held))
    except DataError:
        raise
    except ValueError:
        what = "a sparse matrix whose indices do not fit its shape" if sparse.issparse(X) else None
        raise DataError(f"{name} is {what or 'not an array: its rows differ in length'}") from None
    except Exception as error:  # whatever an object of another library does, whose text may quote a value
        raise DataError(f"{name} cannot be made an array ({type(error).__name__})") from None


def _unmasked(masked: np.ma.MaskedArray[Any, Any]) -> NDArray[Any]:
    """The array, with NaN where numbers are masked; what is no number is refused as it would be without a mask."""
    if masked.dtype.kind not in "fiub" or not np.ma.is_masked(masked):
        return masked.data
    found = np.array(masked.data, dtype=masked.dtype if masked.dtype.kind == "f" else np.float64)
    found[np.ma.getmaskarray(masked)] = np.nan
    return found


def finite_matrix(X: ArrayLike | Rows, width: int, name: str, *, incomplete: bool = False) -> NDArray[Any]:
    """``X`` as finite real numbers (n, ``width``), n at least 1; where it may be ``incomplete``, NaN is one too."""
    rows = as_array(X, name)
    if rows.dtype == object:
        try:
            if any(isinstance(cell, str | bytes) for cell in rows.flat):  # NumPy would read numbers out of texts
                raise TypeError
            rows = rows.astype(np.float64)
        except (TypeError, ValueError):  # whose text may quote a cell
            raise DataError(f"{name} has cells that are not numbers: leave out or encode such columns") from None
    if rows.dtype.kind not in "fiub":
        raise DataError(f"{name} has dtype {rows.dtype}, expected real numbers")
    if rows.ndim != 2 or rows.shape[1] != width or not len(rows):
        raise DataError(f"{name} has shape {rows.shape}, expected (n, {width}) with n at least 1")
    if (np.isinf(rows) if incomplete else ~np.isfinite(rows)).any():
        held = "infinity" if incomplete else "NaN or infinity"
        raise DataError(f"{name} contains {held}: fill or drop such rows first")
    return rows


def check_digest(X: ArrayLike, digest: str) -> None:
    """Refuse a data frame whose column names are not those of a digest; either may be without names."""
    names = column_names(X)
    if names and digest and names_digest(names) != digest:
        raise DataError(FOREIGN)


def rows_of(
    X: Any, width: int, names: Sequence[str] = (), *, digest: str = "", name: str = "X", fitted: str = "PCA"
) -> Rows:
    """Rows (n, ``width``) that belong to a fitted model, their columns in its order; refused in scikit-learn's words.

    Where both have names, columns are matched by them, as `simulations.run` matches those of the parties. The model's
    ``names`` are those of its features, where they are known; ``digest`` is of these, where only that is known. Errors
    call the rows and the model ``name`` and ``fitted``.
    """
    several = (
        isinstance(X, list | tuple)
        and not isinstance(X, Table)
        and any(is_frame(one) or getattr(one, "ndim", 0) == 2 for one in X)
    )
    if several or isinstance(X, Mapping):
        raise DataError(
            f"{name} is of type {type(X).__name__}, expected one table; of several parties ask for the scores of each: "
            "[model.transform(rows) for rows in parties]"
        )
    given, wanted = column_names(X), tuple(names)
    if not wanted:
        check_digest(X, digest)
    if given and not wanted and not digest:
        warnings.warn(f"{name} has feature names, but {fitted} was fitted without feature names", stacklevel=4)
    if not given and (wanted or digest):
        warnings.warn(
            f"{name} does not have valid feature names, but {fitted} was fitted with feature names", stacklevel=4
        )
    order = _order(given, wanted) if given and wanted else None
    rows = as_rows(X, name)
    if rows.ndim == 2 and rows.shape[1] != width:
        raise DataError(
            f"{name} has {rows.shape[1]} features, but {fitted} is expecting {width} features as input: expected (n, "
            f"{width})"
        )
    if rows.ndim != 2 or not len(rows):
        raise DataError(f"{name} has shape {rows.shape}, expected (n, {width}) with n at least 1")
    return rows if order is None else of_columns(rows, order)


def _order(given: Sequence[str], wanted: Sequence[str]) -> list[int] | None:
    """Where each of the features that are wanted stands; None where they stand as wanted. Refuses other names."""
    found = match(given, wanted)
    if not (found.lacking or found.alone):
        return found.order
    lines = ["The feature names should match those that were passed during fit."]
    for what, labels in (("unseen at fit time", found.alone), ("seen at fit time, yet now missing", found.lacking)):
        names = sorted(map(str, labels))
        more = ["- ..."] if len(names) > MOST_OF_A_KIND else []
        lines += [f"Feature names {what}:", *(f"- {one}" for one in names[:MOST_OF_A_KIND]), *more] if names else []
    raise DataError("\n".join(lines) + "\n")
