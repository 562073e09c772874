"""Journals in files: they change no bit, what is noted counts, and none that is older or gone is gone on with."""

import logging
import shutil
import sqlite3
from contextlib import closing
from itertools import count

import numpy as np
import pytest

from fedpca_flwr.cli import main
from fedpca_flwr.errors import ContractError, DisclosureError
from fedpca_flwr.site.rules import journal as site_journal
from fedpca_flwr.site.rules.audit import audit
from fedpca_flwr.site.rules.chain import MAX_REFUSAL_EVENTS
from fedpca_flwr.site.rules.journal import SECRET_BLOCK_BYTES, FileJournal
from fedpca_flwr.state import store
from fedpca_flwr.strategies import METHODS
from tests.families import cut, rows
from tests.harness import at_sites, finish, fit, own, server_of, sites_of
from tests.hostile import HostileSession, released
from tests.refusals import refused, unnamed
from tests.site.rules.test_audit import changed

BY_ROWS = [name for name, method in METHODS.items() if method.strategy.card.split == "rows" and name != "dp-pca"]
"""The noise of `dp-pca` is never the same; its journals have tests of their own."""
BY_DAY = {"p-cov", "sub-it", "em", "personalised"}
NEEDED = {"personalised": {"mu": 1.0}, "robust": {"max_rounds": 4}, "em": {"max_rounds": 4}}
"""A site draws rows to choose `mu`, which no simulation knows; four rounds have every question."""
CONNECT = sqlite3.connect
PEOPLE = np.random.default_rng(3).integers(20, 90, (40, 3)).astype(float)
RUN = {"method": "dp-pca", "n-components": 2, "epsilon": 0.1}
SUMS = {"method": "p-cov", "n-components": 2}
SECOND = "centre", [np.asarray(99.0)]
LAST = "project", [np.eye(2, 3), np.zeros(3), np.empty(0)]


@pytest.mark.parametrize("method", [pytest.param(m, marks=[pytest.mark.nightly] * (m not in BY_DAY)) for m in BY_ROWS])
def test_a_journal_changes_no_bit(method, tmp_path):
    parties, rules = cut(rows(120, 6), 50, 40, 30), {"split": "rows", "min-rows": 10}
    nodes = sites_of(tmp_path, parties, **rules, **{"may-show": METHODS[method].strategy.card.exposes})
    options = {"n_components": 3, **own(method), **NEEDED.get(method, {})}
    model = finish(at_sites(server_of(method, parties, **options), nodes))
    assert model.components_.tobytes() == fit(method, parties, min_rows=10, **options).components_.tobytes()


@pytest.mark.parametrize("lost", ["", " WHERE kind = 'release'"], ids=["all", "releases"])
def test_a_phase_is_released_once_and_none_in_a_journal_that_lacks_an_event(lost, tmp_path):
    def release(party, phase, multiplier):
        journal, seen = FileJournal(str(tmp_path), "1", party), []
        journal.record_release(phase, "add-remove", multiplier, lambda run, rest: seen.extend((run, rest)))
        return seen

    assert release(0, "sum", 2.0) == [[], []]
    assert release(1, "sum", 3.0) == [[], [2.0]]
    assert release(0, "products", 4.0) == [[2.0], [3.0]]
    with refused(DisclosureError, "'sum'"):
        release(0, "sum", 2.0)
    FileJournal(str(tmp_path), "1", 0).record_answer("rows, sum", 8, str)
    changed(tmp_path, f"DELETE FROM event{lost}")
    with refused(DisclosureError) as caught:
        release(1, "last", 2.0)
    assert not unnamed(caught.value.local, "event 1")
    seen = []
    with refused(DisclosureError):
        FileJournal(str(tmp_path), "2", 0).remember("bound", "data", lambda same, rest: seen.append(same) or "now")
    assert not seen


@pytest.mark.parametrize("nbytes", [0, SECRET_BLOCK_BYTES, 2 * SECRET_BLOCK_BYTES + 5])
def test_runs_share_a_journal_with_secrets_of_their_own_of_any_size(nbytes, tmp_path, monkeypatch):
    journals = [FileJournal(str(tmp_path), run, party) for run, party in (("1", 0), ("1", 1), ("2", 0))]
    secrets = [np.random.default_rng(seed).bytes(nbytes) + bytes([seed]) * (nbytes > 0) for seed in range(3)]
    for journal, secret in zip(journals, secrets, strict=True):
        journal.store_secret("private", b"first")
        journal.store_secret("private", secret)
    assert [journal.load_secret("private") for journal in journals] == secrets
    journals[0].complete()
    assert [journal.load_secret("private") for journal in journals] == [None, *secrets[1:]]
    assert journals[0].data_key == journals[2].data_key != FileJournal(str(tmp_path / "other"), "1", 0).data_key
    monkeypatch.setattr(site_journal, "MAX_SECRETS", 3)
    journals = [FileJournal(str(tmp_path / "many"), str(run), 0) for run in range(6)]  # which never begin
    for journal in journals:
        journal.store_secret("private", b"key")
    assert [journal.load_secret("private") for journal in journals] == [None] * 4 + [b"key"] * 2


def test_a_refused_question_is_a_short_line(tmp_path):
    def refuse(answered):
        raise ContractError("out of its script")

    first, second, third = (FileJournal(str(tmp_path), run, 0) for run in "123")
    with refused(ContractError):
        first.begin("p" * 1000, "", b"one", refuse)
    assert [event.about for event in audit(str(tmp_path)).events] == ["p" * 64, "ContractError"]
    for journal in (second, third):
        journal.begin("sums", "", b"one", lambda answered: None)
    third.complete()
    for journal, key, match in ((second, b"other", "another configuration"), (third, b"one", "over for this site")):
        with refused(ContractError, match=match):
            journal.begin("last", "", key, lambda answered: None)
    asked = FileJournal(str(tmp_path), "4", 0)  # whose end is noted however many were refused
    asked.begin("sums", "", b"one", lambda answered: None)
    for run in range(5, 5 + MAX_REFUSAL_EVENTS):
        FileJournal(str(tmp_path), str(run), 0).record_refusal("DataError")
    with refused(ContractError):
        FileJournal(str(tmp_path), "99", 0).begin("last", "", b"one", refuse)
    assert audit(str(tmp_path)).events[-1].kind == "refused"  # before run 99
    with refused(ContractError):
        asked.begin("last", "", b"one", refuse)
    assert audit(str(tmp_path)).events[-1][2:5] == ("4", 0, "ended")


def test_endless_refusals_are_one_counted_line(tmp_path, capsys, monkeypatch):
    few, clock = {"min-rows": 50}, count(10**9)
    monkeypatch.setattr(site_journal, "utc_time", lambda *before: str(next(clock)))

    def run(number, **node):
        session = HostileSession(tmp_path, PEOPLE, SUMS, run_id=number, **node)
        return session.client.get_properties({}) if number % 2 else session.ask("moments", [])[1]

    assert "error" not in run(2)
    for number in range(3, 63):
        assert run(number, **few)["error"] == "DisclosureError"
    result = audit(str(tmp_path / "journal"))
    assert not result.gap
    assert [event.kind for event in result.events].count("refused") == MAX_REFUSAL_EVENTS
    assert [(counted.times, counted.run) for counted in result.further_refusals] == [(60 - MAX_REFUSAL_EVENTS, "62")]
    assert main(["site", "status", str(tmp_path / "journal")]) == 0
    last = [event for event in result.events if event.kind == "refused"][-1].number
    *_, line = capsys.readouterr().out.splitlines()
    assert line == f"after event {last}: 50 further refusals, the last at {next(clock) - 1} of run 62"
    with closing(CONNECT(tmp_path / "journal" / "site.sqlite")) as database:
        assert not database.execute("SELECT * FROM secret WHERE run > 2").fetchall()
    assert "error" not in run(64)
    assert run(65, **few)["error"] == "DisclosureError"
    assert [event.run for event in audit(str(tmp_path / "journal")).events if event.kind == "refused"][-1] == "65"


def test_a_question_is_known_again_by_a_later_process(tmp_path):
    def progress(digest="d1", configuration=b"one", run="1"):
        return FileJournal(str(tmp_path), run, 0).progress(digest, configuration)

    assert progress() == "new"
    FileJournal(str(tmp_path), "1", 0).begin("sums", "d1", b"one", lambda answered: None)
    assert [progress(), progress("d2"), progress(run="2")] == ["computing", "new", "new"]
    assert [FileJournal(str(tmp_path), "1", party).has_begun() for party in (0, 1)] == [True, False]
    FileJournal(str(tmp_path), "1", 0).record_answer("sum", 8, str)
    assert [progress(), progress(configuration=b"other")] == ["answered", "new"]
    FileJournal(str(tmp_path), "1", 0).complete()  # the last reply may be lost, too
    assert progress() == "answered"
    FileJournal(str(tmp_path), "1", 0).end("DataError")
    assert progress() == "new"


def test_a_locked_journal_is_waited_for_once(tmp_path, monkeypatch, caplog):
    """The report of the error looks into the journal again, and waited for as long as the question."""
    monkeypatch.setattr(store, "LOCK_TIMEOUT_SECONDS", 0.05)
    session, tries = HostileSession(tmp_path, PEOPLE, SUMS), []
    assert session.ask("moments", [])[0]
    monkeypatch.setattr(sqlite3, "connect", lambda *args, **options: tries.append(args) or CONNECT(*args, **options))
    with closing(CONNECT(tmp_path / "journal" / "site.sqlite", isolation_level=None)) as backup:
        backup.execute("BEGIN EXCLUSIVE")
        assert session.refusal(*LAST).startswith("DisclosureError")
    assert len(tries) == 1
    assert "locked" in caplog.text
    assert session.ask(*LAST)[0]


def put_back(folder, copy):
    shutil.rmtree(folder / "journal")
    shutil.copytree(folder / copy, folder / "journal")


def test_a_journal_that_was_restored_or_exchanged_releases_no_phase_twice(tmp_path, caplog):
    session = HostileSession(tmp_path, PEOPLE, RUN)
    for question, copy in ((("octaves", []), "older"), (SECOND, "newest")):
        assert session.ask(*question)[0]
        shutil.copytree(tmp_path / "journal", tmp_path / copy)
    put_back(tmp_path, "older")
    assert session.refusal(*SECOND).startswith("DisclosureError")
    assert "older" in caplog.text
    assert released(tmp_path / "journal") == ["octaves"]
    put_back(tmp_path, "newest")
    assert session.ask("nearer_octaves", [np.zeros(3)])[0]
    for run in (RUN, SUMS):  # another past is refused however long it is: three runs more
        folder = tmp_path / run["method"]
        session = HostileSession(folder, PEOPLE, run)
        first = next(iter(session.client.script))
        for i in range(3):
            HostileSession(folder / "other", PEOPLE, run, run_id=i).ask(first, [])
        assert session.ask(first, [])[0]
        put_back(folder, "other/journal")
        assert session.refusal(*LAST).startswith("DisclosureError")


def test_a_new_journal_warns_in_the_log(tmp_path, caplog):
    caplog.set_level(logging.WARNING)
    for run_id in (1, 2):
        session = HostileSession(tmp_path, PEOPLE, RUN, run_id=run_id)
        assert session.ask("octaves", [])[0]
        assert caplog.text.count(str(tmp_path / "journal")) == 1
    shutil.rmtree(tmp_path / "journal")
    assert session.ask(*SECOND)[1]["error"] == "DisclosureError"
    assert not (tmp_path / "journal").exists()
    assert not unnamed(caplog.text, "site.sqlite")
    caplog.clear()
    assert "message" not in HostileSession(tmp_path, PEOPLE, RUN, run_id=3).ask("octaves", [])[1]
    assert caplog.text.count(str(tmp_path / "journal")) == 1
