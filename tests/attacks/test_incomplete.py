"""Attacks on rows with gaps by a server that chooses the model.

It reads a row that alone misses a feature, where a site lets it; else only moments of rows that share their gaps follow
from the replies.
"""

import numpy as np

from fedpca_flwr.maths.moments import pack
from tests.hostile import HostileSession

FEATURES = 4
RUN = {"method": "em", "n-components": 2, "max-rounds": 10}


def patients():
    rows = np.random.default_rng(0).normal(50, 10, (30, FEATURES))
    rows[17, 3] = np.nan
    return rows


def model_in_which_one_foretells_the_last(feature):
    covariance = np.eye(FEATURES)
    covariance[3, feature] = covariance[feature, 3] = 0.5
    return pack(covariance)


def test_a_chosen_model_reveals_a_single_row_with_a_gap(tmp_path):
    """Twice the difference that a correlation makes to the sum of the last feature is the value of that row."""
    rows = patients()
    session = HostileSession(tmp_path, rows, RUN, gaps="all")
    _, _, _, total = session.ask("observed", [])[0]
    centre = total / np.sum(~np.isnan(rows), axis=0)
    assert session.ask("deviations", [np.asarray(30), centre])[0]
    asked = [np.asarray(30), centre, np.ones(FEATURES), np.zeros(FEATURES)]
    first = [
        session.ask("expected", [*asked, covariance])[0][0][3]
        for covariance in (pack(np.eye(FEATURES)), *map(model_in_which_one_foretells_the_last, range(3)))
    ]
    read = 2 * (np.array(first[1:]) - first[0]) + centre[:3]
    np.testing.assert_allclose(read, rows[17, :3], atol=1e-9)


def test_chosen_factors_reveal_a_single_row_with_a_gap(tmp_path):
    """One factor that the last feature shares with another, at almost no noise: what is expected is that value."""
    rows = patients()
    session = HostileSession(tmp_path, rows, {**RUN, "model": "factors"}, gaps="all")
    _, _, values, total = session.ask("observed", [])[0]
    centre = total / values
    assert session.ask("deviations", [np.asarray(30), centre])[0]

    def first_with(feature):
        basis = np.zeros((FEATURES, 1))
        basis[[feature, 3]] = np.sqrt(0.5)
        spread, mean = np.ones(FEATURES), np.zeros(FEATURES)
        model = [spread, mean, basis, np.array([1.0]), np.asarray(2.0**-30)]
        return session.ask("products", [np.asarray(30), centre, *model])[0][0]

    known = np.nansum(rows[:, 3] - centre[3])
    read = [first_with(feature)[3] - known + centre[feature] for feature in range(3)]
    np.testing.assert_allclose(read, rows[17, :3], atol=1e-5)
