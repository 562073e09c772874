"""From .h5ad files of counts to one embedding: the command, and what it refuses."""

import numpy as np
import pandas as pd
import pytest
from scipy import sparse

from fedpca_flwr import PCAModel, analyses
from simulations import cells

anndata = pytest.importorskip("anndata")
GENES = [f"gene {j}" for j in range(40)]


def laboratory(folder, name, n, seed, genes=GENES, change=0.0):
    rng = np.random.default_rng(seed)
    counts = rng.poisson(rng.gamma(0.5, 4.0, len(genes)), (n, len(genes))) + change
    adata = anndata.AnnData(X=sparse.csr_matrix(counts.astype(np.float32)), var={"var_names": genes})
    adata.write_h5ad(folder / f"{name}.h5ad")
    return counts


def test_each_laboratory_has_its_cells_in_one_space(tmp_path, capsys):
    counts = {name: laboratory(tmp_path, name, n, n) for name, n in (("north", 60), ("south", 40))}
    given = [str(tmp_path / f"{name}.h5ad") for name in counts]
    options = ["--genes", "12", "--components", "3", "--clusters", "4", "--output", str(tmp_path / "out")]
    assert cells.main([*given, *options]) == 0
    model = PCAModel.load(tmp_path / "out/cells")
    assert "100 of 12 features" in capsys.readouterr().out
    places = [GENES.index(name) for name in model.feature_names_in_]
    for name, own in counts.items():
        logs = np.log1p(own * 1e4 / own.sum(axis=1, keepdims=True))[:, places]
        rows = pd.DataFrame(logs, columns=model.feature_names_in_)
        moved = np.loadtxt(tmp_path / f"out/{name}-harmony.csv", delimiter=",", skiprows=1)
        np.testing.assert_allclose(moved, analyses.harmonised(model, rows, name), atol=1e-6)


@pytest.mark.parametrize(
    ("genes", "change", "named"), [([*GENES[:-1], "other"], 0.0, "gene 39"), (GENES, -9.0, "--layer")]
)
def test_other_genes_and_what_is_no_count_are_refused(tmp_path, capsys, genes, change, named):
    laboratory(tmp_path, "north", 60, 1)
    laboratory(tmp_path, "south", 60, 2, genes, change)
    files = [str(tmp_path / f"{name}.h5ad") for name in ("north", "south")]
    assert cells.main([*files, "--output", str(tmp_path / "out")]) == 2
    assert named in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
