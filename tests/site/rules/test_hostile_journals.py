"""Journals, exports and logs that somebody changed: each command ends in a sentence, and none in a raw error."""

import contextlib
import json
import shutil
import sqlite3
import zipfile
from itertools import islice

import pytest

from fedpca_flwr.cli import main
from fedpca_flwr.site.rules.accounts import BoundAnswer, HeldOut, OpenedSum, Release
from fedpca_flwr.site.rules.audit import audit
from fedpca_flwr.site.rules.chain import Event
from fedpca_flwr.site.rules.journal import FileJournal
from tests.foreign import JSON_VALUES, replaced
from tests.site.rules.test_comparison import finished_run, rewritten

CELLS = {
    "null": "NULL",
    "negative": "-1",
    "zero": "0",
    "huge": "9223372036854775807",
    "fraction": "1.5",
    "infinity": "9e999",
    "word": "'x'",
    "empty": "''",
    "nul": "char(0)",
    "bytes": "x'fffe'",
    "no UTF-8": "CAST(x'fffe' AS TEXT)",
    "half a pair": "CAST(x'eda080' AS TEXT)",
    "marks": "char(27) || '[2J' || char(10) || '# Verdict' || char(8238)",
    "long": "hex(zeroblob(5000))",
    "kind": "'bound'",
}
"""Values of a cell, in SQL."""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Return the model of a run on sites, and a site's journal that has events of every kind."""
    model, (journal, *_) = finished_run(tmp_path_factory.mktemp("run"))
    number = audit(str(journal)).events[0].run
    site = FileJournal(str(journal), number, 0)
    accounts = (Release("sums", "replace-one", 2.0), HeldOut(9, 2, "ab"), OpenedSum(["a"], 9), BoundAnswer(1.0, True))
    for account in accounts:
        site.remember(account.kind, "cd" * 32, lambda same, others, account=account: account.text())
    for refused in range(12):  # the last ones are counted, without events
        FileJournal(str(journal), f"{refused}", 0).record_refusal("ConfigError")
    unconstrain(journal)
    return model, journal


def unconstrain(journal):
    """Take the types and limits off the tables, as whoever writes a file by himself does."""
    with contextlib.closing(sqlite3.connect(journal / "site.sqlite")) as database, database:
        for table in ("event", "chain", "further"):
            database.execute(f"ALTER TABLE {table} RENAME TO original")
            database.execute(f"CREATE TABLE {table} AS SELECT * FROM original")
            database.execute("DROP TABLE original")


def changed(journal, folder, table, column, number, value):
    """Copy a journal, and change a cell; None if the cell has this value already."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(journal, folder)
    with contextlib.closing(sqlite3.connect(folder / "site.sqlite")) as database, database:
        database.execute("PRAGMA synchronous = OFF")
        count = database.execute(
            f"UPDATE {table} SET {column} = {value} WHERE rowid = ? AND {column} IS NOT {value}", (number,)
        ).rowcount
    return folder if count else None


def ending(capsys, *words):
    """Exit code of a command, and what it prints; all is printable, and what is wrong is told."""
    capsys.readouterr()
    code = main([str(word) for word in words])
    printed = capsys.readouterr()
    assert code in {0, 1, 2}
    assert (printed.out + printed.err).replace("\n", "").isprintable()
    assert bool(printed.err) == bool(code)
    return code, printed.out + printed.err


def commands(model, journal):
    return (
        ("site", "journal", journal),
        ("site", "journal", journal, "--json"),
        ("site", "journal", journal, "--export", journal / "export.jsonl"),
        ("site", "status", journal),
        ("audit", model, journal),
    )


@pytest.mark.parametrize("column", Event._fields)
def test_every_changed_cell_of_an_event_is_told_with_its_number(run, tmp_path, capsys, column):
    model, journal = run
    count = len(audit(str(journal)).events)
    for place, (name, value) in enumerate(CELLS.items()):
        number = 1 + (5 * place + Event._fields.index(column)) % count
        if not (folder := changed(journal, tmp_path / "journal", "event", column, number, value)):
            continue
        for words in commands(model, folder):
            code, text = ending(capsys, *words)
            assert code > 0, (name, words)
            expected = [str(folder), f"'{column}' is ", "restore it from a copy"] if code == 2 else []
            expected += [f"event {number}:"] if code == 2 and column != "number" else ["event "]
            assert [part for part in expected if part not in text] == [], (name, text)


@pytest.mark.parametrize(
    ("table", "column"),
    [("chain", "events"), ("chain", "last"), *(("further", name) for name in ("number", "times", "time", "run"))],
)
def test_changed_counts_end_in_a_sentence(run, tmp_path, capsys, table, column):
    model, journal = run
    for name, value in CELLS.items():
        folder = changed(journal, tmp_path / "journal", table, column, 1, value)
        for words in commands(model, folder):
            code, text = ending(capsys, *words)
            assert code or table == "further", (name, words)  # of which no digest is made
            assert code < 2 or str(folder) in text, (name, text)


@pytest.mark.parametrize("kind", ["release", "held out", "opened", "bound"])
def test_an_account_of_another_form_is_shown_as_it_is(run, tmp_path, capsys, kind):
    """The owner of the journal has made the chain anew, so that nothing else tells of the change."""
    _, journal = run
    texts = [json.dumps(value) for value in JSON_VALUES if isinstance(value, str) or value is None]
    for text in ("x", "[1]", '{"rows": 1e400, "multiplier": NaN}', "[" * 9999, '{"members": ["\\ud800"]}', *texts):
        shutil.copytree(journal, tmp_path / "journal", dirs_exist_ok=True)
        rewritten(tmp_path / "journal", kind, about=text)
        code, printed = ending(capsys, "site", "journal", tmp_path / "journal")
        assert (code, text[:20] in printed) == (0, True)


@pytest.mark.parametrize("name", Event._fields)
def test_every_changed_value_of_an_export_is_told_with_its_line(run, tmp_path, capsys, name):
    model, journal = run
    file = tmp_path / "export.jsonl"
    main(["site", "journal", str(journal), "--export", str(file)])
    lines = file.read_text().splitlines()
    for place, value in enumerate(JSON_VALUES):
        number = 1 + place % len(lines)
        entry = json.loads(lines[number - 1])
        if entry[name] is value or (entry[name], type(entry[name])) == (value, type(value)):
            continue
        entry[name] = value
        file.write_text("\n".join([*lines[: number - 1], json.dumps(entry), *lines[number:]]))
        code, text = ending(capsys, "audit", model, file)
        assert code > 0, value
        assert code == 1 or (str(file) in text and f"line {number}" in text and f"'{name}'" in text), text


@pytest.mark.parametrize("text", ["", "{", "[]", "3", '{"number": 1}', "[" * 99999, "\x00", '{"run": "\\ud800"}'])
def test_a_file_that_is_no_export_is_told(run, tmp_path, capsys, text):
    (tmp_path / "export.jsonl").write_text(text)
    code, printed = ending(capsys, "audit", run[0], tmp_path / "export.jsonl")
    assert code == (2 if text else 1)
    assert str(tmp_path / "export.jsonl") in printed


@pytest.mark.parametrize("part", range(3))
def test_every_value_of_a_models_log_ends_in_a_sentence(run, tmp_path, capsys, part):
    model, journal = run
    with zipfile.ZipFile(model) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    about, file = json.loads(members.pop("model.json")), tmp_path / "model.npz"
    for path, value, hostile in islice(replaced(about, 1), part, None, 3):
        with zipfile.ZipFile(file, "w") as archive:
            for name, content in members.items():
                archive.writestr(name, content)
            archive.writestr("model.json", json.dumps(hostile))
        code, text = ending(capsys, "audit", file, journal)
        assert code < 2 or str(file) in text, (path, value, text)
