"""What features are divided by."""

from __future__ import annotations

import numpy as np

from fedpca_flwr.maths.moments import Moments, constant_features, safe_deviation
from tests.families import rows


def test_a_constant_feature_has_deviation_one():
    X = rows(100, 4)
    X[:, 1] = 0.1
    moments = Moments.of(X)
    deviation = safe_deviation(moments.diagonal(), moments.count, moments.mean)
    assert deviation[1] == 1
    np.testing.assert_allclose(np.delete(deviation, 1), np.delete(X.std(axis=0), 1), rtol=1e-12)


def test_constant_is_what_the_rounding_of_a_mean_of_n_values_explains():
    """A mean of n values of 5 may be off by n roundings of 5."""
    n, rounding = 1000, 1000 * 5 * 2.0**-52
    deviations = np.array([0.5, 2.0]) * rounding
    found = constant_features(n * deviations**2, n, np.full(2, 5.0))
    np.testing.assert_array_equal(found, [True, False])


def test_a_feature_of_zeros_is_constant():
    np.testing.assert_array_equal(safe_deviation(np.array([0.0, 8.0]), 2, np.zeros(2)), [1, 2])
