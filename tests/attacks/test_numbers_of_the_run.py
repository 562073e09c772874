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
