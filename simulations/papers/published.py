"""Every table and figure of the seeds with its state: ours beside theirs, on a page, and each within its interval.

    python -m fedpca_flwr.simulations.papers all \
        --output FOLDER [--mnist DEST] [--cifar DEST] [--motes DIR] [--tables DIR]
    python -m fedpca_flwr.simulations.papers all --output FOLDER --quick

FOLDER gets a folder for each paper, numbers.json, and the page that paper/published.md is (with all data, and copied
beside this module and there). What is there is not computed again. ``--quick`` computes, in three minutes and of
bundled data, only what `published.toml` calls quick. The command fails where a number is outside its interval.
"""

import json
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from itertools import groupby
from pathlib import Path
from statistics import fmean
from typing import Any

from fedpca_flwr.figures.markdown import table
from fedpca_flwr.simulations.papers.experiment import Paper, Row, command, run_steps, write_text
from fedpca_flwr.state.files import SHARED, require_writable_folder

STATES = ("reproduced", "in shape", "cannot be")
HEAD = """# Published experiments, repeated

This page is for readers of the papers and design notes from which the methods come. The notes are not in this
repository. `python -m fedpca_flwr.simulations.papers all --output FOLDER` repeats the experiments, and writes a report
with figures. The file `simulations/papers/numbers.json` has all our numbers.

- *Reproduced*: our numbers or curves are those of the paper or note.
- *In shape*: our numbers or curves differ, and the page says why. If the paper or note prints numbers, a table gives
  our numbers, and the printed numbers in brackets.
- *Cannot be*: the data were not published, or were not available.
- *Not run*: the command takes hours, or needs data that were not available."""

Numbers = dict[str, dict[str, dict[str, float]]]  # numbers by paper, by table or figure, and by name


@dataclass(frozen=True)
class Number:
    """Published number and its interval: mean of a column over a step's rows whose values equal ``where``."""

    name: str
    step: str
    column: str
    low: float
    high: float
    theirs: str = ""
    where: Mapping[str, Any] | None = None

    def mean(self, rows: Sequence[Row]) -> float:
        """Return the mean of the column over the rows that fit ``where``; raise StatisticsError if none does."""
        conditions = (self.where or {}).items()
        return fmean(float(row[self.column]) for row in rows if all(row[key] == value for key, value in conditions))


@dataclass(frozen=True)
class Exhibit:
    """Table or figure of a published document: whether reproduced, why not, and its numbers."""

    what: str
    state: str
    why: str = ""
    numbers: Sequence[Number] = ()

    @property
    def compared(self) -> bool:
        """True if the document prints numbers to compare with."""
        return any(number.theirs for number in self.numbers)

    def state_text(self, measured: Mapping[str, float]) -> str:
        """Return the state of reproduction, or "not run" if a number, by name, is missing in ``measured``."""
        return self.state if all(number.name in measured for number in self.numbers) else "not run"

    def numbers_text(self, measured: Mapping[str, float]) -> str:
        """Write our numbers as a cell, each with the published number in brackets; equal neighbours share an entry."""
        pairs = {n.name: (_short(measured[n.name]), n.theirs) for n in self.numbers if n.name in measured}
        same = [(", ".join(names), *pair) for pair, names in groupby(pairs, key=lambda name: pairs[name])]
        return "; ".join(f"{names}: {ours}{f' ({theirs})' if theirs else ''}" for names, ours, theirs in same)


def _short(value: float) -> str:
    """Write a number with four digits; a positive number below 1e-6 is rounding, and gets a single digit."""
    return f"{value:.1g}" if 0 < value < 1e-6 else f"{value:.4g}"


@dataclass(frozen=True)
class Seed:
    """Published paper or design note that is reproduced here: name of its program, title, text, tables and figures."""

    paper: str
    title: str
    text: str
    quick: Sequence[str]  # steps that take seconds, and no file
    shows: Sequence[Exhibit]


def seeds() -> list[Seed]:
    """Read all papers and notes, with their tables, figures and numbers, from published.toml."""
    entries = tomllib.loads(Path(__file__).with_name("published.toml").read_text(encoding="utf-8"))["seed"]
    for entry in entries:
        shows = [{**shown, "numbers": [Number(**n) for n in shown.get("numbers", [])]} for shown in entry["shows"]]
        entry["shows"] = [Exhibit(**shown) for shown in shows]
    return [Seed(**entry) for entry in entries]


def measured_numbers(seed: Seed, results: Mapping[str, Sequence[Row]]) -> dict[str, dict[str, float]]:
    """Compute a document's numbers, by table or figure and by name, from the rows of the steps that were run."""
    return {
        exhibit.what: {n.name: n.mean(results[n.step]) for n in exhibit.numbers if n.step in results}
        for exhibit in seed.shows
    }


def numbers_outside(seed: Seed, reproduced: Mapping[str, Mapping[str, float]]) -> Iterator[str]:
    """Yield a line for each number of `measured_numbers` that lies outside its interval; missing numbers pass."""
    for exhibit in seed.shows:
        for number in exhibit.numbers:
            value = reproduced.get(exhibit.what, {}).get(number.name, number.low)
            if not number.low <= value <= number.high:
                what = f"{seed.paper}, {exhibit.what}, {number.name}"
                yield f"{what} is {value:.6g}, expected from {number.low:g} to {number.high:g}"


def _state_lines(state: str, entries: Iterable[tuple[str, Exhibit]]) -> list[str]:
    """Return a line for each reason of a state, with its tables and figures; no reasons if reproduced or not run."""
    with_reason = state not in ("reproduced", "not run")
    groups: dict[str, list[str]] = {}
    for entry_state, exhibit in entries:
        if entry_state == state:
            groups.setdefault(exhibit.why * with_reason, []).append(exhibit.what)
    lines = ((why.removesuffix("."), "; ".join(group)) for why, group in groups.items())
    return [f"- *{state.capitalize()}*: {f'{why} ({names})' if why else names}." for why, names in lines]


def page(every: Sequence[Seed], numbers: Numbers) -> str:
    """Write the page paper/published.md: reproduced numbers beside the numbers of each paper or note."""
    parts = [HEAD]
    for seed in every:
        entries = [(exhibit, numbers.get(seed.paper, {}).get(exhibit.what, {})) for exhibit in seed.shows]
        listed = [entry for entry in entries if entry[0].state_text(entry[1]) == "in shape" and entry[0].compared]
        lines = [[exhibit.what, exhibit.numbers_text(ours), exhibit.why] for exhibit, ours in listed]
        parts.append(f"## {seed.title}\n\n{seed.text.strip()}")
        parts += [table(["in shape", "ours (published)", "reason"], lines)] if lines else []
        further = [(exhibit.state_text(ours), exhibit) for exhibit, ours in entries if (exhibit, ours) not in listed]
        items = [line for state in (*STATES, "not run") for line in _state_lines(state, further)]
        parts += ["\n".join(items)] if items else []
    return "\n\n".join(parts) + "\n"


def reproduce_all(output: Path, *, quick: bool, **folders: str) -> None:
    """Reproduce all papers, or their quick steps, into a folder; SystemExit for numbers outside their intervals."""
    require_writable_folder(output, SHARED)
    numbers: Numbers = {}
    wrong: list[str] = []
    for seed in seeds():
        paper: Paper = import_module(f"{__package__}.{seed.paper.replace('-', '_')}").PAPER
        options = {name: folders.get(name, default) for name, default in paper.options.items()}
        if quick:
            few = [step for step in paper.steps(**options) if step.name in seed.quick]
            results = run_steps(few, output / seed.paper / "steps")
        else:
            results = paper.make(output / seed.paper, options)
        numbers[seed.paper] = measured_numbers(seed, results)
        wrong += numbers_outside(seed, numbers[seed.paper])
        write_text(output / "numbers.json", json.dumps(numbers, indent=1) + "\n")
    if wrong:
        raise SystemExit("\n".join(wrong))
    if not quick:
        write_text(output / "published.md", page(seeds(), numbers))


OPTIONS = {"mnist": "", "cifar": "", "motes": "", "tables": "", "quick": False}
COMMAND = command("all", __doc__, OPTIONS, reproduce_all)
