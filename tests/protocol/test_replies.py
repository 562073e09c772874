"""Replies that are taken as they come: none that does not fit the others."""

import numpy as np
import pytest
from flwr.common import Code, FitRes, Status, ndarrays_to_parameters

from fedpca_flwr.errors import ContractError
from fedpca_flwr.protocol.admission import PartyInfo, reply_of
from fedpca_flwr.protocol.payload import Field, Payload
from fedpca_flwr.protocol.replies import Replies, Sizes, StreamingSum, size_of
from tests.refusals import refused, unnamed

PAYLOAD = Payload((Field("count", (), "int64", kind="count"), Field("product", ("d",))))


def said_by(party, width):
    """A reply of ones, of so many features."""
    about = {"partition-id": party, "num-partitions": 3, "name": "", "simulated": True}
    arrays = ndarrays_to_parameters([np.asarray(10), np.ones(width)])
    return FitRes(Status(Code.OK, ""), arrays, 10, about)


def test_a_reply_of_another_width_is_named_and_in_no_sum():
    """It came first: nobody knew yet which one is odd."""
    taken = []
    incoming = Replies(PAYLOAD, {"d": 2}, lambda fields, sender: taken.append((sender, fields["product"].size)))
    results = [said_by(party, width) for party, width in enumerate((3, 2, 2))]
    replies = []
    for result in results:
        incoming.receive(result)
        replies.append(reply_of(result, PartyInfo.parse(result.metrics)))
    assert taken == [("client 1", 2), ("client 2", 2)]
    incoming.count(replies)
    with refused(ContractError, "client 0", 3, "client 1", 2):
        incoming.check(replies)


def test_sizes_of_replies_are_of_their_largest_number_in_any_unit():
    fields = {"a": np.array([1.0, -5.0]), "empty": np.empty(0), "count": np.asarray(10**9)}
    assert size_of(fields) == 5.0
    assert size_of({"count": np.asarray(3)}) == 0.0
    sizes = {"client 0": 1.0, "client 1": 1e9, "client 2": 1.0}
    assert not fails(sizes).startswith("client")
    added = StreamingSum()
    added.add({"a": np.ones(2)}, "client 0")
    with refused(ContractError, "client 1", "'a'", (3,), (2,)):
        added.add({"a": np.ones(3)}, "client 1")


def fails(sizes, *, sums_only=False):
    """What is said where the server cannot compute with replies of these sizes, of the second round."""
    known = Sizes(sums_only=sums_only)
    with known.computing("first", dict.fromkeys(sizes, 1.0)):
        pass
    with pytest.raises(ContractError) as caught, known.computing("second", sizes):
        raise ValueError
    return str(caught.value)


@pytest.mark.parametrize("odd", [1e150, 1e-150])
def test_whose_numbers_are_out_of_all_proportion_is_named(odd):
    sizes = {"client 0": 1.0, "client 1": odd, "client 2": 2.0}
    said = fails(sizes)
    assert said.startswith("client 1: ")
    assert not unnamed(said, "'second'", f"{odd:.3g}")
    assert not fails(sizes, sums_only=True).startswith("client")


@pytest.mark.parametrize("size", [1e150, 1.0])
def test_where_numbers_are_large_an_overflow_is_an_error(size):
    """In a run of usual numbers no time is spent on that."""
    told = Sizes(sums_only=False)
    numbers = np.array([1e200])
    if size > 1:
        with refused(ContractError, "'first'"), told.computing("first", {"client 0": size}):
            numbers * numbers
    else:
        with np.errstate(over="ignore"), told.computing("first", {"client 0": size}):
            numbers * numbers
