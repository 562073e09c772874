"""Bounds on angles in the course of an iteration: of ties at the cut, and what they presume."""

from __future__ import annotations

import numpy as np

from fedpca_flwr.maths.iteration import BlockIteration
from fedpca_flwr.maths.krylov import random_block


def test_a_tie_at_the_cut_is_proven_only_where_both_its_ends_are():
    """Of the eigenvalues 9, 5, 5 the first alone is wider apart than blocks of two can miss; the first three are not:
    a third 5 may hide from them."""
    A = np.diag(np.r_[9.0, 5.0, 5.0, np.linspace(3, 0.5, 57)])
    found = BlockIteration(random_block(60, 2, seed=0), 2, trace=float(np.trace(A)))
    while not found.add(found.block, A @ found.block):
        pass
    assert not found.proven
    assert found.measured.keys() == {"certified_angle_degrees", "certified_components", "presumed_multiplicity"}
    assert found.measured["certified_components"] == 1
    assert found.measured["presumed_multiplicity"] == 2
