"""A party's half of a run: what leaves it, what it refuses by itself, and how its journal knows a question."""

from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from flwr.app import Context, RecordDict

from fedpca_flwr.errors import ConfigError, ContractError, DataError, DisclosureError
from fedpca_flwr.protocol.client import PENDING_KEY
from fedpca_flwr.protocol.journal import StateJournal
from fedpca_flwr.protocol.site_log import site_logger
from fedpca_flwr.site.rules.audit import audit
from fedpca_flwr.strategies import FACTORY, METHODS
from tests.families import rows
from tests.harness import client_of, identities, server_of
from tests.hostile import HostileSession
from tests.refusals import refused, unnamed

LEVELS = '{"sex": ["f", "m"]}'
BY_ROWS = {name: method.strategy.card for name, method in METHODS.items() if method.strategy.card.split == "rows"}
SECURE = {"secure-aggregation": True, "bound": 1e3}
MIXED = [name for name, card in BY_ROWS.items() if card.mixed and name != "streaming"]
SCALING = [f"{name} scale={way}" for name in MIXED for way in ("false", "true center=false")]
RUNS: dict[str, dict[str, Any]] = {
    **{f"levels of {name}": {"method": name, "levels": LEVELS} for name, card in BY_ROWS.items() if not card.mixed},
    **{f"weights of {name}": {"method": name, "weights": "0"} for name, card in BY_ROWS.items() if not card.weighted},
    **{f"levels of {name}": {"method": name, "levels": LEVELS} for name in SCALING},
    "levels of genotypes": {"method": "p-cov genotypes=true", "levels": LEVELS},
    "weights and a limit of odd rows": {"method": "p-cov outliers=counts", "weights": "0"},
    "features of columns": {"method": "vertical", "features": "a, b, c, d"},
    "a share of sums": {"method": "p-cov", "max-share": 0.5, **SECURE},
    "a share of no moments": {"method": "dsa", "max-share": 0.5},
    "a fraction of the paper's": {"method": "sapca variant=paper", "n-components": 0.5},
    "shares out of order": {"method": "sapca share-low=0.5 share-high=0.2"},
    "a rule of the rank": {"method": "sapca rank-rule=paper"},
    "fewer tracked than wanted": {"method": "spca tracked=1"},
    "weights of no running model": {"method": "sapca old-weight=0.5"},
    "no bound": {"method": "p-cov", "secure-aggregation": True},
    "pruned numbers": {"method": "p-cov prune=0.2"},
    "sums of a factor": {"method": "qr-pca", **SECURE},
}
"""Runs that a server's half refuses to begin."""


@pytest.mark.parametrize("wrong", [{"mean": np.zeros(5)}, {"scatter": np.full(10, np.nan)}, {"scatter": -np.ones(10)}])
def test_a_reply_that_is_not_what_it_must_be_never_leaves(wrong, caplog):
    client = client_of(server_of("p-cov", [rows(30, 4), rows(20, 4)], n_components=2), 0)
    honest = client.statistics
    client.statistics = lambda phase, request: {**honest(phase, request), **wrong}
    arrays, count, report = client.fit([], {"phase": "moments"})
    assert (arrays, count, bool(report["error"])) == ([], 0, True)
    assert not unnamed(caplog.text, f"'{next(iter(wrong))}'")
    site_logger.error("a\n%s", "x" * 4000)
    assert (caplog.records[-1].name, caplog.messages[-1]) == ("fedpca_flwr.client", "a; " + "x" * 3997)


def test_an_error_when_the_journal_is_lost_tells_nothing_of_the_rows(tmp_path):
    client = HostileSession(tmp_path, rows(30, 4), {"method": "p-cov", "n-components": 2}).client
    client.statistics = Mock(side_effect=DataError("a value of row 7"))
    client.site.journal.has_begun = Mock(side_effect=DisclosureError("the journal cannot be used"))
    assert client.fit([], {"phase": "moments"})[2]["error"] == "PartyError"
    assert client.fit([], {"phase": "moments"})[2] == {PENDING_KEY: True}


def test_journals_tell_forms_apart_and_keep_no_secret_after_a_run(tmp_path):
    """Though all their bytes are the same: 48 zeros. A server need not ask first what a site holds."""
    forms = [[np.zeros((2, 3))], [np.zeros((3, 2))], [np.zeros(6)], [np.zeros(6, np.int64)], [np.zeros(3)] * 2]
    digests = []
    for i, arrays in enumerate([*forms, forms[0]]):
        site = HostileSession(tmp_path / str(i), rows(30, 4), {"method": "p-cov", "n-components": 2})
        site.refusal("no such phase", arrays)
        site.refusal("moments", [])
        events = audit(str(tmp_path / str(i) / "journal")).events
        assert [event.kind for event in events[:3]] == ["run", "refused", "ended"]
        digests.append(events[1].digest)
    assert (len(set(digests)), digests[-1]) == (5, digests[0])
    # Flower keeps the state after the run has ended, however it ends.
    state = RecordDict()
    journal = StateJournal(state)
    journal.begin("keys", "", b"options", lambda answered: None)
    journal.store_secret("private", b"a private key")
    assert StateJournal(state).load_secret("private") == b"a private key"
    with refused(ContractError, match="another configuration"):
        journal.begin("project", "", b"other options", lambda answered: None)
    assert StateJournal(state).load_secret("private") is None
    assert b"a private key" not in state["journal"].values()
    with refused(ContractError):
        journal.begin("project", "", b"options", lambda answered: None)
    journal = StateJournal(RecordDict())
    journal.store_secret("private", b"a private key")
    with refused(ContractError):
        journal.begin("moments", "", b"options", Mock(side_effect=ContractError("out of its script")))
    assert journal.load_secret("private") is None


@pytest.mark.parametrize("name", RUNS)
def test_a_site_refuses_by_itself_what_the_servers_half_refuses(name, tmp_path):
    run = {"n-components": 2, **RUNS[name]}
    with pytest.raises(ConfigError) as caught:
        FACTORY.strategy(run)
    np.save(tmp_path / "rows.npy", np.abs(rows(60, 4)) + 1)
    node = {"partition-id": 0, "num-partitions": 3, "may-show": "inner products", **identities(3)[0]}
    node |= {"data": str(tmp_path / "rows.npy"), "journal": str(tmp_path / "journal")}
    node |= {"epsilon-budget": 1.0} if run["method"] == "dp-pca" else {"weights": "0"}
    client = FACTORY.client(Context(1, 1, node, RecordDict(), run))
    report = client.get_properties({})
    assert report["error"] in ("ConfigError", "TravelError")
    assert report["message"].splitlines()[0] in str(caught.value)
    for phase in ("moments", "keys", "start", "summary", "observed", "truncated", "project"):
        assert client.fit([], {"phase": phase})[0] == []


def test_levels_and_weights_need_methods_of_moments():
    """Under noise, in streams and in groups of gaps a level or a weight could be that of a few rows."""
    cards = [card for card in BY_ROWS.values() if card.beyond_moments]
    assert not [card.name for card in cards if card.pools_rows or card.weighted or (card.mixed and not card.incomplete)]
