"""An answer is given a vault and no rows, but where a card or a stage declares that it needs these."""

from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from flwr.common import Context, RecordDict
from pydantic import BaseModel

from fedpca_flwr import METHODS, ContractError
from fedpca_flwr.data.table import check_rows
from fedpca_flwr.site.custodian import Custodian
from fedpca_flwr.site.site import Site
from fedpca_flwr.strategies import FACTORY
from tests.refusals import refused

N = 61
"""Rows of the party: no other array has as many."""

CARDS = {name: method.strategy.card for name, method in METHODS.items()}
BY_MOMENTS = [name for name, card in CARDS.items() if card.split == "rows" and not card.needs]


def client_of(method: str) -> Any:
    node, run = {"partition-id": 0, "num-partitions": 2}, {"method": method, "n-components": 2}
    context = Context(1, 1, node, RecordDict(), run)
    return FACTORY.client(context, lambda node, config: check_rows(np.random.default_rng(1).standard_normal((N, 5))))


def rows_within(thing: object, seen: set[int]) -> list[object]:
    """Whatever has as many rows as the party among the public attributes of a thing, and of these."""
    if id(thing) in seen or callable(thing) or isinstance(thing, str | int | float | BaseModel | type(None)):
        return []
    seen.add(id(thing))
    if getattr(thing, "shape", (0,))[:1] == (N,):
        return [thing]
    parts: list[object] = list(thing.values() if isinstance(thing, dict) else thing if isinstance(thing, list) else ())
    for name in dir(thing):
        with suppress(ContractError):  # what nobody has asked for yet
            parts += [] if name.startswith("_") else [getattr(thing, name, None)]
    return [found for part in parts for found in rows_within(part, seen)]


@pytest.mark.parametrize("method", BY_MOMENTS)
def test_what_an_answer_is_given_holds_no_row(method):
    client = client_of(method)
    assert client.party.vault.count == N
    client.party.vault.moments()
    assert not rows_within(client.party, set())


def test_rules_that_rows_of_a_caller_lack_are_rules_of_every_other_site():
    """`Site` permits whatever it has no rule for; a rule without a custodian's half would hold nowhere."""
    lacking = {name for name, rule in vars(Site).items() if rule is Site.no_rule} - {"no_rule"}
    assert lacking <= vars(Custodian).keys()
    assert lacking >= {"note_clear", "permit_sum", "permit_blind"}
    for node in ({"data": "rows.csv"}, {"journal": "notes"}, {"max-reply-bytes": 10}, {"unknown": 1}):
        context = Context(1, 1, {"partition-id": 0, "num-partitions": 2, **node}, RecordDict(), {"method": "p-cov"})
        assert isinstance(FACTORY.client(context, lambda node, config: check_rows(np.eye(3))).site, Custodian)
        assert isinstance(FACTORY.client(context).site, Custodian)


def test_undeclared_needs_of_rows_are_refused_and_a_card_that_needs_rows_says_what_they_tell():
    client, answer = client_of("p-cov"), lambda party, request: {"count": party.selection.rows}
    client.questions = {"rows": replace(client.questions["moments"], needs="rows", answer=answer)}
    with refused(ContractError):
        client.statistics("rows", {})
    for card in CARDS.values():
        assert not card.needs or card.beyond_moments or card.exposes or ("exposes" in vars(card.options)), card.name
