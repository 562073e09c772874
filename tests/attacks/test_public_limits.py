"""Whether a secure sum opens tells nothing: no number of the server's decides it, whatever the sites' rows are.

Limits that the server told decided it once, and bisections read a site's number of rows, means and deviations.
"""

import logging
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fedpca_flwr.protocol.payload import Field
from fedpca_flwr.questions import columns, row_limits
from tests.hostile import HostileSession, keys_of

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
    "robust scale=true",
    "streaming state=there",
    "sub-it",
    "sub-it scale=true",
    "sub-it genotypes=true",
    "vertical",
    "vertical scale=true solver=gram",
    "vertical-kernel center=true",
    "vertical-kernel landmarks=3 scale=true",
)


def rows_of(run: str, party: int, rng: np.random.Generator) -> NDArray:
    """Of three sites that share nothing but the bound: small ones, others at the bound, others far from zero."""
    shape = (N, 1 + party) if run.startswith("vertical") else (N - 5 * (party != 1), D)
    if "genotypes" in run:
        return rng.integers(0, 3, shape).astype(float)
    at_bound = BOUND * rng.choice([-1.0, 1.0], shape if rng.random() < 0.5 else (1, shape[1]))
    near = rng.standard_normal(shape) * (1e-3, 0, 1.0)[party] + (0, 0, 90.0)[party]
    return np.broadcast_to(at_bound, shape) if party == 1 else near


class HostileServer:
    """Asks what it likes of what a script names, all sites alike, and numbers of the run once."""

    def __init__(self, sizes: dict[str, int], rng: np.random.Generator) -> None:
        self.sizes, self.rng = sizes, rng
        self.fixed: dict[str, NDArray] = {}

    def asks(self, field: Field, known: dict[str, int]) -> NDArray:
        name = field.constant or (field.constant_or_zero if field.constant_or_zero in self.fixed else "")
        if name in self.fixed:
            return self.fixed[name]
        value = self._value(field, tuple(self._length(symbol, known) for symbol in field.shape))
        value = value.astype(field.dtypes[-1])
        if name:
            self.fixed[name] = value
        return value

    def _length(self, symbol: str, known: dict[str, int]) -> int:
        size = int(symbol) if symbol.isdigit() else {**self.sizes, **known}[symbol.removeprefix("<=")]
        return min(size, 2) if symbol.startswith("<=") else size

    def _value(self, field: Field, shape: tuple[int, ...]) -> NDArray:
        rng, spans = self.rng, (0.0, 1.0, 9.0)
        if field.dtypes[-1].kind == "i":
            return rng.permutation(shape[0]) if shape else np.asarray(1)
        if field.kind.startswith("orthonormal"):
            tall = np.linalg.qr(rng.standard_normal(sorted(shape, reverse=True)))[0]
            return tall.T if field.kind == "orthonormal rows" else tall
        if field.name == "frequencies":
            return np.concatenate([[0.0, 1e-9], rng.random(shape[0] - 2)])
        if field.name == "left_out" or (field.optional and rng.random() < 0.4):
            return np.zeros(shape) if field.name == "left_out" else np.empty(0)
        if field.kind in {"positive", "size"}:
            zero = rng.random(shape) < (0.2 if field.kind == "size" else 0.0)
            return np.where(zero, 0.0, 10.0 ** rng.uniform(-1, 1, shape) ** rng.choice(spans))
        largest = BOUND if field.name in {"centre", "mean"} else 10.0 ** rng.choice(spans)
        return largest * rng.choice([-1.0, 1.0], shape)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("run", RUNS)
def test_a_sum_opens_for_all_or_none_whatever_the_request(run, seed, tmp_path, monkeypatch, caplog):
    """No room is left but for the rows that there are: one site alone has as many as all may have, at the bound."""
    monkeypatch.setattr(row_limits, "MAX_ROWS", N + 1)
    monkeypatch.setattr(row_limits, "require_max_rows", lambda *given: None)
    monkeypatch.setattr(columns, "MAX_COLUMNS", 2)
    caplog.set_level(logging.ERROR, "fedpca_flwr.client")
    rng, given = np.random.default_rng(seed), {"bound": BOUND} if "genotypes" not in run else {}
    config: dict[str, Any] = {"method": run, "n-components": 2, "secure-aggregation": True, **given}
    shown = {"may-show": "inner products" if "vertical" in run else "scores"}
    sites = [HostileSession(tmp_path / str(i), rows_of(run, i, rng), config, index=i, **shown) for i in range(3)]
    script = sites[0].client.script
    sizes = {"d": D, "n": N, "k": 2, "b": 2, "q": 1, "any": 2, "d(d+1)/2": D * (D + 1) // 2}
    server, public, summed, keys = HostileServer(sizes, rng), sites[0].client.public, 0, []
    for phase, question in script.items():
        if phase == "keys":
            keys = keys_of(sites)
        elif question.max_times(public):
            known = dict(question.request_sizes(public))
            asked = [
                keys[["publics", "signatures"].index(field.name)]
                if field.name in ("publics", "signatures")
                else server.asks(field, known)
                for field in question.request.fields
            ]
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
