"""Files of cells (.h5ad): what is read of them, and `python -m fedpca_flwr cells`, from files to one space."""

import numpy as np
import pandas as pd
import pytest
from scipy import sparse

from fedpca_flwr import PCAModel, analyses, cli, run
from fedpca_flwr.data.table import names_digest
from fedpca_flwr.errors import ConfigError, DataError
from fedpca_flwr.maths.rows import to_array
from fedpca_flwr.site.readers.files import read
from tests.harness import read_in_blocks
from tests.refusals import refused, unnamed

GENES = [f"gene {j}" for j in range(40)]
COUNTS = sparse.random_array((200, 40), density=0.05, rng=np.random.default_rng(0), format="csr")


@pytest.fixture
def cells(tmp_path, monkeypatch):
    anndata = pytest.importorskip("anndata", reason="needs the extra 'cells'")
    read_in_blocks(monkeypatch)
    layers = {"counts": sparse.csr_matrix(COUNTS), "by columns": sparse.csc_matrix(COUNTS)}
    anndata.AnnData(X=COUNTS.toarray() + 1, layers=layers, var={"var_names": GENES}).write_h5ad(tmp_path / "cells.h5ad")
    return str(tmp_path / "cells.h5ad")


def test_a_layer_is_read_in_blocks_and_what_is_wrong_is_named(cells):
    genes, counts = np.delete(GENES, 3), np.delete(COUNTS.toarray(), 3, axis=1)
    for keys, expected, names in (
        ({}, COUNTS.toarray() + 1, GENES),
        *(({"label": "gene 3", "layer": layer}, counts, genes) for layer in ("counts", "by columns")),
    ):
        loaded = read(cells, **keys)
        assert loaded.rows.sparse == bool(keys)
        assert [block.shape[0] for block in loaded.rows.read()] == [64, 64, 64, 8]
        np.testing.assert_array_equal(to_array(loaded.rows), expected)
        assert loaded.names_digest == names_digest(list(names))
    with refused(ConfigError, "'layer'", ".h5ad"):
        read(cells, layer="count")
    with pytest.importorskip("h5py").File(cells, "r+") as file:
        file["layers/counts/indices"][5] = 40
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


def laboratory(folder, name, n, seed, genes=GENES, change=0.0):
    rng = np.random.default_rng(seed)
    counts = rng.poisson(rng.gamma(0.5, 4.0, len(genes)), (n, len(genes))) + change
    anndata = pytest.importorskip("anndata")
    adata = anndata.AnnData(X=sparse.csr_matrix(counts.astype(np.float32)), var={"var_names": genes})
    adata.write_h5ad(folder / f"{name}.h5ad")
    return counts


@pytest.mark.engine
def test_each_laboratory_has_its_cells_in_one_space(tmp_path, capsys):
    counts = {name: laboratory(tmp_path, name, n, n) for name, n in (("north", 60), ("south", 40))}
    given = [str(tmp_path / f"{name}.h5ad") for name in counts]
    options = ["--genes", "9", "--n-components", "3", "--clusters", "4", "--output", str(tmp_path / "out")]
    assert cli.main(["cells", *given, *options]) == 0
    model = PCAModel.load(tmp_path / "out/cells")
    assert "100 of 9 features" in capsys.readouterr().out
    places = [GENES.index(name) for name in model.feature_names_in_]
    normalised = {name: own * 1e4 / own.sum(axis=1, keepdims=True) for name, own in counts.items()}
    assert places == list(analyses.highly_variable(run("p-cov", normalised, n_components=1, scale=True), 9))
    for name, own in normalised.items():
        rows = pd.DataFrame(np.log1p(own)[:, places], columns=model.feature_names_in_)
        moved = np.loadtxt(tmp_path / f"out/{name}-harmony.csv", delimiter=",", skiprows=1)
        np.testing.assert_allclose(moved, analyses.harmonised(model, rows, name), atol=1e-6)


def test_dense_counts_give_the_result_of_sparse_ones(tmp_path, capsys):
    anndata = pytest.importorskip("anndata")
    laboratory(tmp_path, "north", 60, 1)
    (tmp_path / "dense").mkdir()
    options = ["--genes", "9", "--n-components", "3", "--clusters", "4", "--output"]
    held = anndata.read_h5ad(tmp_path / "north.h5ad")
    anndata.AnnData(X=held.X.toarray(), var=held.var).write_h5ad(tmp_path / "dense/north.h5ad")
    for folder in (tmp_path, tmp_path / "dense"):
        assert cli.main(["cells", str(folder / "north.h5ad"), *options, str(folder / "out")]) == 0
    sparse_model, dense_model = (PCAModel.load(tmp_path / folder / "out/cells") for folder in (".", "dense"))
    np.testing.assert_allclose(dense_model.components_, sparse_model.components_, atol=1e-12)
    assert not unnamed(dense_model.log["notes"][-1], "'north'")  # which is alone
    held.X = held.X * np.float32(0.3)
    held.write_h5ad(tmp_path / "logs.h5ad")
    files = [str(tmp_path / f"{name}.h5ad") for name in ("north", "logs")]
    assert cli.main(["cells", *files, *options, str(tmp_path / "o")]) == 0
    (note,) = (line for line in capsys.readouterr().out.splitlines() if "--layer" in line)
    assert not unnamed(note, "'logs'")
    assert "'north'" not in note


@pytest.mark.parametrize(("genes", "change", "named"), [([*GENES[1:], "x"], 0.0, "gene 0"), (GENES, -9.0, "--layer")])
def test_other_genes_and_what_is_no_count_are_refused(tmp_path, capsys, genes, change, named):
    laboratory(tmp_path, "north", 60, 1)
    laboratory(tmp_path, "south", 60, 2, genes, change)
    files = [str(tmp_path / f"{name}.h5ad") for name in ("north", "south")]
    assert cli.main(["cells", *files, "--output", str(tmp_path / "out")]) == 2
    assert named in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
