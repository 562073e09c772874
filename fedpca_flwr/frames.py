"""Arrays and data frames that a user hands over: their numbers and column names, told without a value of theirs."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse

from fedpca_flwr.column_labels import column_names, is_frame, match
from fedpca_flwr.data_frames import numbers_of
from fedpca_flwr.errors import DataError
from fedpca_flwr.maths.blocks import Blocks, Rows, of_columns, row_major, sparse_rows, whole
from fedpca_flwr.table import names_digest

FOREIGN = (
    "The feature names should match those that were passed during fit: these, or their order, are others (only a "
    "digest of the names at the parties is known)."
)

MOST_OF_A_KIND = 5
"""Names that an error lists, as scikit-learn's do."""


def as_array(X: Any, name: str) -> NDArray[Any]:
    """``X`` as an array; what is masked, or missing in a data frame, is NaN.

    Raises
    ------
    DataError
        Where it is none; ``name`` is what the text calls it.
    """
    rows = as_rows(X, name)
    return whole(rows) if isinstance(rows, Blocks) else rows


def as_rows(X: Any, name: str) -> Rows:
    """``X`` as rows: an array as `row_major` orders it, or the blocks that a sparse matrix is, or that it is already.

    Raises
    ------
    DataError
        As `as_array`, and of a data frame with all columns at fault (`fedpca_flwr.data_frames.numbers_of`).
    """
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
    """``X`` as finite real numbers (n, ``width``), n at least 1; where it may be ``incomplete``, NaN is one too.

    Raises
    ------
    DataError
    """
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
    if incomplete and np.isinf(rows).any():
        raise DataError(f"{name} contains infinity: fill or drop such rows first")
    if not (incomplete or np.isfinite(rows).all()):
        raise DataError(f"{name} contains NaN or infinity: fill or drop such rows first")
    return rows


def _require_one_table(X: Any, name: str) -> None:
    """Refuse the tables of several parties.

    Raises
    ------
    DataError
    """
    several = isinstance(X, list | tuple) and any(is_frame(one) or getattr(one, "ndim", 0) == 2 for one in X)
    if several or isinstance(X, Mapping):
        raise DataError(
            f"{name} is of type {type(X).__name__}, expected one table; of several parties ask for the scores of each: "
            "[model.transform(rows) for rows in parties]"
        )


def check_digest(X: ArrayLike, digest: str) -> None:
    """Refuse a data frame whose column names are not those of a digest; either may be without names.

    Raises
    ------
    DataError
    """
    names = column_names(X)
    if names and digest and names_digest(names) != digest:
        raise DataError(FOREIGN)


def rows_of(
    X: Any, width: int, names: Sequence[str] = (), *, digest: str = "", name: str = "X", fitted: str = "PCA"
) -> Rows:
    """Rows (n, ``width``) that belong to a fitted model, their columns in its order; refused in scikit-learn's words.

    Where both have names, columns are matched by them, as `simulations.run` matches those of the parties.

    Parameters
    ----------
    X : array-like of shape (n, width)
    width : int
        Features that the model was fitted with.
    names : sequence of str
        Of these features, where they are known.
    digest : str
        Of these names, where only that is known; else empty.
    name, fitted : str
        What errors call the rows, and the model.

    Raises
    ------
    DataError
    """
    _require_one_table(X, name)
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
    """Where each of the features that are wanted stands; None where they stand as wanted.

    Raises
    ------
    DataError
        For names that are others.
    """
    found = match(given, wanted)
    if not (found.lacking or found.alone):
        return found.order
    lines = ["The feature names should match those that were passed during fit."]
    for what, labels in (("unseen at fit time", found.alone), ("seen at fit time, yet now missing", found.lacking)):
        told = sorted(map(str, labels))
        more = ["- ..."] if len(told) > MOST_OF_A_KIND else []
        lines += [f"Feature names {what}:", *(f"- {one}" for one in told[:MOST_OF_A_KIND]), *more] if told else []
    raise DataError("\n".join(lines) + "\n")
