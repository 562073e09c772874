"""Pruning by linkage, beside PLINK's rule in plain loops and beside the program."""

import itertools
import shutil
import subprocess

import numpy as np
import pytest

from fedpca_flwr.maths import linkage
from fedpca_flwr.maths.genotypes import AlleleCounts, count_alleles
from tests.refusals import refused


def linked_people(n=90, d=240, *, missing=0.05, seed=0):
    """Genotypes (n, d) whose variants go together with their neighbours; three of them do not vary."""
    rng = np.random.default_rng(seed)
    founders = rng.random((12, d)) < rng.uniform(0.05, 0.95, d)
    of = np.cumsum(rng.random((2 * n, d)) < 0.05, axis=1) + rng.integers(0, 12, (2 * n, 1))
    copies = np.take_along_axis(founders, of % 12, axis=0)
    G = copies[:n].astype(float) + copies[n:]
    G[:, [5, 9]] = 2, 1
    G[rng.random(G.shape) < missing] = np.nan
    G[:, d // 2] = np.nan
    return G


def squared_correlation(one, other):
    both = ~np.isnan(one) & ~np.isnan(other)
    (a, _), (_, b) = np.cov(one[both], other[both], bias=True)
    return np.cov(one[both], other[both], bias=True)[0, 1] ** 2 / (a * b) if a * b > 0 else 0.0


def by_hand(G, begins, window, step, limit):
    """PLINK's rule, as its sources have it, pair after pair."""
    p = np.nanmean(np.where(np.isnan(G).all(axis=0), 0, G), axis=0) / 2
    major, out = np.maximum(p, 1 - p), ~(np.nanstd(np.where(np.isnan(G).all(axis=0), 0, G), axis=0) > 0)
    for begin, last in itertools.pairwise([*begins, G.shape[1]]):
        unchecked = {i: i + 1 for i in range(begin, last)}
        for start in range(begin, last, step):
            end, before = min(start + window, last), -1
            while before != out.sum():
                before = out.sum()
                for first in range(start, end):
                    for second in range(unchecked[first], end):
                        if out[first] or out[second]:
                            continue
                        unchecked[first] = second + 1
                        if squared_correlation(G[:, first], G[:, second]) > limit:
                            out[first if major[first] > major[second] * (1 + 1e-13) else second] = True
                            break
            if end == last:
                break
    return ~out


def kept(parties, begins, window, step, limit, *, width=100):
    counts = AlleleCounts(*map(sum, zip(*map(count_alleles, parties), strict=True)))
    numbers = linkage.SUMS if (counts.called < counts.rows).any() else 1
    linked = []
    for start in range(0, counts.called.size, width):
        sums = sum(linkage.band(part, start, width, window, numbers) for part in parties)
        linked.append(linkage.correlated(sums, start, counts, limit))
    chromosomes = np.isin(np.arange(counts.called.size), begins)
    return linkage.kept(np.vstack(linked)[: chromosomes.size], counts, chromosomes, window, step)


@pytest.mark.parametrize(("window", "step", "limit"), [(50, 7, 0.2), (20, 20, 0.05), (300, 25, 0.5)])
@pytest.mark.parametrize("missing", [0.0, 0.1])
def test_the_kept_variants_are_those_of_plinks_rule_on_all_people(window, step, limit, missing):
    G = linked_people(missing=missing)
    if not missing:
        G = np.delete(G, G.shape[1] // 2, axis=1)
    expected = by_hand(G, [0, 150], window, step, limit)
    assert 20 < expected.sum() < 230
    np.testing.assert_array_equal(kept([G[:20], G[20:55], G[55:]], [0, 150], window, step, limit), expected)


def test_the_kept_variants_are_those_of_the_program(tmp_path):
    program = shutil.which("plink2")
    to_bed = pytest.importorskip("bed_reader").to_bed
    if program is None:
        pytest.skip("Debian's package 'plink2'")
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


def test_sums_that_no_genotypes_have_are_refused():
    G = linked_people(missing=0.0)
    sums = linkage.band(G, 0, 100, 10, linkage.SUMS)
    sums[0, 20, 3] += 500
    with refused(ValueError):
        linkage.correlated(sums, 0, count_alleles(G), 0.2)
