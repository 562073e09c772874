"""The rows of an .h5ad file, which AnnData writes: counts of cells."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedpca_flwr.errors import ConfigError, DataError
from fedpca_flwr.maths.rows import ENTRIES, Block, Blocks, Rows, csr
from fedpca_flwr.site.columns import Selection, extra
from fedpca_flwr.site.file_format import Format, require_own_names


def read_h5ad(file: Path, selection: Selection, layer: str = "") -> tuple[Rows, list[str]]:
    """The rows of ``X`` or of a layer, and the names of its variables."""
    with extra("cells", "an .h5ad file needs anndata"):
        import anndata  # noqa: F401
        import h5py
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
        every = _variable_names(held["var"])
    fault = "the .h5ad file has genes of the same name; give each a name of its own: cells.var_names_make_unique()"
    require_own_names(every, fault)
    columns = np.asarray(selection.positions(every, width), np.int64)
    rows = Blocks(lambda: _h5ad_blocks(file, layer, columns), columns.size, dtype, sparse=sparse)
    return rows, [every[position] for position in columns]


def _variable_names(variables: Any) -> list[str]:
    """Return the names of the variables; a file from before anndata 0.7 has them in the first field of its records."""
    from anndata.io import read_elem

    if hasattr(variables, "dtype"):
        first = variables[variables.dtype.names[0]].tolist()
        return [name.decode() if isinstance(name, bytes) else str(name) for name in first]
    return list(map(str, read_elem(variables).index))


def _matrix(held: Any, layer: str) -> Any:
    from anndata.io import sparse_dataset

    found = held[f"layers/{layer}" if layer else "X"]
    return found if hasattr(found, "dtype") else sparse_dataset(found)


def _h5ad_blocks(file: Path, layer: str, columns: NDArray[np.int64]) -> Iterator[Block]:
    import h5py

    with h5py.File(file) as held:
        matrix = _matrix(held, layer)
        n, d = matrix.shape
        few = max(64, ENTRIES // d)
        if not isinstance(matrix, h5py.Dataset):
            few = max(64, ENTRIES * n // max(1, len(matrix.group["data"])))
            if matrix.format == "csc":  # its rows are all over the file
                matrix = csr(matrix.to_memory())
        for start in range(0, n, few):
            block = matrix[start : start + few]
            block = block if isinstance(block, np.ndarray) else csr(block)
            yield block if columns.size == d else block[:, columns]


H5AD = Format(read_h5ad, settings=("layer",))
