"""What a site was told once in a run is not told otherwise later, and a centre is near the rows."""

from types import MappingProxyType

import numpy as np
import pytest

from tests.hostile import HostileSession, signatures

D, N = 4, 40
ROWS = np.random.default_rng(3).normal(20, 5, (N, D))
RUN = {"method": "p-cov harmonise=variances", "n-components": 2, "secure-aggregation": True, "bound": 1000.0}
CENTRE, SCALE = np.full(D, 20.0), np.full(D, 5.0)
SLOPES = np.empty((0, D))
PROJECT = {"components": np.eye(2, D), "mean": CENTRE, "scale": np.empty(0)}
ABOUT = {"slopes": SLOPES, "spread": np.ones(D)}
ADJUSTED = RUN, {"moments": {}, "harmonised": ABOUT, "project": {**PROJECT, **ABOUT}}
PRODUCTS = (
    {**RUN, "method": "sub-it"},
    {
        "sums": {},
        "product": {"centre": CENTRE, "scale": SCALE, "block": np.eye(D)[:, :2]},
        "finer_product": {"centre": CENTRE, "scale": SCALE, "block": np.eye(D)[:, 2:]},
        "project": PROJECT,
    },
)


def keys_for(session):
    (key, _), _ = session.ask("keys", [])
    publics = np.stack([key, np.full_like(key, 1), np.full_like(key, 2)])
    return {"publics": publics, "signatures": signatures(session, publics)}


def played(folder, run, phase="", changed=MappingProxyType({}), rows=ROWS):
    """How a run ends in which numbers of one question are others: its phase, and what the site said."""
    options, questions = run
    session = HostileSession(folder, rows, options)
    keys = keys_for(session)
    for asked, fields in questions.items():
        given = {**keys, **fields, **(changed if asked == phase else {})}
        names = [field.name for field in session.client.script[asked].request.fields]
        said = session.ask(asked, [given[name] for name in names])[1]
        if "error" in said:
            return asked, said["message"]
    return "", ""


@pytest.mark.parametrize("run", [ADJUSTED, PRODUCTS], ids=["p-cov", "sub-it"])
def test_runs_of_constant_numbers_are_answered(run, tmp_path):
    assert played(tmp_path, run)[0] == ""
    assert played(tmp_path / "2", run, "project", {"mean": np.zeros(D)})[0] == ""


@pytest.mark.parametrize(
    ("run", "phase", "name", "value"),
    [
        (ADJUSTED, "project", "spread", np.full(D, 2.0)),
        (PRODUCTS, "finer_product", "centre", CENTRE + [0, 0, 0, 1e-9]),
        (PRODUCTS, "finer_product", "scale", SCALE + [0, 0, 0, 1e-9]),
        (PRODUCTS, "project", "mean", np.nextafter(CENTRE, 30)),
        (PRODUCTS, "project", "mean", -(2.0**53) * np.ones(D)),
    ],
)
def test_a_number_that_changes_within_a_run_is_refused(run, phase, name, value, tmp_path):
    ended, message = played(tmp_path, run, phase, {name: value})
    assert ended == phase
    said = f"'{name}' differs from the value in an earlier question of this run", "ended its part"
    assert any(text in message for text in said)


NEIGHBOUR = np.eye(D)[:, :2] @ np.array([[1.0], [1e-9]])
FAR = CENTRE + [0, 1e6, 0, 0]


@pytest.mark.parametrize(
    ("run", "phase", "name", "value"),
    [
        (PRODUCTS, "finer_product", "block", NEIGHBOUR),
        (PRODUCTS, "finer_product", "block", NEIGHBOUR.astype(np.float32)),
        (PRODUCTS, "finer_product", "block", np.eye(D)),  # d and two more
        (PRODUCTS, "product", "block", 2 * np.eye(D)[:, :2]),
        (PRODUCTS, "product", "block", np.full((D, 2), 0.5)),
        (PRODUCTS, "product", "centre", FAR),
        (PRODUCTS, "product", "scale", np.full(D, 1e-300)),
        (ADJUSTED, "project", "mean", FAR),
        (ADJUSTED, "project", "scale", np.full(D, 1e-200)),
    ],
)
def test_what_no_rows_need_is_refused_whatever_the_rows(run, phase, name, value, tmp_path):
    """A sum of roundings has steps of each party: neighbouring blocks scanned them, and read a party's frequency."""
    worlds = (ROWS, 1e3 * np.sign(ROWS - 20), np.zeros_like(ROWS))
    said = [played(tmp_path / str(i), run, phase, {name: value}, rows) for i, rows in enumerate(worlds)]
    assert said[0] == said[1] == said[2]
    assert said[0][0] == phase


PERSONALISED = {"method": "personalised", "n-components": 1, "mu": 1.0}
MASKED = {"secure-aggregation": True, "bound": 1000.0}


def asked_about(session, means, *, secure):
    block, none = np.eye(D, 2), np.zeros(D)
    assert session.ask(*(("sums", list(keys_for(session).values())) if secure else ("start", [])))[0]
    return [session.ask("product", [block, mean, none]) for mean in means]


@pytest.mark.parametrize("run", [{}, MASKED], ids=["clear", "masked"])
@pytest.mark.parametrize("center", [True, False])
def test_a_pass_has_one_centre(run, center, tmp_path):
    mean = ROWS.mean(axis=0) if center else np.zeros(D)
    for i, other in enumerate((mean, mean + 1e-9, mean + 1e12)):
        session = HostileSession(tmp_path / str(i), ROWS, {**PERSONALISED, **run, "center": center})
        (first, _), (second, said) = asked_about(session, [mean, other], secure=bool(run))
        assert first
        assert bool(second) == ("error" not in said) == (i == 0)

    for off in (1e6, 2.0**53) if run else ():  # beyond the bound
        session = HostileSession(tmp_path / str(off), ROWS, {**PERSONALISED, **MASKED})
        assert not asked_about(session, [CENTRE + off], secure=True)[0][0]
