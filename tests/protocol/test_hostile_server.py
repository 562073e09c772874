"""Whoever holds the server asks any phase, in any order, any number of times, with any finite numbers.

For every method and transport: a party never answers out of its script, and answers nothing after the first question
that is not in it. Where answers are masked or noised, two data sets that differ in one row cannot be told apart by
whether, how and with which words a party answers.
"""

from typing import Any

import numpy as np
import pytest

from strategies import METHODS
from tests.harness import fit
from tests.hostile import HostileSession, Questions, shape_of
from tests.protocol.scripts import SCRIPTS, Script

ROWS = np.round(np.random.default_rng(1).normal(50, 10, (30, 6)))
OTHER = ROWS.copy()
OTHER[7] = 900.0
"""One row is another: its sums of squares are ten times as large."""
FITTED = np.random.default_rng(2).normal(50, 10, (30, 6))
"""The rows of an earlier run."""

WRONG = ("evaluate", "moments", "scatter", "products", "deviations", "sums", "keys", "joint", "project")
WRONG_OF_COLUMNS = ("gram", "product", "distances", "products", "merge", "energies", "scores")

each_script = pytest.mark.parametrize("script", SCRIPTS, ids=str)


def sessions(script: Script, folder, *worlds) -> list[HostileSession]:
    node: dict[str, Any] = {"may-show": "inner products"} if script.columns else {}
    run = {"bound": 1000.0, **script.run} if "secure-aggregation" in script.run else script.run
    if METHODS[script.run["method"]].strategy.card.after:
        node["loadings"] = kept_loadings(folder)
    of_genotypes = "genotypes" in script.run
    if of_genotypes:
        node["gaps"] = "all"
    if METHODS[script.run["method"]].strategy.card.incomplete or of_genotypes:
        worlds = tuple(map(with_holes, worlds))
    if of_genotypes:
        worlds = tuple(rows % 3 for rows in worlds)
    return [HostileSession(folder / str(i), rows, run, **node) for i, rows in enumerate(worlds)]


def with_holes(rows):
    """The rows with a tenth of the values missing; the row that is another misses others."""
    holes = np.random.default_rng(3).random(rows.shape) < 0.1
    holes[7] = np.arange(rows.shape[1]) % 2 == int(rows[7, 0] == 900.0)
    return np.where(holes, np.nan, rows)


def kept_loadings(folder) -> str:
    """The file that a party has of an earlier run with `vertical`."""
    paths = [folder / f"loadings{party}.npz" for party in range(3)]
    fit("vertical", [FITTED] * 3, n_components=2, loadings=paths)
    return str(paths[0])


def hostile_questions(script: Script, seed: int, session: HostileSession, steps: int = 14):
    """Questions in an order that is often the right one, and arrays that are often of the right form."""
    questions = Questions(seed, {"d": 6, "n": 30, "any": 2})
    rng, names = np.random.default_rng(seed), list(script.times)
    place = 0
    for _ in range(steps):
        if rng.random() < 0.9:
            phase = names[min(place, len(names) - 1)]
            place += rng.random() < (0.97 if script.times[phase] == 1 else 0.5)
        else:
            phase = str(rng.choice(names if rng.random() < 0.3 else WRONG_OF_COLUMNS if script.columns else WRONG))
        known = session.client.script.get(phase)
        sizes = known.asked_sizes(session.client.public) if known else {}
        yield phase, questions.arrays(known, session, sizes) if known else []


def is_in_script(script: Script, answered: list[str]) -> bool:
    """Held against the list that stands in `tests.protocol.scripts`, not against the code's own."""
    names = list(script.times)
    places = [names.index(phase) if phase in names else -1 for phase in answered]
    in_order = places == sorted(places) and -1 not in places
    return in_order and all(answered.count(phase) <= times for phase, times in script.times.items())


@each_script
def test_what_a_run_may_ask_is_what_was_written_down(script, tmp_path):
    (session,) = sessions(script, tmp_path, ROWS)
    public = session.client.public
    may = [(name, phase.most(public)) for name, phase in session.client.script.items()]
    assert [(name, times) for name, times in may if times] == list(script.times.items())


@each_script
@pytest.mark.parametrize("seed", range(2))
def test_a_party_answers_its_script_and_nothing_else(script, seed, tmp_path):
    (session,) = sessions(script, tmp_path, ROWS)
    answered, refusals = [], 0
    for phase, arrays in hostile_questions(script, seed, session):
        replied, said = session.ask(phase, arrays)
        if "error" in said:
            refusals += 1
            assert not replied
            if refusals > 3:
                break
            continue
        assert not refusals, f"answered '{phase}' after a refusal"
        answered.append(phase)
        assert is_in_script(script, answered), f"answered {answered}"
    said = session.evaluate([np.eye(2, 6), np.zeros(6), np.empty(0)])
    assert "error" in said


def well_asked(session: HostileSession, phase: str):
    """What leaves, and what is said, where a question of the script comes with arrays of the right form."""
    known = session.client.script[phase]
    questions = Questions(0, {"d": 6, "n": 30, "any": 2})
    return session.ask(phase, questions.arrays(known, session, known.asked_sizes(session.client.public)))


@each_script
def test_the_last_question_is_not_answered_before_the_others(script, tmp_path):
    (session,) = sessions(script, tmp_path, ROWS)
    replied, said = well_asked(session, list(script.times)[-1])
    assert not replied or len(script.times) == 1
    assert ("error" in said) == (len(script.times) > 1)


@each_script
def test_nothing_is_answered_after_the_end(script, tmp_path):
    (session,) = sessions(script, tmp_path, ROWS)
    assert "error" in session.ask("no such phase", [])[1]
    for phase in script.times:
        replied, said = well_asked(session, phase)
        assert not replied
        assert "answers no more" in said["message"] or "ended its part" in said["message"]


@pytest.mark.parametrize("script", [script for script in SCRIPTS if script.hidden], ids=str)
@pytest.mark.parametrize("seed", range(2))
def test_one_row_more_or_less_does_not_show(script, seed, tmp_path):
    """But in the masked words and noisy numbers themselves, which other tests look at."""
    pair = sessions(script, tmp_path, ROWS, OTHER)
    asked = [hostile_questions(script, seed, session) for session in pair]
    for (phase, here), (_, there) in zip(*asked, strict=True):
        outcomes = [session.ask(phase, arrays) for session, arrays in zip(pair, (here, there), strict=True)]
        assert shape_of(outcomes[0]) == shape_of(outcomes[1])
        if "error" in outcomes[0][1]:
            return  # nothing is answered after it
        if phase in script.constant:
            assert [a.tolist() for a in outcomes[0][0]] == [a.tolist() for a in outcomes[1][0]]
