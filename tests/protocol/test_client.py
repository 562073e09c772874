"""A party's half of a run: what leaves it, how its journal knows a question, and what outlives no run."""

import sqlite3
from contextlib import closing
from unittest.mock import Mock

import numpy as np
import pytest
from flwr.app import RecordDict

from fedpca_flwr.errors import ContractError
from fedpca_flwr.protocol.journal import StateJournal
from tests.families import rows
from tests.harness import client_of, server_of
from tests.hostile import HostileSession
from tests.refusals import refused, unnamed

RUN = {"method": "p-cov", "n-components": 2}


@pytest.mark.parametrize(
    "wrong", [{"mean": np.zeros(5)}, {"scatter": np.full(10, np.nan)}, {"scatter": -np.ones(10)}], ids=str
)
def test_a_reply_that_is_not_what_it_must_be_never_leaves(wrong, caplog):
    """The site checks its own reply, before the server does."""
    client = client_of(server_of("p-cov", [rows(30, 4), rows(20, 4)], n_components=2), 0)
    honest = client.statistics
    client.statistics = lambda phase, request: {**honest(phase, request), **wrong}
    arrays, count, report = client.fit([], {"phase": "moments"})
    assert (arrays, count, bool(report["error"])) == ([], 0, True)
    assert not unnamed(caplog.text, f"'{next(iter(wrong))}'")


def test_questions_of_other_forms_have_other_digests(tmp_path):
    """Though all their bytes are the same: 48 zeros. A server need not ask first what a site holds."""
    forms = [[np.zeros((2, 3))], [np.zeros((3, 2))], [np.zeros(6)], [np.zeros(6, np.int64)], [np.zeros(3)] * 2]
    digests = []
    for i, arrays in enumerate([*forms, forms[0]]):
        site = HostileSession(tmp_path / str(i), rows(30, 4), RUN)
        site.refusal("no such phase", arrays)
        site.refusal("moments", [])
        with closing(sqlite3.connect(tmp_path / str(i) / "journal" / "site.sqlite")) as database:
            events = database.execute("SELECT kind, digest FROM event ORDER BY number").fetchall()
        (run, _), (refusal, digest), (ended, _), *_ = events
        assert (run, refusal, ended) == ("run", "refused", "ended")
        digests.append(digest)
    assert len(set(digests)) == 5
    assert digests[-1] == digests[0]


def test_the_rules_of_a_site_hold_for_every_question(tmp_path):
    assert not unnamed(HostileSession(tmp_path, rows(4, 4), RUN).refusal("moments", []), "'min-rows' = 5")


def test_no_secret_outlives_its_run_however_it_ends():
    """Flower keeps the state after the run has ended."""
    state = RecordDict()
    journal = StateJournal(state)
    journal.begin("keys", "", b"options", lambda answered: None)
    journal.store_secret("private", b"a private key")
    assert StateJournal(state).load_secret("private") == b"a private key"
    journal.end("ContractError")
    assert StateJournal(state).load_secret("private") is None
    assert b"a private key" not in state["journal"].values()
    with refused(ContractError):
        journal.begin("project", "", b"options", lambda answered: None)
    journal = StateJournal(RecordDict())
    journal.store_secret("private", b"a private key")
    with refused(ContractError):
        journal.begin("moments", "", b"options", Mock(side_effect=ContractError("out of its script")))
    assert journal.load_secret("private") is None
