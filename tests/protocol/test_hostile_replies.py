"""Hostile or broken replies at the server: each a named error, whatever they hold."""

import numpy as np
import pytest

from fedpca_flwr.errors import ConfigError, ContractError, DataError
from simulations import run
from tests.families import cut, rows
from tests.harness import finish, say, server_of, tamper, tamper_arrays
from tests.refusals import refused


def honest():
    return server_of("p-cov", cut(rows(90), 60, 30), n_components=2)


@pytest.mark.parametrize(
    "metrics",
    [
        {"partition_id": None},
        {"partition_id": "abc"},
        {"partition_id": 1.9},
        {"partition_id": -3},
        {"num_partitions": None},
        {"num_partitions": 2.0},
        {"simulated": "yes"},
        {"columns": "a,b"},
        {"name": "a\x1b[2J"},
        {"error": "ContractError"},
        {"error": "ContractError", "message": "\x1b[2J"},
        {"stranger": 1},
    ],
    ids=repr,
)
def test_what_a_client_says_of_itself_is_checked(metrics):
    with pytest.raises((ContractError, ConfigError)):
        finish(say(honest(), 1, **{key.replace("_", "-"): value for key, value in metrics.items()}))


def test_a_count_unlike_that_of_the_message_is_named():
    server = honest()

    def change(reply):
        reply.num_examples = 31
        return reply

    tamper(server, 1, change)
    with refused(ContractError, "client 1", 30, 31):
        finish(server)


@pytest.mark.parametrize(
    ("field", "value", "named"),
    [
        ("squared", np.nan, ["'squared'", "NaN"]),
        ("squared", np.inf, ["'squared'", "NaN"]),
        ("squared", -1.0, ["'squared'", -1, 0]),
        ("count", -30, ["'count'", -30, 1]),
        ("count", 29, [29, 30]),
    ],
)
def test_the_last_round_is_checked_too(field, value, named):
    server = honest()

    def change(arrays):
        fields = dict(zip(("count", "squared"), arrays, strict=True))
        fields[field] = np.asarray(value, fields[field].dtype)
        return list(fields.values())

    tamper_arrays(server, 1, change, "project")
    with refused(ContractError, "client 1", *named):
        finish(server)
    with refused(ContractError, "p-cov", "num_rounds=strategy.rounds"):
        server.strategy.model  # noqa: B018


@pytest.mark.parametrize(("rows_said", "what"), [(-30, "-30 rows"), (29, "changed")])
def test_what_its_message_says_is_checked_in_the_last_round_too(rows_said, what):
    server = honest()

    def change(reply):
        reply.num_examples = rows_said
        return reply

    tamper(server, 1, change, "project")
    with refused(ContractError, "client 1", match=what):
        finish(server)


def as_of(server, phases, partitions):
    """In these phases each party says that it is the partition that is listed for it."""
    for party, partition in partitions.items():
        for phase in phases:
            say(server, party, phase, **{"partition-id": partition})
    return server


@pytest.mark.parametrize("phases", [["moments"], ["project"], ["moments", "project"]], ids=str)
@pytest.mark.parametrize("partitions", [{1: 2, 2: 1}, {1: 2}, {1: 2, 2: 0, 0: 1}], ids=str)
def test_a_node_speaks_as_its_own_partition_in_every_round(phases, partitions):
    """Two that change places once did so unnoticed; what one of them does would be the other's."""
    server = as_of(server_of("p-cov", cut(rows(90), 30, 30, 30), n_components=2), phases, partitions)
    with refused(ContractError, "client 1", "partition 2"):
        finish(server)


@pytest.mark.parametrize("way", [{}, {"secure_aggregation": True, "bound": 50.0}], ids=["clear", "masked"])
def test_an_error_in_the_name_of_another_blames_who_sent_it(way):
    server = server_of("p-cov", cut(rows(90), 30, 30, 30), n_components=2, **way)

    def change(reply):
        reply.metrics = {"partition-id": 0, "error": "DataError", "message": "my rows are no numbers"}
        return reply

    tamper(server, 2, change)
    with refused(ContractError, "client 2", "partition 0") as caught:
        finish(server)
    assert "client 0" not in str(caught.value)


def test_partitions_that_nobody_has_and_ragged_parties_are_refused():
    """Where a party dropped out, another does not answer in its place."""
    server = server_of("p-cov", cut(rows(90), 30, 30, 30), n_components=2)
    with refused(ContractError, "client 1", "partition 7"):
        finish(as_of(server, ["project"], {1: 7}))
    with refused(DataError, "client 0", "'em'", "NaN"):
        run("p-cov", [np.ma.masked_greater(rows(30), 0)], n_components=2)
    with refused(DataError, "party 0"):
        run("p-cov", [[[1, 2], [3]]], n_components=2)
