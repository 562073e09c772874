"""Replies that are taken as they come: none that does not fit the others."""

from __future__ import annotations

import numpy as np
from flwr.common import Code, FitRes, Status, ndarrays_to_parameters

from fedpca_flwr.errors import ContractError
from fedpca_flwr.protocol.admission import PartyInfo, reply_of
from fedpca_flwr.protocol.payload import Field, Payload
from fedpca_flwr.protocol.replies import Replies
from tests.refusals import refused

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
