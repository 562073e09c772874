"""Bounds on angles in the course of an iteration: of ties at the cut, and what they presume."""

from __future__ import annotations

import numpy as np
import pytest

from fedpca_flwr.maths.angle_bounds import AngleBounds, Probe
from fedpca_flwr.maths.block_iteration import BlockIteration
from fedpca_flwr.maths.krylov import FirstBlock, KnownProducts, Ritz, random_block

TIED = np.diag(np.r_[9.0, 8.0, 5.0, 5.0, np.linspace(3, 0.5, 56)])
ENDS = {2: 5.001, 4: 3.001}
"""Bounds on the eigenvalues after the first two of `TIED`, and after the first four: where the tie begins and ends."""


@pytest.mark.parametrize("proven_at", [(), (2,), (4,), (2, 4)])
def test_a_tie_at_the_cut_is_proven_only_where_both_its_ends_are(proven_at):
    """Blocks of two columns prove neither by themselves: another variance that occurs twice may hide from them."""
    first = random_block(60, 2, seed=0)
    known, start = KnownProducts(60), FirstBlock(first)
    V = np.linalg.qr(np.column_stack([np.eye(60)[:, :4], first]))[0]
    known.add(V, TIED @ V)
    start.asked(known)
    bounds = AngleBounds(3, float(np.trace(TIED)), accelerated=True, sketch=None)
    bounds.take(known, known.ritz(), start, 1)
    bounds.hold({j: ENDS[j] for j in proven_at})
    bounds.hold(dict.fromkeys(proven_at, 100.0))  # of two bounds the smaller one holds
    degrees, determined = bounds.wanted()
    assert (bounds.upto, determined) == (4, 2)
    assert bounds.proven == (proven_at == (2, 4))
    assert degrees < 1e-6 or not bounds.proven
    half = known.ritz().residual(4) / np.sin(np.radians(0.1))
    assert bounds.level(0.2) == pytest.approx(5.0 - 1.0001 * half, rel=1e-14)


def test_a_tie_at_the_cut_is_not_certified_while_one_of_it_hides():
    """Of the eigenvalues 9, 5, 5 the first alone is wider apart than blocks of two can miss; the first three are not:
    a third 5 may hide from them, and here does."""

    def seen(found):
        return np.isclose(found.ritz.values, 5 / 9 * found.ritz.values[0]).sum()

    A = np.diag(np.r_[9.0, 5.0, 5.0, 5.0, np.linspace(3, 0.5, 56)])
    found = BlockIteration(random_block(60, 2, seed=0), 2, trace=float(np.trace(A)))
    while not found.add(found.block, A @ found.block):
        assert found.certificate == 90.0 or seen(found) == 3
    assert found.proven
    assert (found.enough, found.determined) == (True, 1)
    assert seen(found) == 3


def test_a_probe_adds_what_the_first_vectors_get_wrong():
    """Eigenvalue 2 of a matrix whose first two vectors are wrong by 0.01: 8, and by Weyl's inequality as much more."""
    A = np.diag([9.0, 8.0, *np.linspace(1, 0.1, 8)])
    ritz = Ritz(np.array([9.0, 8.0]), np.eye(10)[:, :2], np.zeros((10, 2)), 0.01)
    probe = Probe(ritz, 2, 5.0, 8, turn=0)
    probe.add(probe.block, A @ probe.block, error=0.0)
    assert not probe.room
    ceilings = probe.ceilings(5.0)
    assert ceilings[1] == pytest.approx(8.01, rel=1e-12)
    assert 1.0 <= ceilings[2] < 5.0
