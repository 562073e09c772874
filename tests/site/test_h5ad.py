"""Files of cells: X or a layer, dense or sparse, read in blocks of rows."""

import numpy as np
import pytest
from scipy import sparse

from fedpca_flwr.data import table
from fedpca_flwr.data.table import names_digest
from fedpca_flwr.errors import ConfigError, DataError
from fedpca_flwr.maths.rows import Blocks, whole
from fedpca_flwr.site import readers
from fedpca_flwr.site.readers import read
from tests.refusals import refused

anndata = pytest.importorskip("anndata", reason="needs the extra 'cells'")
h5py = pytest.importorskip("h5py")

GENES = [f"gene {j}" for j in range(30)]
COUNTS = sparse.random_array((200, 30), density=0.05, rng=np.random.default_rng(0), format="csr")


@pytest.fixture
def path(tmp_path, monkeypatch):
    monkeypatch.setattr(table, "HELD_BYTES", 0)
    monkeypatch.setattr(readers, "ENTRIES", 0)  # blocks of 64 rows
    cells = anndata.AnnData(
        X=COUNTS.toarray() + 1,
        layers={"counts": sparse.csr_matrix(COUNTS), "by columns": sparse.csc_matrix(COUNTS)},
        obs={"obs_names": [f"cell {i}" for i in range(200)]},
        var={"var_names": GENES},
    )
    cells.write_h5ad(tmp_path / "cells.h5ad")
    return str(tmp_path / "cells.h5ad")


def test_x_is_read_in_blocks_and_genes_are_left_out_by_name(path):
    found = read(path)
    assert isinstance(found.rows, Blocks)
    assert [len(block) for block in found.rows.read()] == [64, 64, 64, 8]
    np.testing.assert_array_equal(whole(found.rows), COUNTS.toarray() + 1)
    assert found.columns == names_digest(GENES)
    found = read(path, "gene 3", layer="counts")
    np.testing.assert_array_equal(whole(found.rows), np.delete(COUNTS.toarray(), 3, axis=1))
    assert found.columns == names_digest([*GENES[:3], *GENES[4:]])


@pytest.mark.parametrize("layer", ["counts", "by columns"])
def test_a_sparse_layer_stays_sparse(layer, path):
    found = read(path, layer=layer).rows
    assert found.sparse
    assert [block.shape[0] for block in found.read()] == [64, 64, 64, 8]
    np.testing.assert_array_equal(whole(found), COUNTS.toarray())


def test_what_is_wrong_is_named(path, tmp_path):
    with refused(ConfigError, "'layer'", ".h5ad"):
        read(path, layer="count")
    np.save(tmp_path / "cells.npy", np.eye(2))
    with refused(ConfigError, ".h5ad"):
        read(str(tmp_path / "cells.npy"), layer="counts")
    with h5py.File(path, "r+") as held:
        held["layers/counts/indices"][5] = 30
        del held["X"]
    with refused(DataError, ".h5ad"):
        read(path, layer="counts")
    with refused(DataError, "'layer'"):
        read(path)
