"""`python -m fedpca_flwr cells`: single cells from files to one space."""

import numpy as np
import pandas as pd
import pytest
from scipy import sparse

from fedpca_flwr import PCAModel, analyses, cli, run
from tests.refusals import unnamed

GENES = [f"gene {j}" for j in range(40)]


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
    of_all = run("p-cov", normalised, n_components=1, scale=True)
    assert places == list(analyses.highly_variable(of_all, 9))
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
    models = []
    for folder in (tmp_path, tmp_path / "dense"):
        assert cli.main(["cells", str(folder / "north.h5ad"), *options, str(folder / "out")]) == 0
        models.append(PCAModel.load(folder / "out/cells"))
    np.testing.assert_allclose(models[1].components_, models[0].components_, atol=1e-12)
    assert not unnamed(models[1].log["notes"][-1], "'north'")  # which is alone
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
