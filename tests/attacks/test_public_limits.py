"""Whether a secure sum opens tells nothing: no number of the server's decides it, whatever the sites' rows are.

Limits that the server told decided it once, and bisections read a site's number of rows, means and deviations.
"""

import logging

import numpy as np
import pytest
from numpy.typing import NDArray

from fedpca_flwr.questions import columns, row_limits
from tests.hostile import Adversary, HostileSession, keys_of

D, N, BOUND = 5, 36, 100.0

RUNS = (
    "p-cov",
    "p-cov scale=true",
    "p-cov fourth-moments=true outliers=counts",
    "p-cov adjust-for=1",
    "p-cov harmonise=variances adjust-for=0",
    "p-cov genotypes=true prune=0.2",
    "ap-cov scale=true",
    "p-cov clusters=2",
    "p-cov clusters=2 clustering=mixture adjust-for=0 scale=true",
    "p-cov clusters=2 clustering=harmony",
    "em",
    "em model=factors",
    "personalised",
    "personalised solver=stiefel mu=0.5",
    "personalised variant=paper server-step=4.0",
    "robust scale=true",
    "streaming state=there",
    "sub-it",
    "sub-it scale=true",
    "sub-it genotypes=true",
    "vertical",
    "vertical scale=true solver=gram",
)


def rows_of(run: str, party: int, rng: np.random.Generator) -> NDArray:
    """Of three sites that share nothing but the bound: small ones, others at the bound, others far from zero."""
    shape = (N, 1 + party) if run.startswith("vertical") else (N - 5 * (party != 1), D)
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
    monkeypatch.setattr(row_limits, "MAX_ROWS", N + 1)
    monkeypatch.setattr(row_limits, "require_max_rows", lambda *given: None)
    monkeypatch.setattr(columns, "MAX_COLUMNS", 2)
    caplog.set_level(logging.ERROR, "fedpca_flwr.client")
    rng, given = np.random.default_rng(seed), {"bound": BOUND} if "genotypes" not in run else {}
    config = {"method": run, "n-components": 2, "secure-aggregation": True, **given}
    shown = {"may-show": "inner products" if "vertical" in run else "scores", "rare-values": "allow"}
    sites = [HostileSession(tmp_path / str(i), rows_of(run, i, rng), config, index=i, **shown) for i in range(3)]
    sizes = {"d": D, "n": N, "k": 2, "b": 2, "q": 1}
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
                words = np.sum([arrays[0] for arrays, _ in answers], axis=0, dtype=np.uint64)
                assert words[0] == 3, phase
                summed += 1
    assert summed
    assert "random words" not in caplog.text
