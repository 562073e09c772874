"""A site's journal for its reader: a table, a file, and every line that is not as it was written."""

import contextlib
import hashlib
import json
import sqlite3
import stat

import pytest

from fedpca_flwr.errors import DisclosureError
from fedpca_flwr.site.__main__ import main
from fedpca_flwr.site.journal import FileJournal
from fedpca_flwr.site.repeats import ACCOUNTS, Bounded, HeldOut, Release, SecureSum, sentence
from tests.refusals import refused, unnamed


def written(folder):
    """A journal of two runs of one party."""
    for run in ("11", "22"):
        journal = FileJournal(str(folder), run, 3)
        for phase in ("keys", "sums"):
            journal.begin(phase, "ab" * 32, b"", lambda answered: None)
            journal.answered("masked", 4096)
        journal.keep("private", b"a secret of the run")
        bounded = Bounded(16.0, within=run == "22").text()
        journal.remember("bound", "cd" * 32, lambda same, others, text=bounded: text)
        journal.remember("opened", "cd" * 32, lambda same, others: SecureSum(("a", "b", "c"), 180).text())
    journal.end("QuorumError")
    return folder


def changed(folder, *statements):
    with contextlib.closing(sqlite3.connect(folder / "site.sqlite")) as database:
        for statement in statements:
            database.execute(statement)
        database.commit()


def verdict(folder, capsys):
    """Exit code and what is printed."""
    try:
        main(["journal", str(folder), "--check"])
    except SystemExit as ended:
        return ended.code, capsys.readouterr().err
    return 0, capsys.readouterr().out


def test_it_is_printed_as_a_table(tmp_path, capsys):
    main(["journal", str(written(tmp_path))])
    header, *lines, said = capsys.readouterr().out.splitlines()
    assert header.split() == ["time", "run", "party", "kind", "about", "bytes"]
    assert len(lines) == 13
    assert lines[0].split()[1:] == ["11", "3", "question", "keys", "0"]
    assert lines[1].split()[1:] == ["11", "3", "answer", "masked", "4096"]
    assert "bound     rows beyond 16 " in lines[4]
    assert "opened    180 rows in a sum over 3 parties " in lines[5]
    assert lines[-1].split()[1:] == ["22", "3", "ended", "QuorumError", "0"]
    assert len({line.index(end) for line, end in zip(lines[:2], ("question", "answer"), strict=True)}) == 1
    assert said.startswith("13 events, none is missing or was changed since it was written; last digest: ")


def test_whoever_has_the_export_can_follow_the_chain(tmp_path, capsys):
    """By what the docs say of it, and nothing of ours."""
    file = tmp_path / "audit" / "journal.jsonl"
    main(["journal", str(written(tmp_path / "journal")), "--export", str(file)])
    lines, last = [json.loads(line) for line in file.read_text().splitlines()], ""
    assert len(lines) == 13
    for line in lines:
        *content, digest = line.values()
        assert list(line) == ["number", "time", "run", "party", "kind", "about", "digest", "bytes", "chain"]
        assert hashlib.sha256(json.dumps([last, *content]).encode()).hexdigest() == digest
        last = digest
    assert last in capsys.readouterr().out
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [path.name for path in file.parent.iterdir()] == ["journal.jsonl"]


def test_an_export_holds_no_secret(tmp_path):
    folder = written(tmp_path / "journal")
    FileJournal(str(folder), "33", 3).keep("private", b"a secret of the run")
    key = FileJournal(str(folder), "33", 3).data_key
    main(["journal", str(folder), "--export", str(tmp_path / "out")])
    content = (tmp_path / "out").read_text()
    assert not any(secret in content for secret in ("a secret of the run", key.hex(), b"a secret of the run".hex()))


def test_a_whole_journal_says_its_last_digest_which_grows_with_it(tmp_path, capsys):
    code, first = verdict(written(tmp_path), capsys)
    assert code == 0
    assert verdict(tmp_path, capsys) == (0, first)
    FileJournal(str(tmp_path), "33", 3).end("QuorumError")
    code, second = verdict(tmp_path, capsys)
    assert code == 0
    assert first.split("last digest: ")[1] != second.split("last digest: ")[1]


COPY = "INSERT INTO event SELECT number + 100, time, run, party, kind, about, digest, bytes, chain FROM event "


@pytest.mark.parametrize(
    ("gap", "statements"),
    [
        (5, ["DELETE FROM event WHERE number = 5"]),
        (1, ["DELETE FROM event WHERE number = 1"]),
        (13, ["DELETE FROM event WHERE number = 13"]),
        (1, ["DELETE FROM event"]),
        (5, ["DELETE FROM event WHERE number = 5", "UPDATE event SET number = number - 1 WHERE number > 5"]),
        (2, ["UPDATE event SET bytes = 4095 WHERE number = 2"]),
        (2, ["UPDATE event SET about = 'scores' WHERE number = 2"]),
        (3, ["UPDATE event SET time = '2020-01-01T00:00:00+00:00' WHERE number = 3"]),
        (6, ["UPDATE event SET digest = 'x' WHERE number = 6"]),
        (7, ["UPDATE event SET run = '11' WHERE number = 7"]),
        (13, ["UPDATE event SET chain = 'x' WHERE number = 13"]),
        (
            4,
            [
                "UPDATE event SET number = 99 WHERE number = 4",
                "UPDATE event SET number = 4 WHERE number = 5",
                "UPDATE event SET number = 5 WHERE number = 99",
            ],
        ),
        (14, [COPY + "WHERE number = 13"]),
        (14, ["UPDATE chain SET events = 12"]),
        (14, ["DELETE FROM chain"]),
    ],
    ids=str,
)
def test_a_line_that_was_removed_changed_moved_or_added_is_found(tmp_path, capsys, gap, statements):
    changed(written(tmp_path), *statements)
    code, said = verdict(tmp_path, capsys)
    assert code == 1
    assert not unnamed(said, f"event {gap}")


def test_a_line_that_was_changed_with_its_digest_is_found_by_the_next_one(tmp_path, capsys):
    with contextlib.closing(sqlite3.connect(written(tmp_path) / "site.sqlite")) as database:
        lines = database.execute("SELECT * FROM event WHERE number IN (4, 5) ORDER BY number").fetchall()
        content = [*lines[1][:5], "something else", *lines[1][6:8]]
        digest = hashlib.sha256(json.dumps([lines[0][-1], *content]).encode()).hexdigest()
        database.execute("UPDATE event SET about = ?, chain = ? WHERE number = 5", (content[5], digest))
        database.commit()
    code, said = verdict(tmp_path, capsys)
    assert code == 1
    assert not unnamed(said, "event 6")


def test_a_journal_with_a_gap_goes_on_is_read_and_exported_but_not_without_its_last_digest(tmp_path, capsys):
    changed(written(tmp_path / "journal"), "UPDATE event SET bytes = 1 WHERE number = 2")
    for more in ([], ["--export", str(tmp_path / "out")]):
        with pytest.raises(SystemExit) as ended:
            main(["journal", str(tmp_path / "journal"), *more])
        assert ended.value.code == 1
    assert len(capsys.readouterr().out.splitlines()) == 14
    assert len((tmp_path / "out").read_text().splitlines()) == 13
    changed(written(tmp_path / "2"), "DELETE FROM event WHERE number = 13")
    FileJournal(str(tmp_path / "2"), "33", 3).end("QuorumError")
    code, said = verdict(tmp_path / "2", capsys)
    assert code == 1
    assert not unnamed(said, "event 13")
    changed(written(tmp_path / "3"), "DELETE FROM chain")
    with refused(DisclosureError) as caught:
        FileJournal(str(tmp_path / "3"), "33", 3).end("QuorumError")
    assert "digest" in caught.value.local


def test_what_is_no_journal_or_of_another_format_is_named(tmp_path, capsys):
    code, said = verdict(tmp_path / "none", capsys)
    assert (code, unnamed(said, tmp_path / "none")) == (1, [])
    assert not (tmp_path / "none").exists()
    changed(written(tmp_path), "PRAGMA user_version = 1")
    code, said = verdict(tmp_path, capsys)
    assert code == 1
    assert not unnamed(said, 1, 3)


def test_an_export_that_cannot_be_written_is_named(tmp_path, capsys):
    (tmp_path / "file").touch()
    with pytest.raises(SystemExit):
        main(["journal", str(written(tmp_path / "journal")), "--export", str(tmp_path / "file" / "out")])
    assert not unnamed(capsys.readouterr().err, tmp_path / "file" / "out")


@pytest.mark.parametrize(
    ("account", "text"),
    [
        (Release("sums", "replace-one", 2.5), '{"phase": "sums", "relation": "replace-one", "multiplier": 2.5}'),
        (HeldOut(100, 20, "ab"), '{"rows": 100, "held out": 20, "subset": "ab"}'),
        (SecureSum(["a", "b"], 5), '{"members": ["a", "b"], "rows": 5}'),
        (Bounded(16.0, True), '{"bound": 16.0, "within": true}'),
    ],
)
def test_what_an_event_says_is_written_and_read_by_its_class(account, text):
    assert account.text() == text
    assert ACCOUNTS[account.kind].of(text) == account
    assert sentence(account.kind, text) == account.sentence()


def test_what_no_class_reads_is_shown_as_it_stands():
    assert sentence("question", "sums") == "sums"
