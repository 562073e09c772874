"""The share of a component that one party may hold."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np

from fedpca_flwr.errors import ContractError
from fedpca_flwr.questions.influence import PartyInfluence, _require_below
from tests.refusals import refused

PARTY = PartyInfluence("client 1", SimpleNamespace(components=np.array([0.25, 0.75, 0.5]), rows=0.125))


def test_the_largest_share_is_told_with_its_component_from_one():
    assert PARTY.most == (0.75, 2)


def test_a_share_may_be_as_large_as_the_limit():
    _require_below(0.75, [PARTY])
    with refused(ContractError, "client 1", "75.00%", 2, "12.50%", "'max-share'", 0.749):
        _require_below(0.749, [PARTY])
