"""What features are divided by."""

from __future__ import annotations

import numpy as np

from fedpca_flwr.maths.moments import Moments
from fedpca_flwr.maths.scaling import safe_deviation
from tests.families import rows


def test_a_constant_feature_has_deviation_one():
    X = rows(100, 4)
    X[:, 1] = 0.1
    moments = Moments.of(X)
    deviation = safe_deviation(moments.diagonal(), moments.count, moments.mean)
    assert deviation[1] == 1
    np.testing.assert_allclose(np.delete(deviation, 1), np.delete(X.std(axis=0), 1), rtol=1e-12)
