"""A server that chooses the model reads the row that alone misses a feature, where a site lets that row count.

Else only moments of rows that share their gaps follow from the replies: test_em_equal_moments.py holds that.
"""

import numpy as np
import pytest

from fedpca_flwr.maths.moments import pack
from tests.hostile import HostileSession

D = 4


def foretelling(model, feature):
    """Return a model in which the value of a feature is all that foretells the last one, and by how much of it."""
    if model == "gaussian":
        covariance = np.eye(D)
        covariance[3, feature] = covariance[feature, 3] = 0.5
        return [pack(covariance)], 0.5
    basis = np.zeros((D, 1))
    basis[[feature, 3]] = np.sqrt(0.5)
    return [basis, np.array([1.0]), np.asarray(2.0**-30)], 1.0  # one factor at almost no noise


@pytest.mark.parametrize(("model", "phase", "atol"), [("gaussian", "expected", 1e-9), ("factors", "products", 1e-5)])
def test_a_chosen_model_reveals_a_single_row_with_a_gap(model, phase, atol, tmp_path):
    rows = np.random.default_rng(0).normal(50, 10, (30, D))
    rows[17, 3] = np.nan
    run = {"method": "em", "n-components": 2, "max-rounds": 10, "model": model}
    session = HostileSession(tmp_path, rows, run, gaps="all")
    total = session.ask("observed", [])[0][3]
    centre = total / np.sum(~np.isnan(rows), axis=0)
    known = np.nansum(rows[:, 3] - centre[3])
    assert session.ask("deviations", [np.asarray(30), centre])[0]
    for feature in range(3):
        chosen, share = foretelling(model, feature)
        sums = session.ask(phase, [np.asarray(30), centre, np.ones(D), np.zeros(D), *chosen])[0][0]
        np.testing.assert_allclose((sums[3] - known) / share + centre[feature], rows[17, feature], atol=atol)
