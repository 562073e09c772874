"""A journal that is older than what a run has seen of it, or gone: nothing is answered twice."""

from __future__ import annotations

import logging
import shutil

import numpy as np
import pytest

from tests.hostile import HostileSession, released
from tests.refusals import unnamed

PEOPLE = np.random.default_rng(3).integers(20, 90, (40, 3)).astype(float)
RUN = {"method": "dp-pca", "n-components": 2, "epsilon": 0.1, "release": "two-stage", "clip": 99.0, "centre-clip": 99.0}
SUMS = {"method": "p-cov", "n-components": 2}


def copied(folder, to):
    shutil.copytree(folder / "journal", folder / to)


def put_back(folder, copy):
    shutil.rmtree(folder / "journal")
    shutil.copytree(folder / copy, folder / "journal")


def test_a_journal_that_was_rolled_back_in_a_run_releases_no_phase_twice(tmp_path, caplog):
    session = HostileSession(tmp_path, PEOPLE, RUN)
    assert session.ask("centre", [])[0]
    copied(tmp_path, "older")
    assert session.ask("products", [np.zeros(3)])[0]
    copied(tmp_path, "newest")
    put_back(tmp_path, "older")
    replied, said = session.ask("products", [np.zeros(3)])
    assert (replied, said["error"]) == ([], "DisclosureError")
    assert "older" in caplog.text
    assert released(tmp_path / "journal") == ["centre"]
    put_back(tmp_path, "newest")
    assert session.ask("project", [np.eye(2, 3), np.zeros(3), np.empty(0)])[0]


@pytest.mark.parametrize("run", [RUN, SUMS], ids=["private", "clear"])
def test_a_journal_of_another_past_is_refused_however_long_it_is(tmp_path, run):
    """Here it has three runs more."""
    session = HostileSession(tmp_path, PEOPLE, run)
    first = next(iter(session.client.script))
    for i in range(3):
        HostileSession(tmp_path / "other", PEOPLE, run, run_id=i).ask(first, [])
    assert session.ask(first, [])[0]
    put_back(tmp_path, "other/journal")
    replied, said = session.ask("project", [np.eye(2, 3), np.zeros(3), np.empty(0)])
    assert (replied, said["error"]) == ([], "DisclosureError")


def test_a_journal_that_other_runs_go_on_with_is_not_older(tmp_path):
    session, other = (HostileSession(tmp_path, PEOPLE, RUN, run_id=run_id) for run_id in (1, 2))
    assert session.ask("centre", [])[0]
    assert other.ask("centre", [])[0]
    assert session.ask("products", [np.zeros(3)])[0]


def test_where_a_new_journal_begins_the_sites_log_warns(tmp_path, caplog):
    caplog.set_level(logging.WARNING)
    for run_id in (1, 2):
        assert HostileSession(tmp_path, PEOPLE, RUN, run_id=run_id).ask("centre", [])[0]
        assert caplog.text.count(str(tmp_path / "journal")) == 1
    shutil.rmtree(tmp_path / "journal")
    _, said = HostileSession(tmp_path, PEOPLE, RUN, run_id=3).ask("centre", [])
    assert caplog.text.count(str(tmp_path / "journal")) == 2
    assert "message" not in said


def test_a_run_that_has_seen_a_journal_begins_no_new_one(tmp_path, caplog):
    session = HostileSession(tmp_path, PEOPLE, RUN)
    assert session.ask("centre", [])[0]
    shutil.rmtree(tmp_path / "journal")
    assert session.ask("products", [np.zeros(3)])[1]["error"] == "DisclosureError"
    assert not (tmp_path / "journal").exists()
    assert not unnamed(caplog.text, "site.sqlite")
