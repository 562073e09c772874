"""Sums of what rows with missing values are expected to be: their public limits take all that a model can expect."""

from types import SimpleNamespace

import numpy as np

from fedpca_flwr.config.run_config import RunConfig
from fedpca_flwr.errors import ContractError, DataError
from fedpca_flwr.protocol.question import Public
from fedpca_flwr.questions.incomplete import _deviation_limits, _expected_limits, _require_observed, expected_phase
from tests.refusals import refused


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


def test_limits_of_deviations_and_expected_sums_in_closed_form():
    public = SimpleNamespace(config=SimpleNamespace(bound=3.0))
    found = _deviation_limits({"rows": np.asarray(10), "centre": np.array([-2.0, 0.0])}, public)
    np.testing.assert_array_equal(found["shift"], [50.0, 30.0])
    np.testing.assert_array_equal(found["diagonal"], [250.0, 90.0])
    # Where nothing is unknown: ten rows of variance 1, a deviation beyond the model's mean.
    asked = {"rows": np.asarray(10), "mean": np.array([1.0, 0.0]), "covariance": np.zeros(3)}
    found = _expected_limits(asked, None)
    squares = 1.01 * 10 * np.array([4.0, 1.0])
    np.testing.assert_allclose(found["first"], np.sqrt(10 * squares), rtol=1e-12)
    np.testing.assert_allclose(found["second"], [squares[0], np.sqrt(squares.prod()), squares[1]], rtol=1e-12)
    _require_observed(3, np.array([3.0, 1.0]))
    for counts in ([4.0, 1.0], [-1.0, 1.0]):
        with refused(ContractError):
            _require_observed(3, np.array(counts))
    with refused(DataError, "[1]"):
        _require_observed(3, np.array([3.0, 0.0]))
