"""Draws one after another, and what was found in them."""

import itertools
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from fedpca_flwr.simulations.hunt.checks import findings
from fedpca_flwr.simulations.hunt.draw import draw, method_of
from fedpca_flwr.simulations.hunt.running import run_draw


@dataclass
class Tally:
    """Runs, refusals and findings, by method and transport."""

    runs: Counter[tuple[str, str]] = field(default_factory=Counter)
    refusals: Counter[tuple[str, str]] = field(default_factory=Counter)
    findings: Counter[tuple[str, str]] = field(default_factory=Counter)
    kinds: Counter[str] = field(default_factory=Counter)

    def table(self) -> str:
        lines = [f"{'method':<18}{'transport':<20}{'runs':>8}{'refusals':>10}{'findings':>10}"]
        for row in sorted(self.runs):
            numbers = f"{self.runs[row]:>8}{self.refusals[row]:>10}{self.findings[row]:>10}"
            lines.append(f"{row[0]:<18}{row[1]:<20}{numbers}")
        totals = f"{self.runs.total():>8}{self.refusals.total():>10}{self.findings.total():>10}"
        lines.append(f"{'all':<38}{totals}")
        return "\n".join(lines)


def hunt(seed: int, indices: Iterator[int], tally: Tally) -> Iterator[str]:
    """Yield a line for each finding among draws of a seed."""
    for index in indices:
        drawn = draw(seed, index)
        row = drawn.method, drawn.transport
        outcome = run_draw(drawn)
        problems = findings(drawn, outcome)
        tally.runs[row] += 1
        tally.refusals[row] += outcome.error is not None
        tally.findings[row] += bool(problems)
        tally.kinds.update(kind for kind, _ in problems)
        for kind, text in problems:
            options = " ".join(f"{key}={value!r}" for key, value in drawn.options.items())
            wrong = f", {drawn.hostile}" if drawn.hostile else ""
            wrong += ", frames in other orders" if drawn.orders else ""
            description = f"{drawn.method} ({drawn.transport}), {drawn.description}{wrong}, {options}"
            rerun = f"python -m fedpca_flwr.simulations.hunt --seed {seed} --only {index}"
            yield f"{kind}: {text} | {description} | {rerun}".replace("\n", " ")


def until(end: float, seed: int, methods: Sequence[str]) -> Iterator[int]:
    """Yield numbers of draws with given methods, until a time."""
    for index in itertools.count():
        if time.monotonic() > end:
            return
        if method_of(seed, index) in methods:
            yield index


def show(seed: int, index: int) -> int:
    """Repeat a draw, and print all about the run."""
    drawn = draw(seed, index)
    outcome = run_draw(drawn)
    print(f"{drawn.method} ({drawn.transport}), {drawn.description}\n{drawn.options}")
    print(drawn.hostile or "nothing hostile")
    print(outcome.model.summary() if outcome.model else outcome.where)
    problems = findings(drawn, outcome)
    print("\n".join(f"{kind}: {text}" for kind, text in problems) or "no finding")
    return int(bool(problems))
