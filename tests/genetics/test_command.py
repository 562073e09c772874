"""`python -m fedpca_flwr genotypes`: people's genotypes from files to one space."""

import numpy as np
import pandas as pd
import pytest

from fedpca_flwr import PCAModel, cli
from tests.genotypes import linked_people, plinks_rule, standardised_by_hand


def test_nothing_is_written_where_files_share_no_variant(tmp_path, capsys):
    for name, position in (("a", 10), ("b", 20)):
        (tmp_path / f"{name}.bim").write_text(f"1 rs{position} 0 {position} A G\n")
    files = [str(tmp_path / f"{name}.bed") for name in "ab"]
    assert cli.main(["genotypes", *files, "--output", str(tmp_path / "out")]) == 2
    assert "no variant in common" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.engine
@pytest.mark.parametrize("secure", [False, True])
def test_people_of_all_files_are_in_one_space(tmp_path, capsys, secure):
    pytest.importorskip("bed_reader", reason="writes the tests' .bed files")
    from tests.genetics.test_bed import variants, write

    G, known = np.delete(linked_people(missing=0.02), 120, axis=1), variants(239)
    G[60] = G[40]  # the same person twice at one site
    parts = {"a": G[:30], "b": G[30:70], "c": G[70:]}
    files = [write(tmp_path / f"{name}.bed", own, known) for name, own in parts.items()]
    (tmp_path / "regions").write_text("# a region\nchr7 100 290 the first twenty\n8 1 9\n")
    given = ["--output", str(tmp_path / "out"), "--n-components", "2", "--exclude", str(tmp_path / "regions")]
    assert cli.main(["genotypes", *files, *given, "--kinship", "0.4", *["--secure-aggregation"] * secure]) == 0
    told = capsys.readouterr()
    assert "20 variants lie in the regions" in told.err
    assert "1 relatives take no part" in told.out
    used = np.delete(G, 40, axis=0)[:, 20:]
    kept = plinks_rule(used, [0], 200, 25, 0.2)
    model = PCAModel.load(tmp_path / "out/people")
    vectors = np.linalg.svd(standardised_by_hand(used) * kept)[2][:2]
    np.testing.assert_allclose(np.abs(np.sum(model.components_ * vectors, axis=1)), 1, atol=1e-6)
    assert len((tmp_path / "out/kept.bim").read_text().splitlines()) == kept.sum()
    scores = np.loadtxt(tmp_path / "out/b.csv", delimiter=",", skiprows=1, usecols=(1, 2, 3))
    expected = np.nan_to_num((G[30:70, 20:] - model.mean_) / model.scale_) @ model.components_.T
    np.testing.assert_allclose(scores[:, :2], expected, atol=1e-9)
    np.testing.assert_array_equal(np.flatnonzero(scores[:, 2]), [10])
    of_plink = pd.read_csv(tmp_path / "out/b.eigenvec", sep="\t", float_precision="round_trip")
    assert of_plink.columns.tolist() == ["#FID", "IID", "PC1", "PC2"]
    assert of_plink["IID"].tolist() == [f"person_{i}" for i in range(40)]
    np.testing.assert_array_equal(of_plink[["PC1", "PC2"]], scores[:, :2])
    loadings = pd.read_csv(tmp_path / "out/loadings.tsv", sep="\t", float_precision="round_trip")
    assert loadings["ID"].tolist() == [f"rs{j}" for j in 20 + np.flatnonzero(kept)]
    np.testing.assert_array_equal(loadings[["PC1", "PC2"]].T, model.components_[:, kept])
    standardised = standardised_by_hand(used)[:, kept]
    relationship = np.linalg.eigvalsh(standardised @ standardised.T / kept.sum())
    np.testing.assert_allclose(np.loadtxt(tmp_path / "out/people.eigenval"), relationship[:-3:-1], rtol=1e-6)
    assert (tmp_path / "out/people.svg").read_text().count("<use ") > 80
