"""From .bed files to components of unrelated people and a plot: the command."""

import numpy as np
import pytest

pytest.importorskip("bed_reader", reason="needs the extra 'genotypes'")

from fedpca_flwr import PCAModel
from simulations import genotypes
from tests.maths.test_linkage import by_hand as plinks_rule
from tests.maths.test_linkage import linked_people
from tests.questions.test_genotypes_of_people import by_hand
from tests.site.test_bed import variants, write


@pytest.mark.parametrize("secure", [False, True])
def test_people_of_all_files_are_in_one_space(tmp_path, capsys, secure):
    G, known = np.delete(linked_people(missing=0.02), 120, axis=1), variants(239)
    G[60] = G[40]  # the same person twice at one site
    files = [
        write(tmp_path / f"{name}.bed", own, known) for name, own in (("a", G[:30]), ("b", G[30:70]), ("c", G[70:]))
    ]
    (tmp_path / "regions").write_text("# a region\nchr7 100 290 the first twenty\n8 1 9\n")
    given = ["--output", str(tmp_path / "out"), "--components", "2", "--exclude", str(tmp_path / "regions")]
    assert genotypes.main([*files, *given, "--kinship", "0.4", *["--secure"] * secure]) == 0
    told = capsys.readouterr()
    assert "20 variants lie in the regions" in told.err
    assert "1 relatives take no part" in told.out
    used = np.delete(G, 40, axis=0)[:, 20:]
    kept = plinks_rule(used, [0], 200, 25, 0.2)
    model = PCAModel.load(tmp_path / "out/people")
    vectors = np.linalg.svd(by_hand(used) * kept)[2][:2]
    np.testing.assert_allclose(np.abs(np.sum(model.components_ * vectors, axis=1)), 1, atol=1e-6)
    assert len((tmp_path / "out/kept.bim").read_text().splitlines()) == kept.sum()
    scores = np.loadtxt(tmp_path / "out/b.csv", delimiter=",", skiprows=1, usecols=(1, 2, 3))
    np.testing.assert_allclose(
        scores[:, :2], np.nan_to_num((G[30:70, 20:] - model.mean_) / model.scale_) @ model.components_.T, atol=1e-9
    )
    np.testing.assert_array_equal(np.flatnonzero(scores[:, 2]), [10])
    assert (tmp_path / "out/people.svg").read_text().count("<use ") > 80
