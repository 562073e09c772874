"""The rows of NumPy's files: an array, or an archive with a dense or a sparse array."""

from pathlib import Path

import numpy as np
from scipy import sparse

from fedpca_flwr.errors import DataError
from fedpca_flwr.maths.rows import Rows, select_columns, sparse_rows
from fedpca_flwr.site.readers.columns import ColumnSelection
from fedpca_flwr.site.readers.file_format import FileFormat
from fedpca_flwr.site.readers.unpacking import require_archive_size, require_unpacked_size


def _read_npy(file: Path, selection: ColumnSelection) -> tuple[Rows, list[str]]:
    """Map the rows of a .npy file in memory, with no names of features; raise DataError if it is no plain array."""
    try:
        rows = np.load(file, mmap_mode="r", allow_pickle=False)
    except ValueError:
        rows = None
    if not isinstance(rows, np.ndarray):  # NumPy opens an archive under any name
        raise DataError("it is not a plain array of numbers", local=str(file))
    return _select_columns(rows, selection), []


def _read_npz(file: Path, selection: ColumnSelection) -> tuple[Rows, list[str]]:
    """Read a .npz file, with no names: a SciPy sparse matrix, the array 'X', or the only array; DataError if none."""
    advice = "write it without compression (numpy.savez)"
    require_archive_size(file, advice)
    with np.load(file, allow_pickle=False) as archive:
        if {"format", "shape", "data"} <= set(archive.files):
            require_unpacked_size(file, 8 * int(np.sum(archive["shape"])), advice)  # a number for each row and column
            return _select_columns(sparse_rows(sparse.load_npz(file)), selection), []
        key = "X" if "X" in archive.files else archive.files[0] if len(archive.files) == 1 else None
        if key is None:
            raise DataError(f"there are {len(archive.files)} arrays, and none has the name 'X'", local=str(file))
        try:
            rows = archive[key]
            if not isinstance(rows, np.ndarray):  # NumPy returns bytes for a member that is no array
                raise ValueError
        except ValueError:
            raise DataError("it does not hold a plain array of numbers", local=str(file)) from None
    return _select_columns(rows, selection), []


def _select_columns(rows: Rows, selection: ColumnSelection) -> Rows:
    """Return the selected columns of rows (n, d), whose columns have numbers but no names."""
    if not selection.keys or rows.ndim != 2:
        return rows
    return select_columns(rows, np.asarray(selection.positions([], rows.shape[1]), np.int64))


NPY, NPZ = FileFormat(_read_npy), FileFormat(_read_npz)
