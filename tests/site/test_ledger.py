"""The privacy ledger: what was spent stays spent."""

from __future__ import annotations

import sqlite3
from functools import partial

import pytest

from fedpca_flwr.config.node_config import NodeConfig
from fedpca_flwr.errors import ConfigError, DisclosureError
from fedpca_flwr.maths.privacy import gaussian_multiplier
from fedpca_flwr.site.journal import FileJournal
from fedpca_flwr.site.repeats import Release, require_budget
from tests.killed import STEPS, dies
from tests.refusals import refused, unnamed

ONE = gaussian_multiplier(1.0, 1e-5)
STAGES = {"centre": ONE / 0.05**0.5, "products": ONE / 0.95**0.5}


def release(folder, run="1", phase="centre", multiplier=ONE, epsilon=1.0, party=0):
    """A release of a site whose budget this is."""
    permit = partial(require_budget, multiplier, whole_run=ONE, epsilon=epsilon, delta=1e-5)
    FileJournal(str(folder), run, party).note_release(phase, "add-remove", multiplier, permit)


def entries(folder):
    with sqlite3.connect(folder / "site.sqlite") as database:
        return database.execute("SELECT run, party, about FROM event WHERE kind = 'release' ORDER BY number").fetchall()


def noted(run, phase, multiplier):
    return (run, 0, Release(phase, "add-remove", multiplier).text())


def test_a_budget_of_one_allows_one_run_of_one_and_no_second(tmp_path):
    """In two stages, with each stage's part of the noise; the second run is stopped before its first."""
    for phase, multiplier in STAGES.items():
        release(tmp_path, phase=phase, multiplier=multiplier)
    told = entries(tmp_path)
    assert told == [noted("1", phase, multiplier) for phase, multiplier in STAGES.items()]
    with refused(DisclosureError, "1.465", "1e-05", 1):
        release(tmp_path, run="2", multiplier=STAGES["centre"])
    assert entries(tmp_path) == told
    release(tmp_path, run="2", multiplier=STAGES["centre"], epsilon=1.5)


def test_another_party_at_the_same_site_spends_the_same_budget(tmp_path):
    release(tmp_path)
    with refused(DisclosureError, "epsilon-budget"):
        release(tmp_path, party=1)


def test_a_run_that_cannot_end_does_not_begin(tmp_path):
    with refused(DisclosureError, "epsilon-budget"):
        release(tmp_path, multiplier=ONE * 100, epsilon=0.9)


@pytest.mark.parametrize("damage", ["torn", "empty", "a run", "a multiplier"])
def test_a_ledger_that_is_not_whole_is_an_error_and_never_an_empty_one(tmp_path, damage):
    release(tmp_path, run="the first run")
    file = tmp_path / "site.sqlite"
    whole = file.read_bytes()
    changed = {
        "torn": whole[:-4096],
        "empty": b"",
        "a run": whole.replace(b"first", b"third"),
        "a multiplier": whole.replace(str(ONE).encode(), str(9 * ONE)[: len(str(ONE))].encode()),
    }[damage]
    assert changed != whole
    file.write_bytes(changed)
    with refused(DisclosureError) as caught:
        release(tmp_path, run="another", epsilon=100.0)
    assert str(tmp_path) not in str(caught.value)
    assert not unnamed(caught.value.local, "site.sqlite")


def test_a_ledger_that_is_missing_while_what_sqlite_left_of_it_stands_is_an_error(tmp_path):
    (tmp_path / "site.sqlite-journal").write_bytes(b"left")
    with refused(DisclosureError) as caught:
        release(tmp_path)
    assert not unnamed(caught.value.local, "site.sqlite-journal")


def test_a_kill_at_any_moment_leaves_the_release_or_nothing_of_it(tmp_path):
    """What is there when the process has gone on is on disk; what is not there may be released again."""
    killed = 0
    while dies(STEPS * killed, release, tmp_path / str(killed)):
        release(tmp_path / str(killed))
        assert len(entries(tmp_path / str(killed))) == 1
        killed += 1
    assert len(entries(tmp_path / str(killed))) == 1
    assert killed > 5


def node(**given):
    return NodeConfig.parse({"partition-id": 0, "num-partitions": 1, **given}, source="node-config")


def test_a_budget_needs_a_folder():
    with refused(ConfigError, "epsilon-budget", "'journal'"):
        node(**{"epsilon-budget": 1.0})


def test_the_key_of_the_old_ledger_names_the_new_one():
    with refused(ConfigError, "'ledger'", "'journal'"):
        node(ledger="ledger.json", **{"epsilon-budget": 1.0})
