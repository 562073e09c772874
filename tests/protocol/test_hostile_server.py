"""Whoever holds the server asks any phase, in any order, with any finite numbers: a party answers its script only.

Where answers are masked or noised, a row more or less shows neither in whether nor in how a party answers.
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

WRONG = ("evaluate", "moments", "scatter", "products", "deviations", "sums", "keys", "joint", "project")
WRONG_OF_COLUMNS = ("gram", "product", "distances", "products", "merge", "energies", "scores")
FIRST = {script.run["method"]: script for script in reversed(SCRIPTS)}
SELECTED_SCRIPTS = [script for script in SCRIPTS if script.hidden or script is FIRST[script.run["method"]]]
"""Every way to hide answers, and each method once in clear: whatever its options, one code holds it to its script."""


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
    holes = np.random.default_rng(3).random(rows.shape) < 0.1
    holes[7] = np.arange(rows.shape[1]) % 2 == int(rows[7, 0] == 900.0)
    return np.where(holes, np.nan, rows)


def earlier_loadings(folder) -> str:
    paths = [folder / f"loadings{party}.npz" for party in range(3)]
    fit("vertical", [np.random.default_rng(2).normal(50, 10, (30, 6))] * 3, n_components=2, loadings=paths)
    return str(paths[0])


def hostile_questions(script: Script, seed: int, session: HostileSession, steps: int = 14):
    """Yield questions in an order that is often right, with arrays that often have the right form."""
    questions = Questions(seed, {"d": 6, "n": 30})
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


def finding(script: Script, seed: int, sites: list[HostileSession], *, steps: int = 14, min_rows: int = 0) -> str:
    """Return what hostile questions find against sites of which one has another row, or nothing."""
    answered: list[str] = []
    refused, last_question, last_replies = False, None, None
    for same in zip(*(hostile_questions(script, seed, site, steps) for site in sites), strict=True):
        phase = same[0][0]
        outcomes = [site.ask(phase, arrays) for site, (_, arrays) in zip(sites, same, strict=True)]
        if script.hidden and len(set(map(shape_of, outcomes))) > 1:
            return f"one row shows in '{phase}'"
        replied, said = outcomes[0]
        if "error" in said:
            if replied:
                return f"arrays beside a refusal of '{phase}'"
            if refused:
                return ""
            refused = True
            continue
        question = [phase, *(array.tobytes() for array in same[0][1])]
        replies = [[array.tobytes() for array in arrays] for arrays, _ in outcomes]
        if question == last_question:  # the reply may have been lost: it is sent again, byte for byte
            if replies != last_replies:
                return f"'{phase}' has other bytes when it is asked again"
            continue
        last_question, last_replies = question, replies
        answered.append(phase)
        in_order = [phase for phase, times in script.times.items() for _ in range(min(times, answered.count(phase)))]
        if refused or answered != in_order:
            return f"answered {answered}{' after a refusal' * refused}"
        if phase in script.constant and any(reply != replies[0] for reply in replies):
            return f"'{phase}' is not constant"
        if min_rows and not script.hidden:
            told = dict(zip([field.name for field in sites[0].client.script[phase].reply.fields], replied, strict=True))
            counts = [float(told[name]) for name in ("count", "used") if name in told and told[name].size]
            if min(counts, default=min_rows) < min_rows:
                return f"'{phase}' is about {counts} rows"
    return ""


@pytest.mark.parametrize(("script", "seed"), [(one, (i + 1) % 4) for i, one in enumerate(SELECTED_SCRIPTS)], ids=str)
def test_a_party_answers_its_script_and_nothing_else(script, seed, tmp_path):
    parties = sessions(script, tmp_path, *([ROWS, CHANGED_ROWS] if script.hidden else [ROWS]))
    assert not finding(script, seed, parties)
    assert "error" in parties[0].evaluate([np.eye(2, 6), np.zeros(6), np.empty(0)])


@pytest.mark.parametrize("script", SCRIPTS, ids=str)
def test_scripts_are_as_written_down(script, tmp_path):
    (session,) = sessions(script, tmp_path, ROWS)
    client, questions = session.client, Questions(0, {"d": 6, "n": 30})

    def ask_properly(phase):
        """With arrays of the right form."""
        question = client.script[phase]
        return session.ask(phase, questions.arrays(question, session, question.request_sizes(client.public)))

    may = [(name, phase.max_times(client.public)) for name, phase in client.script.items()]
    assert [(name, times) for name, times in may if times] == list(script.times.items())
    replied, report = ask_properly(list(script.times)[-1])
    assert bool(replied) == ("error" not in report) == (len(script.times) == 1)
    session.refusal("no such phase", [])
    for phase in list(script.times)[:3]:
        replied, report = ask_properly(phase)
        assert not replied
        assert report["error"] in {"ContractError", "PartyError"}
