"""A site's own file of rows: .npy, .npz, .csv or .parquet, read without leaking a value into an error."""

from __future__ import annotations

import csv
import re
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedpca_flwr.errors import ConfigError, DataError, FedPCAError
from fedpca_flwr.table import Table, names_digest

LeftOut = dict[str, str]
"""Columns that are no features, by the key of the node-config that names them."""


def read(path: str, label: str = "", ids: str = "") -> Table:
    """Read a site's rows.

    Parameters
    ----------
    path : str
        ``.npy`` is memory-mapped; ``.npz`` must hold one array, or one named ``X``; ``.csv`` is comma-separated with
        or without a header line; ``.parquet`` needs the extra ``parquet``.
    label, ids : str, optional
        Columns to leave out: the name of each, or its number from 0.

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
        rows, names = readers[suffix](file, {key: name for key, name in (("label", label), ("ids", ids)) if name})
    except FedPCAError:
        raise
    except Exception as error:  # whatever a damaged file does to its reader, whose text may quote it
        raise DataError(
            f"the {suffix} file cannot be read: it is damaged or not what its name says",
            local=f"{type(error).__name__} in {file}",
        ) from None
    return Table(rows, names_digest(names))


def _npy(file: Path, left_out: LeftOut) -> tuple[NDArray[Any], list[str]]:
    try:
        rows = np.load(file, mmap_mode="r", allow_pickle=False)
    except ValueError:
        rows = None
    if not isinstance(rows, np.ndarray):  # NumPy opens an archive under any name
        raise DataError("the .npy file is not a plain array of numbers", local=str(file))
    return _without(rows, [], left_out)


def _npz(file: Path, left_out: LeftOut) -> tuple[NDArray[Any], list[str]]:
    with np.load(file, allow_pickle=False) as archive:
        key = "X" if "X" in archive.files else archive.files[0] if len(archive.files) == 1 else None
        if key is None:
            raise DataError(f"the .npz file holds {len(archive.files)} arrays and none is named 'X'", local=str(file))
        try:
            rows = archive[key]
            if not isinstance(rows, np.ndarray):  # NumPy gives the bytes of what is no array
                raise ValueError
        except ValueError:
            raise DataError("the .npz file does not hold a plain array of numbers", local=str(file)) from None
    return _without(rows, [], left_out)


def _csv(file: Path, left_out: LeftOut) -> tuple[NDArray[Any], list[str]]:
    with open(file, newline="", encoding="utf-8-sig") as stream:
        first = next(csv.reader(stream), [])
    if not first:
        raise DataError("the .csv file is empty", local=str(file))
    names = _header(first, left_out)
    positions = [column_position(name, names, len(first), key) for key, name in left_out.items()]
    ignored: Any = {position: lambda cell: 0.0 for position in positions} or None
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
    return _without(rows, names, left_out)


def _header(first: list[str], left_out: LeftOut) -> list[str]:
    """The column names of a .csv file, or none where its first line holds rows already.

    Raises
    ------
    DataError
        Where that cannot be told: a row that is taken for names is lost, and names taken for a row are wrong.
    """
    own = [cell for j, cell in enumerate(first) if str(j) not in left_out.values()]
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


def _parquet(file: Path, left_out: LeftOut) -> tuple[NDArray[Any], list[str]]:
    try:
        from pyarrow import parquet
    except ImportError:
        raise ConfigError(
            "a .parquet file needs pyarrow, which is not installed; pip install 'fedpca-flwr[parquet]'"
        ) from None
    table = parquet.read_table(file)
    positions = [column_position(name, table.column_names, table.num_columns, key) for key, name in left_out.items()]
    for position in sorted(set(positions), reverse=True):
        table = table.remove_column(position)
    if table.num_columns == 0 or any(name.startswith("__index_level_") for name in table.column_names):
        raise DataError("the .parquet file has an index column, or no feature: write it without its index")
    if any(column.null_count for column in table.columns):
        raise DataError("the .parquet file has missing values: fill or drop them first", local=str(file))
    columns = [column.to_numpy() for column in table.columns]
    if any(column.dtype.kind not in "fiub" for column in columns):
        raise DataError("the .parquet file has columns that are not numbers", local=str(file))
    return np.column_stack(columns), list(table.column_names)


def _without(rows: NDArray[Any], names: list[str], left_out: LeftOut) -> tuple[NDArray[Any], list[str]]:
    if not left_out or rows.ndim != 2:
        return rows, names
    positions = {column_position(name, names, rows.shape[1], key) for key, name in left_out.items()}
    return np.delete(rows, sorted(positions), axis=1), [name for j, name in enumerate(names) if j not in positions]


def _is_number(cell: str) -> bool:
    try:
        return bool(np.isfinite(float(cell)))  # "nan" and "inf" may be names
    except ValueError:
        return False


def column_position(name: str, names: list[str], width: int, key: str) -> int:
    """Where the column is that a key of the node-config names, by its name or its number from 0.

    Raises
    ------
    ConfigError
    """
    if name in names:
        return names.index(name)
    if name.isdecimal() and int(name) < width:
        return int(name)
    raise ConfigError(
        f"node-config: '{key}' names no column of the data (expected a column's name, or its number from 0)",
        local=f"{key} '{name}', columns {names or width}",
    )
