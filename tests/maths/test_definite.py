"""Whether scatters can be those of rows."""

from __future__ import annotations

import numpy as np
import pytest

from fedpca_flwr.maths.influence import RandomGroups, indefinite
from fedpca_flwr.maths.moments import Moments, pack


def moments(*diagonal):
    """Of a diagonal scatter, whose eigenvalues are these."""
    d = len(diagonal)
    return Moments(9, np.zeros(d), np.zeros(d), pack(np.diag(diagonal)))


@pytest.mark.parametrize("unit", [1e-200, 1.0, 1e200])
def test_a_negative_eigenvalue_beyond_rounding_is_seen(unit):
    """Rounding are 4 d roundings of float32: 1.4e-6 of the largest eigenvalue for three features."""
    rounded, false = (moments(unit, unit / 2, -part * unit) for part in (1e-6, 2e-6))
    found = [indefinite([part], unit, None, np.random.default_rng(0)) for part in (rounded, false)]
    assert found == [[], [0]]


def test_a_group_whose_sum_is_not_semidefinite_is_named():
    groups = RandomGroups(1, np.random.default_rng(0))
    groups.add("north", moments(1.0, 0.5, -2e-6))
    assert groups.indefinite(3, 1.0, None) == [["north"]]
