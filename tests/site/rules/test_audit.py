"""A site's journal for its reader: a table, a file, what became of each run, and every line that is not as written."""

import contextlib
import hashlib
import json
import logging
import re
import shutil
import sqlite3
import stat
import sys
from datetime import UTC, datetime, timedelta

import pytest

from fedpca_flwr import site_app
from fedpca_flwr.cli import main
from fedpca_flwr.errors import DisclosureError
from fedpca_flwr.maths.krylov import random_block
from fedpca_flwr.site.rules.accounts import ACCOUNTS, BoundAnswer, HeldOut, OpenedSum, Release, event_text
from fedpca_flwr.site.rules.audit import Audit, audit
from fedpca_flwr.site.rules.chain import Event, chain_digest
from fedpca_flwr.site.rules.journal import FileJournal
from tests.families import cut, rows
from tests.harness import at_sites, context_of, finish, proxy_of, server_of, sites_of
from tests.hostile import HostileSession
from tests.refusals import refused, unnamed

SECRET = b"a secret of the run"


def written(folder):
    for run in ("11", "22"):
        journal = FileJournal(str(folder), run, 3)
        for phase in ("keys", "sums"):
            journal.begin(phase, "ab" * 32, b"", lambda answered: None)
            journal.record_answer("masked", 4096, lambda: "ef" * 32)
        journal.store_secret("private", SECRET)
        bounded = BoundAnswer(16.0, within=run == "22").text()
        journal.remember("bound", "cd" * 32, lambda same, other_notes, text=bounded: text)
        journal.remember("opened", "cd" * 32, lambda same, other_notes: OpenedSum(("a", "b", "c"), 180).text())
    journal.end("QuorumError")
    return folder


def changed(folder, *statements):
    with contextlib.closing(sqlite3.connect(folder / "site.sqlite")) as database, database:
        for statement in statements:
            database.execute(statement)


def journal_command(capsys, folder, *arguments):
    code = main(["site", "journal", str(folder), *arguments])
    printed = capsys.readouterr()
    return code, printed.err if code else printed.out


def test_it_is_printed_checked_and_exported_with_its_chain_and_no_secret(tmp_path, capsys):
    """The test follows the chain by the documentation, without code of the project."""
    folder, file, last = written(tmp_path / "journal"), tmp_path / "audit" / "journal.jsonl", ""
    header, *rows, verdict = journal_command(capsys, folder)[1].splitlines()
    assert header.split() == ["time", "run", "party", "kind", "about", "bytes"]
    assert len(rows) == 13
    ends = [" ".join(rows[place].split()[1:]) for place in (0, 1, -1)]
    assert ends == ["11 3 question keys 0", "11 3 answer masked 4096", "22 3 ended QuorumError 0"]
    assert "bound     rows beyond 16 " in rows[4]
    assert "opened    180 rows in a sum over 3 parties " in rows[5]
    assert rows[0].index("question") == rows[1].index("answer")
    assert verdict.startswith("13 events, each with the digest that follows")
    assert journal_command(capsys, folder, "--check") == (0, f"{verdict}\n")
    key = FileJournal(str(folder), "11", 3).data_key
    output = journal_command(capsys, folder, "--export", str(file))[1]
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert len(lines) == 13
    for line in lines:
        *content, digest = line.values()
        assert list(line) == ["number", "time", "run", "party", "kind", "about", "digest", "bytes", "chain"]
        assert hashlib.sha256(json.dumps([last, *content]).encode()).hexdigest() == digest
        last = digest
    assert last in output
    assert not any(secret in file.read_text() for secret in (SECRET.decode(), SECRET.hex(), key.hex()))
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [path.name for path in file.parent.iterdir()] == ["journal.jsonl"]
    (tmp_path / "file").touch()
    code, output = journal_command(capsys, folder, "--export", str(tmp_path / "file" / "out"))
    assert (code, unnamed(output, tmp_path / "file" / "out")) == (2, [])


def test_the_digest_of_a_question_is_that_of_its_numbers(tmp_path):
    """Sites compare the digests to see whether the server asked every site the same."""
    digests = []
    for i, seed in enumerate((1, 1, 2)):
        site = HostileSession(tmp_path / str(i), rows(40, 6), {"method": "sub-it", "n-components": 2})
        site.ask("start", [])
        site.ask("product", [random_block(6, 3, seed=seed)])
        events = audit(str(site.folder / "journal")).events
        digests.append([event.digest for event in events if event.kind == "question"])
    assert digests[0] == digests[1]
    assert [first == other for first, other in zip(digests[0], digests[2], strict=True)] == [True, False]


def test_a_line_that_was_removed_changed_moved_or_added_is_found(tmp_path, capsys):
    copy = "INSERT INTO event SELECT number + 100, time, run, party, kind, about, digest, bytes, chain FROM event "
    cases = [
        *((number, [f"DELETE FROM event WHERE number = {number}"]) for number in (1, 5, 13)),
        (1, ["DELETE FROM event"]),
        (5, ["DELETE FROM event WHERE number = 5", "UPDATE event SET number = number - 1 WHERE number > 5"]),
        (2, ["UPDATE event SET bytes = 4095 WHERE number = 2"]),  # test_comparison.py has the other columns
        (13, ["UPDATE event SET chain = 'x' WHERE number = 13"]),
        (4, [f"UPDATE event SET number = {to} WHERE number = {number}" for number, to in ((4, 99), (5, 4), (99, 5))]),
        (14, [copy + "WHERE number = 13"]),
        *((14, [statement]) for statement in ("UPDATE chain SET events = 12", "DELETE FROM chain")),
    ]
    events = audit(str(written(tmp_path / "whole"))).events  # the last case is an event with its own digest
    digest = chain_digest(events[3].chain, (*events[4][:5], "something else", *events[4][6:8]))
    cases += [(6, [f"UPDATE event SET about = 'something else', chain = '{digest}' WHERE number = 5"])]
    for place, (gap, statements) in enumerate(cases):
        shutil.copytree(tmp_path / "whole", folder := tmp_path / f"{place}")
        changed(folder, *statements)
        code, output = journal_command(capsys, folder, "--check")
        assert (code, unnamed(output, f"event {gap}")) == (1, []), statements


def test_a_journal_with_a_gap_is_read(tmp_path, capsys):
    changed(written(tmp_path / "1"), "DELETE FROM event WHERE number = 13")
    FileJournal(str(tmp_path / "1"), "33", 3).end("QuorumError")
    for command in (["journal"], ["journal", "--export", str(tmp_path / "out")], ["status", "--json"]):
        assert main(["site", *command, str(tmp_path / "1")]) == 1
    printed = capsys.readouterr()
    table, runs_text = printed.out.split("[", 1)
    assert len(table.splitlines()) == 14
    assert [run["run"] for run in json.loads(f"[{runs_text}")] == ["11", "22", "33"]
    assert not unnamed(printed.err, "event 13")
    assert len((tmp_path / "out").read_text().splitlines()) == 13
    changed(written(tmp_path / "2"), "DELETE FROM chain")
    with refused(DisclosureError) as caught:
        FileJournal(str(tmp_path / "2"), "33", 3).end("QuorumError")
    assert "digest" in caught.value.local
    changed(tmp_path / "1", "PRAGMA user_version = 1")  # of another format, and no journal
    for folder, named in ((tmp_path / "none", [tmp_path / "none"]), (tmp_path / "1", [1, 3])):
        code, output = journal_command(capsys, folder, "--check")
        assert (code, unnamed(output, *named)) == (2, [])
    assert not (tmp_path / "none").exists()


QUESTION, FIRST, SECOND = ("question", "sums"), ("answer", "phase 1 of 2: sums"), ("answer", "phase 2 of 2: errors")
NOW, A_MINUTE, AN_HOUR, LONG = (timedelta(seconds=s) for s in (0, 60, 3600, 172800))  # ago
BRIEF, LASTING = (("run", f"p-cov; round-deadline={seconds}; an app") for seconds in ("59.5", "1e+300"))


def test_the_journal_tells_what_runs_asked_and_got_and_how_they_ended():
    lines = [("run", "p-cov; only sums", 0), ("question", "sums", 0), ("answer", "sums", 8), ("answer", "sums", 1000)]
    lines += [("ended", "E", 0)]
    events = [Event(i, str(i), "11", 3, kind, about, "", size, "") for i, (kind, about, size) in enumerate(lines, 1)]
    run = {"run": "11", "party": 3, "began": "1", "last": "5", "about": "p-cov; only sums", "questions": 1}
    run |= {"bytes": 1008, "compared": True}
    assert Audit(events, 0).runs() == [{**run, "refused": "", "ended": "E", "phase": "", "status": "broke off"}]
    told = "run 11 (client 3): p-cov; only sums\n  1 to 5: 1 questions, 1,008 bytes left, broke off: E"
    assert Audit(events, 0).status() == told
    asked = [(run, party, *line) for run, party in (("11", 3), ("12", 3), ("13", 4)) for line in (QUESTION, FIRST)]
    events = [Event(i, datetime.now(UTC).isoformat(), *line, "", 0, "") for i, line in enumerate(asked)]
    assert [run["status"] for run in Audit(events, 0).runs()] == ["broke off", "running", "running"]
    for entries, ago, status, text in (
        ([QUESTION, FIRST, QUESTION, SECOND, ("completed", "")], NOW, "completed", "completed"),
        ([QUESTION, FIRST], NOW, "running", "running"),
        ([QUESTION, FIRST], LONG, "broke off", "broke off after phase 1 of 2"),
        ([QUESTION, FIRST, ("ended", "DataError")], NOW, "broke off", "broke off after phase 1 of 2: DataError"),
        ([("run", "p-cov"), ("refused", "DisclosureError")], NOW, "refused", "refused: DisclosureError"),
        ([QUESTION, ("answer", "sums")], LONG, "answered", "answered"),  # of a version that noted no phase
        ([QUESTION, ("answer", "sums")], NOW, "running", "running"),
        ([BRIEF, QUESTION, FIRST], A_MINUTE, "silent", "silent since {began}"),
        ([LASTING, QUESTION, FIRST], A_MINUTE, "running", "running"),
        ([QUESTION, FIRST], AN_HOUR, "silent", "silent since {began}"),
        ([("ended", "ConfigError")], NOW, "refused", "refused: ConfigError"),
        ([("opened", "a sum")], LONG, "asked nothing", "asked nothing"),
    ):
        began = (datetime.now(UTC) - ago).isoformat()
        events = [Event(i, began, "11", 3, kind, about, "", 0, "") for i, (kind, about) in enumerate(entries)]
        (run,) = Audit(events, 0).runs()
        assert run["status"] == status
        assert Audit(events, 0).status().endswith(f" bytes left, {text.format(began=began)}")


def test_events_are_read_by_their_class():
    release = '{"phase": "sums", "relation": "replace-one", "multiplier": 2.1234567}'
    for account, text, phrase in (
        (Release("sums", "replace-one", 2.1234567), release, "sums, noise multiplier 2.12346, replace-one"),
        (HeldOut(100, 20, "ab"), '{"rows": 100, "held out": 20, "subset": "ab"}', "20 of 100 rows held out"),
        (OpenedSum(["a", "b"], 5), '{"members": ["a", "b"], "rows": 5}', "5 rows in a sum over 2 parties"),
        (BoundAnswer(16.0, True), '{"bound": 16.0, "within": true}', "rows within 16"),
    ):
        assert account.text() == text
        assert ACCOUNTS[account.kind].parse(text) == account
        assert event_text(account.kind, text) == account.sentence() == phrase
    assert event_text("question", "sums") == "sums"


PARTIES = cut(rows(90), 60, 30)


@pytest.fixture
def sites(tmp_path):
    server = server_of("sub-it", PARTIES, n_components=2, block_size=4, max_rounds=3)
    return at_sites(server, sites_of(tmp_path, PARTIES, split="rows"))


def test_a_refusal_before_the_first_round_is_noted_once_whatever_its_reason(sites):
    context_of(sites, 0).node_config["min-rows"] = 70
    journals = [context_of(sites, party).node_config["journal"] for party in range(2)]
    for _ in range(2):
        with refused(DisclosureError, "client 0", "min-rows", 70):
            finish(sites)
    assert [(event.kind, event.about) for event in audit(journals[0]).events[1:]] == [("refused", "DisclosureError")]
    context_of(sites, 1).run_config = {**context_of(sites, 1).run_config, "method": "strange"}
    with pytest.raises(Exception, match="strange"):
        finish(sites)
    assert [event.kind for event in audit(journals[1]).events] == ["run", "refused"]


def test_journal_and_log_say_what_a_run_is_with_time_phase_and_bytes(sites, monkeypatch, capfd, tmp_path):
    monkeypatch.setattr(sys, "path", [str(tmp_path / "apps" / "lab.fedpca-flwr.0.2.0.ab12cd34"), *sys.path])
    logger = logging.getLogger("fedpca_flwr.client")
    monkeypatch.setattr(logger, "handlers", [])
    monkeypatch.setattr(logger, "level", logging.NOTSET)
    getattr(logger.manager, "_clear_cache")()  # noqa: B009 - of the standard library, and not in its types
    context = context_of(server_of("p-cov", PARTIES, n_components=2), 0)
    site_app.site_client(context, context)
    assert not logger.handlers
    for party in (0, 1):
        context = context_of(sites, party)
        proxy_of(sites, party).make = lambda context=context: site_app.site_client(context, context).to_client()
    finish(sites)
    assert not sites.strategy.quorum.simulated
    first, *later_events = audit(context_of(sites, 0).node_config["journal"]).events
    assert (first.kind, "run" in [event.kind for event in later_events]) == ("run", False)
    for description in ("sub-it", "block-size=4", "max-rounds=3", "n-components=2", "lab.fedpca-flwr.0.2.0.ab12cd34"):
        assert description in first.about
    answered, output = [event for event in later_events if event.kind == "answer"], capfd.readouterr().err
    assert answered
    for event in answered:
        line = rf"^\d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d\S* INFO run {event.run}: '[\w-]+' .* {event.bytes} bytes$"
        assert re.search(line, output, re.M), output
    assert re.search(r"^\d{4}-.* WARNING there is no journal", output, re.M), "one that vanished would be told so too"
