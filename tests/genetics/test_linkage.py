"""Pruning by linkage, beside PLINK's rule in plain loops and beside the program."""

import shutil
import subprocess

import numpy as np
import pytest
from scipy import sparse

from fedpca_flwr.genetics import genotypes, linkage
from fedpca_flwr.genetics.genotypes import AlleleCounts, count_alleles, non_genotype_columns, standardise
from fedpca_flwr.maths.rows import Blocks, sparse_rows, to_array
from tests.genotypes import linked_people, people, plinks_rule, standardised_by_hand
from tests.needed import need
from tests.refusals import refused


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
        G = np.delete(G, G.shape[1] // 2, axis=1)
    expected = plinks_rule(G, [0, 100], window, step, limit)
    assert 10 < expected.sum() < 150
    found = kept([G[:20], G[20:35], G[35:]], [0, 100], window, step, limit, width=70)
    np.testing.assert_array_equal(found, expected)


def test_the_kept_variants_are_those_of_the_program(tmp_path):
    program, to_bed = shutil.which("plink2"), pytest.importorskip("bed_reader").to_bed
    need(program, "plink2")
    G = linked_people(200, 3000)
    d = G.shape[1]
    names = {"chromosome": ["1"] * 1400 + ["2"] * (d - 1400), "bp_position": np.arange(d) + 1, "sid": np.arange(d)}
    names |= {"allele_1": ["A"] * d, "allele_2": ["G"] * d, "sex": [1] * len(G)}
    to_bed(tmp_path / "all.bed", np.where(np.isnan(G), -127, G).astype(np.int8), properties=names)
    given = [program, "--bfile", tmp_path / "all", "--indep-pairwise", "200", "25", "0.2", "--out", tmp_path / "found"]
    if subprocess.run([*given, "--indep-order", "1"], capture_output=True).returncode:  # a version before that choice
        subprocess.run(given, check=True, capture_output=True)
    expected = np.isin(np.arange(d), np.loadtxt(tmp_path / "found.prune.in", dtype=int))
    np.testing.assert_array_equal(kept([G[:70], G[70:]], [0, 1400], 200, 25, 0.2, width=1000), expected)


# Allele counts and standardised genotypes, beside the formula on the whole table


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_rows_are_standardised_by_the_formula(dtype):
    G = people(missing=0.1)
    found = to_array(standardise(G.astype(dtype), count_alleles(G.astype(dtype)).frequencies))
    np.testing.assert_allclose(found, standardised_by_hand(G), atol=1e-12)
    np.testing.assert_allclose(found.sum(axis=0), 0, atol=1e-12)


def test_allele_counts_give_the_diagonal_and_add_up():
    G = people(missing=0.1)
    counts = count_alleles(G)
    np.testing.assert_allclose(counts.diagonal, (standardised_by_hand(G) ** 2).sum(axis=0), rtol=1e-12, atol=1e-12)
    assert counts.missing_share == pytest.approx(np.isnan(G).mean())
    blocks = Blocks(lambda: [G[:17], G[17:60]], G.shape[1], G.dtype, count=60)
    for one, other, both in zip(count_alleles(blocks), count_alleles(G[60:]), counts, strict=True):
        np.testing.assert_array_equal(one + other, both)
    # Whole numbers and sparse rows are genotypes, too.
    G = people()
    counts = count_alleles(G)
    for same in (G.astype(np.int8), sparse_rows(sparse.csr_array(G))):
        np.testing.assert_array_equal(count_alleles(same).alleles, counts.alleles)
        found, expected = (to_array(standardise(form, counts.frequencies)) for form in (same, G))
        np.testing.assert_array_equal(found, expected)


def test_variants_of_one_allele_and_what_is_no_genotype():
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
    G = linked_people(missing=0.0)
    products, gapped = linkage.product_sums(G, 0, 100, 10), np.flatnonzero(np.isnan(G[:, :109]).any(axis=0))
    gaps = linkage.gap_sums(G, 0, 100, 10, gapped)
    products[20, 3] += 500  # which no genotypes have
    with refused(ValueError):
        linkage.correlated_pairs(products, gaps, gapped, 0, count_alleles(G), 0.2)
