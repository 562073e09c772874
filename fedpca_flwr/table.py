"""`Table`: a party's rows with the digest of their columns' names, checked without a value in any error."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedpca_flwr.errors import DataError
from fedpca_flwr.maths.moments import chunks

LARGEST = 1e140
"""No value is larger: float64 holds 1.8e308, and so the squares of as many differences as fit into any memory."""

SMALLEST = 1e-140
"""No column's largest value is smaller, unless all are zero: the square of a difference in its last digits is not 0."""


class Table(NamedTuple):
    """A party's data.

    Attributes
    ----------
    rows : ndarray of shape (n, d)
    columns : str
        Digest of the column names; empty where the file has none.
    split : str
        How all parties' data are split: ``"rows"``, ``"columns"``, or empty where nobody said.
    ids : ndarray of shape (n,) or None
        Ascending digests of the rows' ids, where the file has a column of them.
    places : ndarray of shape (n,) or None
        Where each row of the file is in ``rows``, which are in the order of the ids.
    """

    rows: NDArray[Any]
    columns: str = ""
    split: str = ""
    ids: NDArray[np.uint64] | None = None
    places: NDArray[np.int64] | None = None


def names_digest(names: Sequence[str]) -> str:
    """64 bits of SHA-256 of column names in their order, without the spaces around them; empty without names."""
    return hashlib.sha256("\0".join(name.strip() for name in names).encode()).hexdigest()[:16] if names else ""


def check(rows: NDArray[Any]) -> NDArray[Any]:
    """Check that ``rows`` is a non-empty, real matrix whose values are finite and can be squared, chunk by chunk.

    Raises
    ------
    DataError
        Which columns are at fault stays in the site's own log.
    """
    if rows.ndim != 2:
        raise DataError(f"the data have {rows.ndim} axes, expected 2 (rows, features)")
    if rows.dtype.kind not in "fiub":
        raise DataError(f"the data have dtype {rows.dtype}, expected real numbers")
    if rows.shape[0] == 0 or rows.shape[1] == 0:
        raise DataError(f"the data have shape {rows.shape}, expected at least one row and one feature")
    if rows.dtype.kind == "f":
        sizes = np.zeros(rows.shape[1])
        for chunk in chunks(rows):
            np.maximum(sizes, np.abs(chunk).max(axis=0), out=sizes)  # keeps NaN and infinity
        _refuse(~np.isfinite(sizes), "NaN or infinite values: fill or drop them first")
        _refuse(
            sizes > LARGEST,
            f"values that are too large to be squared (beyond {LARGEST:g} in size): fill or drop them if they mark "
            "what is missing, else change the unit",
        )
        _refuse(
            (sizes > 0) & (sizes < SMALLEST),
            f"columns whose values are all too small to be squared (below {SMALLEST:g} in size): change their unit, "
            "or leave them out",
        )
    return rows


def _refuse(columns: NDArray[np.bool_], what: str) -> None:
    if columns.any():
        raise DataError(
            f"the data hold {what} (the site's log says where)",
            local=f"columns (from 0): {np.flatnonzero(columns).tolist()}",
        )
