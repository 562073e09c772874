"""What earlier runs leave of a site's allowances; what was spent stays spent."""

import sqlite3
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

from fedpca_flwr.config.node_config import NodeConfig
from fedpca_flwr.errors import ConfigError, DataError, DisclosureError
from fedpca_flwr.maths.privacy import composed, gaussian_epsilon, gaussian_multiplier
from fedpca_flwr.site.journal import FileJournal
from fedpca_flwr.site.repeats import Bounded, Release, Repeats, require_budget
from tests.families import rows
from tests.killed import STEPS, dies
from tests.refusals import refused, unnamed


def repeats(folder, run, X, rule="refuse"):
    return Repeats(FileJournal(str(folder), run, 0), SimpleNamespace(repeat=rule, min_rows=5, journal="x"), X)


@pytest.mark.parametrize("more", [1, 4, -4])
def test_a_sum_over_nearly_the_same_rows_is_refused_below_the_minimum_only(more, tmp_path):
    repeats(tmp_path, "1", rows(20)).permit_sum(["a", "b"], split="rows")
    with refused(DisclosureError, "'min-rows' = 5"):
        repeats(tmp_path, "2", rows(20 + more, seed=1)).permit_sum(["a", "b"], split="rows")
    repeats(tmp_path, "3", rows(25, seed=1)).permit_sum(["a", "b"], split="rows")


def test_a_site_knows_the_members_of_its_sums_and_tells_of_three_bounds(tmp_path):
    repeats(tmp_path, "1", rows(20)).permit_sum(["a", "b"], split="rows")
    repeats(tmp_path, "2", rows(20)).permit_sum(["b", "a"], split="rows")
    with refused(DisclosureError, 2):
        repeats(tmp_path, "3", rows(20)).permit_sum(["a", "c"], split="rows")
    X = np.full((20, 2), 8.0)
    for run, bound in enumerate((5, 7)):
        with refused(DataError, "'bound'", bound):
            repeats(tmp_path / "2", str(run), X).permit_bound(bound)
    repeats(tmp_path / "2", "2", X).permit_bound(8.0)
    repeats(tmp_path / "2", "3", X).permit_bound(9.0)
    with refused(DisclosureError, 3, "'bound'"):
        repeats(tmp_path / "2", "4", X).permit_bound(7.5)


@pytest.mark.parametrize(("within", "told", "open_"), [(True, (5.0, 6.0), 4.0), (False, (5.0, 4.0), 6.0)])
def test_of_which_bounds_one_tells(within, told, open_):
    known = Bounded(5.0, within)
    assert all(known.tells(bound) for bound in told)
    assert not known.tells(open_)


def test_a_budget_is_spent_to_its_end_and_not_beyond():
    """Of a run its whole, though it has told a part; with what others have told."""
    whole, others = 2.0, [3.0, 4.0]
    spent = gaussian_epsilon(composed([*others, whole]), 1e-5)
    given = {"of_run": [9.0], "of_others": others, "whole_run": whole, "delta": 1e-5}
    require_budget(8.0, **given, epsilon=spent)
    with refused(DisclosureError, "'epsilon-budget'"):
        require_budget(8.0, **given, epsilon=spent * (1 - 1e-6))


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


def test_a_budget_is_of_a_site_and_of_runs_that_can_end(tmp_path):
    release(tmp_path)
    with refused(DisclosureError, "epsilon-budget"):
        release(tmp_path, party=1)
    with refused(DisclosureError, "epsilon-budget"):
        release(tmp_path / "2", multiplier=ONE * 100, epsilon=0.9)


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


def test_a_budget_needs_a_journal_which_was_a_ledger():
    with refused(ConfigError, "epsilon-budget", "'journal'"):
        node(**{"epsilon-budget": 1.0})
    with refused(ConfigError, "'ledger'", "'journal'"):
        node(ledger="ledger.json", **{"epsilon-budget": 1.0})
