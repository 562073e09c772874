"""Sums over survivors: what is signed for one holds for no other, and each party sends something for everybody."""

import numpy as np
import pytest

from fedpca_flwr.errors import ContractError
from fedpca_flwr.site.identity import simulated
from fedpca_flwr.transports.encoding import Group
from fedpca_flwr.transports.signed import Signer
from fedpca_flwr.transports.surviving import SurvivingParty, _whole
from tests.refusals import refused


def test_what_is_signed_for_one_sum_is_not_signed_for_the_next():
    """Where a run has several, each with noise: the same list of survivors would else be agreed to twice."""
    signer = Signer(simulated(5, 0), run="17", configuration="{}")
    party = SurvivingParty(Group(parties=5, least=2, signer=signer, survivors=4))
    party.sums = ["first", "second", "third"]
    abouts = []
    for name in ("first", "second", "third"):
        party.sum = name
        abouts.append(party._signer.about)
    assert abouts[0] == signer.about
    assert len(set(abouts)) == 3


@pytest.mark.parametrize("rows", [4, 6])
def test_a_party_sends_something_for_each_party(rows):
    assert len(_whole(np.zeros((5, 2), np.uint8), 5, "client 1")) == 5
    with refused(ContractError, "client 1", rows, 5):
        _whole(np.zeros((rows, 2), np.uint8), 5, "client 1")
