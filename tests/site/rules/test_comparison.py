"""A model beside its sites' journals: what matches is said, and whatever was changed on either side is named."""

import contextlib
import hashlib
import hmac
import json
import re
import shutil
import sqlite3
import zipfile
from itertools import islice

import numpy as np
import pytest

from fedpca_flwr import FedPCA, LocalGrid, PCAModel, run, site_app
from fedpca_flwr.cli import main
from fedpca_flwr.site.rules.accounts import BoundAnswer, HeldOut, OpenedSum, Release
from fedpca_flwr.site.rules.audit import audit
from fedpca_flwr.site.rules.chain import Event, chain_digest
from fedpca_flwr.site.rules.journal import FileJournal
from tests.foreign import JSON_VALUES, replaced
from tests.site.rules.test_audit import changed

METHODS = {"p-cov": "sums of replies", "sub-it block-size=2": "several rounds", "adaptive": "a second method"}
METHODS |= {"dp-pca epsilon=5 delta=1e-5": "noise", "streaming state={}/federation": "questions of each party"}


def finished_run(folder, method="p-cov"):
    journals, nodes = [folder / f"journal {party}" for party in range(3)], []
    own = {"allowed-methods": method.split()[0], "epsilon-budget": 10.0} if "dp-pca" in method else {}
    for party, journal in enumerate(journals):
        values = np.random.default_rng(party).normal(size=(60, 4)) * [4, 3, 2, 1]
        np.savetxt(file := folder / f"{party}.csv", values, delimiter=",", header="a,b,c,d", comments="")
        nodes.append({"data": str(file), "journal": str(journal), "name": f"hospital {party}", **own})
    strategy = FedPCA(method := method.format(folder), n_components=2, clients=3)
    strategy.start(LocalGrid(site_app.app, nodes, {"method": method, "n-components": 2, "clients": 3}))
    return strategy.model.save(folder / "model.npz"), journals


@pytest.fixture
def audited(capsys):
    def compare(model, journals):
        capsys.readouterr()
        return main(["audit", str(model), *map(str, journals)]), capsys.readouterr().out

    return compare


@pytest.fixture(scope="module")
def folder_of_a_run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    finished_run(folder)
    return folder


@pytest.fixture
def finished(folder_of_a_run, tmp_path):
    shutil.copytree(folder_of_a_run, tmp_path, dirs_exist_ok=True)
    return tmp_path / "model.npz", [tmp_path / f"journal {party}" for party in range(3)]


def rewritten(journal, kind="answer", **values):
    """Change the first event of a kind as the journal's owner could: all later links of the chain are made anew."""
    last = ""
    with contextlib.closing(sqlite3.connect(journal / "site.sqlite")) as database, database:
        for name, value in values.items():
            first = "(SELECT min(number) FROM event WHERE kind = ?)"
            database.execute(f"UPDATE event SET {name} = ? WHERE number = {first}", (value, kind))
        for number, *fields in database.execute("SELECT * FROM event ORDER BY number").fetchall():
            last = chain_digest(last, (number, *fields[:-1]))
            database.execute("UPDATE event SET chain = ? WHERE number = ?", (last, number))
        database.execute("UPDATE chain SET last = ?", (last,))


@pytest.mark.parametrize("method", METHODS, ids=METHODS.values())
def test_an_honest_run_matches_in_every_question(tmp_path, method, audited):
    model, journals = finished_run(tmp_path, method)
    code, page = audited(model, journals)
    assert (code, page.count("completed, as the site tells")) == (0, 3)
    assert page.count("| the same | the same |") == 3 * len(PCAModel.load(model).log["rounds"])


def test_the_page_has_the_words_of_the_model_and_the_numbers_of_the_journal(tmp_path, capsys, finished, audited):
    model, (journal, *others) = finished
    loaded, events = PCAModel.load(model), audit(str(journal)).events
    loaded.log["measured"]["condition"] = np.inf  # an odd number
    assert audited(loaded.save(tmp_path / "told.npz"), [journal, *others])[0] == 0
    entry = loaded.log["provenance"]
    assert entry["began"] <= entry["ended"]
    assert {"fedpca-flwr", "flwr", "numpy", "scipy", "python"} == set(entry["versions"])
    assert json.dumps(entry)  # of plain values
    entry |= {"began": "1", "ended": "2", "app": "lab/app", "app_hash": "ab12", "account": "carol"}
    _, page = audited(loaded.save(tmp_path / "told.npz"), [journal])
    said = ["time: 1 to 2", "method: p-cov", "app: lab/app with the hash ab12", "started by: carol"]
    for text in (*said, f"settings: SHA-256 {entry['settings']}"):
        assert f"- {text}\n" in page
    asked, answered = ([event for event in events if event.kind == kind] for kind in ("question", "answer"))
    for number, (question, answer) in enumerate(zip(asked, answered, strict=True), start=1):
        assert f"| {number} | {question.about} | the same | the same | {question.time} | {answer.bytes:,} |" in page
    loaded.log["rounds"][0]["digests"]["0"][1] = ""
    loaded.save(tmp_path / "told.npz")
    rewritten(journal, digest="")
    rewritten(journal, kind="run", digest="")
    assert main(["audit", str(tmp_path / "told.npz"), str(journal)]) == 1
    printed = capsys.readouterr()
    for text in ("the site had no settings", "question 1 ('moments'): the reply is on neither side"):
        assert text in printed.out
    assert "differ in 3 points" in printed.err
    # A name makes no cell of the table.
    loaded.log["rounds"][0] |= {"phase": "sums | the same | the same |", "digests": {"0": ["ab" * 32, "cd" * 32]}}
    _, page = audited(loaded.save(tmp_path / "told.npz"), [journal])
    (line,) = [line for line in page.splitlines() if line.startswith("| 1 |")]
    assert len(re.split(r"(?<!\\)\|", line)) == 8
    rows = np.random.default_rng(0).normal(size=(40, 4))
    for method, parties in (("vertical", np.split(rows, 2, axis=1)), ("p-cov", np.split(rows, 2))):  # of no sites
        assert audited(run(method, parties, n_components=1).save(tmp_path / "told.npz"), [tmp_path]) == (2, "")


def test_an_exported_journal_serves_as_its_folder_and_another_reply_is_named(tmp_path, finished, audited, capsys):
    model, journals = finished
    main(["site", "journal", str(journals[1]), "--export", str(tmp_path / "one.jsonl")])
    code, page = audited(model, [tmp_path / "one.jsonl"])
    assert (code, page.count("the same | the same")) == (0, 2)
    assert "No journal was given of: 0 (hospital 0), 2 (hospital 2)" in page
    (tmp_path / "cut.jsonl").write_text("\n".join((tmp_path / "one.jsonl").read_text().splitlines()[1:]))
    assert "event 1 is missing" in audited(model, [tmp_path / "cut.jsonl"])[1]
    rewritten(journals[1], digest="ab" * 32)
    assert audit(str(journals[1])).gap == 0  # the owner of a journal can write all of it anew
    code, page = audited(model, journals)
    assert code == 1
    assert "question 1 ('moments'): the reply is another at the site than at the server" in page
    assert page.count("another at the site") == 2  # in the table, and in the verdict
    assert main(["audit", str(model), *map(str, journals), "--json"]) == 1
    content = json.loads(capsys.readouterr().out)
    replies = [[entry["reply"] for entry in j["parties"][0]["exchanges"]] for j in content["journals"]]
    assert replies == [["the same"] * 2, ["another at the site than at the server", "the same"], ["the same"] * 2]
    assert len(content["faults"]) == 2  # and the journal's last event


def test_a_changed_journal_setting_or_question_or_one_of_another_run_is_named(finished, audited, tmp_path):
    model, journals = finished
    (tmp_path / "other").mkdir()
    _, others = finished_run(tmp_path / "other")
    number = PCAModel.load(model).log["provenance"]["run"]
    code, page = audited(model, others[:1])
    assert (code, f"the journal has no entry about run {number}" in page) == (1, True)
    loaded = PCAModel.load(model)
    last = loaded.log["rounds"].pop()
    code, page = audited(loaded.save(tmp_path / "less.npz"), journals[:1])
    assert (code, "question 2 ('project'): the reply is not in the model" in page) == (1, True)
    loaded.log["rounds"] += [last, {**last, "round": 3}]
    code, page = audited(loaded.save(tmp_path / "more.npz"), journals[:1])
    assert (code, "question 3 ('project'): the question is not in the journal" in page) == (1, True)
    loaded.log["provenance"]["settings"] = "cd" * 32
    code, page = audited(loaded.save(tmp_path / "other.npz"), journals[1:])
    assert (code, page.count("the site had other settings")) == (1, 2)
    changed(journals[0], "UPDATE event SET bytes = 1 WHERE kind = 'answer'")
    code, page = audited(model, journals[:1])
    assert (code, "is missing, was added or was changed" in page) == (1, True)


def test_a_journal_that_was_put_back_or_written_anew_is_named(tmp_path, finished, audited):
    """The digest of its end says nothing to a server that guesses the end, and an export has no key to compare it."""
    model, (journal, other, third) = finished
    (digests,) = [entry["journals"] for entry in PCAModel.load(model).log["rounds"] if "journals" in entry]
    end = audit(str(journal)).events[-1].chain
    assert set(digests) == {"0", "1", "2"}
    guesses = {end, hashlib.sha256(end.encode()).hexdigest(), hmac.digest(b"", end.encode(), "sha256").hex()}
    assert digests["0"] not in guesses
    main(["site", "journal", str(journal), "--export", str(tmp_path / "one.jsonl")])
    changed(journal, "DELETE FROM event WHERE kind = 'completed'", "UPDATE chain SET events = events - 1")
    rewritten(journal)
    rewritten(other, time="2026-01-01T00:00:00+00:00")
    assert [audit(str(folder)).gap for folder in (journal, other)] == [0, 0]
    code, page = audited(model, [journal, other, third])
    assert (code, page.count("lacks the event"), f"{third}: party" in page) == (1, 2, False)
    assert audited(model, [tmp_path / "one.jsonl", third])[0] == 0


CELLS = ["NULL", "-1", "0", "9223372036854775807", "1.5", "9e999", "'x'", "''", "char(0)", "x'fffe'", "'bound'"]
CELLS += ["CAST(x'fffe' AS TEXT)", "CAST(x'eda080' AS TEXT)", "hex(zeroblob(5000))"]
CELLS += ["char(27) || '[2J' || char(10) || '# Verdict' || char(8238)"]
"""Values of a cell, in SQL."""


@pytest.fixture(scope="module")
def whole_run(folder_of_a_run, tmp_path_factory):
    """Return the model of a run on sites, and a site's journal that has events of every kind."""
    folder = shutil.copytree(folder_of_a_run, tmp_path_factory.mktemp("whole") / "run")
    model, journal = folder / "model.npz", folder / "journal 0"
    number = audit(str(journal)).events[0].run
    site = FileJournal(str(journal), number, 0)
    of_rows = HeldOut(9, 2, "ab"), OpenedSum(["a"], 9), BoundAnswer(1.0, True)
    for account in (Release("sums", "replace-one", 2.0), *of_rows):
        site.remember(account.kind, "cd" * 32, lambda same, others, account=account: account.text())
    for refused in range(12):  # the last ones are counted, without events
        FileJournal(str(journal), f"{refused}", 0).record_refusal("ConfigError")
    for table in ("event", "chain", "further"):  # without types and limits, as whoever writes a file by himself does
        renamed, copy = f"ALTER TABLE {table} RENAME TO original", f"CREATE TABLE {table} AS SELECT * FROM original"
        changed(journal, renamed, copy, "DROP TABLE original")
    return model, journal


def ending(capsys, *words):
    capsys.readouterr()
    code = main([str(word) for word in words])
    printed = capsys.readouterr()
    assert code in {0, 1, 2}
    assert (printed.out + printed.err).replace("\n", "").isprintable()
    assert bool(printed.err) == bool(code)
    return code, printed.out + printed.err


COLUMNS = {"event": Event._fields, "chain": ("events", "last"), "further": ("number", "times", "time", "run")}


@pytest.mark.parametrize(("table", "column"), [(table, name) for table, names in COLUMNS.items() for name in names])
def test_every_changed_cell_of_an_event_is_told_with_its_number_and_counts_in_a_sentence(
    whole_run, tmp_path, capsys, table, column
):
    model, journal = whole_run
    count, folder = len(audit(str(journal)).events), tmp_path / "journal"
    commands = [("site", "journal", folder, *form) for form in ((), ("--json",), ("--export", folder / "export.jsonl"))]
    commands += [("site", "status", folder), ("audit", model, folder)]
    for place, value in enumerate(CELLS):
        number = 1 + (5 * place + Event._fields.index(column)) % count if table == "event" else 1
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(journal, folder)
        update = f"UPDATE {table} SET {column} = {value} WHERE rowid = ? AND {column} IS NOT {value}"
        with contextlib.closing(sqlite3.connect(folder / "site.sqlite")) as database, database:
            database.execute("PRAGMA synchronous = OFF")
            if not database.execute(update, (number,)).rowcount:  # it has this value
                continue
        for words in commands:
            code, text = ending(capsys, *words)
            assert code or table == "further", (value, words)  # of which no digest is made
            expected = [str(folder)] * (code == 2)
            if table == "event":
                expected += [f"'{column}' is ", "restore it from a copy"] * (code == 2)
                expected += [f"event {number}:"] if code == 2 and column != "number" else ["event "]
            assert [part for part in expected if part not in text] == [], (value, text)


@pytest.mark.parametrize("kind", ["release", "held out", "opened", "bound"])
def test_an_account_of_another_form_is_shown_as_it_is(whole_run, tmp_path, capsys, kind):
    """The owner of the journal has made the chain anew, so that nothing else tells of the change."""
    _, journal = whole_run
    texts = [json.dumps(value) for value in JSON_VALUES if isinstance(value, str) or value is None]
    for text in ("x", "[1]", '{"rows": 1e400, "multiplier": NaN}', "[" * 9999, '{"members": ["\\ud800"]}', *texts):
        shutil.copytree(journal, tmp_path / "journal", dirs_exist_ok=True)
        rewritten(tmp_path / "journal", kind, about=text)
        code, printed = ending(capsys, "site", "journal", tmp_path / "journal")
        assert (code, text[:20] in printed) == (0, True)


@pytest.mark.parametrize("name", Event._fields)
def test_every_changed_value_of_an_export_is_told_with_its_line(whole_run, tmp_path, capsys, name):
    model, journal = whole_run
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
def test_a_file_that_is_no_export_is_told(whole_run, tmp_path, capsys, text):
    (tmp_path / "export.jsonl").write_text(text)
    code, printed = ending(capsys, "audit", whole_run[0], tmp_path / "export.jsonl")
    assert code == (2 if text else 1)
    assert str(tmp_path / "export.jsonl") in printed


@pytest.mark.parametrize("part", range(3))
def test_every_value_of_a_models_log_ends_in_a_sentence(whole_run, tmp_path, capsys, part):
    model, journal = whole_run
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
