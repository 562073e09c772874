"""In clear: what one party adds is no more than any rows can, where the method says what that is."""

from types import SimpleNamespace

import numpy as np
import pytest

from fedpca_flwr.errors import ContractError
from fedpca_flwr.protocol.payload import Field, Payload
from fedpca_flwr.protocol.question import Question, Sum
from fedpca_flwr.transports.clear import ClearServer
from tests.refusals import refused

LIMITED = Question(
    reply=Payload((Field("values", ("d",)),)), share_limits=lambda asked, public: {"values": np.array([1.0, 3.0])}
)


def taken(*values):
    """What the server does with a reply of these values."""
    run = SimpleNamespace(phases={"values": LIMITED}, public=None)
    next(ClearServer().summed(Sum("values"), run)).take({"values": np.array(values)}, "client 1")


def test_a_share_within_twice_its_limit_is_taken():
    """The factor is for rounding and for limits that are estimates."""
    taken(2.0, -6.0)


@pytest.mark.parametrize("values", [(np.nextafter(2.0, 3), 0.0), (0.0, np.nextafter(-6.0, -7)), (5.0, 0.0)])
def test_a_share_beyond_it_names_its_party(values):
    with refused(ContractError, "client 1", "'values'"):
        taken(*values)
