"""Hostile or broken replies at the server: each a named error, whatever they hold."""

import numpy as np
import pytest

from fedpca_flwr.errors import ConfigError, ContractError
from tests.families import cut, rows
from tests.harness import finish, say, server_of, tamper, tamper_arrays
from tests.refusals import refused


def of(*sizes, **options):
    return server_of("p-cov", cut(rows(90), *sizes), n_components=2, **options)


@pytest.mark.parametrize(
    "metrics",
    [
        *({"partition-id": wrong} for wrong in (None, "abc", 1.9, -1)),
        *({"num-partitions": wrong} for wrong in (None, 2.0)),
        *({"simulated": "yes"}, {"columns": "a,b"}, {"name": "a\x1b[2J"}, {"stranger": 1}),
        *({"error": "ContractError"}, {"error": "ContractError", "message": "\x1b[2J"}),
    ],
    ids=repr,
)
def test_what_a_client_says_of_itself_is_checked(metrics):
    with pytest.raises((ContractError, ConfigError)):
        finish(say(of(60, 30), 1, **metrics))


@pytest.mark.parametrize(
    ("place", "value", "named"),
    [
        *((1, wrong, ["'squared'", "NaN"]) for wrong in (np.nan, np.inf)),
        (1, -1.0, ["'squared'", -1, 0]),
        (0, -30, ["'count'", -30, 1]),
        (0, 29, [29, 30]),
    ],
)
def test_the_last_round_is_checked_too(place, value, named):
    server = of(60, 30)

    def change(arrays):
        arrays[place] = np.asarray(value, arrays[place].dtype)
        return arrays

    tamper_arrays(server, 1, change, "project")
    with refused(ContractError, "client 1", *named):
        finish(server)
    with refused(ContractError, "p-cov", "num_rounds=strategy.rounds"):
        server.strategy.model  # noqa: B018


@pytest.mark.parametrize(
    ("phase", "rows_said", "what"), [("", 31, "30.*31"), ("project", -30, "-30 rows"), ("project", 29, "changed")]
)
def test_what_its_message_says_is_checked_in_every_round(phase, rows_said, what):
    server = of(60, 30)

    def change(reply):
        reply.num_examples = rows_said
        return reply

    tamper(server, 1, change, phase)
    with refused(ContractError, "client 1", match=what):
        finish(server)


@pytest.mark.parametrize("phases", [["moments"], ["project"], ["moments", "project"]], ids=str)
@pytest.mark.parametrize("partitions", [{1: 2, 2: 1}, {1: 2}, {1: 2, 2: 0, 0: 1}, {1: 7}], ids=str)
def test_a_node_speaks_as_its_own_partition_in_every_round(phases, partitions):
    """The fault: two nodes exchanged their partitions unnoticed, so that the acts of each counted as the other's."""
    server = of(30, 30, 30)
    for phase in phases:
        for party, partition in partitions.items():
            say(server, party, phase, **{"partition-id": partition})
    with refused(ContractError, "client 1", f"partition {partitions[1]}"):
        finish(server)


@pytest.mark.parametrize("way", [{}, {"secure_aggregation": True, "bound": 50.0}], ids=["clear", "masked"])
def test_an_error_in_the_name_of_another_blames_who_sent_it(way):
    server = of(30, 30, 30, **way)
    lie = {"partition-id": 0, "error": "DataError", "message": "my rows are no numbers"}
    tamper(server, 2, lambda reply: setattr(reply, "metrics", lie) or reply)
    with refused(ContractError, "client 2", "partition 0") as caught:
        finish(server)
    assert "client 0" not in str(caught.value)
