"""Servers that ask for more than a run needs: each of these once read out what a site keeps to itself."""

import logging
from datetime import datetime, timedelta

import numpy as np
import pytest

from fedpca_flwr.maths.secure import Layout
from fedpca_flwr.questions.row_limits import scatter_limits
from fedpca_flwr.site import journal
from fedpca_flwr.site.scores import score_file
from tests.hostile import HostileSession, released
from tests.killed import STEPS, dies

DP = {
    "method": "dp-pca",
    "epsilon": 0.1,
    "release": "two-stage",
    "clip": 400.0,
    "centre-clip": 400.0,
    "n-components": 2,
}
SUMS = {"method": "p-cov", "secure-aggregation": True, "bound": 1000.0, "n-components": 2}


def patients(n: int = 30, seed: int = 0):
    rng = np.random.default_rng(seed)
    ages = rng.choice(np.arange(18, 98), n, replace=False)
    return np.column_stack([ages, rng.integers(150, 200, n), rng.integers(45, 130, n)]).astype(float)


def site(tmp_path, rows, run, **node):
    return HostileSession(tmp_path, rows, run, **{"min-rows": 20, **node})


# The last round as a query interface: any components, mean and scale, any number of times


@pytest.mark.parametrize("run", [DP, {**DP, "release": "joint"}, SUMS, {**SUMS, "survivors": 3}], ids=str)
def test_nobody_may_ask_for_a_projection_before_there_is_a_model(tmp_path, run):
    session = site(tmp_path, patients(), run)
    question = [np.eye(2, 3), np.zeros(3), np.empty(0)]
    assert "error" in session.evaluate(question)
    assert "ContractError: " in site(tmp_path / "other", patients(), run).refusal("project", question)


def asked_of_dp(tmp_path, rows, question):
    """What a site says to a last question, after it has honestly answered those before."""
    session = site(tmp_path, rows, DP, **{"allowed-methods": "dp-pca"})
    assert session.ask("centre", [])[0]
    assert session.ask("products", [np.zeros(3)])[0]
    return session, session.ask("project", question)


@pytest.mark.parametrize("mean", [0.0, 2.0**100, -1.7e308])
@pytest.mark.parametrize("size", [1.0, 2.0**511])
def test_the_projection_of_a_private_run_tells_nothing(tmp_path, mean, size):
    """One error bit, S^2 |x - m|^2 finite or not, gave up all records of a site exactly."""
    question = [np.eye(2, 3) * size, np.array([0.0, 0.0, mean]), np.empty(0)]
    worlds = [patients(), patients() * 4.0]
    said = [asked_of_dp(tmp_path / str(i), rows, question)[1] for i, rows in enumerate(worlds)]
    assert [[a.tolist() for a in arrays] for arrays, _ in said] == ([[1, 0.0]] * 2 if size == 1 else [[], []])
    assert said[0][1] == said[1][1]


@pytest.mark.engine
def test_projections_limits_and_questions_are_answered_once(tmp_path):
    question = [np.eye(2, 3), np.zeros(3), np.empty(0)]
    session, (arrays, _) = asked_of_dp(tmp_path, patients(), question)
    assert arrays
    for _ in range(2):
        assert "ended its part" in session.refusal("project", question)
    sessions = three_sites(tmp_path / "2")
    asked_for_scatter(sessions, np.full(4, 200.0))
    for session in sessions:
        assert "ended its part" in session.refusal("scatter", [np.zeros(4), np.full(4, 199.0)])
    session = site(tmp_path / "3", patients(), DP)
    assert session.ask("centre", [])[0]
    again = site(tmp_path / "3", patients(), DP)  # Flower's state is lost
    assert "ended its part" in again.refusal("centre", [])


# Limits of fixed point, lowered step by step until a party says that its share exceeds them


def three_sites(tmp_path):
    rng = np.random.default_rng(1)
    parts = [rng.normal(0, deviation, (40, 4)) for deviation in (1.0, 2.5, 4.0)]
    return [
        HostileSession(tmp_path / str(i), rows, SUMS, index=i, **{"secure-only": True}) for i, rows in enumerate(parts)
    ]


def asked_for_scatter(sessions, spread):
    keys = [np.stack(rows) for rows in zip(*(session.ask("keys", [])[0] for session in sessions), strict=True)]
    for session in sessions:
        assert session.ask("sums", keys)[0]
        assert session.ask("deviations", [np.asarray(120), np.zeros(4)])[0]
    return [session.ask("scatter", [np.zeros(4), spread]) for session in sessions]


@pytest.mark.parametrize("spread", [1e6, 20.0, 1e-3, 0.0])
def test_a_party_whose_share_exceeds_a_limit_does_not_say_so(tmp_path, spread, caplog):
    caplog.set_level(logging.ERROR, "fedpca_flwr.client")
    spreads = np.full(4, spread)
    answers = asked_for_scatter(three_sites(tmp_path), spreads)
    assert all("error" not in said and arrays[0].size == 11 for arrays, said in answers)
    layout = Layout(scatter_limits(spreads))
    parties, _ = layout.decode(np.sum([arrays[0] for arrays, _ in answers], axis=0, dtype=np.uint64))
    assert (parties == 3) == (spread > 100)  # the sum opens for nobody
    assert ("sent random words" in caplog.text) == (spread < 100)  # in the site's own log


@pytest.mark.engine
def test_limits_beyond_float64_are_refused_whatever_the_data_are(tmp_path):
    said = [
        {
            text
            for _, about in asked_for_scatter(three_sites(tmp_path / str(i)), np.full(4, 1e200))
            for text in [about.get("message")]
        }
        for i in range(2)
    ]
    assert said[0] == said[1]
    assert len(said[0]) == 1
    assert None not in said[0]


# A process that dies, and one that is started anew


def test_a_question_is_noted_before_it_is_answered(tmp_path, monkeypatch):
    """A party that dies while it computes may have answered: it does not answer again."""
    session = site(tmp_path, patients(), DP)

    def killed(*args, **kwargs):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("strategies.dp_pca.party.DPPCAClient.statistics", killed)
        with pytest.raises(KeyboardInterrupt):
            session.ask("centre", [])
    arrays, said = session.ask("centre", [])
    assert not arrays
    assert "error" in said


@pytest.mark.engine
def test_a_site_that_is_killed_at_any_moment_releases_once_and_knows_it(tmp_path):
    """What has left is in its ledger, and nothing leaves twice."""

    def answer(folder):
        if site(folder, patients(), DP).ask("centre", [])[0]:
            with open(folder / "left", "a", encoding="utf-8") as left:
                left.write("centre\n")

    killed = 0
    while dies(STEPS * killed, answer, tmp_path / str(killed)):
        folder = tmp_path / str(killed)
        answer(folder)  # started anew
        left = (folder / "left").read_text() if (folder / "left").exists() else ""
        assert left in ("", "centre\n")
        assert not left or released(folder / "journal") == ["centre"]
        killed += 1
    answer(tmp_path / str(killed))
    assert (tmp_path / str(killed) / "left").read_text() == "centre\n"
    assert killed > 5


def test_a_secret_run_without_a_journal_is_refused(tmp_path):
    for run in (DP, SUMS):
        session = site(tmp_path / run["method"], patients(), run, **{"journal": "", "epsilon-budget": None})
        assert "names no 'journal'" in session.ask("keys" if run is SUMS else "centre", [])[1]["message"]


def test_only_its_owner_may_read_a_journal_and_keys_do_not_outlive_the_run(tmp_path):
    session = site(tmp_path, patients(), SUMS)
    session.ask("keys", [])
    file = tmp_path / "journal" / "site.sqlite"
    assert file.stat().st_mode & 0o777 == 0o600
    assert file.parent.stat().st_mode & 0o777 == 0o700
    session = site(tmp_path / "2", patients(), SUMS)
    session.ask("keys", [])
    key = session.client.journal.recall("private")
    file = tmp_path / "2" / "journal" / "site.sqlite"
    assert key in file.read_bytes()
    session.ask("no such phase", [])
    assert session.client.journal.recall("private") is None
    assert key not in file.read_bytes()


@pytest.mark.parametrize("name", ["scores.npy", "scores.csv"])
def test_only_its_owner_may_read_a_site_s_scores(name, tmp_path):
    with score_file(str(tmp_path / name), 1, 1) as keep:
        keep(np.zeros((1, 1)))
    assert (tmp_path / name).stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(("hours", "there"), [(23, True), (25, False)])
def test_keys_of_a_run_that_was_left_go_when_another_begins_a_day_later(hours, there, tmp_path, monkeypatch, caplog):
    left, other = (HostileSession(tmp_path, patients(), SUMS, run_id=run) for run in (1, 2))
    left.ask("keys", [])
    key = left.client.journal.recall("private")

    class Later(datetime):
        @classmethod
        def now(cls, tz=None):
            return datetime.now(tz) + timedelta(hours=hours)

    monkeypatch.setattr(journal, "datetime", Later)
    other.ask("keys", [])
    assert (key in (tmp_path / "journal" / "site.sqlite").read_bytes()) is there
    assert not left.ask("keys", [])[0]
    assert ("another one has begun since" in caplog.text) is not there
    assert other.client.journal.recall("private")
