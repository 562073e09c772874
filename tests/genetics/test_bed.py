"""Files of genotypes: blocks, the same variants coded otherwise, relatives, and the command from files to one space."""

import json
import re
import shlex
import shutil
import subprocess
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from fedpca_flwr import PCAModel
from fedpca_flwr.cli import main
from fedpca_flwr.config.node_config import NodeConfig
from fedpca_flwr.config.run_config import RunConfig
from fedpca_flwr.data.table import names_digest
from fedpca_flwr.errors import ConfigError, DataError, DisclosureError
from fedpca_flwr.genetics import relatives
from fedpca_flwr.genetics.bed_file import Variant, match_variants, read_bim
from fedpca_flwr.genetics.relatives import kinship, unrelated_exclusions
from fedpca_flwr.maths.rows import to_array
from fedpca_flwr.site import held_rows
from fedpca_flwr.site.local_table import local_table
from fedpca_flwr.site.readers.files import read
from tests.genotypes import linked_people, people, plinks_rule, standardised_by_hand
from tests.harness import at_sites, finish, fit, read_in_blocks, server_of
from tests.needed import need
from tests.refusals import refused

bed_reader = pytest.importorskip("bed_reader", reason="writes the tests' .bed files")

ALLELES = [("A", "G"), ("C", "T"), ("G", "T"), ("A", "C")]


def variants(d):
    return [Variant("7", 100 + 10 * j, *ALLELES[j % 4]) for j in range(d)]


def write(path, G, markers):
    ids = {"iid": [f"person_{i}" for i in range(len(G))], "sid": [f"rs{j}" for j in range(len(markers))]}
    columns = np.array([marker[:4] for marker in markers], dtype=str).T
    names = ("chromosome", "bp_position", "allele_1", "allele_2")
    bed_reader.to_bed(path, G, properties=ids | dict(zip(names, columns, strict=True)))
    return str(path)


def write_list(path, markers):
    lines = (f"{v.chromosome}\t{v.name or '.'}\t0\t{v.position}\t{v.counted}\t{v.other}\n" for v in markers)
    path.write_text("".join(lines))
    return str(path)


def swap(variant):
    return variant._replace(counted=variant.other, other=variant.counted)


def test_blocks_of_people_give_the_components(tmp_path, monkeypatch):
    read_in_blocks(monkeypatch)
    G, markers = people(90, 30, missing=0.1), variants(30)
    loaded = read(write(tmp_path / "a.bed", G, markers))
    assert [len(block) for block in loaded.rows.read()] == [64, 26]
    np.testing.assert_array_equal(to_array(loaded.rows), G)
    np.testing.assert_array_equal(loaded.missing, np.isnan(G).sum(axis=0))
    assert loaded.names_digest == names_digest([f"7:{100 + 10 * j}:{':'.join(ALLELES[j % 4])}" for j in range(30)])
    other, options = people(60, 30, seed=1), {"n_components": 2, "genotypes": True}
    of_files = fit("sub-it", [loaded.rows, read(write(tmp_path / "b.bed", other, markers)).rows], **options)
    np.testing.assert_array_equal(of_files.components_, fit("sub-it", [G, other], **options).components_)


def test_other_orders_and_strands_count_the_same(tmp_path):
    """The second site has another order, swapped alleles, the other strand, and a further variant."""
    G, markers = people(90, 12, missing=0.05), variants(12)
    G[:, 5] = np.where(np.isnan(G[:, 5]), np.nan, 0)
    other, coded = list(markers), G.copy()
    for j in (1, 2):
        coded[:, j] = 2 - coded[:, j]
        other[j] = swap(markers[j])
    other[3] = markers[3]._replace(chromosome="chr7", counted="t", other="g")  # A/C on the other strand
    other[2] = other[2]._replace(counted="A", other="C")  # swapped, and on the other strand
    other[5] = markers[5]._replace(counted="0")
    order = np.random.default_rng(0).permutation(12)
    theirs = [*(other[j] for j in order), Variant("8", 100, "A", "G")]
    path = write(tmp_path / "b.bed", np.column_stack([coded[:, order], np.ones(90)]), theirs)
    loaded = read(path, variants=write_list(tmp_path / "list.bim", markers))
    np.testing.assert_array_equal(to_array(loaded.rows), G)
    assert loaded.names_digest == read(write(tmp_path / "a.bed", G, markers)).names_digest


def test_pairs_of_alleles_and_chromosomes_in_whatever_spelling(tmp_path):
    others = [("A", "C"), ("A", "GT"), ("G", "C")]
    expected: dict[tuple, list] = {(0, False): ["AG", "TC", "0G"], (0, True): ["GA", "CT", "0A"], (-1, False): others}
    for (place, swapped), pair in ((found, pair) for found, pairs in expected.items() for pair in pairs):
        match = match_variants([Variant("1", 5, "A", "G")], [Variant("1", 5, *pair)])
        assert (match.columns[0], match.swapped[0]) == (place, swapped)
    spelt = ["chr7", "CHR07", "x", "chrY", "XY", "M", "chrMT"]
    markers = read_bim(Path(write_list(tmp_path / "list.bim", [Variant(item, 5, "a", "G") for item in spelt])))
    assert [item.chromosome for item in markers] == ["7", "07", "23", "24", "25", "26", "26"]


def test_variants_that_could_be_two_are_not_guessed(tmp_path, monkeypatch):
    monkeypatch.setattr(held_rows, "resident", held_rows.RowStore())
    one = Variant("1", 5, "A", "G")
    assert match_variants([one], [one, swap(one)]).columns[0] == -1
    G, markers = people(30, 12), [*variants(11), Variant("7", 900, "C", "G")]
    path, listed = write(tmp_path / "a.bed", G, markers), write_list(tmp_path / "list.bim", markers)
    with refused(DataError, 1, "ambiguous='keep'"):
        read(path, variants=listed)
    np.testing.assert_array_equal(to_array(read(path, variants=listed, ambiguous=True).rows), G)
    node = {"partition-id": 0, "num-partitions": 3, "data": path, "variants": listed}
    keeps = NodeConfig.parse({**node, "ambiguous": "keep"}, source="node-config")
    np.testing.assert_array_equal(to_array(local_table(keeps, RunConfig()).rows), G)
    held_rows.resident.receive()
    with refused(DataError, 1, "ambiguous='keep'"):  # what is held is not of this way to read them
        local_table(NodeConfig.parse(node, source="node-config"), RunConfig())


def test_the_command_lists_the_shared_variants(tmp_path, capsys):
    markers, twice, ambiguous = variants(12), [Variant("7", 970, "A", "G")] * 2, Variant("7", 900, "A", "T")
    first = write_list(tmp_path / "a.bim", [*markers, ambiguous, Variant("7", 950, "0", "T"), *twice])
    second = write_list(tmp_path / "b.bim", [swap(markers[0]), *markers[2:], ambiguous])
    main(["site", "variants", first, second])
    printed = capsys.readouterr()
    main(["site", "variants", first, second, "--json"])
    listed = [[entry["chromosome"], str(entry["position"])] for entry in json.loads(capsys.readouterr().out)]
    assert listed == [[line.split()[0], line.split()[3]] for line in printed.out.splitlines()]
    (tmp_path / "list.bim").write_text(printed.out)
    G = people(30, 12)
    loaded = read(write(tmp_path / "c.bed", G, markers), variants=str(tmp_path / "list.bim"))
    np.testing.assert_array_equal(to_array(loaded.rows), np.delete(G, 1, axis=1))
    lines = [
        "a.bim: 1 of all files' variants are not in this file, or twice in it: 7:970:A:G",
        "b.bim: 2 of all files' variants are not in this file, or twice in it: 7:110:C:T, 7:970:A:G",
        "b.bim: 1 are coded with swapped alleles: 7:100:A:G",
        "1 look the same on both strands: 7:900:A:T",
        "1 have an allele that no file names: 7:950:0:T",
        "11 variants in all files",
    ]
    assert not [line for line in lines if line not in printed.err]
    assert main(["site", "variants", first, write_list(tmp_path / "d.bim", [Variant("1", 1, "A", "G")])]) == 2
    capsys.readouterr()
    files = [str(tmp_path / f"{name}.bed") for name in "ad"]
    assert main(["genotypes", *files, "--output", str(tmp_path / "out")]) == 2
    assert "no variant in common" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_the_list_does_not_depend_on_the_order_of_the_files(tmp_path, capsys):
    """PLINK writes 0 for an allele that nobody in a file has: any other file may name the allele."""
    files = {"a": "AC AC AG AC 0A GA AG 0C 0A", "b": "AC 0C 0A CA 0A AG TC AC 0T"}
    files["c"] = "AC 0G T0 AC 0C GA AG AG 0A"  # G and T are C and A of the other strand
    listed = {name: [Variant("2", 9 - j, *pair) for j, pair in enumerate(files[name].split())] for name in files}
    listed |= {str(i): [Variant("2", 1, "A", "G", name)] for i, name in enumerate(("", "rs7", "rs9", "rs9", ""))}
    paths = {name: write_list(tmp_path / f"{name}.bim", markers) for name, markers in listed.items()}

    def names(order, *flags):
        main(["site", "variants", *flags, *[paths[name] for name in order]])
        return [line.split()[1] for line in capsys.readouterr().out.splitlines()]

    for order, name in {"0": "2:1:A:G", "01": "rs7", "10": "rs7", "012": "rs7", "2310": "rs9", "0132": "rs9"}.items():
        assert names(order) == [name]
    expected = ["2:3:A:G", "2:4:G:A", "2:6:A:C", "2:7:A:G", "2:8:A:C", "2:9:A:C"]
    for order in ("abc", "cab", "bca"):
        assert names(order) == expected
        assert names(order, "--ambiguous") == sorted([*expected, "2:5:A:C", "2:1:A:T"])


def test_what_is_no_such_file_is_said(tmp_path):
    path, array = write(tmp_path / "a.bed", people(30, 12), variants(12)), tmp_path / "a.npy"
    bed, bim, fam = (tmp_path / f"a.{suffix}" for suffix in ("bed", "bim", "fam"))
    np.save(array, np.eye(12))
    for given, options, error, named in (
        (path, {"label": "7:100:A:G"}, ConfigError, ["'label'", ".bed"]),
        (str(array), {"variants": path}, ConfigError, [".bed"]),
        (path, {"variants": str(tmp_path / "none.bim")}, DataError, [".bim"]),
    ):
        with refused(error, *named):
            read(given, **options)
    listed = [*variants(12), Variant("9", 1, "A", "G"), Variant("9", 2, "A", "T"), Variant("7", 110, "T", "C")]
    with refused(DataError, 2, 1) as raised:  # all faults of a list at once
        read(path, variants=write_list(tmp_path / "list.bim", listed))
    assert "9:1" not in str(raised.value)
    assert not [text for text in ("9:1:A:G", "7:110:C:T, 7:110:T:C") if text not in raised.value.local]
    of_people = fam.read_text()
    for file, content, named in (
        (fam, (of_people + of_people).encode(), [".bim", ".fam"]),
        (fam, None, [".fam"]),
        (bed, b"xyz" + bed.read_bytes()[3:], [".bed"]),
        (bim, b"7 rs0 0 one A G\n", [".bim"]),
    ):
        fam.write_text(of_people)
        fam.unlink() if content is None else file.write_bytes(content)
        with refused(DataError, *named) as raised:
            read(path)
    assert "line 1 of" in raised.value.local


def test_sites_with_missing_calls_or_other_variants_are_refused(tmp_path):
    def over(parts, markers, **first):
        nodes = [{"data": write(tmp_path / f"{i}.bed", parts[i], markers[i])} for i in range(2)]
        server = server_of("qr-pca", parts, n_components=2, genotypes=True)
        return finish(at_sites(server, [{**nodes[0], **first}, nodes[1]]))

    G, markers = people(90, 60, missing=0.05), variants(60)
    with refused(DisclosureError, "client 1", "gaps='all'"):
        over([G[:50], G[50:]], [markers, markers], gaps="all")
    with refused(ConfigError, "client 1", "client 0", "'features'"):
        over([people(90, 60)] * 2, [markers, [markers[0]._replace(position=1), *markers[1:]]])


def test_scores_of_sites_are_covariates_of_plink(tmp_path, monkeypatch):
    """The page's commands combine the sites' least squares, and the second site codes alleles the other way."""
    need(shutil.which("plink2") and shutil.which("plink1.9"), "plink2 or plink1.9")
    monkeypatch.chdir(tmp_path)
    G, markers, places = people(240, 20), variants(20), {"north": slice(0, 100), "south": slice(100, 240)}
    height = 160 + 2 * G[:, 3] + np.random.default_rng(1).normal(0, 3, len(G))
    write("north.bed", G[places["north"]], markers)
    write("south.bed", 2 - G[places["south"]], list(map(swap, markers)))
    every = {"variants": write_list(tmp_path / "list.bim", markers)}
    nodes = [{"data": f"{name}.bed", "scores": f"{name}.eigenvec", **every} for name in places]
    finish(at_sites(server_of("qr-pca", [G[own] for own in places.values()], n_components=2, genotypes=True), nodes))
    page = (Path(__file__).parents[2] / "docs" / "genotypes.md").read_text(encoding="utf-8").replace("\\\n", " ")
    of_site, of_all = re.findall(r"^```bash\n(plink.*)\n```", page, re.M)
    results = []
    for name, own in places.items():
        scores = pd.read_csv(f"{name}.eigenvec", sep="\t")
        scores[["#FID", "IID"]].assign(height=height[own])[::-1].to_csv(f"{name}.pheno", sep=" ", index=False)
        subprocess.run(shlex.split(of_site.replace("north", name)), check=True, capture_output=True)
        Q, _ = np.linalg.qr(np.column_stack([np.ones(len(scores)), scores[["PC1", "PC2"]]]))
        y, X = (part - Q @ (Q.T @ part) for part in (height[own], G[own]))  # beside a constant and scores
        squares = (X**2).sum(axis=0)
        slopes = X.T @ y / squares
        results.append((slopes, squares * (len(y) - 4) / ((y[:, None] - X * slopes) ** 2).sum(axis=0)))
    subprocess.run(shlex.split(of_all), check=True, capture_output=True)
    slopes, weights = np.array(results).swapaxes(0, 1)
    table = pd.read_csv("height.meta", sep=r"\s+")
    assert table["SNP"].tolist() == [f"rs{j}" for j in range(20)]
    assert table["A1"].tolist() == [marker.counted for marker in markers]
    expected = (weights * slopes).sum(axis=0) / weights.sum(axis=0)
    np.testing.assert_allclose(table["BETA"], expected, atol=1e-4)  # PLINK prints four digits


def families(d=3000, missing=0.0):
    rng = np.random.default_rng(0)
    copies = rng.random((9, 2, d)) < rng.uniform(0.1, 0.9, d)
    children = [sum(copies[i, rng.integers(0, 2, d), np.arange(d)] for i in pair) for pair in ((0, 1), (0, 1), (1, 2))]
    G = np.vstack([copies.sum(axis=1), *children, copies[4].sum(axis=0)]).astype(float)
    G[rng.random(G.shape) < missing] = np.nan
    return G


def test_kinship_is_the_robust_estimate_of_those_called_at_both(tmp_path, capsys, monkeypatch):
    """The estimator of Manichaikul et al. 2010 (its equation 11)."""
    G = families(missing=0.05)
    kinships = kinship([G[:, :1000], G[:, 1000:]])
    for i, j in zip(*np.tril_indices(len(G), -1), strict=True):
        x, y = G[[i, j]][:, ~np.isnan(G[[i, j]]).any(axis=0)]
        smaller, larger = sorted([(x == 1).sum(), (y == 1).sum()])
        same, opposite = ((x == 1) & (y == 1)).sum(), (np.abs(x - y) == 2).sum()
        expected = (same - 2 * opposite) / (2 * smaller) + 0.5 - 0.25 * (smaller + larger) / smaller
        assert kinships[i, j] == pytest.approx(expected, abs=1e-6)
    assert kinships[0, 9] == pytest.approx(0.25, abs=0.03)
    assert kinships[4, 12] == pytest.approx(0.5, abs=0.01)
    assert kinship([np.zeros((2, 5))])[0, 1] == 0
    for value, out in ((0.09, [True, False]), (0.088, [False, False])):
        assert unrelated_exclusions(np.array([[0.5, value], [value, 0.5]])).tolist() == out
    # Those with most relatives go until nobody is related.
    blocks, command = [], ["site", "relatives", write(tmp_path / "b.bed", families(), variants(3000))]
    monkeypatch.setattr(relatives, "BLOCK_VARIANTS", 700)
    monkeypatch.setattr(relatives, "kinship", lambda read: blocks.extend(read) or kinship(blocks))
    main([*command, "--json"])
    assert json.loads(capsys.readouterr().out) == [f"0 person_{number}" for number in (4, 9, 10, 11)]
    np.testing.assert_array_equal(np.hstack(blocks), families())
    main(command)
    assert capsys.readouterr().out.splitlines() == [f"0 person_{number}" for number in (4, 9, 10, 11)]


def test_excluded_people_have_scores(tmp_path):
    G, apart, scores = families(d=60), tmp_path / "apart", tmp_path / "scores.npy"
    node = {"data": write(tmp_path / "a.bed", G, variants(60)), "apart": str(apart), "scores": str(scores)}
    node |= {"min-rows": 2, "rare-values": "allow"}

    def without(people):
        apart.write_text(people)
        return finish(at_sites(server_of("qr-pca", [G], n_components=2, genotypes=True), [node]))

    model = without("0 person_4\n0\tperson_9\n")
    expected = fit("qr-pca", [np.delete(G, [4, 9], axis=0)], n_components=2, genotypes=True)
    np.testing.assert_allclose(model.components_, expected.components_, atol=1e-12)
    np.testing.assert_allclose(np.load(scores), expected.transform(G), atol=1e-9)
    with refused(DataError, "'apart'", 1):
        without("1 nobody\n")


@pytest.mark.engine
@pytest.mark.parametrize("secure", [False, True])
def test_people_of_all_files_are_in_one_space(tmp_path, capsys, secure):
    G, out = np.delete(linked_people(missing=0.02), 120, axis=1), tmp_path / "out"
    G[60] = G[40]  # the same person twice at one site
    parts = {"a": G[:30], "b": G[30:70], "c": G[70:]}
    files = [write(tmp_path / f"{name}.bed", own, variants(239)) for name, own in parts.items()]
    (tmp_path / "regions").write_text("# a region\nchr7 100 290 the first twenty\n8 1 9\n")
    given = ["--output", str(out), "--n-components", "2", "--exclude", str(tmp_path / "regions")]
    assert main(["genotypes", *files, *given, "--kinship", "0.4", *["--secure-aggregation"] * secure]) == 0
    told = capsys.readouterr()
    assert "20 variants lie in the regions" in told.err
    assert "1 relatives take no part" in told.out
    used = np.delete(G, 40, axis=0)[:, 20:]
    kept, standardised = plinks_rule(used, [0], 200, 25, 0.2), standardised_by_hand(used)
    model = PCAModel.load(out / "people")
    vectors = np.linalg.svd(standardised * kept)[2][:2]
    np.testing.assert_allclose(np.abs(np.sum(model.components_ * vectors, axis=1)), 1, atol=1e-6)
    assert len((out / "kept.bim").read_text().splitlines()) == kept.sum()
    scores = np.loadtxt(out / "b.csv", delimiter=",", skiprows=1, usecols=(1, 2, 3))
    expected = np.nan_to_num((G[30:70, 20:] - model.mean_) / model.scale_) @ model.components_.T
    np.testing.assert_allclose(scores[:, :2], expected, atol=1e-9)
    np.testing.assert_array_equal(np.flatnonzero(scores[:, 2]), [10])
    read_table = partial(pd.read_csv, sep="\t", float_precision="round_trip")
    of_plink, loadings = map(read_table, (out / "b.eigenvec", out / "loadings.tsv"))
    assert of_plink.columns.tolist() == ["#FID", "IID", "PC1", "PC2"]
    assert of_plink["IID"].tolist() == [f"person_{i}" for i in range(40)]
    np.testing.assert_array_equal(of_plink[["PC1", "PC2"]], scores[:, :2])
    assert loadings["ID"].tolist() == [f"rs{j}" for j in 20 + np.flatnonzero(kept)]
    np.testing.assert_array_equal(loadings[["PC1", "PC2"]].T, model.components_[:, kept])
    relationship = np.linalg.svd(standardised[:, kept])[1][:2] ** 2 / kept.sum()
    np.testing.assert_allclose(np.loadtxt(out / "people.eigenval"), relationship, rtol=1e-6)
    assert (out / "people.svg").read_text().count("<use ") > 80
