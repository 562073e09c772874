"""Restarts: the basis stays bounded, and what a proof uses of the random first block is carried over them."""

from __future__ import annotations

import numpy as np
import pytest

from fedpca_flwr.maths import krylov
from fedpca_flwr.maths.angle_bounds import presumed_bound
from fedpca_flwr.maths.block_iteration import BlockIteration
from fedpca_flwr.maths.eigen import principal_angles
from fedpca_flwr.maths.krylov import FirstBlock, KnownProducts, Restart, Ritz, columns_kept, random_block

VALUES = np.r_[3.0, 2.5, 2.2, np.linspace(2, 0, 197)]


def restarted(cycles, *, kept=20, blocks=5, seed=0, rounded=False):
    """After so many restarts of a Krylov space of blocks of 8: the first block, and what is known."""
    known, block = KnownProducts(200), random_block(200, 8, seed)
    first = FirstBlock(block)
    for step in range(1 + blocks * (cycles + 1)):
        if step and step % blocks == 0 and len(first.restarts) < cycles:
            first.restart(known.ritz(), kept, block)
            known.keep(known.ritz(), kept)
        V = block.astype(np.float32).astype(np.float64) if rounded and step else block
        known.add(V, VALUES[:, None] * V)
        first.asked(known)
        block = known.next_block(known.ritz(), 8, 3)
    return first, known


@pytest.mark.parametrize("rounded", [False, True])
@pytest.mark.parametrize("cycles", [0, 1, 2, 4])
def test_what_the_first_block_shows_of_eigenvectors_is_carried_over_restarts(cycles, rounded):
    first, known = restarted(cycles, rounded=rounded)
    shown, ritz = random_block(200, 8, 0), known.ritz()
    for i in range(8):
        seen, outside = first.seen(ritz, VALUES[i])
        assert np.linalg.norm(shown[i] - seen.T @ ritz.vectors[i]) <= 1.01 * outside
        assert outside < (1e-1 if rounded else 1e-6)
    assert np.abs(shown).max() > 0.5


@pytest.mark.parametrize("cycles", [1, 3, 6])
def test_a_ceiling_holds_after_restarts_and_comes_near(cycles):
    for seed in range(5):
        first, known = restarted(cycles, kept=30, blocks=8, seed=seed)
        ceiling = presumed_bound(known.ritz(), 3, first)
        assert VALUES[3] <= ceiling <= VALUES[3] + (VALUES[2] - VALUES[3]) / 2


def test_what_the_first_block_does_not_show_has_no_ceiling_after_few_products():
    first, known = restarted(1, kept=8, blocks=2)
    assert presumed_bound(known.ritz(), 3, first) == np.inf


def iterated(values, k, width):
    found, most = BlockIteration(random_block(len(values), width, 1), k, trace=float(values.sum())), 0
    while not found.add(found.block, values[:, None] * found.block):
        most = max(most, found.known.Q.shape[1])
        assert found.asked < 200
    return found, max(most, found.known.Q.shape[1])


@pytest.mark.parametrize(("k", "width"), [(3, 8), (4, 2)])
def test_a_restarted_basis_stays_bounded_and_certifies_the_same(monkeypatch, k, width):
    """A proof that took the first block for lost would never end."""
    values = np.r_[3.0, 2.8, 2.6, 2.4, np.linspace(2.2, 0, 596)]
    whole, columns = iterated(values, k, width)
    monkeypatch.setattr(krylov, "BASIS_BYTES", 0)
    bounded, fewer = iterated(values, k, width)
    assert fewer <= 2 * k + 10 * width < columns
    for found in (whole, bounded):
        assert principal_angles(found.pairs.vectors, np.eye(600)[:, :k]).max() <= found.certificate <= 1e-6
    assert bounded.asked <= 1.5 * whole.asked


def test_memory_bounds_the_columns_only_where_they_are_long():
    assert columns_kept(784, 50, 60)[0] > 784  # never restarted
    assert columns_kept(54_051, 10, 20)[0] > 1000
    assert columns_kept(10**6, 10, 20) == (220, 110)


def test_what_a_restart_leaves_outside_counts_in_the_unit_of_what_is_shown():
    """Of a vector that is given up a half is shown; 0.3 of its residual lies outside, and 0.2 of the quarter within."""
    first = FirstBlock(np.ones((5, 1)))
    last = np.array([[0.0], [1.0]])
    first.restarts = [Restart(last, np.array([1.0]), np.array([[0.5]]), 0.3, last, 0.2)]
    ritz = Ritz(np.array([2.0, 1.0]), np.eye(5)[:, :2], np.zeros((5, 2)), 0.0, rotation=np.eye(2))
    seen, outside = first.seen(ritz, 3.0)
    np.testing.assert_allclose(seen, [[0.0], [0.25]])
    assert outside == pytest.approx(0.3 * 0.5 + 0.2 * 0.25)
