"""What a site was told once in a run is not told otherwise later, and a centre is near the rows."""

import numpy as np
import pytest

from tests.hostile import HostileSession, signatures

D, N = 4, 40
ROWS = np.random.default_rng(3).normal(20, 5, (N, D))
RUN = {"method": "p-cov harmonise=variances", "n-components": 2, "secure-aggregation": True, "bound": 1000.0}
CENTRE, SPREAD = np.full(D, 20.0), np.full(D, 5.0 * np.sqrt(3 * N))
SLOPES = np.empty((0, D))
ASKED = {
    "sums": {},
    "deviations": {"rows": np.asarray(3 * N), "centre": CENTRE},
    "scatter": {"centre": CENTRE, "spread": SPREAD},
    "harmonised": {"rows": np.asarray(3 * N), "slopes": SLOPES, "spread": np.ones(D)},
    "project": {
        "components": np.eye(2, D),
        "mean": CENTRE * (1 + 2.0**-50),
        "scale": np.empty(0),
        "rows": np.asarray(3 * N),
        "total": np.asarray(1e6),
        "slopes": SLOPES,
        "spread": np.ones(D),
    },
}


def played(folder, changed=None):
    """How a run ends in which one number of one question is another: its phase, and what the site said."""
    session = HostileSession(folder, ROWS, RUN)
    (key, _), _ = session.ask("keys", [])
    publics = np.stack([key, np.full_like(key, 1), np.full_like(key, 2)])
    for phase, asked in ASKED.items():
        given = {
            "publics": publics,
            "signatures": signatures(session, publics),
            **asked,
            **(changed or {}).get(phase, {}),
        }
        names = [field.name for field in session.client.script[phase].asked.fields]
        replied, said = session.ask(phase, [given[name] for name in names])
        if "error" in said:
            return phase, said["message"]
    return "", replied


def test_a_run_whose_numbers_stay_is_answered_with_a_centre_and_without(tmp_path):
    assert played(tmp_path)[0] == ""
    assert played(tmp_path / "2", {"project": {"mean": np.zeros(D)}})[0] == ""


@pytest.mark.parametrize(
    ("phase", "name", "value"),
    [
        ("scatter", "centre", CENTRE + [0, 0, 0, 1e-9]),
        ("harmonised", "rows", np.asarray(3 * N + 1)),
        ("project", "rows", np.asarray(3 * N - 1)),
        ("project", "spread", np.full(D, 2.0)),
        ("project", "mean", CENTRE + 1e-3),
        ("project", "mean", -(2.0**53) * np.ones(D)),
    ],
)
def test_a_number_that_changes_within_a_run_is_refused(phase, name, value, tmp_path):
    ended, message = played(tmp_path, {phase: {name: value}})
    assert ended == phase
    assert f"'{name}' is not what an earlier question of this run said" in message or "ended its part" in message


@pytest.mark.parametrize(("centre", "opens"), [(1.02e6, True), (1.03e6, False), (-(2.0**53), False)])
def test_a_centre_far_from_the_rows_is_answered_with_random_words(centre, opens, tmp_path, monkeypatch, caplog):
    """2^10 times the public bound is farther than the mean of any rows within it can be; no word tells which site."""
    monkeypatch.setattr(
        "fedpca_flwr.questions.row_limits.deviation_limits",
        lambda bound, rows, d: {"shift": np.full(d, 1e300), "diagonal": np.full(d, 1e300)},
    )
    far = CENTRE.copy()
    far[1] = centre
    changed = {"deviations": {"centre": far}, "scatter": {"centre": far, "spread": np.full(D, 1e100)}}
    ended, _ = played(tmp_path, {**changed, "project": {"mean": np.zeros(D)}})
    assert ended == ""
    assert ("random words" in caplog.text) is not opens


# A pass of the personalised method has one centre

PERSONALISED = {"method": "personalised", "n-components": 1, "mu": 1.0}
MASKED = {"secure-aggregation": True, "bound": 1000.0}
MEAN = ROWS.mean(axis=0)


def asked_about(session, means, *, secure, spread=SPREAD):
    """What a site says to products about each of several means of one run."""
    block, none, spread = np.eye(D, 2), np.zeros(D), np.broadcast_to(spread, (D,))
    if secure:
        (key, _), _ = session.ask("keys", [])
        publics = np.stack([key, np.full_like(key, 1), np.full_like(key, 2)])
        assert session.ask("sums", [publics, signatures(session, publics)])[0]
        assert session.ask("deviations", [np.asarray(3 * N), means[0]])[0]
    else:
        assert session.ask("start", [])[0]
    return [session.ask("product", [block, mean, none, *([spread] if secure else [])]) for mean in means]


@pytest.mark.parametrize("run", [{}, MASKED], ids=["clear", "masked"])
@pytest.mark.parametrize("center", [True, False])
def test_a_pass_has_one_centre(run, center, tmp_path):
    given = {**PERSONALISED, **run, "center": center}
    means = [MEAN, MEAN] if center else [np.zeros(D), np.zeros(D)]
    for i, other in enumerate((means[1], means[1] + 1e-9, means[1] + 1e12)):
        session = HostileSession(tmp_path / str(i), ROWS, given)
        (first, _), (second, said) = asked_about(session, [means[0], other], secure=bool(run))
        assert first
        assert bool(second) == ("error" not in said) == (i == 0)


def test_the_centre_of_a_pass_is_that_of_its_sums(tmp_path):
    """The fault: products were about whatever centre the server named, and opened 2^53 away from all rows."""
    for i, (off, answered) in enumerate(((0.0, True), (1e-3, False), (2.0**53, False))):
        session = HostileSession(tmp_path / str(i), ROWS, {**PERSONALISED, **MASKED})
        (key, _), _ = session.ask("keys", [])
        publics = np.stack([key, np.full_like(key, 1), np.full_like(key, 2)])
        session.ask("sums", [publics, signatures(session, publics)])
        session.ask("deviations", [np.asarray(3 * N), CENTRE])
        replied, _ = session.ask("product", [np.eye(D, 2), CENTRE + off, np.zeros(D), SPREAD])
        assert bool(replied) == answered


def test_a_centre_that_was_told_far_away_is_answered_with_random_words(tmp_path, caplog):
    session = HostileSession(tmp_path, ROWS, {**PERSONALISED, **MASKED})
    assert asked_about(session, [np.full(D, 2.0**53)], secure=True, spread=1e20)[0][0]
    assert "phase 'product': the server's centre is farther from this site's mean" in caplog.text
