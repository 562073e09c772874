"""Whoever starts runs chooses their options as well as their questions: both are drawn here.

Against two sites in each draw, whose rows have equal moments or differ in one row. Whatever was drawn, a site raises
nothing, answers its script and nothing after its first refusal, and tells no number of rows below its minimum. A site
that allows nothing beyond the defaults answers alike where moments are equal; where answers are masked or noised, one
row more or less does not show. More draws than the suite makes::

    python -m tests.attacks.test_hostile_options FIRST LAST
"""

import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, RecordDict

from fedpca_flwr.errors import ConfigError
from fedpca_flwr.strategies import FACTORY, METHODS
from fedpca_flwr.transports.recommendation import transports_of
from tests.attacks.test_equal_moments import N, as_script, differs, twins
from tests.hostile import HostileSession, shown_by
from tests.options import random_options
from tests.protocol.scripts import WAYS
from tests.protocol.test_hostile_server import CHANGED_ROWS, ROWS, earlier_loadings, with_holes
from tests.protocol.test_hostile_server import finding as questions_find

LEVELS = '{"sex": ["f", "m"]}'


def drawn_run(rng: np.random.Generator) -> dict[str, Any]:
    """Return a run of any method with any options that it has, and keys that may or may not go with it."""
    method = str(rng.choice(list(METHODS)))
    own = {name.replace("_", "-"): value for name, value in random_options(rng, method, 2, N, 6).items()}
    run = {"method": method, "n-components": 2, **METHODS[method].strategy.card.examples[0], **own}
    ways = list(WAYS) if rng.random() < 0.1 else list(transports_of(METHODS[method]))
    run |= WAYS[str(rng.choice(ways))]
    run |= {"bound": float(rng.choice([1e3, 1e20]))} if run.get("secure-aggregation") else {}
    run |= {"weights": "0"} if rng.random() < 0.05 else {}
    run |= {"levels": LEVELS} if rng.random() < 0.05 else {}
    if method == "dp-pca":
        run |= {"epsilon": 0.1}
    return run


def raw(run: dict[str, Any]) -> dict[str, Any]:
    """Return the run-config as whoever starts runs sends it, checked by nobody."""
    try:
        return METHODS.run_config(run)
    except ConfigError:
        of_runs = {"n-components", "secure-aggregation", "survivors", "bound", "weights", "levels", "seed"}
        words = [f"{key}={value}" for key, value in run.items() if key not in {"method", *of_runs}]
        return {**{key: run[key] for key in of_runs & run.keys()}, "method": " ".join([run["method"], *words])}


def session_of(folder: Path, rows: np.ndarray, run: dict[str, Any], **node: Any) -> HostileSession:
    session = HostileSession(folder, rows, {"method": run["method"], "n-components": 2}, **node)
    given = session.context
    session.context = Context(given.run_id, given.node_id, given.node_config, RecordDict(), raw(run))
    return session


def finding(seed: int, folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    rng = np.random.default_rng(seed)
    run = drawn_run(rng)
    card = METHODS[run["method"]].strategy.card
    equal = bool(rng.random() < 0.5) and not card.differentially_private
    if equal:
        run.pop("weights", None)  # of other rows there are other weights
    worlds = twins(6) if equal else [ROWS, CHANGED_ROWS]
    if "weights" in run:  # whether weights are of few rows shows
        worlds[1] = np.column_stack([ROWS[:, 0], CHANGED_ROWS[:, 1:]])
    if equal and card.split == "columns":
        worlds = [rows.T.copy() for rows in twins(N)]
    if not equal and card.incomplete:
        worlds = list(map(with_holes, worlds))
    least = int(rng.choice([1, 5, 10]))
    node: dict[str, Any] = {"min-rows": least, "may-show": "nothing", "rare-values": "allow"}  # one row stands out
    node |= {"weights": "0"} if "weights" in run else {}
    node |= {"round-rows": 16} if rng.random() < 0.2 and card.split == "rows" else {}
    node |= {"epsilon-budget": 100.0} if card.differentially_private else {}
    if not equal:
        try:
            node["may-show"] = shown_by(run)
        except ConfigError:
            node["may-show"] = "inner products"
        if card.loadings_source:
            node["loadings"] = earlier_loadings(folder)
    pair = [session_of(folder / str(i), rows, run, **node) for i, rows in enumerate(worlds)]
    said = [session.client.get_properties({}) for session in pair]
    about = f"seed {seed}: {run} {node}: "
    refusals = ["error" in one for one in said]
    if any("failed with" in one.get("message", "") for one in said):
        return f"{about}{said}"
    try:
        FACTORY.strategy(raw(run))
    except ConfigError:
        if not card.loadings_source and "state" not in run and not all(refusals):
            return f"{about}only the server refuses"
    if refusals[0]:
        return "" if said[0] == said[1] else f"{about}{said}"
    try:
        script = as_script(run, pair[0], 2 if equal else 10**9)
    except Exception as error:
        return f"{about}no script: {error!r}"
    if equal:
        phase, _ = differs(script, pair, worlds, seed, monkeypatch)
        return f"{about}'{phase}' tells rows of equal moments apart" if phase else ""
    found = questions_find(script, seed, pair, steps=12, min_rows=least)
    return f"{about}{found}" if found else ""


@pytest.mark.parametrize(
    "first", [0, 20, 40, *(pytest.param(first, marks=pytest.mark.nightly) for first in (10, 30, *range(50, 120, 10)))]
)
def test_drawn_options_and_questions_find_nothing(first, tmp_path, monkeypatch):
    for seed in range(first, first + 10):
        with monkeypatch.context() as patch:
            assert not finding(seed, tmp_path / str(seed), patch)


if __name__ == "__main__":
    for seed in range(*map(int, sys.argv[1:])):
        with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
            print(seed, finding(seed, Path(folder), patch), flush=True)
