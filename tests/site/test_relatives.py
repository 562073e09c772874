"""Related people within a site: kinship beside the formula, and whom it leaves out of the run and projects."""

import numpy as np
import pytest

from fedpca_flwr.errors import DataError
from fedpca_flwr.site.__main__ import main
from fedpca_flwr.site.relatives import kinship, to_leave_out
from tests.harness import at_sites, finish, fit, server_of
from tests.refusals import refused
from tests.site.test_bed import variants, write


def families(d=3000, missing=0.0):
    """Nine founders, two children of the first two, one of the second and third, and the fifth founder once more."""
    rng = np.random.default_rng(0)
    copies = rng.random((9, 2, d)) < rng.uniform(0.1, 0.9, d)
    parents = [(0, 1), (0, 1), (1, 2)]
    children = [sum(copies[one, rng.integers(0, 2, d), np.arange(d)] for one in pair) for pair in np.array(parents)]
    G = np.vstack([copies.sum(axis=1), *np.array(children, dtype=int), copies[4].sum(axis=0)]).astype(float)
    G[rng.random(G.shape) < missing] = np.nan
    return G


def by_hand(one, other):
    """The estimator of Manichaikul et al. 2010 (its equation 11)."""
    both = ~np.isnan(one) & ~np.isnan(other)
    x, y = one[both], other[both]
    fewer, more = sorted([(x == 1).sum(), (y == 1).sum()])
    same, opposite = ((x == 1) & (y == 1)).sum(), (np.abs(x - y) == 2).sum()
    return (same - 2 * opposite) / (2 * fewer) + 0.5 - 0.25 * (fewer + more) / fewer


def test_kinship_is_the_robust_estimate_of_those_called_at_both():
    G = families(missing=0.05)
    found = kinship([G[:, :1000], G[:, 1000:]])
    pairs = [(i, j) for i in range(len(G)) for j in range(i)]
    np.testing.assert_allclose([found[pair] for pair in pairs], [by_hand(*G[list(pair)]) for pair in pairs], atol=1e-6)
    assert found[0, 9] == pytest.approx(0.25, abs=0.03)
    assert found[4, 12] == pytest.approx(0.5, abs=0.01)
    assert kinship([np.zeros((2, 5))])[0, 1] == 0


def test_those_with_most_relatives_go_until_nobody_is_related():
    assert np.flatnonzero(to_leave_out(kinship([families()]))).tolist() == [4, 9, 10, 11]


def test_people_apart_take_no_part_and_have_scores_in_their_place(tmp_path, capsys):
    G = families(d=60)
    file = write(tmp_path / "a.bed", G, variants(60))
    (tmp_path / "apart").write_text("0 person_4\n0\tperson_9\n")
    scores = tmp_path / "scores.npy"
    node = {"data": file, "apart": str(tmp_path / "apart"), "scores": str(scores), "min-rows": 2}
    model = finish(at_sites(server_of("qr-pca", [G], n_components=2, genotypes=True), [node]))
    expected = fit("qr-pca", [np.delete(G, [4, 9], axis=0)], n_components=2, genotypes=True)
    np.testing.assert_allclose(model.components_, expected.components_, atol=1e-12)
    np.testing.assert_allclose(np.load(scores), expected.transform(G), atol=1e-9)
    (tmp_path / "apart").write_text("1 nobody\n")
    with refused(DataError, "'apart'", 1):
        finish(at_sites(server_of("qr-pca", [G], n_components=2, genotypes=True), [node]))
    main(["relatives", write(tmp_path / "b.bed", families(), variants(3000))])
    assert capsys.readouterr().out.split("\n")[:2] == ["0 person_4", "0 person_9"]
