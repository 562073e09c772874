"""The moments of one member of a federation: made of its rows or checked, and as bytes that a digest names."""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import ArrayLike

from fedpca_flwr.column_labels import column_names
from fedpca_flwr.errors import ContractError
from fedpca_flwr.frames import as_rows
from fedpca_flwr.maths.moments import Moments, packed_size
from fedpca_flwr.table import check, complete, names_digest


def checked_moments(key: str, data: ArrayLike | Moments) -> Moments:
    """The moments of a member's rows (n, d), or those that someone else made, checked as far as they can tell.

    Raises
    ------
    ContractError, DataError
    """
    if isinstance(data, Moments):
        _check(key, data)
        return data
    return Moments.of(complete(check(as_rows(data, f"the data of '{key}'"), column_names(data))))


def columns_digest(data: ArrayLike | Moments) -> str:
    """Digest of the column names of a member's data frame; empty for what has none."""
    return names_digest(column_names(data))


def digest(moments: Moments) -> str:
    """SHA-256 of moments, in hexadecimal: the same for a party and for the server that received them."""
    return hashlib.sha256(to_bytes(moments)).hexdigest()


def to_bytes(moments: Moments) -> bytes:
    """Count, mean, remainder and packed scatter as float64, little-endian."""
    d = moments.n_features
    assert moments.scatter.size == packed_size(d)
    parts = ([float(moments.count)], moments.mean, moments.remainder, moments.scatter)
    return np.concatenate(parts).astype("<f8", copy=False).tobytes()


def size_in_bytes(features: int) -> int:
    """How many bytes `to_bytes` makes."""
    return 8 * (1 + 2 * features + packed_size(features))


def from_bytes(content: bytes | bytearray, features: int) -> Moments:
    """The moments of which `to_bytes` made this."""
    values = np.frombuffer(content, "<f8").astype(np.float64, copy=False)
    count, mean, remainder, scatter = np.split(values, np.cumsum([1, features, features]))
    return Moments(int(count[0]), mean, remainder, scatter)


def _check(key: str, moments: Moments) -> None:
    d = moments.mean.size
    if moments.remainder.shape != (d,) or moments.scatter.shape != (packed_size(d),) or moments.count < 1:
        raise ContractError(
            f"the moments of '{key}' are of {moments.count} rows, with a mean of {d}, a remainder of "
            f"{moments.remainder.size} and a scatter of {moments.scatter.size} values, expected at least 1 row and "
            f"{d}, {d} and {packed_size(d)} values"
        )
    finite = all(np.isfinite(part).all() for part in (moments.mean, moments.remainder, moments.scatter))
    if not finite or moments.diagonal().min() < 0:
        raise ContractError(f"the moments of '{key}' hold NaN, infinite values or a negative variance")
