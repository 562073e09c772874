"""What fields may hold, and who is named where replies do not go together."""

from __future__ import annotations

import numpy as np
import pytest

from fedpca_flwr.errors import ContractError
from fedpca_flwr.protocol.payload import Field, Payload, check_together
from tests.refusals import refused

ONE = Payload((Field("values", ("d",), kind="positive"),))
SCATTER = Payload((Field("scatter", ("d(d+1)/2",), kind="scatter"),))
MEAN = Payload((Field("mean", ("d",)),))


def check(payload, *values):
    payload.check({payload.fields[0].name: np.array(values)}, "client 1", {"d": 2})


@pytest.mark.parametrize("low", [0.0, -0.0, -5e-324, -1.0])
def test_what_must_be_positive_is_above_zero(low):
    check(ONE, 1.0, 5e-324)
    with refused(ContractError, "client 1", "'values'", 0):
        check(ONE, 1.0, low)


@pytest.mark.parametrize("entry", [2.0, -2.0])
def test_a_scatter_has_no_entry_larger_than_its_diagonal_whatever_its_sign(entry):
    check(SCATTER, 2.0, entry, 2.0)
    with refused(ContractError, "client 1", "'scatter'"):
        check(SCATTER, 2.0, entry * 1.001, 2.0)


@pytest.mark.parametrize("odd", range(3))
def test_of_several_faults_the_odd_number_of_features_is_named_first(odd):
    """What the others send may be wrong because of it."""
    replies = {f"client {i}": {"mean": np.full(2, np.nan)} for i in range(3)}
    replies[f"client {odd}"] = {"mean": np.zeros(3)}
    with refused(ContractError, f"client {odd}", 3, f"client {int(odd == 0)}", 2):
        check_together(MEAN, replies, {})
