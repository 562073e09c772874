"""PCA of standardised genotypes by the textbook, whoever holds which people, and pruning beside PLINK's rule."""

import shutil
import subprocess
from typing import Any
from unittest.mock import Mock

import numpy as np
import pandas as pd
import pytest
from scipy import sparse

from fedpca_flwr.errors import ConfigError, ContractError, DataError, DisclosureError
from fedpca_flwr.genetics import genotypes, linkage, pruning
from fedpca_flwr.genetics.genotypes import AlleleCounts, count_alleles, non_genotype_columns, standardise
from fedpca_flwr.genetics.stage import ALLELES, GenotypesStage, pooled_counts
from fedpca_flwr.maths.eigen import principal_angles
from fedpca_flwr.maths.rows import Blocks, sparse_rows, to_array
from fedpca_flwr.protocol.question import Total
from fedpca_flwr.questions.row_limits import MAX_ROWS
from tests.genotypes import linked_people, people, plinks_rule, standardised_by_hand
from tests.harness import client_of, finish, fit, on_request, require_limits, server_of, tamper_arrays
from tests.needed import need
from tests.refusals import refused

SUMS = {"secure_aggregation": True, "min_parties": 2}
WAYS: list[tuple[str, dict[str, Any]]] = [("p-cov", SUMS), ("sub-it", SUMS), ("sub-it", {"warm_start": "svd"})]
WAYS += [("adaptive", {"round_bytes": 1e9}), ("qr-pca", {"rank": 90}), ("qr-pca", {"wire": "float32"})]
PEOPLE = np.split(people(), [50, 62])
LINKED, COMPLETE = (np.delete(linked_people(missing=share), 120, axis=1) for share in (0.05, 0.0))
PRUNED = {"prune": 0.2, "prune_window": 50, "prune_step": 7}
WAYS_TO_PRUNE = [(method, {}, LINKED) for method in ("sub-it", "adaptive")] + [("p-cov", SUMS, LINKED)]


def parties_of(G):
    return np.split(G, [50, 62])


def with_calls(party, rows, variant, value):
    parties = parties_of(people())
    parties[party][rows, variant] = value
    return parties


def analysed(parties, method="qr-pca", **options):
    return fit(method, parties, **{"n_components": 2, "genotypes": True, **options})


@pytest.mark.parametrize(("method", "way"), [*((name, {}) for name in dict(WAYS)), *WAYS], ids=str)
def test_components_are_those_of_the_standardised_genotypes(method, way):
    G = people(missing=0.05)
    G[:, 5] = 2
    G[:50, 9] = np.nan  # a party that never called a variant
    model = analysed(parties_of(G), method, **way)
    _, values, vectors = np.linalg.svd(standardised_by_hand(G), full_matrices=False)
    assert principal_angles(model.components_.T, vectors[:2].T).max() <= 2e-6
    np.testing.assert_allclose(model.singular_values_, values[:2], rtol=1e-7 if "wire" in way else 1e-9)
    np.testing.assert_allclose(model.mean_, np.nanmean(G, axis=0), atol=1e-12)
    np.testing.assert_allclose(model.transform(G), standardised_by_hand(G) @ model.components_.T, atol=1e-9)
    measured = model.log["measured"]
    assert measured["squared_error_per_row"] == pytest.approx(measured["predicted_squared_error_per_row"])
    assert any("1 variants have one allele only" in note for note in model.log["notes"])
    assert any("% of the calls are missing" in note for note in model.log["notes"])
    assert phases_of(model) == ["keys", "alleles", "moments", "project"] or (method, way) != ("p-cov", SUMS)


def phases_of(model):
    return [entry["phase"] for entry in model.log["rounds"]]


@pytest.mark.engine
def test_adaptive_counts_alleles_once():
    model = analysed(parties_of(people(d=2000, missing=0.05)), "adaptive", round_bytes=1e5)
    assert phases_of(model).count("alleles") == phases_of(model).count("survey") == 1
    assert [entry["down"][0] > 8 * 2000 for entry in model.log["rounds"][:3]] == [False, True, False]  # frequencies
    assert all(way["options"]["genotypes"] for way in model.log["candidates"])
    assert {way["method"] for way in model.log["candidates"]} == {"p-cov", "qr-pca", "sub-it"}


def test_rows_are_looked_through_for_other_values_once_a_run(monkeypatch):
    monkeypatch.setattr(genotypes, "non_genotype_columns", watch := Mock(side_effect=non_genotype_columns))
    analysed(PEOPLE, "sub-it")
    assert sorted(len(call.args[0]) for call in watch.call_args_list) == [12, 28, 50]


@pytest.mark.parametrize(
    ("parties", "options", "error", "named"),
    [
        (PEOPLE, {"scale": True}, ConfigError, ["scale=False"]),
        (PEOPLE, {"center": False}, ConfigError, ["center=True"]),
        (PEOPLE, {"keep": "moments", "scale": True}, ConfigError, ["scale=False", "keep=nothing"]),
        (PEOPLE, {"survivors": 3, **SUMS}, ConfigError, ["'survivors'", "p-cov", "alleles", "moments"]),
        (PEOPLE, {"genotypes": False, "prune": 0.2}, ConfigError, ["'prune'", 0.2, "genotypes=True"]),
        (PEOPLE, {"prune": 0.2, "prune_window": 50, "prune_step": 60}, ConfigError, ["'prune_step'", 60, 50]),
        (with_calls(1, [0, 2], [3, 4], [1.5, 3]), {}, DataError, [0, 1, 2, "genotypes=True"]),  # a number of columns
        (parties_of(people(missing=0.1)), {"genotypes": False}, DataError, ["genotypes=True", "NaN"]),
        (with_calls(0, slice(3, None), 7, np.nan), {"min_rows": 10}, DisclosureError, ["party 0", "min_rows"]),
    ],
)
def test_what_contradicts_it_is_refused(parties, options, error, named):
    with refused(error, *named):
        analysed(parties, "p-cov", **options)


def answered(arrays, phase, parties=PEOPLE, **options):
    """Return whether a party that was asked for its alleles answers this question."""
    server = server_of("qr-pca", parties, n_components=2, genotypes=True, **options)
    assert client_of(server, 0).fit([], {"phase": "alleles"})[0]
    return client_of(server, 0).fit(arrays, {"phase": phase})[2].get("error", "")


def test_a_party_answers_about_frequencies_and_variants_that_can_be():
    frequencies = np.full(120, 0.5)
    assert answered([frequencies], "factor") == ""
    for wrong in ([], *(np.insert(frequencies[1:], 3, value) for value in (1e-300, 1.5, 1 - 1e-15, np.nan))):
        assert answered([np.asarray(wrong, float)], "factor") == "ContractError"
    for start, gapped in ((240, []), (0, [240]), (3, [1])):  # variants that are not there
        question = [np.asarray(start), np.array([90, 90]), np.array(gapped, np.int64)]
        assert answered(question, "neighbours", parties_of(linked_people()), **PRUNED) == "ContractError"


def test_a_party_projects_by_the_frequencies_that_it_was_told():
    for place in (1, 2):  # mean and scale
        server = server_of("qr-pca", PEOPLE, n_components=2, genotypes=True)
        on_request(server, 1, "project", lambda a, i=place: [*a[:i], a[i] * (1 + 1e-9), *a[i + 1 :]])
        with refused(ContractError, "client 1", "'mean'", "'scale'", "'frequencies'"):
            finish(server)


def opened(called, alleles, squares):
    program = pooled_counts()
    next(program)
    counts = {"called": called, "alleles": alleles, "squares": squares}
    each = {name: np.array([value], float) for name, value in counts.items()}
    with pytest.raises(StopIteration) as end:
        program.send(Total({"count": np.asarray(5.0), **each}, 2))
    return end.value.value


def test_counts_that_no_genotypes_have_are_a_false_share():
    """Too many calls, copies, copies of calls; the square of 0, 1 or 2 copies is their number to twice that."""
    for right in [(5, 10, 20), (5, 4, 4), (5, 4, 8), (5, 3, 5), (0, 0, 0)]:
        counts = opened(*right)
        assert (counts.rows, counts.called, counts.alleles, counts.squares) == (5, *right)
    for false in [(6, 4, 4), (5, 11, 20), (2, 5, 8), (5, 4, 3), (5, 4, 9)]:
        with refused(ContractError, 1, match="allele"):
            opened(*false)
    # Four people have three copies, and two people are called with two; the last variant is left out.
    stage = GenotypesStage(None)
    stage.counts = AlleleCounts(4, np.array([4.0, 2.0, 4.0]), np.array([3.0, 2.0, 4.0]), np.array([3.0, 2.0, 6.0]))
    stage.pruned = np.array([False, False, True])
    diagonal = [(3 - 4 * 4 * (3 / 8) ** 2) / (2 * 3 / 8 * 5 / 8), 0.0, 0.0]
    np.testing.assert_allclose(stage.head().diagonal, diagonal, rtol=1e-12)
    expected = {"count": MAX_ROWS, "called": MAX_ROWS, "alleles": 2 * MAX_ROWS, "squares": 4 * MAX_ROWS}
    require_limits(ALLELES["alleles"].limits({}, None), expected)


@pytest.mark.engine
@pytest.mark.parametrize(("method", "way", "G"), [*WAYS_TO_PRUNE, ("qr-pca", {}, COMPLETE), ("sub-it", SUMS, COMPLETE)])
def test_components_are_those_of_the_kept_variants(method, way, G, monkeypatch):
    monkeypatch.setattr(pruning, "MAX_PAIRS", 4000)  # so that several questions are needed
    model = analysed(parties_of(G), method, **PRUNED, **way)
    expected = plinks_rule(G, [0], 50, 7, 0.2)
    np.testing.assert_array_equal(model.components_.any(axis=0), expected)
    vectors = np.linalg.svd(standardised_by_hand(G) * expected)[2][:2]
    assert principal_angles(model.components_.T, vectors.T).max() <= 2e-6
    assert phases_of(model).count("neighbours") == 3
    assert any(note.startswith(f"{expected.sum()} variants are kept") for note in model.log["notes"])
    assert model.transform(G).shape == (90, 2)


@pytest.mark.engine
def test_a_window_ends_with_its_chromosome():
    names = [f"{1 + (place >= 120)}:{place}:A:G" for place in range(239)]
    parties = [pd.DataFrame(part, columns=names) for part in parties_of(LINKED)]
    model = analysed(parties, **{**PRUNED, "prune_step": 50})
    np.testing.assert_array_equal(model.components_.any(axis=0), plinks_rule(LINKED, [0, 120], 50, 50, 0.2))
    assert any("founders" in note for note in model.log["notes"])


def test_secure_sums_of_neighbours_share_words():
    """Of 90 people nine sums of products share a word, and only a variant that misses calls has sums over these."""
    G = COMPLETE.copy()
    G[[3, 50], 17] = np.nan
    model = analysed(parties_of(G), "sub-it", **PRUNED, **SUMS)
    np.testing.assert_array_equal(model.components_.any(axis=0), plinks_rule(G, [0], 50, 7, 0.2))
    sizes = [entry["up"][0] for entry in model.log["rounds"] if entry["phase"] == "neighbours"]
    assert sizes == [128 + 8 * (1 + 239 + -(-(239 * 49) // 9) + -(-5 * 49 // 16))]


def test_impossible_genotype_sums_are_refused():
    for array, place, named in ((0, (30, 2), []), (2, 7, ["'variants'"])):

        def change(arrays, array=array, place=place):
            arrays[array] = arrays[array].astype(np.uint64)
            arrays[array][place] += 500
            return arrays

        server = server_of("qr-pca", parties_of(linked_people()), n_components=2, genotypes=True, **PRUNED)
        tamper_arrays(server, 1, change, "neighbours")
        with refused(ContractError, *named):
            finish(server)
    G = linked_people(missing=0.0)
    products, gapped = linkage.product_sums(G, 0, 100, 10), np.flatnonzero(np.isnan(G[:, :109]).any(axis=0))
    gaps = linkage.gap_sums(G, 0, 100, 10, gapped)
    products[20, 3] += 500  # which no genotypes have
    with refused(ValueError):
        linkage.correlated_pairs(products, gaps, gapped, 0, count_alleles(G), 0.2)


def kept(parties, begins, window, step, limit, *, width=100):
    counts = AlleleCounts(*map(sum, zip(*map(count_alleles, parties), strict=True)))
    linked = []
    for start in range(0, counts.called.size, width):
        products = sum(linkage.product_sums(part, start, width, window) for part in parties)
        gapped = start + np.flatnonzero((counts.called < counts.rows)[start : start + width + window - 1])
        gaps = sum(linkage.gap_sums(part, start, width, window, gapped) for part in parties)
        linked.append(linkage.correlated_pairs(products, gaps, gapped, start, counts, limit))
    chromosomes = np.isin(np.arange(counts.called.size), begins)
    return linkage.prune_variants(np.vstack(linked)[: chromosomes.size], counts, chromosomes, window, step)


@pytest.mark.parametrize(("window", "step", "limit"), [(50, 7, 0.2), (20, 20, 0.05), (180, 25, 0.5)])
@pytest.mark.parametrize("missing", [0.0, 0.1])
def test_pruning_keeps_the_variants_of_plinks_rule(window, step, limit, missing):
    G = linked_people(60, 160, missing=missing)
    if not missing:
        G = np.delete(G, 80, axis=1)
    expected = plinks_rule(G, [0, 100], window, step, limit)
    assert 10 < expected.sum() < 150
    np.testing.assert_array_equal(kept([G[:20], G[20:35], G[35:]], [0, 100], window, step, limit, width=70), expected)


def test_the_kept_variants_are_those_of_the_program(tmp_path):
    program, to_bed = shutil.which("plink2"), pytest.importorskip("bed_reader").to_bed
    need(program, "plink2")
    G, d = linked_people(200, 3000), 3000
    names = {"chromosome": ["1"] * 1400 + ["2"] * (d - 1400), "bp_position": np.arange(d) + 1, "sid": np.arange(d)}
    names |= {"allele_1": ["A"] * d, "allele_2": ["G"] * d, "sex": [1] * len(G)}
    to_bed(tmp_path / "all.bed", np.where(np.isnan(G), -127, G).astype(np.int8), properties=names)
    given = [program, "--bfile", tmp_path / "all", "--indep-pairwise", "200", "25", "0.2", "--out", tmp_path / "found"]
    if subprocess.run([*given, "--indep-order", "1"], capture_output=True).returncode:  # a version before that choice
        subprocess.run(given, check=True, capture_output=True)
    expected = np.isin(np.arange(d), np.loadtxt(tmp_path / "found.prune.in", dtype=int))
    np.testing.assert_array_equal(kept([G[:70], G[70:]], [0, 1400], 200, 25, 0.2, width=1000), expected)


def test_allele_counts_give_the_diagonal_and_add_up():
    G = people(missing=0.1)
    counts = count_alleles(G)
    np.testing.assert_allclose(counts.diagonal, (standardised_by_hand(G) ** 2).sum(axis=0), rtol=1e-12, atol=1e-12)
    assert counts.missing_share == pytest.approx(np.isnan(G).mean())
    blocks = Blocks(lambda: [G[:17], G[17:60]], G.shape[1], G.dtype, count=60)
    for one, other, both in zip(count_alleles(blocks), count_alleles(G[60:]), counts, strict=True):
        np.testing.assert_array_equal(one + other, both)
    for same in (G, G.astype(np.float32)):
        found = to_array(standardise(same, count_alleles(same).frequencies))
        np.testing.assert_allclose(found, standardised_by_hand(G), atol=1e-12)
        np.testing.assert_allclose(found.sum(axis=0), 0, atol=1e-12)
    G = people()  # whole numbers and sparse rows are genotypes, too
    for same in (G.astype(np.int8), sparse_rows(sparse.csr_array(G))):
        np.testing.assert_array_equal(count_alleles(same).alleles, count_alleles(G).alleles)
        found, expected = (to_array(standardise(form, count_alleles(G).frequencies)) for form in (same, G))
        np.testing.assert_array_equal(found, expected)
    # Variants of one allele, and what is no genotype.
    G = people(missing=0.1)
    G[:, 3], G[:, 4], G[:, 5] = 0, 2, np.nan
    counts = count_alleles(G)
    assert counts.constant_count == 3
    assert not to_array(standardise(G, counts.frequencies))[:, 3:6].any()
    assert not counts.diagonal[3:6].any()
    np.testing.assert_array_equal(genotypes.genotype_deviation(counts.frequencies)[3:6], 1)
    assert not non_genotype_columns(G).size
    G[3, 7], G[5, 2], G[9, 11] = 0.5, 3, -1
    np.testing.assert_array_equal(non_genotype_columns(G), [2, 7, 11])
