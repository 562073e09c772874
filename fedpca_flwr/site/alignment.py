"""The same rows at every party: an id column, seen by others as salted digests only, puts them in one order.

This is NOT private set intersection. A digest hides an id from whoever does not know the salt; the salt is the
sites' ``ids-secret``, or without one a text that everybody knows, and then whoever can guess ids (names,
numbers of few digits) finds them. Every site also learns that all others have exactly its own rows.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedpca_flwr.errors import ConfigError, DataError
from fedpca_flwr.site.columns import column_position
from fedpca_flwr.site.csv_file import cells_of

Digests = NDArray[np.uint64]


def read_ids(path: str, column: str, rows: int, label: str = "") -> list[str]:
    """The ids in a column of a .csv or .parquet file, without surrounding spaces.

    Parameters
    ----------
    path : str
    column : str
        Its name, or its number from 0.
    rows : int
        That `readers.read` found: with a header, a .csv file has one line more.
    label : str, optional
        Of the column that is no feature either.

    Raises
    ------
    ConfigError, DataError
        Without an id in the text: it travels to the server.
    """
    file = Path(path).expanduser()
    if file.suffix.lower() == ".csv":
        return cells_of(file, column, rows, label)
    if file.suffix.lower() == ".parquet":
        from pyarrow import parquet

        table = parquet.read_table(file)
        position = column_position(column, table.column_names, table.num_columns, "ids")
        return ["" if value is None else str(value).strip() for value in table.column(position).to_pylist()]
    raise ConfigError("node-config: 'ids' names a column, which only .csv and .parquet files have")


def digests(ids: Sequence[str], salt: bytes) -> Digests:
    """The first 64 bits of HMAC-SHA-256 of each id (n,).

    Raises
    ------
    DataError
        Where an id is empty, or occurs twice.
    """
    empty, doubled = sum(not own for own in ids), len(ids) - len(set(ids))
    if empty:
        raise DataError(f"the id column has {empty} empty cells: every row needs an id")
    if doubled:
        raise DataError(f"the id column has {doubled} ids that occur before: every row needs one of its own")
    raw = b"".join(hmac.digest(salt, own.encode(), hashlib.sha256)[:8] for own in ids)
    return np.frombuffer(raw, "<u8").astype(np.uint64)


def difference(own: Digests, others: Digests) -> tuple[int, int]:
    """How many of ``others`` are missing in ``own``, and how many there are too many."""
    return int(np.setdiff1d(others, own).size), int(np.setdiff1d(own, others).size)
