"""Rows with equal moments give equal answers, whatever the server asks.

Two sites hold other rows with the same count, mean and scatter: all are small integers, so that the three are equal to
the last bit. What leaves the sites, before any mask, must be equal up to the rounding of sums, for questions of any
size: a server's centre near 2^53 would let rounding tell single rows apart, if it were subtracted from them.

A run's options are questions, too: with whatever options a method is asked, a site whose node-config allows nothing
beyond the defaults gives equal answers, or none.
"""

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

from fedpca_flwr.config.method_text import method_option_keys
from fedpca_flwr.errors import ConfigError
from fedpca_flwr.maths.rows import centred_chunks
from fedpca_flwr.site.vault import Vault
from fedpca_flwr.stages.adjust import AdjustedProjection
from fedpca_flwr.strategies import FACTORY, METHODS
from fedpca_flwr.transports import encoding
from fedpca_flwr.transports.recommendation import transports_of
from tests.hostile import HostileSession, Questions, signatures
from tests.options import random_options
from tests.protocol.scripts import SCRIPTS, WAYS, Script
from tests.protocol.test_hostile_server import earlier_loadings

ADJUSTED = "p-cov n-components=2 adjust-for=0"
N = 32
THRESHOLDS = (2.0**53 - 50, 2.0**53 - 51, 2.0**53 - 60, 2.0**54 - 100, 2.0**52 - 47.5)
NOT_OF_MOMENTS = {
    **{
        name: method.strategy.card.beyond_moments
        for name, method in METHODS.items()
        if method.strategy.card.beyond_moments
    },
    "genotypes": "a row has one of three values, of which frequencies make one number each: rounding tells none apart",
    "held-out": "moments of a fold and of all rows: tests/strategies holds them",
}
"""What is held elsewhere, or hidden by noise."""


def twins(width: int) -> list[np.ndarray]:
    """Two tables (N, width) of even numbers whose counts, means and scatters are the same; no row is."""
    rows = 2.0 * np.random.default_rng(5).integers(9, 49, (N, width))
    rows[:, 1] = rows[:, 0] + 2 * np.arange(N) % 7
    other = rows.copy()
    for start in range(0, N, 4):
        other[start : start + 4] -= np.outer(REFLECTED, REFLECTED @ rows[start : start + 4]) / 2
    assert not (rows == other).all(axis=1).any()
    assert np.array_equal(rows.T @ rows, other.T @ other)
    return [rows, other]


REFLECTED = np.array([1.0, -1.0, -1.0, 1.0])
"""A reflection at it keeps the sum of four numbers, and takes even ones to whole ones."""


class Thresholds(Questions):
    """Questions of the right form, with numbers near those at which float64 begins to round the data.

    As an attacker would, they let what is large in the first two features cancel. Numbers of the run stay, and those in
    `given` are as they are there.
    """

    def __init__(self, seed: int, sizes: dict[str, int], given: dict[str, np.ndarray]) -> None:
        super().__init__(seed, sizes)
        self.told = dict(given)

    def arrays(self, phase, session, known):
        arrays = {one.name: self._field(one, session, known) for one in phase.request.fields}
        if "publics" in arrays:
            arrays["signatures"] = signatures(session, arrays["publics"])
        return list(arrays.values())

    def _field(self, field, session, known):
        name = field.constant or field.constant_or_zero or field.name
        if name in self.told:
            return self.told[name]
        shape = tuple(self._length(symbol, known) for symbol in field.shape)
        if field.name in {"publics", "signatures"}:
            value = super()._field(field, session, known)
        elif field.dtypes[0].kind in "ui":
            value = np.asarray(self.rng.integers(1, 100, shape or None)).astype(field.dtypes[0])
        elif field.optional and self.rng.random() < 0.5:
            value = np.empty(0)
        elif field.kind.startswith("orthonormal"):
            value = self._orthonormal(shape, rows=field.kind.endswith("rows"))
        elif field.kind == "scatter":
            value = self._scatter(shape[0])
        else:
            value = self._valued(shape, field.kind)
        value = value.astype(field.dtypes[-1])
        if field.constant:
            self.told[name] = value
        return value

    def _valued(self, shape, kind):
        if kind in {"positive", "size"}:
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
            values[:, 1] = self.rng.choice([-1.0, 1.0])
        else:
            values[:2] = -self.rng.choice(THRESHOLDS, 2) if self.rng.random() < 0.8 else first
        return values

    def _orthonormal(self, shape, *, rows):
        long, short = max(shape), min(shape)
        square = np.linalg.qr(self.rng.standard_normal((long, short)))[0] if self.rng.random() < 0.5 else np.eye(long)
        tall = square[:, self.rng.permutation(square.shape[1])[:short]]
        return tall.T if rows else tall


@dataclass
class Answered:
    """What a site's answers hold, before they are masked."""

    fields: list[dict[str, np.ndarray]] = field(default_factory=list)

    def encoded(self, party, phase, own, asked):
        """As `words.encoded`, noting what the words say."""
        vector = encoding.encode_answer(party, phase, own, asked)
        fields, _ = own.layout(asked, party.public).decode(vector)
        self.fields.append(fields if vector[0] == 1 else {})  # random words: beyond a public limit
        return vector


def natural_size(asked: dict[str, np.ndarray], trace: float) -> float:
    """How large an answer can be, as long as nothing cancels; numbers that are subtracted have no part in it."""
    size = np.float64(trace)
    with np.errstate(over="ignore", divide="ignore"):
        for name, values in asked.items():
            largest = np.abs(values).max(initial=0.0) if values.dtype.kind == "f" else 1.0
            if name in {"block", "vectors", "shared", "components", "slopes", "variances"}:
                size *= max(1.0, largest) ** 2
            if name in {"scale", "strengths"} and values.size:
                size /= min(1.0, float(np.abs(values).min())) ** 2
            if name == "spread":
                size *= max(1.0, largest) ** 2
    return float(size)


def finds_a_row(script: Script, seed: int, folder, monkeypatch, width: int = 6, given=MappingProxyType({})) -> str:
    """In which phase the answers of the twins differ; empty if in none."""
    worlds = [rows.T.copy() for rows in twins(N)] if script.columns else twins(width)
    run: dict[str, Any] = {"bound": 1e20, **script.run} if script.secure else dict(script.run)
    node: dict[str, Any] = {"may-show": "inner products"} if script.columns else {}
    if not script.secure:
        node["journal"] = ""
    if run["method"] == "vertical-scores":
        node["loadings"] = earlier_loadings(folder)
    pair = [HostileSession(folder / str(i), rows, run, **node) for i, rows in enumerate(worlds)]
    return differs(script, pair, worlds, seed, monkeypatch, given)[0]


def differs(script, pair, worlds, seed, monkeypatch, given=MappingProxyType({})) -> tuple[str, int]:
    """In which phase the answers of two sites differ, empty if in none; and how many questions they have answered."""
    noted, answers = [Answered(), Answered()], 0
    n, d = len(pair[0].client.data), worlds[0].shape[1]
    asking = [Thresholds(seed, {"d": d, "n": n, "any": 2}, given) for _ in pair]
    trace = float(np.square(worlds[0]).sum())
    for phase, times in script.times.items():
        for _ in range(min(times, 3)):
            outcomes, asked = [], {}
            for session, questions, note in zip(pair, asking, noted, strict=True):
                client = session.client
                known = client.script[phase]
                arrays = questions.arrays(known, session, dict(known.request_sizes(client.public)))
                asked = dict(zip([one.name for one in known.request.fields], arrays, strict=False))
                for module in ("masked", "surviving"):
                    monkeypatch.setattr(f"fedpca_flwr.transports.{module}.encode_answer", note.encoded)
                outcomes.append(session.ask(phase, arrays))
            (here, said), (there, other) = outcomes
            if said != other:
                return phase, answers
            if "error" in said:
                return "", answers
            answers += 1
            if noted[0].fields:
                here, there = (list(note.fields[-1].values()) for note in noted)
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


SEEDS = 6
"""Draws of options for each method."""

HELD = [
    script
    for script in SCRIPTS
    if not (script.run["method"] in NOT_OF_MOMENTS or script.noised or NOT_OF_MOMENTS.keys() & script.run.keys())
    and script.run.get("mu") != "held-out"
]


@pytest.mark.parametrize("script", HELD, ids=str)
@pytest.mark.parametrize("seed", range(2))
def test_equal_moments_give_equal_answers(script, seed, tmp_path, monkeypatch):
    assert not finds_a_row(script, seed, tmp_path, monkeypatch)


# Options, of a run and of the site


def drawn_run(method: str, seed: int) -> dict[str, Any]:
    """Return a run of a method with drawn options, in clear or with secure sums."""
    rng = np.random.default_rng(seed)
    known = {name.replace("_", "-"): value for name, value in random_options(rng, method, 2, N, 6).items()}
    if seed % 3:  # most of what stages do a site of all defaults refuses
        own = {key for stage in METHODS[method].strategy.card.stages for key in method_option_keys(stage.Options)}
        known = {key: value for key, value in known.items() if key not in own}
    ways = transports_of(METHODS[method])
    run = {"method": method, "n-components": 2, **METHODS[method].strategy.card.examples[0], **known}
    return run | WAYS[str(rng.choice(ways))]


def as_script(run: dict[str, Any], session: HostileSession, most: int = 2) -> Script:
    """Return the questions of a run at this site, each asked so many times at most."""
    client = session.client
    way = "clear" if not run.get("secure-aggregation") else "masked"
    times = {name: min(most, one.max_times(client.public)) for name, one in client.script.items()}
    return Script(run, {name: number for name, number in times.items() if number}, way)


@pytest.mark.parametrize(
    "method", [name for name, one in METHODS.items() if not one.strategy.card.differentially_private]
)
def test_default_sites_answer_by_moments_for_all_options(method, tmp_path, monkeypatch):
    """Where it answers at all: a method or an option whose answers tell more needs the site's permission by name."""
    card, answers = METHODS[method].strategy.card, 0
    for seed in range(SEEDS):
        run = drawn_run(method, seed)
        run |= {"bound": 1e20} if run.get("secure-aggregation") else {}
        try:
            FACTORY.strategy(METHODS.run_config(run))
        except ConfigError:  # options that do not go together
            continue
        worlds = [rows.T.copy() for rows in twins(N)] if card.split == "columns" else twins(6)
        node: dict[str, Any] = {"may-show": "nothing"}
        if seed % 2 and card.split == "rows":  # three rows more, of which the site leaves three out
            worlds, node = [np.vstack([rows, worlds[0][:3]]) for rows in worlds], {**node, "round-rows": N}
        pair = [HostileSession(tmp_path / f"{seed} {i}", rows, run, **node) for i, rows in enumerate(worlds)]
        if "error" in pair[0].client.get_properties({}):
            continue
        phase, answered = differs(as_script(run, pair[0]), pair, worlds, seed, monkeypatch)
        assert not phase, f"seed {seed}: {run} tells rows of equal moments apart"
        answers += answered
    assert (answers > 0) == (not card.exposes)


def error_of(chunks, components):
    """As it was: each row is projected about the server's mean."""
    squared = 0.0
    for centred in chunks:
        scores = centred @ components.T
        squared += float(np.vdot(centred, centred)) - float(np.vdot(scores, scores))
    return max(0.0, squared)


def error_of_rows(self, mean, scale, components):
    return error_of(centred_chunks(self._rows, mean, scale if scale.size else None), components)


def error_of_adjusted_rows(self):
    return error_of(self.centred(self.vault._rows), self.components)


PUT_BACK = {
    "squared_error": (Vault, error_of_rows, "p-cov n-components=2 secure-aggregation=True", 6, range(40)),
    "squared_error of adjusted rows": (AdjustedProjection, error_of_adjusted_rows, ADJUSTED, 6, (14, 20, 43, 46)),
}
"""As it was, in the run that finds it; how many columns its rows have there, and seeds of the server's questions.

How sums are rounded depends on the processor: among the seeds is one that finds a row on each.
"""


def all_directions(seed: int) -> dict[str, np.ndarray]:
    """As many components as features, behind which nothing is left of rows but their rounding about a far centre."""
    basis = np.linalg.qr(np.random.default_rng(seed).standard_normal((6, 6))).Q
    return {"components": basis, "centre": -THRESHOLDS[0] * np.arange(1.0, 7.0), "scale": np.empty(0)}


@pytest.mark.engine
@pytest.mark.parametrize("name", PUT_BACK)
def test_it_finds_what_sites_once_did(name, tmp_path, monkeypatch):
    home, old, text, width, seeds = PUT_BACK[name]
    script = next(script for script in SCRIPTS if str(script) == text)

    def finds(folder, seed):
        given = all_directions(seed) if name == "squared_error" else {}
        return finds_a_row(script, seed, tmp_path / f"{folder} {seed}", monkeypatch, width, given)

    with monkeypatch.context() as patched:
        patched.setattr(home, name.split()[0], old)
        seed = next(seed for seed in seeds if finds("put back", seed))
    assert not finds("as it is", seed)
