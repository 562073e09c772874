"""Sums of what rows with missing values are expected to be: their public limits take all that a model can expect."""

from __future__ import annotations

import numpy as np

from fedpca_flwr.config.run_config import RunConfig
from fedpca_flwr.protocol.question import Public
from fedpca_flwr.questions.incomplete import expected_phase


def test_what_a_nearly_singular_model_expects_is_within_the_limits():
    """Four rows have 1 or -1 as the first of two features with the covariance [[f, c], [c, 1]], and not the second: it
    is expected to be c / f times as large. With f = 2^-39 and c^2 = f / 2 that is 524,288, of a deviation of 1."""
    n, f = 4, 2.0**-39
    c = np.sqrt(f / 2)
    sums = {"first": np.zeros(2), "second": n * np.array([1.0, c / f, (c / f) ** 2 + 1 - c**2 / f])}
    asked = {
        "rows": np.asarray(n),
        "centre": np.zeros(2),
        "spread": np.ones(2),
        "mean": np.zeros(2),
        "covariance": np.array([f, c, 1.0]),
    }
    config = RunConfig.parse({"secure-aggregation": True, "bound": 1.0})
    layout = expected_phase(1).layout(asked, Public(config, None, parties=3, features=2))
    _, opened = layout.decode(layout.encode(sums))
    np.testing.assert_allclose(opened["second"], sums["second"])
