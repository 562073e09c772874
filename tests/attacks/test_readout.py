"""Servers that ask for more than a run needs, and whoever looks into a site afterwards: what each once read out."""

import sqlite3
from contextlib import closing
from datetime import datetime, timedelta
from hashlib import sha256
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest

from fedpca_flwr.protocol.journal import RECORD_NAME
from fedpca_flwr.state import files
from fedpca_flwr.strategies.dp_pca.integer_sums import GRID_STEPS
from fedpca_flwr.strategies.dp_pca.party import DPPCAClient
from tests.attacks.test_repeats import sites
from tests.families import rows
from tests.harness import context_of, finish
from tests.hostile import HostileSession, released
from tests.killed import STEPS, dies

DP = {"method": "dp-pca", "n-components": 2, "epsilon": 0.1, "release": "joint", "clip": 400.0}
SUMS = {"method": "p-cov", "secure-aggregation": True, "bound": 1000.0, "n-components": 2}
RNG = np.random.default_rng(0)
AGES = RNG.choice(np.arange(18, 98), 30, replace=False)
PATIENTS = np.column_stack([AGES, RNG.integers(150, 200, 30), RNG.integers(45, 130, 30)]).astype(float)


def site(tmp_path, run, rows=PATIENTS, **node):
    return HostileSession(tmp_path, rows, run, **{"min-rows": 20, **node})


def test_a_question_is_noted_before_it_is_answered_and_nothing_else_is_without_the_state(tmp_path, monkeypatch):
    """The same one has the same bytes, as its reply may have been lost, and none where the party died meanwhile."""
    first, again = (list(map(np.ndarray.tobytes, site(tmp_path, DP).ask("joint", [])[0])) for _ in range(2))
    assert first == again != []
    assert site(tmp_path, DP).refusal("joint", [np.zeros(1)]).startswith("PartyError")
    session = site(tmp_path / "2", DP)
    with monkeypatch.context() as patched:
        patched.setattr(DPPCAClient, "statistics", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            session.ask("joint", [])
    assert session.ask("joint", []) == ([], {"pending": True})
    session.refusal("joint", [np.zeros(1)])


@pytest.mark.engine
def test_a_site_that_is_killed_releases_once(tmp_path):
    """What has left is in its ledger, and nothing else leaves afterwards: at most the same bytes."""

    def answer(folder):
        folder.mkdir(exist_ok=True)
        with open(folder / "left", "a", encoding="utf-8") as left:
            if arrays := site(folder, DP).ask("joint", [])[0]:
                left.write(sha256(b"".join(array.tobytes() for array in arrays)).hexdigest() + "\n")

    killed = 0
    while dies(STEPS * killed, answer, folder := tmp_path / str(killed)):
        answer(folder)  # started anew
        left = (folder / "left").read_text().splitlines()
        assert len(set(left)) <= 1
        assert not left or released(folder / "journal") == ["joint"]
        killed += 1
    answer(folder)
    assert len(set((folder / "left").read_text().splitlines())) == 1
    assert killed > 5


def test_no_key_outlives_its_run_in_a_journal(tmp_path):
    session, file = site(tmp_path, SUMS), tmp_path / "journal" / "site.sqlite"
    session.ask("keys", [])
    key = session.client.journal.load_secret("private")
    assert key in file.read_bytes()
    session.ask("no such phase", [])
    assert session.client.journal.load_secret("private") is None
    assert key not in file.read_bytes()


@pytest.mark.parametrize(("hours", "there"), [(23, True), (25, False)])
def test_keys_of_an_abandoned_run_go_after_a_day(hours, there, tmp_path, monkeypatch, caplog):
    left, other = (HostileSession(tmp_path, PATIENTS, SUMS, run_id=run) for run in (1, 2))
    left.ask("keys", [])
    key = left.client.journal.load_secret("private")
    later = SimpleNamespace(now=lambda tz=None: datetime.now(tz) + timedelta(hours=hours))
    monkeypatch.setattr(files, "datetime", later)
    other.ask("keys", [])
    assert (key in (tmp_path / "journal" / "site.sqlite").read_bytes()) is there
    assert not left.ask("keys", [np.zeros(1)])[0]
    assert ("another one has begun since" in caplog.text) is not there
    assert other.client.journal.load_secret("private")


ONLY, PUBLIC, ONE = {"allowed-methods": "dp-pca"}, {"count": "public"}, {"relation": "replace-one"}


def test_the_last_round_of_a_private_run_tells_a_constant_also_where_numbers_overflow(tmp_path):
    """One error bit, |x - m|^2 finite or not, gave up all records of a site exactly."""
    assert (session := site(tmp_path, DP, **ONLY)).ask("joint", [])[0]
    assert session.ask("project", [np.eye(2, 3), np.array([0.0, 0.0, -1.7e308]), np.empty(0)])[0] == [1, 0.0]


@pytest.mark.parametrize("told", [PUBLIC, ONE, {**ONE, **PUBLIC}], ids=str)
def test_a_run_does_not_choose_whether_counts_are_noised(tmp_path, told):
    session = site(tmp_path, {**DP, **told}, **ONLY)
    for said in (session.client.get_properties({}), session.ask("joint", [])[1]):
        assert (said["error"], "node-config 'public-count' is false" in said["message"]) == ("DisclosureError", True)
    assert not (tmp_path / "journal" / "site.sqlite").exists() or released(tmp_path / "journal") == []
    permitting = site(tmp_path / "2", {**DP, **told}, **ONLY, **{"public-count": True})
    assert permitting.ask("joint", [])[0][0] / GRID_STEPS == 30


def test_counts_with_noise_need_no_leave_but_a_budget(tmp_path):
    assert site(tmp_path, DP, **ONLY).ask("joint", [])[0][0] / GRID_STEPS != 30
    # 150 runs of epsilon 10 average their noise away.
    run, node = {**DP, "epsilon": 10.0}, {**ONLY, "epsilon-budget": 10.0}
    session = site(tmp_path / "2", run, **{**node, "epsilon-budget": None})
    for said in (session.client.get_properties({}), session.ask("joint", [])[1]):
        assert (said["error"], "names no 'epsilon-budget'" in said["message"]) == ("ConfigError", True)
    sessions = [site(tmp_path / "2", run, run_id=i, **node) for i in range(3)]
    assert [bool(session.ask("joint", [])[0]) for session in sessions] == [True, False, False]


def require_nothing_kept(folder, method, **options):
    parties = [rows(60, 8, seed=seed) + seed for seed in range(3)]
    node = {"may-show": "scores", "min-rows": 5}
    finish(server := sites(folder, parties, method, options={"n_components": 2, **options}, **node))
    assert [list(context_of(server, party).state) for party in range(3)] == [[RECORD_NAME]] * 3


RUNS = ("compressed codec=low-rank rank=2 corrections=2", "sub-it warm-start=svd", "dsa", "fast-pca", "personalised")


@pytest.mark.parametrize("method", [*RUNS, "sapca topology=tree", "adaptive"])
def test_nothing_of_the_rows_stays_when_a_run_has_ended(method, tmp_path):
    require_nothing_kept(tmp_path, method)


@pytest.mark.engine
def test_nor_of_secure_sums(tmp_path):
    require_nothing_kept(tmp_path, "sub-it", secure_aggregation=True, bound=40.0)
    for party in range(3):
        with closing(sqlite3.connect(tmp_path / f"journal{party}" / "site.sqlite")) as journal:
            assert journal.execute("SELECT count(*) FROM event WHERE kind = 'answer'").fetchone() > (1,)
            assert journal.execute("SELECT name FROM secret").fetchall() == [("reply",)]  # of the last question


def test_nor_where_the_server_asks_what_the_run_does_not_have(tmp_path):
    """It lets a site compute what its encoding leaves out, nearly the whole scatter, and then ends the run for it."""
    run = {"method": "compressed codec=low-rank rank=1 corrections=1", "n-components": 1}
    session = HostileSession(tmp_path, rows(40, 8), run)
    assert session.ask("encoded", [np.asarray(0.0)])[0]
    assert set(session.context.state) > {RECORD_NAME}
    assert "error" in session.ask("encoded", [np.asarray(1.0)])[1]
    assert list(session.context.state) == [RECORD_NAME]
