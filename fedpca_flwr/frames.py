"""Arrays and data frames that a user hands over: their numbers and column names, told without a value of theirs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse

from fedpca_flwr.errors import DataError
from fedpca_flwr.maths.blocks import Blocks, Rows, chunks, sparse_rows, whole
from fedpca_flwr.table import names_digest

FOREIGN = (
    "The feature names should match those that were passed during fit: these, or their order, are others (only a "
    "digest of the names at the parties is known)."
)


def as_array(X: ArrayLike, name: str) -> NDArray[Any]:
    """``X`` as an array.

    Raises
    ------
    DataError
        Where it is masked or ragged; ``name`` is what the text calls it.
    """
    if np.ma.is_masked(X):
        raise DataError(f"{name} has masked values: fill or drop them first")
    try:
        return whole(sparse_rows(X)) if sparse.issparse(X) else np.asarray(X)
    except ValueError:
        raise DataError(f"{name} is not an array: its rows differ in length") from None
    except Exception as error:  # whatever an object of another library does, whose text may quote a value
        raise DataError(f"{name} cannot be made an array ({type(error).__name__})") from None


def as_rows(X: ArrayLike | Blocks, name: str) -> Rows:
    """``X`` as rows: `as_array`, or the blocks that a sparse matrix is, or that it is already.

    Raises
    ------
    DataError
    """
    if isinstance(X, Blocks):
        return X
    if not sparse.issparse(X):
        return as_array(X, name)
    try:
        return sparse_rows(X)
    except ValueError:
        raise DataError(f"{name} is a sparse matrix whose indices do not fit its shape") from None


def dense_parts(X: ArrayLike) -> Iterator[ArrayLike]:
    """``X``, or of a sparse matrix its rows as arrays, part by part."""
    rows = as_rows(X, "X") if sparse.issparse(X) else None
    if rows is not None and len(rows):
        yield from chunks(rows)
    else:
        yield X


def column_labels(X: object) -> tuple[Any, ...]:
    """Of a data frame; empty for anything else."""
    return tuple(getattr(X, "column_names", getattr(X, "columns", ())))  # the former is that of Arrow tables


def column_names(X: object) -> tuple[str, ...]:
    """The labels of a data frame's columns, or none where not all are texts: scikit-learn ignores them then."""
    labels = column_labels(X)
    return labels if all(isinstance(label, str) for label in labels) else ()


def finite_matrix(X: ArrayLike, width: int, name: str, *, incomplete: bool = False) -> NDArray[Any]:
    """``X`` as finite real numbers (n, ``width``), n at least 1; where it may be ``incomplete``, NaN is one too.

    Raises
    ------
    DataError
    """
    rows = as_array(X, name)
    if rows.dtype == object:  # a data frame of several dtypes
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
