"""A party's half of a run: what leaves it, and how its journal knows a question."""

import sqlite3
from contextlib import closing

import numpy as np
import pytest

from tests.families import rows
from tests.harness import client_of, server_of
from tests.hostile import HostileSession
from tests.refusals import unnamed


@pytest.mark.parametrize(
    "wrong", [{"mean": np.zeros(5)}, {"scatter": np.full(10, np.nan)}, {"scatter": -np.ones(10)}], ids=str
)
def test_a_reply_that_is_not_what_it_must_be_never_leaves(wrong, caplog):
    """The site checks its own, before the server does."""
    client = client_of(server_of("p-cov", [rows(30, 4), rows(20, 4)], n_components=2), 0)
    honest = client.statistics
    client.statistics = lambda phase, asked: {**honest(phase, asked), **wrong}
    arrays, count, said = client.fit([], {"phase": "moments"})
    assert (arrays, count) == ([], 0)
    assert said["error"]
    assert not unnamed(caplog.text, f"'{next(iter(wrong))}'")


def digest_of(folder, *arrays):
    """By which a site's journal knows a question, which it refuses here."""
    site = HostileSession(folder, rows(30, 4), {"method": "p-cov", "n-components": 2})
    assert not site.ask("no such phase", list(arrays))[0]
    with closing(sqlite3.connect(folder / "journal" / "site.sqlite")) as database:
        ((digest,),) = database.execute("SELECT digest FROM event WHERE kind = 'refused'")
    return digest


def test_questions_of_other_forms_have_other_digests(tmp_path):
    """Though all their bytes are the same: 48 zeros."""
    forms = [[np.zeros((2, 3))], [np.zeros((3, 2))], [np.zeros(6)], [np.zeros(6, np.int64)], [np.zeros(3)] * 2]
    digests = [digest_of(tmp_path / str(i), *arrays) for i, arrays in enumerate(forms)]
    assert len(set(digests)) == 5
    assert digest_of(tmp_path / "again", np.zeros((2, 3))) == digests[0]


def test_the_rules_of_a_site_hold_for_every_question_and_after_a_refusal_nothing_is_answered(tmp_path):
    """A server need not ask first what a site holds."""
    site = HostileSession(tmp_path, rows(4, 4), {"method": "p-cov", "n-components": 2})
    replied, said = site.ask("moments", [])
    assert not replied
    assert not unnamed(said["message"], "'min-rows' = 5")
    # Also where it was the first question of the run: the journal holds that it was refused.
    site = HostileSession(tmp_path / "2", rows(30, 4), {"method": "p-cov", "n-components": 2})
    assert not site.ask("no such phase", [])[0]
    assert not site.ask("moments", [])[0]
    with closing(sqlite3.connect(tmp_path / "2" / "journal" / "site.sqlite")) as database:
        kinds = [kind for (kind,) in database.execute("SELECT kind FROM event ORDER BY number")]
    assert kinds[:3] == ["run", "refused", "ended"]
