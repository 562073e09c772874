"""Block iteration: certified pairs, also where narrow blocks meet repeated eigenvalues."""

from __future__ import annotations

import numpy as np
import pytest

from fedpca_flwr.maths.iteration import PROBES, BlockIteration
from fedpca_flwr.maths.krylov import random_block
from fedpca_flwr.maths.subspace import principal_angles


def iterate(values, *, k, width, tolerance=1e-6, accelerated=True, rounds=200):
    d = len(values)
    basis, _ = np.linalg.qr(np.random.default_rng(0).standard_normal((d, d)))
    A = (basis * values) @ basis.T
    trace = float(np.sum(values))
    iteration = BlockIteration(d, k, width=width, trace=trace, tolerance=tolerance, accelerated=accelerated)
    block = random_block(d, width, 1)
    for asked in range(1, rounds + 1):
        if iteration.add(block, A @ block):
            return iteration, principal_angles(iteration.ritz.vectors[:, :k], basis[:, :k]).max(), asked
        block = iteration.block
    raise AssertionError(f"no end after {rounds} rounds: {iteration.certificate}")


@pytest.mark.parametrize("width", [3, 8, 13])
def test_the_certificate_is_not_below_the_error(width):
    iteration, error, _ = iterate(0.8 ** np.arange(60), k=8, width=width, tolerance=0.1)
    assert error <= iteration.certificate + 1e-10  # rounding
    assert iteration.certificate <= 0.1


def test_eigenvalues_repeated_more_often_than_a_block_has_columns_are_found():
    """One vector sees one direction of each eigenvalue, and its certificate would hold after a few rounds."""
    _, error, _ = iterate(np.repeat([4.0, 3.0, 1.0], [3, 3, 34]), k=6, width=1)
    assert error <= 1e-6


def test_narrow_blocks_look_longer_and_wide_ones_need_not():
    values = 0.5 ** np.arange(40)
    assert not iterate(values, k=6, width=2)[0].proven
    wide, _, _ = iterate(values, k=6, width=12)
    assert wide.proven
    assert wide._probes == 0 < PROBES


def test_the_plain_iteration_gets_there_later():
    values = 0.7 ** np.arange(40)
    assert iterate(values, k=4, width=8, accelerated=False)[2] > iterate(values, k=4, width=8)[2]


def test_an_invariant_span_that_holds_the_whole_trace_is_proven():
    iteration, error, _ = iterate(np.repeat([2.0, 0.0], [3, 37]), k=3, width=2)
    assert iteration.proven
    assert error <= 1e-6
