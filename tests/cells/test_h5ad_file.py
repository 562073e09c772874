"""Files of cells (.h5ad): what is read of them, and what is wrong with them."""

import numpy as np
import pytest
from scipy import sparse

from fedpca_flwr.data.table import names_digest
from fedpca_flwr.errors import ConfigError, DataError
from fedpca_flwr.maths.rows import Blocks, to_array
from fedpca_flwr.site.readers.files import read
from tests.harness import read_in_blocks
from tests.refusals import refused

GENES = [f"gene {j}" for j in range(30)]
COUNTS = sparse.random_array((200, 30), density=0.05, rng=np.random.default_rng(0), format="csr")


@pytest.fixture
def cells(tmp_path, monkeypatch):
    anndata = pytest.importorskip("anndata", reason="needs the extra 'cells'")
    read_in_blocks(monkeypatch)
    layers = {"counts": sparse.csr_matrix(COUNTS), "by columns": sparse.csc_matrix(COUNTS)}
    annotated = anndata.AnnData(X=COUNTS.toarray() + 1, layers=layers, var={"var_names": GENES})
    annotated.write_h5ad(tmp_path / "cells.h5ad")
    return str(tmp_path / "cells.h5ad")


def test_a_layer_is_read_in_blocks(cells):
    loaded = read(cells)
    assert isinstance(loaded.rows, Blocks)
    assert [len(block) for block in loaded.rows.read()] == [64, 64, 64, 8]
    np.testing.assert_array_equal(to_array(loaded.rows), COUNTS.toarray() + 1)
    assert loaded.names_digest == names_digest(GENES)
    for layer in ("counts", "by columns"):
        loaded = read(cells, "gene 3", layer=layer)
        assert loaded.rows.sparse
        assert [block.shape[0] for block in loaded.rows.read()] == [64, 64, 64, 8]
        np.testing.assert_array_equal(to_array(loaded.rows), np.delete(COUNTS.toarray(), 3, axis=1))
        assert loaded.names_digest == names_digest([*GENES[:3], *GENES[4:]])


def test_what_is_wrong_with_cells_is_named(cells):
    with refused(ConfigError, "'layer'", ".h5ad"):
        read(cells, layer="count")
    with pytest.importorskip("h5py").File(cells, "r+") as file:
        file["layers/counts/indices"][5] = 30
        del file["X"]
    with refused(DataError, ".h5ad"):
        read(cells, layer="counts")
    with refused(DataError, "'layer'"):
        read(cells)


def test_genes_of_one_name_are_refused(cells):
    h5py = pytest.importorskip("h5py")
    expected = read(cells, layer="counts")
    with h5py.File(cells, "r+") as file:
        for name in ("var", "obs", "X"):
            del file[name]
        file["var"] = np.array([(name, 1.0) for name in GENES], dtype=[("index", "S9"), ("n_cells", "f8")])
        group = file.create_group("X")
        group.attrs.update({"h5sparse_format": "csr", "h5sparse_shape": COUNTS.shape})
        for part in ("data", "indices", "indptr"):
            group[part] = getattr(sparse.csr_matrix(COUNTS), part)
    loaded = read(cells)
    assert (loaded.names, loaded.rows.sparse) == (expected.names, expected.rows.sparse)
    np.testing.assert_array_equal(to_array(loaded.rows), to_array(expected.rows))
    with h5py.File(cells, "r+") as file:
        del file["var"]
        file["var"] = np.array([(name,) for name in [*GENES[:-1], GENES[0]]], dtype=[("index", "S9")])
    with pytest.raises(DataError) as caught:
        read(cells)
    assert GENES[0] in caught.value.local
    assert GENES[0] not in str(caught.value)
