"""Held-out errors from moments are those of the rows, by Owen and Perry's formula with pseudo-inverses."""

from __future__ import annotations

import numpy as np
import pytest

from fedpca_flwr.maths.inference import BLOCKS, _folds, bi_cross_validation, held_out_errors
from fedpca_flwr.maths.moments import Moments

SIZES = (80, 50, 40, 30)


def drawn(rank, d=20, noise=1.0, seed=0, offset=0.0):
    rng = np.random.default_rng(seed)
    signal = (
        rng.standard_normal((sum(SIZES), rank))
        * np.linspace(4, 3, rank)
        @ np.linalg.qr(rng.standard_normal((d, d)))[0][:, :rank].T
    )
    return signal + noise * rng.standard_normal((sum(SIZES), d)) * np.linspace(0.8, 1.2, d) + offset


def parts(X):
    return [Moments.of(part) for part in np.split(X, np.cumsum(SIZES)[:-1])]


def by_rows(X, components):
    """The error of that many components, row by row: a rank-k pseudo-inverse of what is held in."""
    total, party = 0.0, np.repeat(np.arange(len(SIZES)), SIZES)
    for fold in range(len(SIZES)):
        centred = X - X[party != fold].mean(axis=0)
        for first in range(BLOCKS):
            block = np.arange(X.shape[1]) % BLOCKS == first
            A, B = centred[party == fold][:, block], centred[party == fold][:, ~block]
            C, D = centred[party != fold][:, block], centred[party != fold][:, ~block]
            U, values, Vt = np.linalg.svd(D, full_matrices=False)
            k = components
            found = B @ (Vt[:k].T / values[:k]) @ (U[:, :k].T @ C)
            total += ((A - found) ** 2).sum()
    return total


@pytest.mark.parametrize("offset", [0.0, 1e6])
def test_errors_are_those_of_the_pooled_rows(offset):
    X = drawn(3, offset=offset)
    found = held_out_errors(parts(X))
    np.testing.assert_allclose(found, [by_rows(X, k) for k in range(17)], rtol=1e-8)


@pytest.mark.parametrize("rank", [0, 1, 3, 6])
def test_the_rank_of_a_signal_is_found(rank):
    assert bi_cross_validation(parts(drawn(rank))) == rank


def test_more_features_than_rows_are_no_fault():
    """Only as many components as every fold has; more would be rounding."""
    wide = drawn(3, d=400)
    found = held_out_errors(parts(wide))
    assert found.size <= 200 - max(SIZES)
    assert bi_cross_validation(parts(wide)) == 3


def test_the_unit_of_the_data_does_not_matter():
    X = drawn(3)
    for unit in (2.0**-200, 2.0**200):
        assert bi_cross_validation(parts(X * unit)) == 3


def test_folds_are_even_in_rows_not_in_parties():
    assert _folds([10, 1, 1, 1, 1, 1, 1]) == [[0], [1, 5], [2, 6], [3], [4]]
