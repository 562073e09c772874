"""A site's own file of rows: .npy, .npz, .csv, .parquet, .h5ad or .bed, read without leaking a value into an error.

A kind of file is a function in `READERS`, from a path and the columns that are no features to the rows and the names of
their columns. What needs no memory for all rows gives `Blocks` whose ``read`` opens the file anew: `read` checks them,
keeps those that are small, and words whatever goes wrong in them as it does here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from fedpca_flwr.errors import ConfigError, DataError, FedPCAError
from fedpca_flwr.maths.blocks import Block, Blocks, Rows, of_columns, sparse_rows
from fedpca_flwr.site.bed_file import read_bed
from fedpca_flwr.site.columns import LeftOut, column_position
from fedpca_flwr.site.csv_file import read_csv
from fedpca_flwr.site.h5ad_file import read_h5ad
from fedpca_flwr.site.parquet_file import read_parquet
from fedpca_flwr.table import Table, check


def read(
    path: str, label: str = "", ids: str = "", layer: str = "", variants: str = "", *, ambiguous: bool = False
) -> Table:
    """Read a site's rows, checked.

    Parameters
    ----------
    path : str
        ``.npy`` is memory-mapped; ``.npz`` must hold one array, or one named ``X``, or a sparse matrix as
        `scipy.sparse.save_npz` writes it; ``.csv`` is comma-separated with or without a header line; ``.parquet`` needs
        the extra ``parquet``, ``.h5ad`` the extra ``cells``, ``.bed`` the extra ``genotypes``.
    label, ids : str, optional
        Columns to leave out: the name of each, or its number from 0.
    layer : str, optional
        Of an ``.h5ad`` file: what to take instead of ``X``.
    variants : str, optional
        Of a ``.bed`` file: path of a ``.bim`` file with those to take.
    ambiguous : bool
        Whether to take those of them whose strand cannot be told.

    Raises
    ------
    DataError, ConfigError
        Without a value or a path in the text: it travels to the server.
    """
    file = Path(path).expanduser()
    suffix = file.suffix.lower()
    if suffix not in READERS:
        raise ConfigError(
            f"node-config: 'data' names a file of unknown kind, expected one of: {', '.join(READERS)}", local=str(file)
        )
    if not file.is_file():
        raise DataError("the file that node-config 'data' names does not exist", local=str(file))
    if layer and suffix != ".h5ad":
        raise ConfigError("node-config: 'layer' names a layer, which only .h5ad files have")
    if variants and suffix != ".bed":
        raise ConfigError("node-config: 'variants' names a list of variants, which only .bed files have")
    reader = partial(read_h5ad, layer=layer) if layer else READERS[suffix]
    if variants:
        reader = partial(read_bed, variants=variants, ambiguous=ambiguous)
    left_out = {key: name for key, name in (("label", label), ("ids", ids)) if name}
    rows, names = _worded(file, lambda: reader(file, left_out))
    if isinstance(rows, Blocks):
        rows = replace(rows, read=_in_words(file, rows.read))
    return check(rows, names)


def _in_words(file: Path, read: Callable[[], Iterable[Block]]) -> Callable[[], Iterator[Block]]:
    def blocks() -> Iterator[Block]:
        remaining = _worded(file, lambda: iter(read()))
        while (block := _worded(file, lambda: next(remaining, None))) is not None:
            yield block

    return blocks


def _worded(file: Path, step: Callable[[], Any]) -> Any:
    """The result of a step of reading, or its error in our own words: that of a reader may quote the file."""
    try:
        return step()
    except FedPCAError:
        raise
    except Exception as error:  # whatever a damaged file does to its reader
        raise DataError(
            f"the {file.suffix.lower()} file cannot be read: it is damaged or not what its name says",
            local=f"{type(error).__name__} in {file}",
        ) from None


def _npy(file: Path, left_out: LeftOut) -> tuple[Rows, list[str]]:
    try:
        rows = np.load(file, mmap_mode="r", allow_pickle=False)
    except ValueError:
        rows = None
    if not isinstance(rows, np.ndarray):  # NumPy opens an archive under any name
        raise DataError("the .npy file is not a plain array of numbers", local=str(file))
    return _without(rows, left_out), []


def _npz(file: Path, left_out: LeftOut) -> tuple[Rows, list[str]]:
    with np.load(file, allow_pickle=False) as archive:
        if {"format", "shape", "data"} <= set(archive.files):
            return _without(sparse_rows(sparse.load_npz(file)), left_out), []
        key = "X" if "X" in archive.files else archive.files[0] if len(archive.files) == 1 else None
        if key is None:
            raise DataError(f"the .npz file holds {len(archive.files)} arrays and none is named 'X'", local=str(file))
        try:
            rows = archive[key]
            if not isinstance(rows, np.ndarray):  # NumPy gives the bytes of what is no array
                raise ValueError
        except ValueError:
            raise DataError("the .npz file does not hold a plain array of numbers", local=str(file)) from None
    return _without(rows, left_out), []


READERS = {".npy": _npy, ".npz": _npz, ".csv": read_csv, ".parquet": read_parquet, ".h5ad": read_h5ad, ".bed": read_bed}


def _without(rows: Rows, left_out: LeftOut) -> Rows:
    """The rows without columns that are told by their numbers."""
    if not left_out or rows.ndim != 2:
        return rows
    width = rows.shape[1]
    kept = np.ones(width, dtype=bool)
    kept[[column_position(name, [], width, key) for key, name in left_out.items()]] = False
    return of_columns(rows, np.flatnonzero(kept))
