"""A party's rows about a centre that somebody else chose."""

import numpy as np

from fedpca_flwr.errors import ContractError
from fedpca_flwr.maths.own_rows import OwnRows, own_rows
from tests.families import rows
from tests.refusals import refused


def test_the_energy_is_that_about_the_centre_and_what_is_left_of_it_not_negative():
    """Rows 1 and 3 about 1: 4, of which half lies between their mean and the centre."""
    own = own_rows(np.array([[1.0, 0.0], [3.0, 0.0]]), np.array([1.0, 0.0]), np.zeros(2))
    np.testing.assert_allclose(own.shift, [np.sqrt(2), 0.0])
    np.testing.assert_allclose(own.energy, 4.0)
    for seed in range(30):
        basis, _ = np.linalg.qr(np.random.default_rng(seed).standard_normal((6, 6)))
        assert own_rows(rows(6, 6, seed=seed), np.ones(6), np.zeros(6)).left_by(basis) >= 0


def test_numbers_far_apart_count_for_nothing_or_are_refused():
    own = OwnRows(np.array([[0.0, 1.0], [0.0, -1.0]]), np.zeros(2))
    np.testing.assert_array_equal(own.times_any(np.array([[1.0, 0.0], [1e-150, 1e-150]])), [[0, 0], [0, 2e-150]])
    X = np.array([[1.0, 0.0], [3.0, 0.0]])
    np.testing.assert_allclose(own_rows(X, np.ones(2), np.array([0.5, 0.0])).shift, np.sqrt(2) * np.array([0.5, -1.0]))
    with refused(ContractError):
        own_rows(X, np.full(2, 1e160), np.zeros(2))
