"""Numbers of the server: none changes within a run, a centre is near the rows, and none decides if a sum opens."""

import logging
from types import MappingProxyType

import numpy as np
import pytest
from numpy.typing import NDArray

from fedpca_flwr.questions import columns, row_limits
from tests.hostile import Adversary, HostileSession, keys_of, signatures

D, N = 4, 40
ROWS = np.random.default_rng(3).normal(20, 5, (N, D))
RUN = {"method": "p-cov harmonise=variances", "n-components": 2, "secure-aggregation": True, "bound": 1000.0}
CENTRE, SCALE = np.full(D, 20.0), np.full(D, 5.0)
PROJECT = {"components": np.eye(2, D), "mean": CENTRE, "scale": np.empty(0)}
ABOUT = {"slopes": np.empty((0, D)), "spread": np.ones(D)}
ADJUSTED = RUN, {"moments": {}, "harmonised": ABOUT, "project": {**PROJECT, **ABOUT}}
FIRST, SECOND = ({"centre": CENTRE, "scale": SCALE, "block": np.eye(D)[:, part : part + 2]} for part in (0, 2))
PRODUCTS = {**RUN, "method": "sub-it"}, {"sums": {}, "product": FIRST, "finer_product": SECOND, "project": PROJECT}


def keys_for(session):
    (key, _), _ = session.ask("keys", [])
    publics = np.stack([key, np.full_like(key, 1), np.full_like(key, 2)])
    return {"publics": publics, "signatures": signatures(session, publics)}


def played(folder, run, phase="", changed=MappingProxyType({}), rows=ROWS):
    """How a run ends in which numbers of one question are others: its phase, and what the site said."""
    session = HostileSession(folder, rows, run[0])
    keys = keys_for(session)
    for asked, fields in run[1].items():
        given = {**keys, **fields, **(changed if asked == phase else {})}
        names = [field.name for field in session.client.script[asked].request.fields]
        said = session.ask(asked, [given[name] for name in names])[1]
        if "error" in said:
            return asked, said["message"]
    return "", ""


def test_runs_of_constant_numbers_are_answered(tmp_path):
    for number, run in enumerate((ADJUSTED, PRODUCTS)):
        assert played(tmp_path / str(number), run)[0] == ""
        assert played(tmp_path / f"zero {number}", run, "project", {"mean": np.zeros(D)})[0] == ""


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


MASKED = {"secure-aggregation": True, "bound": 1000.0}
PERSONALISED = {"method": "personalised", "n-components": 1, "mu": 1.0}


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


WIDTH, MOST, BOUND = 5, 36, 100.0
OF_SUMS = ("scale=true", "fourth-moments=true outliers=counts", "adjust-for=1", "harmonise=variances adjust-for=0")
OF_ROWS = (" clustering=mixture adjust-for=0 scale=true", " clustering=harmony", "")
RUNS = (
    *("p-cov", "p-cov genotypes=true prune=0.2", "em", "em model=factors", "ap-cov scale=true", "robust scale=true"),
    *(f"p-cov {options}" for options in OF_SUMS),
    *(f"p-cov clusters=2{options}" for options in OF_ROWS),
    *("personalised", "personalised solver=stiefel mu=0.5", "personalised variant=paper server-step=4.0"),
    *("streaming state=there", "sub-it", "sub-it scale=true", "sub-it genotypes=true"),
    *("vertical", "vertical scale=true solver=gram"),
)


def rows_of(run: str, party: int, rng: np.random.Generator) -> NDArray:
    """Of three sites that share nothing but the bound: small ones, others at the bound, others far from zero."""
    shape = (MOST, 1 + party) if run.startswith("vertical") else (MOST - 5 * (party != 1), WIDTH)
    if "genotypes" in run:
        return rng.integers(0, 3, shape).astype(float)
    at_bound = BOUND * rng.choice([-1.0, 1.0], shape if rng.random() < 0.5 else (1, shape[1]))
    near = rng.standard_normal(shape) * (1e-3, 0, 1.0)[party] + (0, 0, 90.0)[party]
    return np.broadcast_to(at_bound, shape) if party == 1 else near


class AtTheLimits(Adversary):
    def _value(self, field, shape):
        rng, spans = self.rng, (0.0, 1.0, 9.0)
        if field.dtypes[-1].kind == "i":
            return rng.permutation(shape[0]) if shape else 1
        if field.kind.startswith("orthonormal"):
            return self._orthonormal(field, shape)
        if field.name == "frequencies":
            return np.concatenate([[0.0, 1e-9], rng.random(shape[0] - 2)])
        if field.name == "left_out" or (field.optional and rng.random() < 0.4):
            return np.zeros(shape) if field.name == "left_out" else np.empty(0)
        if field.kind in {"positive", "size"}:
            zero = rng.random(shape) < (0.2 if field.kind == "size" else 0.0)
            return np.where(zero, 0.0, 10.0 ** rng.uniform(-1, 1, shape) ** rng.choice(spans))
        return (BOUND if field.name in {"centre", "mean"} else 10.0 ** rng.choice(spans)) * rng.choice([-1, 1], shape)


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in (1, 2))])
@pytest.mark.parametrize("run", RUNS)
def test_a_sum_opens_for_all_or_none_whatever_the_request(run, seed, tmp_path, monkeypatch, caplog):
    """No room is left but for the rows that there are: one site alone has as many as all may have, at the bound."""
    monkeypatch.setattr(row_limits, "MAX_ROWS", MOST + 1)
    monkeypatch.setattr(row_limits, "require_max_rows", lambda *given: None)
    monkeypatch.setattr(columns, "MAX_COLUMNS", 2)
    caplog.set_level(logging.ERROR, "fedpca_flwr.client")
    rng, given = np.random.default_rng(seed), {"bound": BOUND} if "genotypes" not in run else {}
    config = {"method": run, "n-components": 2, "secure-aggregation": True, **given}
    shown = {"may-show": "inner products" if "vertical" in run else "scores", "rare-values": "allow"}
    sites = [HostileSession(tmp_path / str(i), rows_of(run, i, rng), config, index=i, **shown) for i in range(3)]
    sizes = {"d": WIDTH, "n": MOST, "k": 2, "b": 2, "q": 1}
    server, public, summed = AtTheLimits(seed, sizes), sites[0].client.public, 0
    for phase, question in sites[0].client.script.items():
        if phase == "keys":
            server.told |= zip(("publics", "signatures"), keys_of(sites), strict=True)
        elif question.max_times(public):
            asked = server.arrays(question, sites[0], dict(question.request_sizes(public)))
            answers = [site.ask(phase, asked) for site in sites]
            said = {told.get("message") for _, told in answers}
            assert len(said) == 1, (phase, said)
            if said != {None}:
                return
            if question.plain_reply is not None:
                assert np.sum([arrays[0] for arrays, _ in answers], axis=0, dtype=np.uint64)[0] == 3, phase
                summed += 1
    assert summed
    assert "random words" not in caplog.text
