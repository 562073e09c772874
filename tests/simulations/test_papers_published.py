"""The page of what the seeds show is made of its table and of what the command found, and the command holds it."""

import json
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import pytest

from simulations.papers import notes, personalised, published
from simulations.papers.__main__ import PAPERS, main
from simulations.papers.experiment import Step
from simulations.papers.published import STATES, Number, Seed, Shown, page, seeds
from simulations.programs import parser

HERE = Path(published.__file__).parent
ROOT = HERE.parents[1]
NUMBERS = json.loads((HERE / "numbers.json").read_text(encoding="utf-8"))
SHOWN = [(seed, shown) for seed in seeds() for shown in seed.shows]


def test_numbers_stand_on_the_page_before_those_of_the_paper():
    text = (ROOT / "docs" / "published.md").read_text(encoding="utf-8")
    assert text == page(seeds(), NUMBERS), "copy published.md and numbers.json from the command's folder"
    assert len(text.encode()) <= 8_800
    shown = Shown("it", "reproduced", numbers=[Number("a", "s", "c", 0, 1, "0.01"), Number("b", "s", "c", 0, 1)])
    assert shown.cell({"a": 1.234e-13, "b": 0.56789}) == "a: 1e-13 (0.01); b: 0.5679"


def test_every_row_has_a_state_and_what_was_reproduced_a_number_within_its_interval():
    assert {seed.paper for seed in seeds()} == set(PAPERS) - {"all"}
    assert not [line for seed in seeds() for line in published.outside(seed, NUMBERS[seed.paper])]
    for seed, shown in SHOWN:
        assert shown.state in STATES
        assert shown.why or shown.state == "reproduced", shown.what
        assert bool(shown.numbers) == (shown.state != "cannot be"), shown.what
        missing = {number.name for number in shown.numbers} - NUMBERS[seed.paper][shown.what].keys()
        assert (shown.printed(NUMBERS[seed.paper][shown.what]) == "not run") == bool(missing), shown.what
    assert len({(seed.paper, shown.what) for seed, shown in SHOWN}) == len(SHOWN)


def test_steps_that_are_named_are_there():
    """Those of bundled data; quick ones have numbers."""
    for seed in seeds():
        paper = import_module(f"simulations.papers.{seed.paper.replace('-', '_')}").PAPER
        steps = {step.name for step in paper.steps(**vars(parser("", None, paper.options).parse_args([])))}
        assert set(seed.quick) <= steps & {number.step for shown in seed.shows for number in shown.numbers}


def test_the_quick_run_computes_nothing_twice_and_fails_outside_the_interval(tmp_path, monkeypatch):
    """Of a table of one paper with one number."""
    calls = []

    def function(x):
        calls.append(x)
        yield {"method": "a", "angle": 2.0 * x}
        yield {"method": "b", "angle": 100.0}

    def steps(**_):
        return [Step("one", function, {"x": 1}), Step("long", lambda: pytest.fail("not a quick step"))]

    def expected(low, high):
        shown = Shown("it", "reproduced", numbers=[Number("a", "one", "angle", low, high, "2.1", {"method": "a"})])
        monkeypatch.setattr(published, "seeds", lambda: [Seed("notes", "Notes", "text", ["one"], [shown])])

    monkeypatch.setattr(notes, "PAPER", replace(notes.PAPER, steps=steps, figures=lambda *_: {}))
    expected(1.9, 2.1)
    for _ in range(2):
        assert main(["all", "--output", str(tmp_path), "--quick"]) == 0
    assert json.loads((tmp_path / "numbers.json").read_text()) == {"notes": {"it": {"a": 2.0}}}
    expected(2.1, 3)
    with pytest.raises(SystemExit) as stopped:
        main(["all", "--output", str(tmp_path), "--quick"])
    assert all(named in str(stopped.value) for named in ("notes", "it", "a is 2", "2.1", "3"))
    assert calls == [1]


def test_options_of_the_model_change_only_the_steps_that_they_are_about():
    given = {"datasets": 1, "shrink": 10}
    usual = {step.name: step.settings for step in personalised.steps(**given)}
    other = {step.name: step.settings for step in personalised.steps(**given, alpha=0.5)}
    changed = [name for name in usual if usual[name] != other[name]]
    assert changed == [name for name in usual if name.startswith(("1a-trace", "2-", "local"))]
    assert all("alpha" in other[name]["solver"] for name in other if name.startswith("2-"))
    assert all(step.settings["noise"] == 0.3 for step in personalised.steps(**given, noise=0.3))
