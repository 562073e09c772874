"""Masked vectors are added as they come: the server holds one, of however many parties, and the sum is the same."""

from functools import partial

import numpy as np
import pytest

from fedpca_flwr.errors import ContractError
from fedpca_flwr.protocol.replies import Replies
from tests.families import rows
from tests.harness import finish, peak_of, server_of, tamper
from tests.refusals import refused

WAYS = {"masked": {}, "surviving": {"survivors": 5}}
FEATURES = 120


def secure_server(parties, **options):
    data = [rows(20, FEATURES, seed=i) for i in range(parties)]
    return server_of("p-cov", data, n_components=2, secure_aggregation=True, bound=1e4, **options)


def test_four_times_the_parties_do_not_need_the_memory_of_their_replies():
    reply = 8 * FEATURES * (FEATURES + 1) // 2
    few, many = (peak_of(partial(finish, secure_server(parties))) for parties in (8, 32))
    assert many - few < 24 * reply / 2  # some arrive at the same time; if all are kept it is 33 replies


@pytest.mark.parametrize("way", WAYS)
def test_the_sum_is_the_same_whether_replies_are_taken_or_kept(way, monkeypatch):
    taken = finish(secure_server(6, **WAYS[way]))
    monkeypatch.setattr(Replies, "receive", lambda incoming, result: None)
    kept = finish(secure_server(6, **WAYS[way]))
    np.testing.assert_array_equal(taken.components_, kept.components_)
    assert [entry["up"] for entry in taken.log["rounds"]] == [entry["up"] for entry in kept.log["rounds"]]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("fault", ["short", "whole", "no arrays"])
def test_a_fault_is_told_of_its_party_though_the_others_are_taken(way, fault):
    server = secure_server(6, **WAYS[way])

    def broken(reply):
        tensors = reply.parameters.tensors
        reply.parameters.tensors = [] if fault == "no arrays" else [tensors[0][:-8] if fault == "short" else b"x"]
        return reply

    tamper(server, 3, broken, "scatter" if way == "masked" else "uncentred")
    with refused(ContractError, "client 3"):
        finish(server)


def test_a_party_that_is_not_one_of_the_run_ends_it():
    """Its vector may be in the sum by then: nobody is shown that sum."""
    server = secure_server(4)

    def doubled(reply):
        if "error" not in reply.metrics:
            reply.metrics["partition-id"] = 0
        return reply

    tamper(server, 2, doubled)
    with refused(ContractError, "client 2", "partition 0"):
        finish(server)
