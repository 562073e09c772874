"""A model beside its sites' journals: what matches is said, and whatever was changed on either side is named."""

import contextlib
import hashlib
import hmac
import json
import re
import sqlite3

import numpy as np
import pytest

from fedpca_flwr import FedPCA, LocalGrid, PCAModel, run, site_app
from fedpca_flwr.cli import main
from fedpca_flwr.site.rules.audit import audit
from fedpca_flwr.site.rules.chain import chain_digest

METHODS = {
    "sums of replies": "p-cov",
    "several rounds": "sub-it block-size=2",
    "a second method": "adaptive",
    "noise": "dp-pca epsilon=5 delta=1e-5",
    "questions of each party": "streaming state={}/federation",
}


def finished_run(folder, method="p-cov"):
    journals, nodes = [folder / f"journal {party}" for party in range(3)], []
    for party, journal in enumerate(journals):
        values = np.random.default_rng(party).normal(size=(60, 4)) * [4, 3, 2, 1]
        np.savetxt(folder / f"{party}.csv", values, delimiter=",", header="a,b,c,d", comments="")
        nodes.append({"data": str(folder / f"{party}.csv"), "journal": str(journal), "name": f"hospital {party}"})
        nodes[-1] |= {"allowed-methods": method.split()[0], "epsilon-budget": 10.0} if "dp-pca" in method else {}
    config = {"method": method.format(folder), "n-components": 2, "clients": 3}
    strategy = FedPCA(config["method"], n_components=2, clients=3)
    strategy.start(LocalGrid(site_app.app, nodes, config))
    return strategy.model.save(folder / "model.npz"), journals


def audited(capsys, model, journals):
    capsys.readouterr()
    code = main(["audit", str(model), *map(str, journals)])
    return code, capsys.readouterr().out


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


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_an_honest_run_matches_in_every_question(tmp_path, capsys, method):
    model, journals = finished_run(tmp_path, method)
    code, page = audited(capsys, model, journals)
    rounds = PCAModel.load(model).log["rounds"]
    assert code == 0
    assert page.count("| the same | the same |") == 3 * len(rounds)
    assert page.count("completed, as the site tells") == 3


def test_the_page_has_the_words_of_the_model_and_the_numbers_of_the_journal(tmp_path, capsys):
    model, (journal, *_) = finished_run(tmp_path)
    loaded, events = PCAModel.load(model), audit(str(journal)).events
    entry = loaded.log["provenance"]
    entry |= {"began": "1", "ended": "2", "app": "lab/app", "app_hash": "ab12", "account": "carol"}
    _, page = audited(capsys, loaded.save(tmp_path / "told.npz"), [journal])
    said = {"time": "1 to 2", "method": "p-cov", "app": "lab/app with the hash ab12", "started by": "carol"}
    for name, text in {**said, "settings": f"SHA-256 {entry['settings']}"}.items():
        assert f"- {name}: {text}\n" in page
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


def test_an_exported_journal_serves_as_its_folder(tmp_path, capsys):
    model, journals = finished_run(tmp_path)
    main(["site", "journal", str(journals[1]), "--export", str(tmp_path / "one.jsonl")])
    code, page = audited(capsys, model, [tmp_path / "one.jsonl"])
    assert (code, page.count("the same | the same")) == (0, 2)
    assert "No journal was given of: 0 (hospital 0), 2 (hospital 2)" in page
    lines = (tmp_path / "one.jsonl").read_text().splitlines()
    (tmp_path / "cut.jsonl").write_text("\n".join(lines[1:]))
    assert "event 1 is missing" in audited(capsys, model, [tmp_path / "cut.jsonl"])[1]
    (tmp_path / "other.jsonl").write_text("[1, 2]\n")
    assert audited(capsys, model, [tmp_path / "other.jsonl"])[0] == 2


def test_another_reply_than_the_site_sent_is_named(tmp_path, capsys):
    model, journals = finished_run(tmp_path)
    rewritten(journals[1], digest="ab" * 32)
    assert audit(str(journals[1])).gap == 0  # the owner of a journal can write all of it anew
    code, page = audited(capsys, model, journals)
    assert code == 1
    assert "question 1 ('moments'): the reply is another at the site than at the server" in page
    assert page.count("another at the site") == 2  # in the table, and in the verdict
    assert main(["audit", str(model), *map(str, journals), "--json"]) == 1
    content = json.loads(capsys.readouterr().out)
    replies = [[entry["reply"] for entry in j["parties"][0]["exchanges"]] for j in content["journals"]]
    assert replies == [["the same"] * 2, ["another at the site than at the server", "the same"], ["the same"] * 2]
    assert len(content["faults"]) == 2  # and the journal's last event


def test_a_changed_journal_or_setting_is_named(tmp_path, capsys):
    model, journals = finished_run(tmp_path)
    with contextlib.closing(sqlite3.connect(journals[0] / "site.sqlite")) as database, database:
        database.execute("UPDATE event SET bytes = 1 WHERE kind = 'answer'")
    code, page = audited(capsys, model, journals[:1])
    assert (code, "is missing, was added or was changed" in page) == (1, True)
    loaded = PCAModel.load(model)
    loaded.log["provenance"]["settings"] = "cd" * 32
    code, page = audited(capsys, loaded.save(tmp_path / "other.npz"), journals[1:])
    assert (code, page.count("the site had other settings")) == (1, 2)


def test_a_journal_that_was_put_back_or_written_anew_is_named(tmp_path, capsys):
    """The digest of its end says nothing to a server that guesses the end, and an export has no key to compare it."""
    model, (journal, other, third) = finished_run(tmp_path)
    (digests,) = [entry["journals"] for entry in PCAModel.load(model).log["rounds"] if "journals" in entry]
    end = audit(str(journal)).events[-1].chain
    assert set(digests) == {"0", "1", "2"}
    guesses = {end, hashlib.sha256(end.encode()).hexdigest(), hmac.digest(b"", end.encode(), "sha256").hex()}
    assert digests["0"] not in guesses
    main(["site", "journal", str(journal), "--export", str(tmp_path / "one.jsonl")])
    with contextlib.closing(sqlite3.connect(journal / "site.sqlite")) as database, database:
        database.execute("DELETE FROM event WHERE kind = 'completed'")
        database.execute("UPDATE chain SET events = events - 1")
    rewritten(journal)
    rewritten(other, time="2026-01-01T00:00:00+00:00")
    assert [audit(str(folder)).gap for folder in (journal, other)] == [0, 0]
    code, page = audited(capsys, model, [journal, other, third])
    assert (code, page.count("lacks the event"), f"{third}: party" in page) == (1, 2, False)
    assert audited(capsys, model, [tmp_path / "one.jsonl", third])[0] == 0


def test_questions_that_one_side_alone_has_are_named(tmp_path, capsys):
    model, journals = finished_run(tmp_path)
    loaded = PCAModel.load(model)
    last = loaded.log["rounds"].pop()
    code, page = audited(capsys, loaded.save(tmp_path / "less.npz"), journals[:1])
    assert (code, "question 2 ('project'): the reply is not in the model" in page) == (1, True)
    loaded.log["rounds"] += [last, {**last, "round": 3}]
    code, page = audited(capsys, loaded.save(tmp_path / "more.npz"), journals[:1])
    assert (code, "question 3 ('project'): the question is not in the journal" in page) == (1, True)


def test_a_journal_of_another_run_is_named(tmp_path, capsys):
    model, _ = finished_run(tmp_path)
    (tmp_path / "other").mkdir()
    _, journals = finished_run(tmp_path / "other")
    number = PCAModel.load(model).log["provenance"]["run"]
    code, page = audited(capsys, model, journals[:1])
    assert (code, f"the journal has no entry about run {number}" in page) == (1, True)


@pytest.mark.parametrize("method", ["p-cov", "vertical"])
def test_a_model_that_no_run_on_sites_made_is_refused(tmp_path, capsys, method):
    rows = np.random.default_rng(0).normal(size=(40, 4))
    parties = [rows[:, :2], rows[:, 2:]] if method == "vertical" else [rows[:20], rows[20:]]
    model = run(method, parties, n_components=1).save(tmp_path / "model.npz")
    assert audited(capsys, model, [tmp_path]) == (2, "")


def test_odd_numbers_and_names_of_a_model_are_compared(tmp_path, capsys):
    """A name of a question makes no cell of the table."""
    model, journals = finished_run(tmp_path)
    loaded = PCAModel.load(model)
    entry = loaded.log["provenance"]
    assert entry["began"] <= entry["ended"]
    assert {"fedpca-flwr", "flwr", "numpy", "scipy", "python"} == set(entry["versions"])
    assert json.dumps(entry)  # of plain values
    loaded.log["measured"]["condition"] = np.inf
    assert audited(capsys, loaded.save(tmp_path / "other.npz"), journals)[0] == 0
    loaded.log["rounds"][0] |= {"phase": "sums | the same | the same |", "digests": {"0": ["ab" * 32, "cd" * 32]}}
    _, page = audited(capsys, loaded.save(tmp_path / "other.npz"), journals[:1])
    (line,) = [line for line in page.splitlines() if line.startswith("| 1 |")]
    assert len(re.split(r"(?<!\\)\|", line)) == 8
