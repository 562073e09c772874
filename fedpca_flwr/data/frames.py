"""Arrays and data frames that a user hands over: their numbers, and the labels of their columns and rows.

Data frames are those of narwhals (pandas, polars, Arrow, DuckDB, Dask and others, lazy ones too), AnnData, labelled
arrays of xarray, and datasets of Hugging Face. Their libraries are not imported here. What is no number is refused by
the names of its columns, all at once.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse

from fedpca_flwr.data.column_numbers import NON_NUMERIC_KINDS, NumbersOrKind, object_numbers, series_numbers
from fedpca_flwr.data.table import INEXACT_INTEGERS, Table, inexact_integers, labels_text, names_digest
from fedpca_flwr.errors import DataError
from fedpca_flwr.maths.rows import Blocks, Rows, row_major, select_columns, sparse_rows, to_array


class Match(NamedTuple):
    """Comparison of a table's labels with expected labels."""

    missing: tuple[Hashable, ...]  # expected labels that the table lacks
    unexpected: tuple[Hashable, ...]  # labels of the table that are not expected
    order: list[int] | None  # positions of the expected labels; None if in order, or if labels are missing


def match_labels(labels: Sequence[Hashable], expected: Sequence[Hashable]) -> Match:
    """Compare the labels of a table's columns with those that a run or a model expects."""
    positions = {label: position for position, label in enumerate(labels)}
    present = {label for label in expected if label in positions}  # a run may expect millions of labels
    missing = tuple(label for label in expected if label not in positions)
    unexpected = tuple(label for label in labels if label not in present)
    unchanged = missing or tuple(labels) == tuple(expected)
    return Match(missing, unexpected, None if unchanged else [positions[label] for label in expected])


@dataclass(frozen=True)
class Frame:
    """Table of any data frame library: labels of columns and rows, and a function that reads the values."""

    labels: tuple[Hashable, ...]  # of the columns (`text_labels`); empty if there are none
    values: Callable[[], Any]  # reads an eager data frame of narwhals, or an array or sparse matrix of numbers
    index: Sequence[Hashable] = ()  # labels of the rows

    @property
    def has_default_index(self) -> bool:
        """True if the labels of rows are a plain range of numbers, also as texts, or there are none."""
        is_range = type(self.index).__name__ == "RangeIndex"
        return is_range or all(str(label) == str(place) for place, label in enumerate(self.index))


def open_frame(X: Any) -> Frame | None:
    """Return an object's labels and a function that reads its values; None without labels, DataError for equal ones."""
    kind = type(X)
    if isinstance(X, np.ndarray | Blocks | Table | list | tuple | str | bytes | dict | None) or sparse.issparse(X):
        return None
    if hasattr(kind, "var_names") and hasattr(kind, "obs_names"):  # AnnData
        return Frame(tuple(X.var_names), lambda: (X.to_memory() if X.isbacked else X).X, X.obs_names)
    if hasattr(kind, "dims") and hasattr(kind, "coords") and getattr(X, "ndim", 0) == 2:  # xarray
        rows, columns = (X.coords[dim].to_index() if dim in X.coords else () for dim in X.dims)
        return Frame(text_labels(columns), lambda: X.values, rows)
    if hasattr(kind, "with_format") and hasattr(kind, "column_names"):  # a data set of Hugging Face
        return _dataset_frame(X)
    columns = tuple(getattr(X, "columns", ())) if hasattr(kind, "iloc") else ()  # of pandas and its like
    if (labels := text_labels(columns)) != columns:
        X = X.copy(deep=False)
        X.columns = list(labels)
    data = _to_narwhals(X)
    if data is None:
        return None
    if not hasattr(data, "iter_columns"):  # lazy
        return Frame(tuple(data.collect_schema().names()), data.collect)
    return Frame(tuple(data.columns), lambda: data, X.index if hasattr(kind, "iloc") else ())


def text_labels(labels: Iterable[Hashable]) -> tuple[Hashable, ...]:
    """Return labels of columns as texts, a label of several levels joined by commas; 0, 1, ... of pandas unchanged."""
    labels = tuple(labels)
    texts = tuple(", ".join(map(str, label)) if isinstance(label, tuple) else str(label) for label in labels)
    has_numbers = texts == tuple(map(str, range(len(labels)))) and not any(isinstance(label, str) for label in labels)
    return tuple(range(len(labels))) if has_numbers else texts


def _dataset_frame(dataset: Any) -> Frame:
    """Return a data set of Hugging Face as a table; raise DataError for images or arrays beside other columns."""
    kinds = {name: type(feature).__name__ for name, feature in (dataset.features or {}).items()}
    nested = [name for name, kind in kinds.items() if kind not in ("Value", "ClassLabel")]
    if not nested:
        return Frame(tuple(dataset.column_names or ()), lambda: _to_narwhals(dataset.with_format("arrow")[:]))
    if len(kinds) > 1:
        raise DataError(
            f"columns with images or lists stand beside others: {labels_text(nested)}; give one of them alone, as "
            f"dataset.select_columns('{nested[0]}'), or columns of numbers only"
        )

    def values() -> NDArray[Any]:
        """Return a row of all pixels for each image; raise DataError for images of different sizes."""
        images = [np.asarray(image) for image in dataset.with_format("numpy")[:][nested[0]]]
        shapes = sorted({image.shape for image in images})
        if len(shapes) > 1:
            sizes = ", ".join(" x ".join(map(str, shape)) for shape in shapes[:3])
            raise DataError(f"the images or lists of column '{nested[0]}' differ in size ({sizes}): make them equal")
        return np.stack(images).reshape(len(images), -1)

    return Frame((), values)


def _to_narwhals(X: Any) -> Any:
    """Wrap a data frame by narwhals, None for other types; raise DataError for columns of the same name."""
    import narwhals.stable.v2 as nw  # not at the start of a site's process, whose rows may be in an array

    if type(X).__name__ == "RecordBatch" and hasattr(X, "to_struct_array"):
        X = sys.modules["pyarrow"].Table.from_batches([X])
    try:
        frame = nw.from_native(X, pass_through=True)
    except nw.exceptions.DuplicateError:
        names = _duplicates_text(X.column_names if hasattr(type(X), "column_names") else X.columns)
        raise DataError(f"a table has columns of the same name: {names}; {UNIQUE_NAMES_ADVICE}") from None
    return frame if isinstance(frame, nw.DataFrame | nw.LazyFrame) else None


UNIQUE_NAMES_ADVICE = "give each a name of its own"


def _duplicates_text(labels: Iterable[Hashable]) -> str:
    """Write the labels that occur more than once."""
    return labels_text([label for label, times in Counter(labels).items() if times > 1])


def is_frame(X: object) -> bool:
    """Return whether an object is a table with labelled columns."""
    return open_frame(X) is not None


def is_table(X: object) -> bool:
    """Return whether an object is one table of rows: an array or matrix of two axes, a frame, blocks, or a `Table`."""
    return isinstance(X, Table) or getattr(X, "ndim", 0) == 2 or is_frame(X)


def column_labels(X: Any) -> tuple[str, ...]:
    """Return the labels of a table's columns as texts, numbers too; an empty tuple for an object without labels."""
    if isinstance(X, Table):
        return X.names
    frame = open_frame(X)
    return () if frame is None else tuple(map(str, frame.labels))


def pop_column(X: Any, column: str) -> tuple[list[Any], Any] | None:
    """Return the values of a data frame's column, and the frame without it; None if there is no such column."""
    frame = open_frame(X)
    data: Any = None if frame is None or column not in frame.labels else frame.values()
    return (data[column].to_list(), data.drop(column).to_native()) if hasattr(data, "drop") else None


def row_labels(X: Any) -> tuple[Hashable, ...]:
    """Return the row labels of a pandas data frame, AnnData or xarray; an empty tuple for any other object."""
    frame = open_frame(X)
    return () if frame is None else tuple(frame.index)


def column_names(X: object) -> tuple[str, ...]:
    """Return the names of a table's columns; an empty tuple for an array, and for the labels 0, 1, ... of pandas."""
    frame = open_frame(X)
    return () if frame and isinstance(next(iter(frame.labels), ""), int) else column_labels(X)


def frame_numbers(frame: Frame, name: str) -> Any:
    """Convert a labelled table to an array or sparse matrix (n, d); DataError lists all columns that are no numbers."""
    if duplicates := _duplicates_text(frame.labels):
        raise DataError(f"{name} has columns of the same name: {duplicates}; {UNIQUE_NAMES_ADVICE}")
    data = frame.values()
    if data is None:
        advice = "put what to take there, such as a layer: cells.X = cells.layers['counts']"
        raise DataError(f"{name} has no X; {advice}")
    if not hasattr(data, "iter_columns"):
        return data
    native = data.to_native()
    dtypes = list(getattr(native, "dtypes", ()))
    if dtypes and all(isinstance(dtype, np.dtype) and dtype.kind in "fiub" for dtype in dtypes):
        kind = np.result_type(*dtypes)
        if kind.kind != "f" or not any(dtype.kind in "iu" and dtype.itemsize == 8 for dtype in dtypes):
            return native.to_numpy(kind)  # of pandas, not copied where all columns have one dtype
    if dtypes and all(hasattr(dtype, "fill_value") and dtype.fill_value == 0 for dtype in dtypes):
        return native.sparse.to_coo()
    return stack_columns([series_numbers(series) for series in data.iter_columns()], frame.labels, len(data), name)


def stack_columns(columns: Sequence[NumbersOrKind], labels: Sequence[Hashable], rows: int, name: str) -> NDArray[Any]:
    """Stack columns into an array (``rows``, d); raise DataError, which names all columns that are no numbers."""
    arrays = [column for column in columns if not isinstance(column, str)]
    dtype = np.result_type(*arrays) if arrays else np.dtype(np.float64)
    by_kind: dict[str, list[object]] = {}
    for label, column in zip(labels, columns, strict=True):
        if isinstance(column, str):
            by_kind.setdefault(column, []).append(label)
        elif dtype.kind == "f" and inexact_integers(column).any():
            by_kind.setdefault(INEXACT_INTEGERS, []).append(label)
    if by_kind:
        faults = [f"{kind} in {labels_text(named)} ({NON_NUMERIC_KINDS[kind]})" for kind, named in by_kind.items()]
        raise DataError(f"{name} has columns that cannot be taken as numbers: {'; '.join(faults)}. Or leave them out")
    return np.column_stack(arrays) if arrays else np.empty((rows, 0))


MAX_LISTED_NAMES = 5  # how many names an error of other names lists at most, as scikit-learn's do


def as_array(X: Any, name: str) -> NDArray[Any]:
    """Convert as `as_rows` does, to a dense array; masked and missing values are NaN."""
    rows = as_rows(X, name)
    return to_array(rows) if isinstance(rows, Blocks) else rows


def as_rows(X: Any, name: str) -> Rows:
    """Convert a table of any type to an array of any shape and dtype, or to blocks if sparse; DataError for others."""
    if isinstance(X, Table):
        return X.rows
    if isinstance(X, Blocks):
        return X
    _require_table(X, name)
    try:
        frame = open_frame(X)
        data = frame_numbers(frame, name) if frame else X.to_scipy_sparse() if hasattr(X, "to_scipy_sparse") else X
        if sparse.issparse(data):
            return sparse_rows(data)
        if isinstance(data, np.ma.MaskedArray) and data.dtype.kind in "fiub" and np.ma.is_masked(data):
            _require_exact(data.compressed(), name)
            array = np.array(data.data, dtype=data.dtype if data.dtype.kind == "f" else np.float64)
            array[np.ma.getmaskarray(data)] = np.nan
        else:
            array = np.asarray(data)
        if array.dtype == object and array.ndim == 2:
            array = stack_columns(list(map(object_numbers, array.T)), range(array.shape[1]), len(array), name)
        return row_major(array)
    except DataError:
        raise
    except ValueError:
        what = "a sparse matrix whose indices do not fit its shape" if sparse.issparse(X) else None
        raise DataError(f"{name} is {what or 'not an array: its rows differ in length'}") from None
    except Exception as error:  # whatever an object of another library does, whose text may quote a value
        steps = {"sparse": ".to_dense()", "": ".detach().cpu()", "bfloat16": ".float()"}  # by what a tensor says it is
        kind = f"{getattr(X, 'layout', '')} {getattr(X, 'dtype', '')}"
        code = f"X{''.join(step for word, step in steps.items() if word in kind)}.numpy()"
        remedy = f"give {code}" if hasattr(X, "detach") else "make it one first, as numpy.asarray does"
        raise DataError(f"{name} cannot be made an array ({type(error).__name__}): {remedy}") from None


def _require_table(X: Any, name: str) -> None:
    """Raise DataError for an object that is no table of rows, with advice on what to give instead."""
    instead = ""
    if isinstance(X, str | os.PathLike):
        instead = " (read a file first, with fedpca_flwr.read)"
    elif hasattr(X, "to_dataframe") and hasattr(X, "data_vars"):  # xarray, several arrays by name
        instead = " (a data frame of its arrays is X.to_dataframe())"
    is_none = X is None or isinstance(X, str | bytes | os.PathLike | Set | Iterator)
    if is_none or (isinstance(X, Mapping) and not sparse.issparse(X)):
        raise DataError(
            f"{name} is of type {type(X).__name__}, expected an array, a data frame or a sparse matrix of rows{instead}"
        )
    if isinstance(X, list | tuple) and len(X) == 2 and any(map(is_table, X)):
        raise DataError(f"{name} is a pair, such as (X, y), expected rows: give X, or of pairs (name, X) dict(parties)")
    if names := getattr(getattr(X, "dtype", None), "names", None):
        raise DataError(
            f"{name} is an array of records with the fields {labels_text(names)}, expected rows of numbers: give "
            "numpy.lib.recfunctions.structured_to_unstructured(X), or pandas.DataFrame(X)"
        )


def _require_exact(array: NDArray[Any], name: str) -> None:
    """Raise DataError for whole numbers that float64 cannot represent exactly."""
    if inexact_integers(array).any():
        raise DataError(f"{name} has {INEXACT_INTEGERS}: {NON_NUMERIC_KINDS[INEXACT_INTEGERS]}")


def finite_matrix(
    X: Any, width: int, name: str, names: Sequence[str] = (), *, incomplete: bool = False
) -> NDArray[Any]:
    """Convert to an array (n, width) of finite numbers, or NaN if ``incomplete``, or raise DataError with the names."""
    rows = as_array(X, name)
    if rows.dtype.kind not in "fiub":
        raise DataError(f"{name} has dtype {rows.dtype}, expected real numbers")
    if rows.ndim != 2 or rows.shape[1] != width or not len(rows):
        raise DataError(f"{name} has shape {rows.shape}, expected (n, {width}) with n at least 1")
    _require_exact(rows, name)
    invalid = np.isinf(rows) if incomplete else ~np.isfinite(rows)
    if invalid.any():
        fault = "infinity" if incomplete else "NaN or infinity"
        columns = labels_text([label for label, has in zip(names, invalid.any(axis=0), strict=False) if has])
        advice = "fill or drop such rows first (analyses.projected takes NaN)"
        raise DataError(f"{name} contains {fault}{columns and f' in {columns}'}: {advice}")
    return rows


def check_names_digest(X: ArrayLike, digest: str) -> None:
    """Raise DataError if a data frame's column names do not have the `names_digest` expected, if both are known."""
    names = column_names(X)
    if names and digest and names_digest(names) != digest:
        raise DataError(
            "The feature names should match those that were passed during fit: these, or their order, are others (only "
            "a digest of the names at the parties is known)."
        )


def align_rows(
    X: Any, width: int, names: Sequence[str] = (), *, digest: str = "", name: str = "X", model_name: str = "PCA"
) -> Rows:
    """Return rows (n, width) with their columns in a fitted model's order, matched by their names if both have names.

    ``digest`` is that of unknown names. Raise DataError for other names or shapes, and for several tables; warn if only
    one side has names.
    """
    several = isinstance(X, list | tuple) and not is_table(X) and any(map(is_table, X))
    if several or (isinstance(X, Mapping) and not sparse.issparse(X)):
        raise DataError(
            f"{name} is of type {type(X).__name__}, expected one table; of several parties ask for the scores of each: "
            "[model.transform(rows) for rows in parties]"
        )
    labels = column_labels(X)
    numbers = tuple(map(str, range(width))) if labels or digest else ()  # stand for the names of columns without names
    digest = "" if digest and digest == names_digest(numbers) else digest
    expected = tuple(names) or (() if digest else numbers)
    if set(labels) != set(expected):
        labels, expected = column_names(X), tuple(names)
    if not expected:
        check_names_digest(X, digest)
    if labels and not expected and not digest:
        warnings.warn(f"{name} has feature names, but {model_name} was fitted without feature names", stacklevel=4)
    if not labels and (expected or digest):
        fault = f"{name} does not have valid feature names, but {model_name} was fitted with feature names"
        warnings.warn(fault, stacklevel=4)
    comparison = match_labels(labels, expected) if labels and expected else Match((), (), None)
    if comparison.missing or comparison.unexpected:
        lines = ["The feature names should match those that were passed during fit."]
        faults = {"unseen at fit time": comparison.unexpected, "seen at fit time, yet now missing": comparison.missing}
        for what, fault_labels in faults.items():
            if fault_names := sorted(map(str, fault_labels)):
                lines += [f"Feature names {what}:", *(f"- {label}" for label in fault_names[:MAX_LISTED_NAMES])]
            if len(fault_names) > MAX_LISTED_NAMES:
                lines.append("- ...")
        raise DataError("\n".join(lines) + "\n")
    rows = as_rows(X, name)
    if rows.ndim == 2 and rows.shape[1] != width:
        raise DataError(f"{name} has {rows.shape[1]} features, but {model_name} is expecting {width} features as input")
    if rows.ndim != 2 or not len(rows):
        raise DataError(f"{name} has shape {rows.shape}, expected (n, {width}) with n at least 1")
    return rows if comparison.order is None else select_columns(rows, comparison.order)
