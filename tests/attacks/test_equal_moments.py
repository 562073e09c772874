"""Rows with equal moments give equal answers, whatever the server asks.

Two sites hold other small integers with the same count, mean and scatter. What leaves the sites, before any mask,
must be equal up to the rounding of sums: a server's centre near 2^53 would let rounding tell rows apart, if it were
subtracted from them. A run's options are questions, too, and both are drawn here.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, RecordDict

from fedpca_flwr.config.method_text import method_option_keys
from fedpca_flwr.errors import ConfigError
from fedpca_flwr.site.custodian import Custodian
from fedpca_flwr.strategies import FACTORY, METHODS
from fedpca_flwr.transports import encoding
from fedpca_flwr.transports.recommendation import transports_of
from tests.hostile import Adversary, HostileSession, shown_by
from tests.options import random_options
from tests.protocol.scripts import SCRIPTS, WAYS, Script
from tests.protocol.test_hostile_server import CHANGED_ROWS, ROWS, earlier_loadings, with_holes
from tests.protocol.test_hostile_server import finding as questions_find

N = 32
THRESHOLDS = (2.0**53 - 50, 2.0**53 - 51, 2.0**53 - 60, 2.0**54 - 100, 2.0**52 - 47.5)
REFLECTED = np.array([1.0, -1.0, -1.0, 1.0])
"""A reflection at it keeps the sum of four numbers, and takes even ones to whole ones."""


def twins(width: int) -> list[np.ndarray]:
    """Two tables (N, width) of even numbers whose counts, means and scatters are the same; no row is."""
    rows = 2.0 * np.random.default_rng(5).integers(9, 49, (N, width))
    rows[:, 1] = rows[:, 0] + 2 * np.arange(N) % 7
    fours = rows.reshape(-1, 4, width)
    other = (fours - REFLECTED[:, None] * (REFLECTED @ fours)[:, None] / 2).reshape(N, width)
    assert not (rows == other).all(axis=1).any()
    assert np.array_equal(rows.T @ rows, other.T @ other)
    return [rows, other]


class Thresholds(Adversary):
    """Questions with numbers near those at which float64 rounds the data, of which what is large may cancel."""

    def _value(self, field, shape):
        if field.dtypes[0].kind in "ui":
            return self.rng.integers(1, 100, shape or None)
        if field.optional and self.rng.random() < 0.5:
            return np.empty(0)
        if field.kind.startswith("orthonormal"):
            return self._orthonormal(field, shape)
        if field.kind == "scatter":
            return self._scatter(shape[0])
        if field.kind in {"positive", "size"}:
            return np.full(shape, self.rng.choice([1e-300, 1.0, 1e3, 5e10, 1e150]))
        values = np.zeros(shape)
        if 0 in shape:
            return values
        if not shape:
            return np.asarray(-self.rng.choice(THRESHOLDS))
        first = 1.0 if self.rng.random() < 0.8 else float(self.rng.choice([1e300, 5e-324, 2.0**53]))
        if len(shape) > 1 and shape[0] > 1:  # a block: a direction in which two features differ
            values[0], values[1] = first, -first
        elif len(shape) > 1:  # slopes
            values[:, :2][:, -1] = self.rng.choice([-1.0, 1.0])
        else:
            values[:2] = -self.rng.choice(THRESHOLDS, 2) if self.rng.random() < 0.8 else first
        return values

    def _orthonormal(self, field, shape):
        *stack, rows, columns = shape
        long, short = max(rows, columns), min(rows, columns)
        square = np.linalg.qr(self.rng.standard_normal((long, short)))[0] if self.rng.random() < 0.5 else np.eye(long)
        tall = square[:, self.rng.permutation(square.shape[1])[:short]]
        return np.tile(tall.T if field.kind == "orthonormal rows" else tall, (*stack, 1, 1))


def noting(fields):
    """Return `encode_answer`, which also notes what the words say before they are masked."""

    def encoded(party, phase, own, asked):
        vector = encoding.encode_answer(party, phase, own, asked)
        said, _ = own.layout(asked, party.public).decode(vector)
        fields.append(said if vector[0] == 1 else {})  # random words: beyond a public limit
        return vector

    return encoded


def natural_size(asked: dict[str, np.ndarray], trace: float) -> float:
    """How large an answer can be, as long as nothing cancels; numbers that are subtracted have no part in it."""
    size = np.float64(trace)
    with np.errstate(over="ignore", divide="ignore"):
        for name, values in asked.items():
            largest = np.abs(values).max(initial=0.0) if values.dtype.kind == "f" else 1.0
            if name in {"block", "vectors", "shared", "components", "slopes", "variances", "spread"}:
                size *= max(1.0, largest) ** 2
            if name in {"scale", "strengths"} and values.size:
                size /= min(1.0, float(np.abs(values).min())) ** 2
    return float(size)


def differs(script, pair, worlds, seed, monkeypatch) -> tuple[str, int]:
    """In which phase the answers of two sites differ, empty if in none; and how many questions they have answered."""
    noted: list[list[dict[str, np.ndarray]]] = [[], []]
    sizes, trace, answers = {"d": worlds[0].shape[1], "n": len(pair[0].client.selection)}, np.square(worlds[0]).sum(), 0
    asking = [Thresholds(seed, sizes) for _ in pair]
    for phase, times in script.times.items():
        for _ in range(min(times, 3)):
            outcomes, asked = [], {}
            for session, questions, fields in zip(pair, asking, noted, strict=True):
                question = session.client.script[phase]
                arrays = questions.arrays(question, session, dict(question.request_sizes(session.client.public)))
                asked = dict(zip([one.name for one in question.request.fields], arrays, strict=False))
                for module in ("masked", "surviving"):
                    monkeypatch.setattr(f"fedpca_flwr.transports.{module}.encode_answer", noting(fields))
                outcomes.append(session.ask(phase, arrays))
            (here, said), (there, other) = outcomes
            keyed = [one.pop("journal", "") for one in (said, other)]  # by each site's own secret (test_comparison)
            if said != other or all(keyed) != any(keyed):
                return phase, answers
            if "error" in said:
                return "", answers
            answers += 1
            if noted[0]:
                here, there = (list(fields[-1].values()) for fields in noted)
            elif script.secure:
                continue  # keys, shares
            if len(here) != len(there) or not all(map(close, here, there, [natural_size(asked, trace)] * len(here))):
                return phase, answers
    return "", answers


def close(here, there, size: float) -> bool:
    if here.dtype.kind != "f":
        return np.array_equal(here, there)
    largest = np.maximum(np.abs(here), np.abs(there))
    return here.shape == there.shape and bool(np.all(np.abs(here - there) <= 1e-9 * largest + 1e-12 * size))


HELD = [
    (script, 6)
    for script in SCRIPTS
    if not (script.card.beyond_moments or script.card.differentially_private or "genotypes" in script.run)
]
"""Neither what noise hides, nor genotypes, whose frequencies are one number each; and how many columns rows have."""
PERSONALISED = [script for script, _ in HELD if script.run["method"] == "personalised"]
STIEFEL = replace(PERSONALISED[0], run={**PERSONALISED[0].run, "solver": "stiefel"})
HELD += [*((script, 40) for script in PERSONALISED), (STIEFEL, 6), (STIEFEL, 40)]


@pytest.mark.parametrize(("script", "width"), HELD, ids=str)
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.nightly)])
def test_equal_moments_give_equal_answers(script, width, seed, tmp_path, monkeypatch):
    """A fold is of whole fours, whose moments are equal, too."""
    monkeypatch.setattr(Custodian, "held_out", lambda site, split: np.arange(N) < 8)
    worlds = [rows.T.copy() for rows in twins(N)] if script.columns else twins(width)
    run = {"bound": 1e20, **script.run} if script.secure else dict(script.run)
    node: dict[str, Any] = {"may-show": "inner products"} if script.columns else {}
    node |= {} if script.secure or run.get("mu") == "held-out" else {"journal": ""}
    if run["method"] == "vertical-scores":
        node["loadings"] = earlier_loadings(tmp_path)
    pair = [HostileSession(tmp_path / str(i), rows, run, **node) for i, rows in enumerate(worlds)]
    assert not differs(script, pair, worlds, seed, monkeypatch)[0]


def drawn_run(rng: np.random.Generator, method: str) -> dict[str, Any]:
    """Return a run of a method with any options that it has, and keys that may or may not go with it."""
    card = METHODS[method].strategy.card
    own = {name.replace("_", "-"): value for name, value in random_options(rng, method, 2, N, 6).items()}
    if rng.random() < 0.5:  # most of what stages do a site of all defaults refuses
        of_stages = {key for stage in card.stages for key in method_option_keys(stage.Options)}
        own = {key: value for key, value in own.items() if key not in of_stages}
    ways = list(WAYS) if rng.random() < 0.1 else list(transports_of(METHODS[method]))
    run = {"method": method, "n-components": 2, **card.examples[0], **own, **WAYS[str(rng.choice(ways))]}
    run |= {"bound": float(rng.choice([1e3, 1e20]))} if run.get("secure-aggregation") else {}
    run |= {"weights": "0"} if rng.random() < 0.05 else {}
    run |= {"levels": '{"sex": ["f", "m"]}'} if rng.random() < 0.05 else {}
    return run | ({"epsilon": 0.1} if method == "dp-pca" else {})


def raw(run: dict[str, Any]) -> dict[str, Any]:
    """Return the run-config as whoever starts runs sends it, checked by nobody."""
    try:
        return METHODS.run_config(run)
    except ConfigError:
        of_runs = {"n-components", "secure-aggregation", "survivors", "bound", "weights", "levels", "seed"}
        words = [f"{key}={value}" for key, value in run.items() if key not in {"method", *of_runs}]
        return {**{key: run[key] for key in of_runs & run.keys()}, "method": " ".join([run["method"], *words])}


def two_sites(run: dict[str, Any], folder: Path, rng: np.random.Generator, node: dict[str, Any], equal: bool) -> tuple:
    """Return the rows of two sites, of equal moments or with another row, and what their node-configs say further."""
    card = METHODS[run["method"]].strategy.card
    if equal:
        run.pop("weights", None)  # of other rows there are other weights
        worlds = [rows.T.copy() for rows in twins(N)] if card.split == "columns" else twins(6)
        if card.split == "rows" and rng.random() < 0.5:  # three rows more, of which the site leaves three out
            return [np.vstack([rows, worlds[0][:3]]) for rows in worlds], {**node, "round-rows": N}
        return worlds, node
    worlds = [ROWS, CHANGED_ROWS]
    if "weights" in run:  # whether weights are of few rows shows
        worlds[1], node["weights"] = np.column_stack([ROWS[:, 0], CHANGED_ROWS[:, 1:]]), "0"
    if card.incomplete:
        worlds = list(map(with_holes, worlds))
    node |= {"round-rows": 16} if rng.random() < 0.2 and card.split == "rows" else {}
    node |= {"epsilon-budget": 100.0} if card.differentially_private else {}
    node |= {"loadings": earlier_loadings(folder)} if card.loadings_source else {}
    try:
        return worlds, {**node, "may-show": shown_by(run)}
    except ConfigError:
        return worlds, {**node, "may-show": "inner products"}


def finding(seed: int, folder: Path, monkeypatch, method: str = "", *, equal: bool) -> tuple[str, int]:
    """Return what drawn options and questions find, or nothing; and of equal moments, how many answers there were."""
    rng = np.random.default_rng(seed)
    run, least = drawn_run(rng, method or str(rng.choice(list(METHODS)))), int(rng.choice([1, 5, 10]))
    node = {"min-rows": least, "may-show": "nothing", "rare-values": "allow"}  # one row stands out
    worlds, node = two_sites(run, folder, rng, node, equal)
    plain = {"method": run["method"], "n-components": 2}
    pair = [HostileSession(folder / str(i), rows, plain, **node) for i, rows in enumerate(worlds)]
    for session in pair:
        given = session.context
        session.context = Context(given.run_id, given.node_id, given.node_config, RecordDict(), raw(run))
    said = [session.client.get_properties({}) for session in pair]
    about, refusals = f"seed {seed}: {run} {node}: ", ["error" in one for one in said]
    if any("failed with" in one.get("message", "") for one in said):
        return f"{about}{said}", 0
    try:
        FACTORY.strategy(raw(run))
    except ConfigError:
        if not METHODS[run["method"]].strategy.card.loadings_source and "state" not in run and not all(refusals):
            return f"{about}only the server refuses", 0
    if refusals[0]:
        return "" if said[0] == said[1] else f"{about}{said}", 0
    client, most = pair[0].client, 2 if equal else 10**9
    times = {name: min(most, one.max_times(client.public)) for name, one in client.script.items()}
    way = "masked" if run.get("secure-aggregation") else "clear"
    script = Script(run, {name: number for name, number in times.items() if number}, way)
    if equal:
        phase, answers = differs(script, pair, worlds, seed, monkeypatch)
        return f"{about}'{phase}' tells rows of equal moments apart" if phase else "", answers
    found = questions_find(script, seed, pair, steps=12, min_rows=least)
    return f"{about}{found}" if found else "", 0


@pytest.mark.parametrize(
    "method", [name for name, one in METHODS.items() if not one.strategy.card.differentially_private]
)
def test_default_sites_answer_by_moments_for_all_options(method, tmp_path, monkeypatch):
    """Where it answers at all: a method or an option whose answers tell more needs the site's permission by name."""
    draws = [finding(seed, tmp_path / str(seed), monkeypatch, method, equal=True) for seed in range(6)]
    assert [text for text, _ in draws if text] == []
    assert (sum(answers for _, answers in draws) > 0) == (not METHODS[method].strategy.card.exposes)


@pytest.mark.parametrize(
    "first", [0, 20, *(pytest.param(first, marks=pytest.mark.nightly) for first in (10, *range(30, 120, 10)))]
)
def test_drawn_options_and_questions_find_nothing(first, tmp_path, monkeypatch):
    for seed in range(first, first + 10):
        assert not finding(seed, tmp_path / str(seed), monkeypatch, equal=False)[0]
