"""The rows of files of NumPy: an array, or an archive with a plain or a sparse one."""

from pathlib import Path

import numpy as np
from scipy import sparse

from fedpca_flwr.errors import DataError
from fedpca_flwr.maths.rows import Rows, of_columns, sparse_rows
from fedpca_flwr.site.columns import Selection
from fedpca_flwr.site.file_format import Format


def _npy(file: Path, selection: Selection) -> tuple[Rows, list[str]]:
    try:
        rows = np.load(file, mmap_mode="r", allow_pickle=False)
    except ValueError:
        rows = None
    if not isinstance(rows, np.ndarray):  # NumPy opens an archive under any name
        raise DataError("the .npy file is not a plain array of numbers", local=str(file))
    return _without(rows, selection), []


def _npz(file: Path, selection: Selection) -> tuple[Rows, list[str]]:
    with np.load(file, allow_pickle=False) as archive:
        if {"format", "shape", "data"} <= set(archive.files):
            return _without(sparse_rows(sparse.load_npz(file)), selection), []
        key = "X" if "X" in archive.files else archive.files[0] if len(archive.files) == 1 else None
        if key is None:
            raise DataError(f"the .npz file holds {len(archive.files)} arrays and none is named 'X'", local=str(file))
        try:
            rows = archive[key]
            if not isinstance(rows, np.ndarray):  # NumPy gives the bytes of what is no array
                raise ValueError
        except ValueError:
            raise DataError("the .npz file does not hold a plain array of numbers", local=str(file)) from None
    return _without(rows, selection), []


def _without(rows: Rows, selection: Selection) -> Rows:
    """The rows without columns that are told by their numbers."""
    if not selection.keys or rows.ndim != 2:
        return rows
    return of_columns(rows, np.asarray(selection.positions([], rows.shape[1]), np.int64))


NPY, NPZ = Format(_npy), Format(_npz)
