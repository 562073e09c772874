"""The rows of an .h5ad file, as AnnData writes counts of cells."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedpca_flwr.errors import ConfigError, DataError
from fedpca_flwr.maths.rows import CHUNK_ENTRIES, Block, Blocks, Rows, to_csr
from fedpca_flwr.site.readers.columns import ColumnSelection, require_extra
from fedpca_flwr.site.readers.file_format import FileFormat, require_unique_names
from fedpca_flwr.site.readers.unpacking import require_unpacked_size


def read_h5ad(file: Path, selection: ColumnSelection, layer: str = "") -> tuple[Rows, list[str]]:
    """Read the rows (cells) of ``X`` or of a layer, sparse if the matrix is, and the names of the features (genes).

    Raise ConfigError without such a layer or anndata, DataError without ``X``, for equal names, or too many bytes.
    """
    with require_extra("cells", "an .h5ad file needs anndata"):
        import h5py
        from anndata.io import read_elem
    with h5py.File(file) as source:
        layers = list(source.get("layers", {}))
        if layer and layer not in layers:
            local = f"layer '{layer}', layers {layers} of {file}"
            raise ConfigError("'layer' names no layer of the file", local=local)
        if not layer and "X" not in source:
            raise DataError("there is no X; name one of the layers as 'layer'", local=str(file))
        for item in (source[f"layers/{layer}" if layer else "X"], source["var"]):
            require_unpacked_size(file, _unpacked_bytes(item), "write it without compression")
        matrix, variables = _open_matrix(source, layer), source["var"]
        width, dtype, sparse = matrix.shape[1], matrix.dtype, not isinstance(matrix, h5py.Dataset)
        if hasattr(variables, "dtype"):  # before anndata 0.7: names are in the first field of its records
            values = variables[variables.dtype.names[0]].tolist()
            names = [value.decode() if isinstance(value, bytes) else str(value) for value in values]
        else:
            names = list(map(str, read_elem(variables).index))
    fault = "the .h5ad file has genes of the same name; give each a name of its own: cells.var_names_make_unique()"
    require_unique_names(names, fault)
    columns = np.asarray(selection.positions(names, width), np.int64)
    rows = Blocks(lambda: _read_blocks(file, layer, columns), columns.size, dtype, sparse=sparse)
    return rows, [names[position] for position in columns]


def _unpacked_bytes(item: Any) -> int:
    """Return the bytes of a data set of HDF5, or of all data sets in a group, once they are unpacked."""
    if hasattr(item, "nbytes"):
        return int(item.nbytes)
    return sum(_unpacked_bytes(member) for member in item.values())


def _open_matrix(source: Any, layer: str) -> Any:
    """Return the matrix of an open .h5ad file: an HDF5 data set, or AnnData's wrapper if sparse."""
    from anndata.io import sparse_dataset

    matrix = source[f"layers/{layer}" if layer else "X"]
    return matrix if hasattr(matrix, "dtype") else sparse_dataset(matrix)


def _read_blocks(file: Path, layer: str, columns: NDArray[np.int64]) -> Iterator[Block]:
    """Yield blocks (m, d) of rows with the chosen columns, dense or in CSR format, of about equal size."""
    import h5py

    with h5py.File(file) as source:
        matrix = _open_matrix(source, layer)
        n, d = matrix.shape
        step = max(64, CHUNK_ENTRIES // d)
        if not isinstance(matrix, h5py.Dataset):
            step = max(64, CHUNK_ENTRIES * n // max(1, len(matrix.group["data"])))
            if matrix.format == "csc":  # its rows are all over the file
                matrix = to_csr(matrix.to_memory())
        for start in range(0, n, step):
            block = matrix[start : start + step]
            block = block if isinstance(block, np.ndarray) else to_csr(block)
            yield block if columns.size == d else block[:, columns]


H5AD = FileFormat(read_h5ad, settings=("layer",))
