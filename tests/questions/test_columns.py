"""Limits of sums over all entries of columns, and distances that cannot be."""

import numpy as np
import pytest

from fedpca_flwr.errors import ContractError
from fedpca_flwr.questions.columns import LARGEST_SCALED, measure_limits, require_distances
from tests.refusals import refused

NAMES = ("energy", "sum", "spread")


@pytest.mark.parametrize(
    ("scaled", "centred", "largest"),
    [
        (False, (), 2 * 3.0),  # a value, less a mean that is as far on the other side
        (False, NAMES, 2 * 3.0),
        (True, (), LARGEST_SCALED),
        (True, NAMES, 2 * 4**0.5),  # one of four rows holds no more of a variance than all
    ],
)
def test_no_entry_of_four_rows_and_five_columns_is_larger(scaled, centred, largest):
    found = measure_limits(NAMES, 3.0, 4, 5, scaled=scaled, centred=centred)
    expected = {"energy": 20 * largest**2, "sum": 20 * largest, "spread": 20 * 4 * largest**2}
    assert {name: float(limit) for name, limit in found.items()} == expected


def test_squared_distances_are_below_zero_by_rounding_at_most():
    require_distances(np.array([-0.5, 3.0]), 0.5)
    require_distances(np.empty(0), 0.0)
    with refused(ContractError, -0.501):
        require_distances(np.array([-0.501, 3.0]), 0.5)
