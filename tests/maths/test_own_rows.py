"""A party's rows about a centre that somebody else chose."""

import numpy as np

from fedpca_flwr.errors import ContractError
from fedpca_flwr.maths.own_rows import OwnRows, own_rows
from tests.families import rows
from tests.refusals import refused


def test_the_energy_is_that_about_the_centre():
    """Rows 1 and 3 about 1: 4, of which half lies between their mean and the centre."""
    own = own_rows(np.array([[1.0, 0.0], [3.0, 0.0]]), np.array([1.0, 0.0]), np.zeros(2))
    np.testing.assert_allclose(own.shift, [np.sqrt(2), 0.0])
    np.testing.assert_allclose(own.energy, 4.0)


def test_what_a_projection_to_everything_leaves_is_not_negative():
    for seed in range(30):
        basis, _ = np.linalg.qr(np.random.default_rng(seed).standard_normal((6, 6)))
        assert own_rows(rows(6, 6, seed=seed), np.ones(6), np.zeros(6)).left_by(basis) >= 0


def test_numbers_far_below_the_largest_of_a_column_count_for_nothing():
    own = OwnRows(np.array([[0.0, 1.0], [0.0, -1.0]]), np.zeros(2))
    np.testing.assert_array_equal(own.times_any(np.array([[1.0, 0.0], [1e-150, 1e-150]])), [[0, 0], [0, 2e-150]])


def test_a_centre_is_told_in_two_numbers_and_none_is_so_far_that_squares_overflow():
    X = np.array([[1.0, 0.0], [3.0, 0.0]])
    np.testing.assert_allclose(own_rows(X, np.ones(2), np.array([0.5, 0.0])).shift, np.sqrt(2) * np.array([0.5, -1.0]))
    with refused(ContractError):
        own_rows(X, np.full(2, 1e160), np.zeros(2))
