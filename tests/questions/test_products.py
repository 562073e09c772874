"""Products of a scatter with a block: those that no rows have."""

import numpy as np
import pytest

from fedpca_flwr.errors import ContractError
from fedpca_flwr.questions.products import require_possible
from tests.refusals import refused

BLOCK = np.eye(3)[:, :1]


@pytest.mark.parametrize("size", [2.0001e6, -2.0001e6, 1e300])
def test_a_product_is_not_a_million_times_what_variances_allow(size):
    require_possible(np.array([[0.0], [2e6], [-2e6]]), BLOCK, 2.0)
    with refused(ContractError, 2, "'p-cov'"):
        require_possible(np.array([[0.0], [0.0], [size]]), BLOCK, 2.0)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_product_of_no_numbers_is_impossible(value):
    with refused(ContractError, 2, "'p-cov'"):
        require_possible(np.array([[0.0], [value], [0.0]]), BLOCK, 2.0)
