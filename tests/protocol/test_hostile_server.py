"""Whoever holds the server asks any phase, in any order, any number of times, with any finite numbers.

For every method and transport: a party never answers out of its script, and answers nothing after the first question
that is not in it. Where answers are masked or noised, two data sets that differ in one row cannot be told apart by
whether, how and with which words a party answers.
"""

from typing import Any

import numpy as np
import pytest

from tests.harness import fit
from tests.hostile import HostileSession, Questions, shape_of
from tests.protocol.scripts import SCRIPTS, Script

ROWS = np.round(np.random.default_rng(1).normal(50, 10, (30, 6)))
CHANGED_ROWS = ROWS.copy()
CHANGED_ROWS[7] = 900.0
"""One row is another: its sums of squares are ten times as large."""
FITTED = np.random.default_rng(2).normal(50, 10, (30, 6))
"""The rows of an earlier run."""

WRONG = ("evaluate", "moments", "scatter", "products", "deviations", "sums", "keys", "joint", "project")
WRONG_OF_COLUMNS = ("gram", "product", "distances", "products", "merge", "energies", "scores")


def sessions(script: Script, folder, *worlds) -> list[HostileSession]:
    node: dict[str, Any] = {"rare-values": "allow"}  # of rows that stand out
    if script.columns:
        node["may-show"] = "inner products"
    run = {"bound": 1000.0, **script.run} if script.secure else script.run
    of_genotypes = "genotypes" in script.run
    if script.card.loadings_source:
        node["loadings"] = earlier_loadings(folder)
    if script.card.incomplete or of_genotypes:
        worlds = tuple(map(with_holes, worlds))
    if of_genotypes:
        node["gaps"] = "all"
        worlds = tuple(rows % 3 for rows in worlds)
    return [HostileSession(folder / str(i), rows, run, **node) for i, rows in enumerate(worlds)]


def with_holes(rows):
    """Return the rows with a tenth of the values missing; the changed row misses other values."""
    holes = np.random.default_rng(3).random(rows.shape) < 0.1
    holes[7] = np.arange(rows.shape[1]) % 2 == int(rows[7, 0] == 900.0)
    return np.where(holes, np.nan, rows)


def earlier_loadings(folder) -> str:
    """Return the path of a party's loadings from an earlier run with `vertical`."""
    paths = [folder / f"loadings{party}.npz" for party in range(3)]
    fit("vertical", [FITTED] * 3, n_components=2, loadings=paths)
    return str(paths[0])


def hostile_questions(script: Script, seed: int, session: HostileSession, steps: int = 14):
    """Yield questions in an order that is often right, with arrays that often have the right form."""
    questions = Questions(seed, {"d": 6, "n": 30, "any": 2})
    rng, names = np.random.default_rng(seed), list(script.times)
    position = 0
    for _ in range(steps):
        if rng.random() < 0.9:
            phase = names[min(position, len(names) - 1)]
            position += rng.random() < (0.97 if script.times[phase] == 1 else 0.5)
        else:
            phase = str(rng.choice(names if rng.random() < 0.3 else WRONG_OF_COLUMNS if script.columns else WRONG))
        client = session.client
        question = client.script.get(phase)
        sizes = question.request_sizes(client.public) if question else {}
        yield phase, questions.arrays(question, session, sizes) if question else []


def is_in_script(script: Script, answered: list[str]) -> bool:
    """Held against the list that stands in `tests.protocol.scripts`, not against the code's own."""
    names = list(script.times)
    places = [names.index(phase) if phase in names else -1 for phase in answered]
    in_order = places == sorted(places) and -1 not in places
    return in_order and all(answered.count(phase) <= times for phase, times in script.times.items())


FIRST = {script.run["method"]: script for script in reversed(SCRIPTS)}
SELECTED_SCRIPTS = [script for script in SCRIPTS if script.hidden or script is FIRST[script.run["method"]]]
"""Every way to hide answers, and each method once in clear: whatever its options, one code holds it to its script."""
SEEDED_SCRIPTS = [(script, (i + 1) % 4) for i, script in enumerate(SELECTED_SCRIPTS)]
"""Each with its own seed of hostile questions."""


@pytest.mark.parametrize(("script", "seed"), SEEDED_SCRIPTS, ids=str)
def test_a_party_answers_its_script_and_nothing_else(script, seed, tmp_path):
    """One row more or less shows but in the masked words and noisy numbers themselves, which other tests look at."""
    parties = sessions(script, tmp_path, *([ROWS, CHANGED_ROWS] if script.hidden else [ROWS]))
    questions = [hostile_questions(script, seed, session) for session in parties]
    answered, refusals = [], 0
    last_question, last_replies = None, None
    for parallel in zip(*questions, strict=True):
        phase = parallel[0][0]
        outcomes = [session.ask(phase, arrays) for session, (_, arrays) in zip(parties, parallel, strict=True)]
        assert len({shape_of(outcome) for outcome in outcomes}) == 1
        replied, report = outcomes[0]
        if "error" in report:
            refusals += 1
            assert not replied
            if refusals > 1:
                break
            continue
        assert not refusals, f"answered '{phase}' after a refusal"
        question, replies = (
            [phase, *(array.tobytes() for array in parallel[0][1])],
            [[array.tobytes() for array in arrays] for arrays, _ in outcomes],
        )
        if question == last_question:  # the reply may have been lost: it is sent again, byte for byte
            assert replies == last_replies
            continue
        last_question, last_replies = question, replies
        answered.append(phase)
        assert is_in_script(script, answered), f"answered {answered}"
        if phase in script.constant:
            assert len({str([array.tolist() for array in arrays]) for arrays, _ in outcomes}) == 1
    assert "error" in parties[0].evaluate([np.eye(2, 6), np.zeros(6), np.empty(0)])


def ask_properly(session: HostileSession, phase: str):
    """Return the reply and the metrics of a question of the script with arrays of the right form."""
    client = session.client
    question, questions = client.script[phase], Questions(0, {"d": 6, "n": 30, "any": 2})
    return session.ask(phase, questions.arrays(question, session, question.request_sizes(client.public)))


@pytest.mark.parametrize("script", SCRIPTS, ids=str)
def test_scripts_are_as_written_down(script, tmp_path):
    (session,) = sessions(script, tmp_path, ROWS)
    client = session.client
    may = [(name, phase.max_times(client.public)) for name, phase in client.script.items()]
    assert [(name, times) for name, times in may if times] == list(script.times.items())
    replied, report = ask_properly(session, list(script.times)[-1])
    assert bool(replied) == ("error" not in report) == (len(script.times) == 1)
    session.refusal("no such phase", [])
    for phase in list(script.times)[:3]:
        replied, report = ask_properly(session, phase)
        assert not replied
        assert "answers no more" in report["message"] or "ended its part" in report["message"]
