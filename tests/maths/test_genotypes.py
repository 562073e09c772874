"""Allele counts and standardised genotypes, beside the formula on the whole table."""

import numpy as np
import pytest
from scipy import sparse

from fedpca_flwr.maths.genotypes import columns_of_others, count_alleles, deviation, standardised
from fedpca_flwr.maths.rows import Blocks, sparse_rows, whole
from tests.questions.test_genotypes_of_people import by_hand, people


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_rows_are_standardised_by_the_formula(dtype):
    G = people(missing=0.1)
    found = whole(standardised(G.astype(dtype), count_alleles(G.astype(dtype)).frequencies))
    np.testing.assert_allclose(found, by_hand(G), atol=1e-12)
    np.testing.assert_allclose(found.sum(axis=0), 0, atol=1e-12)


def test_counts_give_the_diagonal_and_add_up_over_parties_and_blocks():
    G = people(missing=0.1)
    counts = count_alleles(G)
    np.testing.assert_allclose(counts.diagonal, (by_hand(G) ** 2).sum(axis=0), rtol=1e-12, atol=1e-12)
    assert counts.missing_share == pytest.approx(np.isnan(G).mean())
    blocks = Blocks(lambda: [G[:17], G[17:60]], G.shape[1], G.dtype, count=60)
    for name, one, other, all_ in zip(
        ("rows", "called", "alleles", "squares"),
        count_alleles(blocks),
        count_alleles(G[60:]),
        count_alleles(G),
        strict=True,
    ):
        np.testing.assert_array_equal(one + other, all_, err_msg=name)


def test_whole_numbers_and_sparse_rows_are_genotypes_too():
    G = people()
    counts = count_alleles(G)
    for same in (G.astype(np.int8), sparse_rows(sparse.csr_array(G))):
        np.testing.assert_array_equal(count_alleles(same).alleles, counts.alleles)
        np.testing.assert_array_equal(
            whole(standardised(same, counts.frequencies)), whole(standardised(G, counts.frequencies))
        )


def test_variants_of_one_allele_and_what_is_no_genotype():
    G = people(missing=0.1)
    G[:, 3], G[:, 4], G[:, 5] = 0, 2, np.nan
    counts = count_alleles(G)
    assert counts.constant == 3
    assert not whole(standardised(G, counts.frequencies))[:, 3:6].any()
    assert not counts.diagonal[3:6].any()
    np.testing.assert_array_equal(deviation(counts.frequencies)[3:6], 1)
    assert not columns_of_others(G).size
    G[3, 7], G[5, 2], G[9, 11] = 0.5, 3, -1
    np.testing.assert_array_equal(columns_of_others(G), [2, 7, 11])
