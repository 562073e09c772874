"""Rows whose gaps too few share: a site with a file of its own leaves them out of every sum, and scores them."""

import logging

import numpy as np
import pytest

from fedpca_flwr.config.node_config import NodeConfig
from fedpca_flwr.errors import ConfigError
from fedpca_flwr.maths.gap_groups import Patterns
from tests.hostile import HostileSession
from tests.refusals import refused

RUN = {"method": "em", "n-components": 2}
CENTRE, UNIT, ZERO = np.full(5, 50.0), np.full(5, 10.0), np.zeros(5)
COVARIANCE = np.array([1.0, 0.5, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 1, 0, 1])


def table():
    """40 complete rows, 30 that miss the last of five features, and among them 5 with gaps of their own; one empty."""
    X = np.random.default_rng(0).normal(50, 10, (76, 5))
    X[40:70, 4] = np.nan
    for row, gaps in zip(range(3, 53, 10), ([0], [1], [2, 3], [0, 4], [1, 4]), strict=True):
        X[row] = np.where(np.isin(np.arange(5), gaps), np.nan, 1000.0)
    X[70] = np.nan
    return X


def rare(X):
    return (X == 1000.0).any(axis=1)


def told(folder, X, run=RUN, **node):
    """What a site says to an honest server's questions, but for the last one."""
    session = HostileSession(folder, X, run, journal="", **node)
    first = session.ask("observed", [])[0]
    second = session.ask("deviations", [first[0], CENTRE])[0]
    model = [np.eye(5, 2), np.array([2.0, 1.5]), np.asarray(0.5)] if "model" in run else [COVARIANCE]
    step = "products" if "model" in run else "expected"
    return [*first, *second, *session.ask(step, [first[0], CENTRE, UNIT, ZERO, *model])[0]]


@pytest.mark.parametrize("run", [RUN, {**RUN, "model": "factors"}], ids=["gaussian", "factors"])
def test_rows_whose_gaps_nobody_shares_are_in_no_sum_but_where_the_site_says_so(tmp_path, caplog, run):
    X = table()
    with caplog.at_level(logging.WARNING, "fedpca_flwr.client"):
        ours = told(tmp_path / "all", X, run)
    for mine, theirs in zip(ours, told(tmp_path / "few", X[~rare(X)], run), strict=True):
        np.testing.assert_array_equal(mine, theirs)
    assert ours[0] == len(X) - 5
    assert any("5 rows take no part in this run" in record.getMessage() for record in caplog.records)
    for number, node in enumerate([{"gaps": "all"}, {"min-rows": 1}]):
        assert told(tmp_path / str(number), X, run, **node)[0] == len(X)


@pytest.mark.parametrize("round_rows", [1, 4, 10, 32])
def test_the_number_of_rows_that_is_told_is_a_multiple(round_rows):
    X = table()
    taken = Patterns.in_rows(X).shared(5, round_rows)
    assert taken.sum() % round_rows == 0
    assert taken.sum() > len(X) - 5 - round_rows
    assert not (taken & rare(X)).any()


def test_rows_whose_gaps_too_few_share_are_no_group_and_a_site_of_such_rows_refuses(tmp_path):
    patterns = Patterns.in_rows(np.array([[0.0, np.nan]] * 7 + [[1.0, 2.0]] * 6))
    assert [patterns.shared(*few).sum() for few in ((6, 10), (6, 1), (7, 1))] == [0, 13, 7]
    alone = np.where(np.random.default_rng(0).random((60, 12)) < 0.2, np.nan, 1.0)  # each with gaps of its own
    said = HostileSession(tmp_path, alone, RUN, journal="").client.get_properties({})
    assert said["error"] == "DisclosureError"
    assert "gaps='all'" in said["message"]
    with refused(ConfigError, "'gaps'", "'shared'", "'all'"):
        NodeConfig.parse({"partition-id": 0, "num-partitions": 1, "gaps": "some"}, source="node-config")


def test_scores_of_rows_that_are_left_out_are_written(tmp_path):
    X, scores, packed = table(), tmp_path / "scores.npy", np.eye(5)[np.triu_indices(5)]
    session = HostileSession(tmp_path, X, {**RUN, "max-rounds": 1}, journal="", scores=str(scores))
    count = session.ask("observed", [])[0][0]
    session.ask("deviations", [count, CENTRE])
    session.ask("expected", [count, CENTRE, UNIT, ZERO, packed])
    told_count, squared = session.ask("project", [np.eye(2, 5), CENTRE, np.empty(0), packed])[0]
    assert told_count == count
    np.testing.assert_allclose(np.load(scores), np.nan_to_num(X - 50)[:, :2], atol=1e-9)
    np.testing.assert_allclose(squared, np.nansum((X[~rare(X)] - 50)[:, 2:] ** 2), rtol=1e-9)
