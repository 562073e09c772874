"""What clients say of themselves, held against the run and against each other."""

import numpy as np
import pytest
from flwr.common import Code, FitRes, Status, ndarrays_to_parameters

from fedpca_flwr.errors import ContractError, DataError
from fedpca_flwr.protocol.admission import (
    MOST_FEATURES,
    arrays_in,
    doubled,
    impostors,
    info_of,
    of_other_width,
    reply_of,
    reported,
    unlike,
    without_features,
)
from tests.refusals import refused


def says(party, **more):
    return info_of({"partition-id": party, "num-partitions": 3, "simulated": True, "features": 4, **more})


def result(rows, *arrays):
    return FitRes(Status(Code.OK, ""), ndarrays_to_parameters([*arrays]), rows, {})


@pytest.mark.parametrize("times", [2, 3])
def test_a_partition_is_of_one_client(times):
    (fault,) = doubled([says(0), *[says(1)] * times])
    assert "[1]" in str(fault)
    assert not doubled([says(0), says(1), says(2)])


@pytest.mark.parametrize("features", [0, MOST_FEATURES + 1])
def test_a_number_of_features_is_one_that_can_be(features):
    assert not without_features([says(0, features=1), says(1, features=MOST_FEATURES)])
    (fault,) = without_features([says(0), says(1, features=features)])
    assert str(fault).startswith("client 1")


@pytest.mark.parametrize("odd", range(3))
def test_the_width_of_most_counts_whoever_is_first(odd):
    (fault,) = of_other_width([says(i, features=5 if i == odd else 4) for i in range(3)])
    assert str(fault).startswith(f"client {odd}")


@pytest.mark.parametrize(
    ("odd", "partitions"),
    [
        ({"num-partitions": 4}, 3),
        ({"num-partitions": 2}, 3),
        ({"num-partitions": 4}, None),
        ({"covariates": "0 1"}, 3),
        ({"columns": "ab"}, 3),
    ],
)
def test_parts_of_one_run_say_the_same(odd, partitions):
    same = {"columns": "cd"}
    everyone = [says(0, **same), says(1, **same), says(2, **{**same, **odd})]
    (fault,) = unlike(everyone, partitions=partitions)
    assert str(fault).startswith("client 2")
    assert not unlike(everyone[:2] + [says(2, **same)], partitions=partitions)


def test_replies_are_of_a_row_and_their_lines_of_who_sent_them():
    assert reply_of(result(1), says(0)).rows == 1
    with refused(ContractError, "client 0", 0):
        reply_of(result(0), says(0))
    error = {"partition-id": 1, "error": "DataError", "message": "first\nclient 0: second"}
    (found,) = reported([says(0), info_of(error)])
    assert isinstance(found, DataError)
    assert str(found) == "client 1: first\nclient 1: client 0: second"
    (fault,) = unlike([says(0, simulated=False), says(1)], partitions=3)
    assert str(fault).startswith("client 1")
    assert not unlike([says(0, simulated=False), says(1, simulated=False)], partitions=3)


@pytest.mark.parametrize("order", ["C", "F"])
def test_arrays_come_as_they_were_sent_in_either_order(order):
    sent = np.asarray(np.arange(6.0).reshape(2, 3), order=order)
    (came,) = arrays_in(reply_of(result(1, sent), says(0)))
    np.testing.assert_array_equal(came, sent)


@pytest.mark.parametrize(
    ("node", "party"), [("a", 1), ("b", 2), ("new", 0)], ids=["as another", "as nobody yet", "in the place of one"]
)
def test_a_node_speaks_as_the_partition_that_it_said_first(node, party):
    seats = {"a": 0, "b": 1}
    assert len(impostors([node], [says(party)], seats)) == 1
    assert not impostors(["a", "b", "new"], [says(0), says(1), says(2)], seats)
