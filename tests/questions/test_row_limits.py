"""Public limits on sums: what they must take, and what no rows can have."""

import numpy as np
import pytest

from fedpca_flwr.errors import ConfigError, ContractError, DataError
from fedpca_flwr.maths.secure import Layout
from fedpca_flwr.questions.row_limits import (
    ROWS,
    UNSEEN,
    deviation_limits,
    pooled_of,
    product_limits,
    projection_limits,
    require_few_rows,
    require_resolved,
    rows_in,
    scatter_limits,
    sum_limits,
    uncentred_limits,
)
from tests.refusals import refused


def test_sites_have_their_part_of_the_rows_and_sums_a_billionth_unseen():
    require_few_rows(ROWS // 8, 8)
    with refused(DataError, "1,099,511,627,776"):
        require_few_rows(ROWS // 8 + 1, 8)
    diagonal = np.array([3.0, 1.0])
    require_resolved(1.0, np.array([UNSEEN * 4.0, 0.0]), diagonal)
    with refused(ConfigError, "'bound'"):
        require_resolved(1.0, np.array([UNSEEN * 4.0, 1e-15]), diagonal)
    assert UNSEEN <= 1e-9


@pytest.mark.parametrize("rows", [3, ROWS])
def test_as_many_rows_as_there_can_be_are_taken(rows):
    assert rows_in(np.asarray(float(rows)), 3) == rows


@pytest.mark.parametrize("rows", [-1, 0, 1, 2, ROWS + 1])
def test_fewer_rows_than_parties_or_more_than_a_sum_holds_are_a_false_share(rows):
    with refused(ContractError, 3, rows):
        rows_in(np.asarray(float(rows)), 3)


def takes(limits, **values):
    """Whether a share of just these values can be sent."""
    share = {name: np.broadcast_to(value, limits[name].shape) for name, value in values.items()}
    try:
        Layout(limits).encode(share)
    except ValueError:
        return False
    return True


def test_limits_are_met_by_rows_at_the_ends_of_the_bound():
    """Ten rows of values 3 about a centre of -3: each is 6 away."""
    limits = deviation_limits(3.0, 10, 2)
    assert takes(limits, shift=10 * 6.0, diagonal=10 * 6.0**2)
    assert not takes(limits, shift=np.nextafter(60.0, 61), diagonal=360.0)
    assert not takes(limits, shift=60.0, diagonal=np.nextafter(360.0, 361))
    limits = projection_limits(10, 5.0)
    assert takes(limits, count=10, squared=10.0)
    assert not takes(limits, count=10, squared=np.nextafter(10.0, 11))
    assert not takes(limits, count=11, squared=5.0)
    limits = sum_limits(3.0, 2)
    assert takes(limits, count=ROWS, sum=-3.0 * ROWS)
    assert not takes(limits, count=ROWS, sum=np.nextafter(3.0 * ROWS, np.inf))
    squares = uncentred_limits(3.0, 2, within=True)
    assert takes(squares, count=ROWS, sum=3.0 * ROWS, scatter=-9.0 * ROWS, squares=9.0 * ROWS)
    assert not takes(squares, count=ROWS, sum=0.0, scatter=np.nextafter(9.0 * ROWS, np.inf), squares=0.0)
    assert not takes(squares, count=ROWS, sum=0.0, scatter=0.0, squares=np.nextafter(9.0 * ROWS, np.inf))


def test_products_and_two_sums_in_closed_form():
    """Cauchy and Schwarz, which rows that are all on one line meet."""
    spread = np.array([2.0, 3.0])
    np.testing.assert_array_equal(scatter_limits(spread)["scatter"], [4.0, 6.0, 9.0])
    block = np.array([[1.0, 0.0], [-1.0, 5.0]])
    np.testing.assert_array_equal(product_limits(spread, block)["product"], [[10.0, 30.0], [15.0, 45.0]])
    # Four rows whose values are 0.5 beyond the centre in the mean, of squares about it that add up to 9.
    pooled = pooled_of(10.0, 4, np.array([1.0, 1.0]), np.array([2.0, 0.0]), np.array([9.0, 0.0]))
    np.testing.assert_array_equal(pooled.remainder, [0.5, 0.0])
    np.testing.assert_array_equal(pooled.diagonal, [9.0 - 4 * 0.25, 0.0])
    assert 3.0 < pooled.spread[0] < 3.0 + 1e-5, "about the centre, since later sums are"
    assert 0 < pooled.spread[1] < 1e-20, "fixed point may have missed what is not zero"
