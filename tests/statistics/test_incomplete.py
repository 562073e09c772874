"""Sums of what rows with missing values are expected to be: their public limits take all that a model can expect."""

from __future__ import annotations

import numpy as np
import pytest

from fedpca_flwr.config import RunConfig
from fedpca_flwr.maths.gaussian_em import Gaussian, expected_sums
from fedpca_flwr.maths.moments import pack
from fedpca_flwr.protocol.phase import Public
from fedpca_flwr.statistics.incomplete import expected_phase


def test_what_a_nearly_singular_model_expects_is_within_the_limits():
    """Two features with the covariance [[f, c], [c, 1]], of which rows have the first: x is expected to be c x / f of
    the second. With c^2 next to f that is x / sqrt(f), and f may be 2^-39: some 741,000 times as large."""
    n, f = 4, 2.0**-39
    model = Gaussian(np.zeros(2), np.array([[f, 0.7 * f**0.5], [0.7 * f**0.5, 1.0]]))
    seen = np.array([[1.0, np.nan], [-1.0, np.nan], [1.0, np.nan], [-1.0, np.nan]])
    found = expected_sums([seen], model)
    assert found.second[2] == pytest.approx(n * (0.49 / f + 0.51))
    asked = {
        "rows": np.asarray(n),
        "centre": np.zeros(2),
        "spread": np.ones(2),
        "mean": model.mean,
        "covariance": pack(model.covariance),
    }
    config = RunConfig.parse({"secure-aggregation": True, "bound": 1.0})
    layout = expected_phase(1).layout(asked, Public(config, None, parties=3, features=2))
    _, sums = layout.decode(layout.encode({"first": found.first, "second": found.second}))
    np.testing.assert_allclose(sums["second"], found.second)
