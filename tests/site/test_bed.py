"""Files of genotypes: what is read, in blocks; the same variants coded otherwise; what is refused."""

import numpy as np
import pytest

from fedpca_flwr.data import table
from fedpca_flwr.data.table import names_digest
from fedpca_flwr.errors import ConfigError, DataError, DisclosureError
from fedpca_flwr.maths.eigen import principal_angles
from fedpca_flwr.maths.rows import Blocks, whole
from fedpca_flwr.site import bed_file
from fedpca_flwr.site.__main__ import main
from fedpca_flwr.site.bed_file import Variant, matched
from fedpca_flwr.site.readers import read
from tests.harness import at_sites, finish, fit, server_of
from tests.questions.test_genotypes_of_people import by_hand, people
from tests.refusals import refused

bed_reader = pytest.importorskip("bed_reader", reason="needs the extra 'genotypes'")

ALLELES = [("A", "G"), ("C", "T"), ("G", "T"), ("A", "C")]


def variants(d):
    return [Variant("7", 100 + 10 * j, *ALLELES[j % 4]) for j in range(d)]


def write(path, G, known):
    """A .bed file with its .bim and .fam, of these variants."""
    properties = {
        "iid": [f"person {i}".replace(" ", "_") for i in range(len(G))],
        "sid": [f"rs{j}" for j in range(len(known))],
        "chromosome": [variant.chromosome for variant in known],
        "bp_position": [variant.position for variant in known],
        "allele_1": [variant.counted for variant in known],
        "allele_2": [variant.other for variant in known],
    }
    bed_reader.to_bed(path, G, properties=properties)
    return str(path)


def write_list(path, known):
    path.write_text("".join(f"{v.chromosome}\tx\t0\t{v.position}\t{v.counted}\t{v.other}\n" for v in known))
    return str(path)


def test_a_file_is_read_in_blocks_of_people(tmp_path, monkeypatch):
    monkeypatch.setattr(table, "HELD_BYTES", 0)
    monkeypatch.setattr(bed_file, "ELEMENTS", 0)  # blocks of 64 rows
    G, known = people(90, 30, missing=0.1), variants(30)
    found = read(write(tmp_path / "a.bed", G, known))
    assert isinstance(found.rows, Blocks)
    assert [len(block) for block in found.rows.read()] == [64, 26]
    np.testing.assert_array_equal(whole(found.rows), G)
    np.testing.assert_array_equal(found.missing, np.isnan(G).sum(axis=0))
    assert found.columns == names_digest([f"7:{100 + 10 * j}:{':'.join(ALLELES[j % 4])}" for j in range(30)])


def test_sites_whose_files_have_other_orders_alleles_and_strands_count_the_same(tmp_path):
    """The second site lacks nothing, has more, another order, swapped alleles, the other strand, and one unobserved."""
    G, known = people(90, 12, missing=0.05), variants(12)
    G[:, 5] = np.where(np.isnan(G[:, 5]), np.nan, 0)
    other = list(known)
    coded = G.copy()
    for j in (1, 2):
        coded[:, j] = 2 - coded[:, j]
        other[j] = known[j]._replace(counted=known[j].other, other=known[j].counted)
    other[3] = known[3]._replace(chromosome="chr7", counted="t", other="g")  # A/C on the other strand
    other[2] = other[2]._replace(counted="A", other="C")  # swapped, and on the other strand
    other[5] = known[5]._replace(counted="0")
    order = np.random.default_rng(0).permutation(12)
    more = Variant("8", 100, "A", "G")
    path = write(
        tmp_path / "b.bed", np.column_stack([coded[:, order], np.ones(90)]), [*(other[j] for j in order), more]
    )
    listed = write_list(tmp_path / "list.bim", known)
    found = read(path, variants=listed)
    np.testing.assert_array_equal(whole(found.rows), G)
    assert found.columns == read(write(tmp_path / "a.bed", G, known)).columns


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        (("A", "G"), (0, False)),
        (("G", "A"), (0, True)),
        (("T", "C"), (0, False)),
        (("C", "T"), (0, True)),
        (("0", "G"), (0, False)),
        (("0", "A"), (0, True)),
        (("A", "C"), (-1, False)),
        (("A", "GT"), (-1, False)),
    ],
)
def test_pairs_of_alleles(own, expected):
    found = matched([Variant("1", 5, "A", "G")], [Variant("1", 5, *own)])
    assert (found.columns[0], found.swapped[0]) == expected


def test_variants_that_could_be_two_are_not_guessed(tmp_path):
    twice = [Variant("1", 5, "A", "G"), Variant("1", 5, "G", "A")]
    assert matched([Variant("1", 5, "A", "G")], twice).columns[0] == -1
    known = [*variants(11), Variant("7", 900, "C", "G")]
    G = people(30, 12)
    path, listed = write(tmp_path / "a.bed", G, known), write_list(tmp_path / "list.bim", known)
    with refused(DataError, 1, "ambiguous='keep'"):
        read(path, variants=listed)
    np.testing.assert_array_equal(whole(read(path, variants=listed, ambiguous=True).rows), G)


def test_all_that_is_wrong_with_a_list_is_told_at_once_without_a_name(tmp_path):
    path = write(tmp_path / "a.bed", people(30, 12), variants(12))
    listed = [*variants(12), Variant("9", 1, "A", "G"), Variant("9", 2, "A", "T"), Variant("7", 110, "T", "C")]
    with refused(DataError, 2, 1) as raised:
        read(path, variants=write_list(tmp_path / "list.bim", listed))
    assert "9:1" not in str(raised.value)
    assert "9:1:A:G" in raised.value.local


def test_what_is_no_such_file_is_said(tmp_path):
    path = write(tmp_path / "a.bed", people(30, 12), variants(12))
    with refused(ConfigError, "'label'", ".bed"):
        read(path, "7:100:A:G")
    np.save(tmp_path / "a.npy", np.eye(12))
    with refused(ConfigError, ".bed"):
        read(str(tmp_path / "a.npy"), variants=path)
    with refused(DataError, ".bim"):
        read(path, variants=str(tmp_path / "none.bim"))
    bed, bim, fam = (tmp_path / f"a.{suffix}" for suffix in ("bed", "bim", "fam"))
    said = fam.read_text()
    fam.write_text(said + said)
    with refused(DataError, ".bim", ".fam"):
        read(path)
    fam.unlink()
    with refused(DataError, ".fam"):
        read(path)
    fam.write_text(said)
    bed.write_bytes(b"xyz" + bed.read_bytes()[3:])
    with refused(DataError, ".bed"):
        read(path)
    bim.write_text("7 rs0 0 one A G\n")
    with refused(DataError, ".bim") as raised:
        read(path)
    assert "line 1 of" in raised.value.local


@pytest.mark.parametrize(("method", "way"), [("qr-pca", {}), ("sub-it", {"secure_aggregation": True})])
def test_sites_with_files_of_their_own_get_the_components_of_all(method, way, tmp_path):
    """Two sites whose alleles are swapped against each other's at every variant, by the list of one of them."""
    G, known = people(90, 60, missing=0.05), variants(60)
    turned = [variant._replace(counted=variant.other, other=variant.counted) for variant in known]
    files = [write(tmp_path / "a.bed", G[:50], known), write(tmp_path / "b.bed", 2 - G[50:], turned)]
    listed = write_list(tmp_path / "list.bim", known)
    scores = [str(tmp_path / f"{party}.npy") for party in range(2)]
    nodes = [
        {
            "data": file,
            "variants": listed,
            "gaps": "all",
            "scores": path,
            "journal": f"{path} journal",
            "min-parties": 2,
        }
        for file, path in zip(files, scores, strict=True)
    ]
    server = server_of(method, [G[:50], G[50:]], n_components=2, genotypes=True, **way)
    model = finish(at_sites(server, nodes))
    _, _, vectors = np.linalg.svd(by_hand(G), full_matrices=False)
    assert principal_angles(model.components_.T, vectors[:2].T).max() <= 1e-6
    written = np.vstack([np.load(path) for path in scores])
    np.testing.assert_allclose(written, by_hand(G) @ model.components_.T, atol=1e-6)


def test_sites_with_missing_calls_or_other_variants_are_refused(tmp_path):
    G, known = people(90, 60, missing=0.05), variants(60)
    parts = [G[:50], G[50:]]
    own = [{"data": write(tmp_path / f"{i}.bed", part, known)} for i, part in enumerate(parts)]
    server = server_of("qr-pca", parts, n_components=2, genotypes=True)
    with refused(DisclosureError, "client 1", "gaps='all'"):
        finish(at_sites(server, [{**own[0], "gaps": "all"}, own[1]]))
    G, known = people(90, 12), variants(12)
    other = [known[0]._replace(position=1), *known[1:]]
    nodes = [{"data": write(tmp_path / f"{i}.bed", G, own)} for i, own in enumerate((known, other))]
    with refused(ConfigError, "client 1", "client 0", "'features'"):
        finish(at_sites(server_of("qr-pca", [G, G], n_components=2, genotypes=True), nodes))


def test_blocks_give_the_components_of_the_array(tmp_path, monkeypatch):
    monkeypatch.setattr(table, "HELD_BYTES", 0)
    G = people(90, 60, missing=0.05)
    files = [write(tmp_path / f"{i}.bed", part, variants(60)) for i, part in enumerate((G[:50], G[50:]))]
    options = {"n_components": 2, "genotypes": True}
    of_files = fit("sub-it", [read(file).rows for file in files], **options)
    of_arrays = fit("sub-it", [G[:50], G[50:]], **options)
    np.testing.assert_array_equal(of_files.components_, of_arrays.components_)


def test_the_command_prints_a_list_of_what_all_have_and_names_the_rest(tmp_path, capsys):
    known = variants(12)
    second = [known[0]._replace(counted="G", other="A"), *known[2:], Variant("7", 900, "A", "T")]
    first = write_list(tmp_path / "a.bim", [*known, Variant("7", 900, "A", "T"), Variant("7", 950, "0", "T")])
    main(["variants", first, write_list(tmp_path / "b.bim", second)])
    printed = capsys.readouterr()
    (tmp_path / "list.bim").write_text(printed.out)
    G = people(30, 12)
    found = read(write(tmp_path / "c.bed", G, known), variants=str(tmp_path / "list.bim"))
    np.testing.assert_array_equal(whole(found.rows), np.delete(G, 1, axis=1))
    for said in (
        "b.bim: 1 are not in it, or twice: 7:110:C:T",
        "b.bim: 1 are coded with swapped alleles: 7:100:A:G",
        "a.bim: 1 look the same on both strands: 7:900:A:T",
        "a.bim: 1 have an allele that it does not name: 7:950:0:T",
        "11 variants in all files",
    ):
        assert said in printed.err
    with pytest.raises(SystemExit):
        main(["variants", first, write_list(tmp_path / "d.bim", [Variant("1", 1, "A", "G")])])
