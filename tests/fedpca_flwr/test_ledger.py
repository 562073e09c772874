"""The privacy ledger: what was spent stays spent."""

from __future__ import annotations

import numpy as np
import pytest
from flwr.app import RecordDict

from fedpca_flwr.config import NodeConfig
from fedpca_flwr.errors import ConfigError, DisclosureError
from fedpca_flwr.ledger import Entry, digest, ledger_of
from fedpca_flwr.maths.privacy import gaussian_multiplier

REPLY = [np.arange(3.0), np.array([7.0])]
ONE = gaussian_multiplier(1.0, 1e-5)


def entry(run="1", phase="centre", question="q", multiplier=ONE, party=0):
    return Entry(
        run=run,
        party=party,
        phase=phase,
        relation="add-remove",
        multiplier=multiplier,
        question=question,
        reply=digest(REPLY),
    )


@pytest.fixture(params=["file", "state"])
def ledger(request, tmp_path):
    return ledger_of(str(tmp_path / "deep" / "ledger.json") if request.param == "file" else "", RecordDict())


def test_a_repeated_question_gets_the_same_bytes(ledger):
    with ledger.locked():
        assert ledger.recall(entry()) is None
        ledger.record(entry(), REPLY)
        again = ledger.recall(entry())
        assert again is not None
        assert digest(again) == digest(REPLY)
        assert ledger.recall(entry(phase="products")) is None
        assert ledger.recall(entry(run="2")) is None
        assert ledger.recall(entry(party=1)) is None


def test_another_question_in_the_same_phase_is_refused(ledger):
    with ledger.locked():
        ledger.record(entry(), REPLY)
        with pytest.raises(DisclosureError, match="'centre', and now asks the same phase something else"):
            ledger.recall(entry(question="another"))


def test_a_budget_of_one_allows_one_run_of_one_and_no_second(ledger):
    """In two stages, with each stage's part of the noise; the second run is stopped before its first."""
    stages = {"centre": ONE / 0.05**0.5, "products": ONE / 0.95**0.5}
    with ledger.locked():
        for phase, multiplier in stages.items():
            asked = entry(phase=phase, multiplier=multiplier)
            ledger.permit(asked, ONE, 1.0, 1e-5)
            ledger.record(asked, REPLY)
        with pytest.raises(
            DisclosureError, match=r"epsilon would be 1.465 at delta 1e-05 \(1 without it\), allowed is 1"
        ):
            ledger.permit(entry(run="2", multiplier=stages["centre"]), ONE, 1.0, 1e-5)
        with pytest.raises(DisclosureError, match="privacy budget"):
            ledger.permit(entry(phase="joint"), ONE, 1.0, 1e-5)
        ledger.permit(entry(run="2", multiplier=stages["centre"]), ONE, 1.5, 1e-5)


def test_a_run_that_cannot_end_does_not_begin(ledger):
    with ledger.locked(), pytest.raises(DisclosureError, match="privacy budget"):
        ledger.permit(entry(multiplier=ONE * 100), ONE, 0.9, 1e-5)


def test_what_was_spent_outlives_the_process(tmp_path):
    path = str(tmp_path / "ledger.json")
    with ledger_of(path, RecordDict()).locked():
        ledger_of(path, RecordDict()).record(entry(), REPLY)
    assert ledger_of(path, RecordDict()).entries() == [entry()]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": 2, "entries": []}', '{"format": 1, "entries": [{}]}'])
def test_a_ledger_that_is_not_whole_is_an_error_and_never_an_empty_one(tmp_path, text):
    path = tmp_path / "ledger.json"
    path.write_text(text)
    with pytest.raises(DisclosureError, match="ledger is not whole, so nothing may be released") as caught:
        ledger_of(str(path), RecordDict()).entries()
    assert str(tmp_path) not in str(caught.value)


def test_a_kept_reply_that_was_changed_or_lost_is_not_sent(tmp_path):
    ledger = ledger_of(str(tmp_path / "ledger.json"), RecordDict())
    ledger.record(entry(), REPLY)
    (kept,) = tmp_path.glob("*.npz")
    with open(kept, "wb") as stream:
        np.savez(stream, *[array + 1 for array in REPLY])
    with pytest.raises(DisclosureError, match="is not the one it wrote"):
        ledger.recall(entry())
    kept.unlink()
    with pytest.raises(DisclosureError, match="cannot be read"):
        ledger.recall(entry())


def test_a_reply_without_its_entry_was_never_sent(tmp_path, monkeypatch):
    """A crash between the two leaves a reply that nobody has seen: it may be replaced."""
    ledger = ledger_of(str(tmp_path / "ledger.json"), RecordDict())
    with monkeypatch.context() as patch:
        patch.setattr("fedpca_flwr.ledger._text", lambda entries: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            ledger.record(entry(), REPLY)
    assert ledger.entries() == []
    assert ledger.recall(entry()) is None


def test_a_budget_needs_a_file():
    with pytest.raises(ConfigError, match="'epsilon-budget' needs 'ledger'"):
        NodeConfig.parse({"partition-id": 0, "num-partitions": 1, "epsilon-budget": 1.0}, source="node-config")
