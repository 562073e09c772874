"""Arrays and data frames that a user hands over: their numbers and column names, told without a value of theirs."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Set
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse

from fedpca_flwr.data_frames import column_names, is_frame, numbers_of
from fedpca_flwr.errors import DataError
from fedpca_flwr.maths.blocks import Blocks, Rows, chunks, sparse_rows, whole
from fedpca_flwr.table import names_digest

FOREIGN = (
    "The feature names should match those that were passed during fit: these, or their order, are others (only a "
    "digest of the names at the parties is known)."
)


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
    """``X`` as rows: an array, or the blocks that a sparse matrix is, or that it is already.

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
        return _unmasked(held) if isinstance(held, np.ma.MaskedArray) else np.asarray(held)
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


def dense_parts(X: ArrayLike) -> Iterator[ArrayLike]:
    """``X``, or of a sparse matrix its rows as arrays, part by part."""
    rows = as_rows(X, "X") if sparse.issparse(X) else None
    if isinstance(rows, Blocks) and len(rows):
        yield from chunks(rows)
    else:
        yield X


def finite_matrix(X: ArrayLike, width: int, name: str, *, incomplete: bool = False) -> NDArray[Any]:
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


def _require_one_table(X: Any) -> None:
    """Refuse the tables of several parties.

    Raises
    ------
    DataError
    """
    several = isinstance(X, list | tuple) and any(is_frame(one) or getattr(one, "ndim", 0) == 2 for one in X)
    if several or isinstance(X, Mapping):
        raise DataError(
            f"X is of type {type(X).__name__}, expected one table; of several parties ask for the scores of each: "
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


def new_rows(
    X: ArrayLike, features: int, names: NDArray[Any] | None, digest: str, *, incomplete: bool = False
) -> NDArray[Any]:
    """Rows (n, d) for a fitted model, taken and refused as scikit-learn does.

    Parameters
    ----------
    X : array-like of shape (n, d)
    features : int
        That the model was fitted with.
    names : ndarray of shape (d,) or None
        Of these features, where they are known.
    digest : str
        Of these names, where only that is known; else empty.
    incomplete : bool
        Whether values may be missing (NaN).

    Raises
    ------
    DataError
        About columns in scikit-learn's words.
    """
    # Here, for a party's sake: its SuperNode starts a process for every message, and this import takes seconds.
    from sklearn.decomposition import PCA
    from sklearn.utils.validation import validate_data

    _require_one_table(X)
    fitted = PCA()
    fitted.n_features_in_ = features
    if names is None and digest:
        check_digest(X, digest)
        names = np.array(column_names(X) or [""], dtype=object)
    if names is not None:
        fitted.feature_names_in_ = names
    try:
        validate_data(fitted, X, reset=False, skip_check_array=True)
    except (TypeError, ValueError) as error:
        raise DataError(str(error)) from None
    return finite_matrix(X, features, "X", incomplete=incomplete)
