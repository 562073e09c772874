"""An .h5ad file of cells (AnnData; extra ``cells``) as blocks of rows, sparse where the file is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedpca_flwr.errors import ConfigError, DataError
from fedpca_flwr.maths.blocks import Block, Blocks, Rows, csr
from fedpca_flwr.maths.centred import ENTRIES
from fedpca_flwr.site.columns import LeftOut, column_position


def read_h5ad(file: Path, left_out: LeftOut, layer: str = "") -> tuple[Rows, list[str]]:
    """The rows of ``X`` or of a layer, and the names of its variables."""
    try:
        import h5py
        from anndata.io import read_elem
    except ImportError:
        raise ConfigError(
            "an .h5ad file needs anndata, which is not installed; pip install '.[cells]' in the repository"
        ) from None
    with h5py.File(file) as held:
        if layer and layer not in held.get("layers", {}):
            raise ConfigError(
                "node-config: 'layer' names no layer of the .h5ad file",
                local=f"layer '{layer}', layers {list(held.get('layers', {}))} of {file}",
            )
        if not layer and "X" not in held:
            raise DataError("the .h5ad file has no X; name a layer of it as node-config 'layer'", local=str(file))
        matrix = _matrix(held, layer)
        width, dtype, sparse = matrix.shape[1], matrix.dtype, not isinstance(matrix, h5py.Dataset)
        every = [str(name) for name in read_elem(held["var"]).index]
    kept = np.ones(width, dtype=bool)
    kept[[column_position(name, every, width, key) for key, name in left_out.items()]] = False
    columns = np.flatnonzero(kept)
    rows = Blocks(lambda: _blocks(file, layer, columns), columns.size, dtype, sparse=sparse)
    return rows, [every[position] for position in columns]


def _matrix(held: Any, layer: str) -> Any:
    from anndata.io import sparse_dataset

    found = held[_key(layer)]
    return found if hasattr(found, "dtype") else sparse_dataset(found)


def _key(layer: str) -> str:
    return f"layers/{layer}" if layer else "X"


def _blocks(file: Path, layer: str, columns: NDArray[np.int64]) -> Iterator[Block]:
    import h5py

    with h5py.File(file) as held:
        matrix = _matrix(held, layer)
        n, d = matrix.shape
        few = max(64, ENTRIES // d)
        if not isinstance(matrix, h5py.Dataset):
            few = max(64, ENTRIES * n // max(1, len(held[_key(layer)]["data"])))
            if matrix.format == "csc":  # its rows are all over the file
                matrix = csr(matrix.to_memory())
        for start in range(0, n, few):
            block = matrix[start : start + few]
            block = block if isinstance(block, np.ndarray) else csr(block)
            yield block if columns.size == d else block[:, columns]
