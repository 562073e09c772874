"""A site's own file of rows: .npy, .npz, .csv or .parquet, read and checked without leaking a value into an error."""

from __future__ import annotations

import csv
import hashlib
import re
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedpca_flwr.errors import ConfigError, DataError, FedPCAError
from fedpca_flwr.maths.moments import chunks


class Table(NamedTuple):
    """Rows (n, d), a digest of the column names (empty where the file has none), and how the data are split, if known.

    ``split`` is ``"rows"``, ``"columns"`` or empty.
    """

    rows: NDArray
    columns: str = ""
    split: str = ""


def read(path: str, label: str = "") -> Table:
    """Read a site's rows.

    Parameters
    ----------
    path : str
        ``.npy`` is memory-mapped; ``.npz`` must hold one array, or one named ``X``; ``.csv`` is comma-separated with
        or without a header line; ``.parquet`` needs the extra ``parquet``.
    label : str, optional
        A column to leave out: its name, or its number from 0.

    Raises
    ------
    DataError, ConfigError
        Without a value or a path in the text: it travels to the server.
    """
    file = Path(path).expanduser()
    readers = {".npy": _npy, ".npz": _npz, ".csv": _csv, ".parquet": _parquet}
    suffix = file.suffix.lower()
    if suffix not in readers:
        raise ConfigError(
            f"node-config: 'data' names a file of unknown kind, expected one of: {', '.join(readers)}", local=str(file)
        )
    if not file.is_file():
        raise DataError("the file that node-config 'data' names does not exist", local=str(file))
    try:
        rows, names = readers[suffix](file, label)
    except FedPCAError:
        raise
    except Exception as error:  # whatever a damaged file does to its reader, whose text may quote it
        raise DataError(
            f"the {suffix} file cannot be read: it is damaged or not what its name says",
            local=f"{type(error).__name__} in {file}",
        ) from None
    digest = hashlib.sha256("\0".join(names).encode()).hexdigest()[:16] if names else ""
    return Table(rows, digest)


def check(rows: NDArray) -> NDArray:
    """Check that ``rows`` is a non-empty, finite, real matrix, chunk by chunk.

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
        for chunk in chunks(rows):
            if not np.isfinite(chunk.sum(dtype=np.float64)):  # one pass, no temporary; NaN and infinity survive a sum
                columns = np.flatnonzero(~np.isfinite(chunk).all(axis=0))
                raise DataError(
                    "the data hold NaN, infinite or huge values: fill or drop them first (the site's log says where)",
                    local=f"columns (from 0): {columns.tolist()}",
                )
    return rows


def _npy(file: Path, label: str) -> tuple[NDArray, list[str]]:
    try:
        rows = np.load(file, mmap_mode="r", allow_pickle=False)
    except ValueError:
        raise DataError("the .npy file is not a plain array of numbers", local=str(file)) from None
    return _without(rows, [], label)


def _npz(file: Path, label: str) -> tuple[NDArray, list[str]]:
    with np.load(file, allow_pickle=False) as archive:
        key = "X" if "X" in archive.files else archive.files[0] if len(archive.files) == 1 else None
        if key is None:
            raise DataError(f"the .npz file holds {len(archive.files)} arrays and none is named 'X'", local=str(file))
        try:
            rows = archive[key]
        except ValueError:
            raise DataError("the .npz file does not hold a plain array of numbers", local=str(file)) from None
    return _without(rows, [], label)


def _csv(file: Path, label: str) -> tuple[NDArray, list[str]]:
    with open(file, newline="", encoding="utf-8-sig") as stream:
        first = next(csv.reader(stream), [])
    if not first:
        raise DataError("the .csv file is empty", local=str(file))
    names = _header(first, label)
    ignored: Any = {_position(label, names, len(first)): lambda cell: 0.0} if label else None
    try:
        rows = np.loadtxt(
            file,
            delimiter=",",
            skiprows=1 if names else 0,
            converters=ignored,
            ndmin=2,
            comments=None,
            quotechar='"',
            encoding="utf-8-sig",
        )
    except ValueError as error:
        where = re.findall(r"(?:row|column) \d+", str(error))  # the rest of numpy's text may quote a cell
        raise DataError(
            "the .csv file has cells that are empty or not numbers, or lines of different length "
            "(the site's log says where)",
            local=f"{', '.join(where)} of {file}",
        ) from None
    if names and len(names) != rows.shape[1]:
        raise DataError(
            f"the .csv file has {len(names)} column names but {rows.shape[1]} columns; does a column of row numbers "
            "have no name? leave it out",
            local=str(file),
        )
    return _without(rows, names, label)


def _header(first: list[str], label: str) -> list[str]:
    """The column names of a .csv file, or none where its first line holds rows already.

    Raises
    ------
    DataError
        Where that cannot be told: a row that is taken for names is lost, and names taken for a row are wrong.
    """
    own = [cell for j, cell in enumerate(first) if str(j) != label]
    numbers = sum(map(_is_number, own))
    if numbers == 0:
        names = [cell.strip() for cell in first]
        if "" in names:
            raise DataError("the .csv file has a column without a name; is it an index? leave it out")
        return names
    if numbers < len(own):
        raise DataError("the first line of the .csv file is neither all names nor all numbers")
    if len(own) > 1 and [float(cell) for cell in own] == list(range(len(own))):
        raise DataError("the first line of the .csv file counts its columns; give them names, or leave that line out")
    return []


def _parquet(file: Path, label: str) -> tuple[NDArray, list[str]]:
    try:
        from pyarrow import parquet
    except ImportError:
        raise ConfigError(
            "a .parquet file needs pyarrow, which is not installed; pip install 'fedpca-flwr[parquet]'"
        ) from None
    table = parquet.read_table(file)
    if label:
        table = table.remove_column(_position(label, table.column_names, table.num_columns))
    if table.num_columns == 0 or any(name.startswith("__index_level_") for name in table.column_names):
        raise DataError("the .parquet file has an index column, or no feature: write it without its index")
    if any(column.null_count for column in table.columns):
        raise DataError("the .parquet file has missing values: fill or drop them first", local=str(file))
    columns = [column.to_numpy() for column in table.columns]
    if any(column.dtype.kind not in "fiub" for column in columns):
        raise DataError("the .parquet file has columns that are not numbers", local=str(file))
    return np.column_stack(columns), list(table.column_names)


def _without(rows: NDArray, names: list[str], label: str) -> tuple[NDArray, list[str]]:
    if not label or rows.ndim != 2:
        return rows, names
    position = _position(label, names, rows.shape[1])
    return np.delete(rows, position, axis=1), names[:position] + names[position + 1 :]


def _is_number(cell: str) -> bool:
    try:
        return bool(np.isfinite(float(cell)))  # "nan" and "inf" may be names
    except ValueError:
        return False


def _position(label: str, names: list[str], width: int) -> int:
    if label in names:
        return names.index(label)
    if label.isdecimal() and int(label) < width:
        return int(label)
    raise ConfigError(
        "node-config: 'label' names no column of the data (expected a column's name, or its number from 0)",
        local=f"label '{label}', columns {names or width}",
    )
