"""What a party encodes for a sum."""

from types import SimpleNamespace

import numpy as np

from fedpca_flwr.errors import ContractError
from fedpca_flwr.protocol.payload import Field, Payload
from fedpca_flwr.protocol.question import Question
from fedpca_flwr.transports.encoding import encoded
from tests.refusals import refused

SPREAD = Question(
    asked=Payload((Field("spread", ("d",), kind="size"),)),
    reply=Payload((Field("scatter", ("d",)),)),
    limits=lambda asked, public: {"scatter": asked["spread"] * 1e200},
)


def never(phase, asked):
    raise AssertionError("it has computed an answer")


def test_limits_beyond_float64_are_refused_before_anything_is_computed():
    """They follow from what was asked alone, so the refusal says nothing of the rows."""
    party = SimpleNamespace(public=None, statistics=never)
    with np.errstate(over="ignore"), refused(ContractError, "'scatter'"):
        encoded(party, "scatter", SPREAD, {"spread": np.array([1.0, 1e200])})
