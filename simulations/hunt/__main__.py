"""Look for wrong results until a time is over, or repeat one draw.

    python -m simulations.hunt --minutes 10 --seed 7
    python -m simulations.hunt --seed 7 --only 1234

Every line of a finding ends with the command that repeats it. The exit code is 1 where there was one.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from simulations.hunt.checks import findings
from simulations.hunt.draw import draw, method_of
from simulations.hunt.running import run_draw
from strategies import METHODS


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
    """One line for each finding among these draws of a seed."""
    for index in indices:
        drawn = draw(seed, index)
        row = drawn.method, drawn.transport
        outcome = run_draw(drawn)
        found = findings(drawn, outcome)
        tally.runs[row] += 1
        tally.refusals[row] += outcome.error is not None
        tally.findings[row] += bool(found)
        tally.kinds.update(kind for kind, _ in found)
        for kind, text in found:
            options = " ".join(f"{key}={value!r}" for key, value in drawn.options.items())
            wrong = f", {drawn.hostile}" if drawn.hostile else ""
            about = f"{drawn.method} ({drawn.transport}), {drawn.about}{wrong}, {options}"
            again = f"python -m simulations.hunt --seed {seed} --only {index}"
            yield f"{kind}: {text} | {about} | {again}".replace("\n", " ")


def until(end: float, seed: int, methods: Sequence[str]) -> Iterator[int]:
    """Numbers of draws with these methods, until a time."""
    for index in itertools.count():
        if time.monotonic() > end:
            return
        if method_of(seed, index) in methods:
            yield index


def show(seed: int, index: int) -> int:
    """Repeat one draw, with all that is known of it."""
    drawn = draw(seed, index)
    outcome = run_draw(drawn)
    print(f"{drawn.method} ({drawn.transport}), {drawn.about}\n{drawn.options}\n{drawn.hostile or 'nothing hostile'}")
    print(outcome.model.summary() if outcome.model else outcome.where)
    found = findings(drawn, outcome)
    print("\n".join(f"{kind}: {text}" for kind, text in found) or "no finding")
    return int(bool(found))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m simulations.hunt", description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, help="the number of one draw, which is then shown")
    parser.add_argument("--methods", nargs="+", choices=list(METHODS), default=list(METHODS))
    given = parser.parse_args(arguments)
    if given.only is not None:
        return show(given.seed, given.only)
    tally = Tally()
    for line in hunt(given.seed, until(time.monotonic() + 60 * given.minutes, given.seed, given.methods), tally):
        print(line, flush=True)
    print(tally.table())
    print(", ".join(f"{kind} {count}" for kind, count in tally.kinds.most_common()) or "no finding")
    return int(bool(tally.findings))


if __name__ == "__main__":
    sys.exit(main())
