"""Replies that are taken as they come: none that does not fit the others."""

import numpy as np
import pytest
from flwr.common import Code, FitRes, Status, ndarrays_to_parameters

from fedpca_flwr.errors import ContractError
from fedpca_flwr.protocol.admission import PartyInfo, reply_of
from fedpca_flwr.protocol.payload import Field, Payload
from fedpca_flwr.protocol.replies import Replies, Sizes, StreamingSum, size_of
from tests.refusals import refused

PAYLOAD = Payload((Field("count", (), "int64", kind="count"), Field("product", ("d",))))


def said_by(party, width):
    """A reply of ones, of so many features."""
    about = {"partition-id": party, "num-partitions": 3, "name": "", "simulated": True}
    return FitRes(Status(Code.OK, ""), ndarrays_to_parameters([np.asarray(10), np.ones(width)]), 10, about)


def test_a_reply_of_another_width_is_named_and_in_no_sum():
    """It came first: nobody knew yet which one is odd."""
    taken, replies = [], []
    incoming = Replies(PAYLOAD, {"d": 2}, lambda fields, sender: taken.append((sender, fields["product"].size)))
    for result in [said_by(party, width) for party, width in enumerate((3, 2, 2))]:
        incoming.receive(result)
        replies.append(reply_of(result, PartyInfo.parse(result.metrics)))
    assert taken == [("client 1", 2), ("client 2", 2)]
    incoming.count(replies)
    with refused(ContractError, "client 0", 3, "client 1", 2):
        incoming.check(replies)
    added = StreamingSum()
    added.add({"a": np.ones(2)}, "client 0")
    with refused(ContractError, "client 1", "'a'", (3,), (2,)):
        added.add({"a": np.ones(3)}, "client 1")


def test_sizes_of_replies_are_of_their_largest_real_number():
    fields = {"a": np.array([1.0, -5.0]), "empty": np.empty(0), "count": np.asarray(10**9)}
    assert size_of(fields) == 5.0
    assert size_of({"count": np.asarray(3)}) == 0.0


@pytest.mark.parametrize(
    ("odd", "sums_only", "named"),
    [
        (1e150, False, ["client 1", "'second'", "1e+150"]),
        (1e-150, False, ["client 1", "'second'", "1e-150"]),
        (1e9, False, []),
        (1e150, True, []),
        (1e-150, True, []),
    ],
)
def test_whose_numbers_are_out_of_all_proportion_is_named(odd, sums_only, named):
    told, sizes = Sizes(sums_only=sums_only), {"client 0": 1.0, "client 1": odd, "client 2": 2.0}
    with told.computing("first", dict.fromkeys(sizes, 1.0)):
        pass
    with refused(ContractError, "'second'", *named) as caught, told.computing("second", sizes):
        raise ValueError
    assert str(caught.value).startswith("client") == bool(named)


def test_where_numbers_are_large_an_overflow_is_an_error():
    """In a run of usual numbers no time is spent on that."""
    numbers = np.array([1e200])
    with refused(ContractError, "'first'"), Sizes(sums_only=False).computing("first", {"client 0": 1e150}):
        numbers * numbers
    with np.errstate(over="ignore"), Sizes(sums_only=False).computing("first", {"client 0": 1.0}):
        numbers * numbers
