"""What a comparison recommends: for each wish, the method that meets it at the least cost."""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from fedpca_flwr.simulations.records import Record, card_of, named, shown

EXACT = 1e-6
"""Degrees within which components are the same for every purpose."""

WITHIN = (0.1, 1.0, 10.0)
"""Degrees for which a cheaper method is looked for."""

SAW = "the server saw "
"""How the note of a transport begins that shows the server sums."""


class Choice(NamedTuple):
    """A wish, and the run that meets it best."""

    wish: str
    run: Record

    @property
    def cost(self) -> str:
        """Rounds, and bytes up, in words."""
        rounds = "one round" if self.run["rounds"] == 1 else f"{self.run['rounds']} rounds"
        return f"{rounds}, mean {shown(self.run, 'MB up')} up"

    @property
    def warning(self) -> str:
        """That components are noise, where a private run says so; else nothing."""
        above, k = self.run["measured"].get("components_above_noise"), self.run["components"]
        if above is None or above >= k:
            return ""
        return f"{f'only {above:g}' if above else 'none'} of {k} components above the noise"

    @property
    def server_sees(self) -> str:
        """As the notes of this run say, which a transport of sums writes; in clear what the method sends."""
        seen = [note.removeprefix(SAW) for note in self.run.get("notes", []) if note.startswith(SAW)]
        return "; ".join(seen) or card_of(self.run["method"]).server_sees


def choices(records: Iterable[Record]) -> list[Choice]:
    """The best runs of one setting, for every wish that any of them meets.

    Among methods for rows alone: those for columns answer another question.
    """
    good = [r for r in records if "error" not in r and card_of(r["method"]).split == "rows"]
    with_angle = [r for r in good if r["max angle"] is not None]
    exact = [r for r in with_angle if r["exact"] and r["max angle"] <= EXACT]
    within = {degrees: [r for r in with_angle if r["max angle"] <= degrees] for degrees in WITHIN}
    private = [r for r in good if card_of(r["method"]).differentially_private]
    wishes: list[tuple[str, list[Record], Callable[[Record], tuple[float, ...]]]] = [
        ("exact, in the fewest rounds", exact, lambda r: (r["rounds"], r["MB up"])),
        ("exact, with the fewest bytes up", exact, lambda r: (r["MB up"], r["rounds"])),
        *((f"within {degrees:g}°", near, lambda r: (r["MB up"],)) for degrees, near in within.items()),
        ("differentially private", private, lambda r: (-r["captured variance"],)),
    ]
    found: list[Choice] = []
    for wish, runs, cost in wishes:
        best = min(runs, key=cost, default=None)
        if best and not (wish.startswith("within") and best in [choice.run for choice in found]):  # no cheaper one
            found.append(Choice(wish, best))
    return found


def sentence(found: Sequence[Choice]) -> str:
    """The recommendation in a paragraph; empty where there is none."""
    wishes: dict[str, list[str]] = {}
    costs = {named(choice.run): _with_warning(choice) for choice in found}
    for choice in found:
        wishes.setdefault(named(choice.run), []).append(choice.wish)
    said = [f"{'; '.join(its)}: {name} ({costs[name]})" for name, its in wishes.items()]
    return " ".join(f"{text[0].upper()}{text[1:]}." for text in said)


def _with_warning(choice: Choice) -> str:
    """The cost, and where components are noise, how far off they are."""
    if not choice.warning:
        return choice.cost
    angle = choice.run["max angle"]
    off = "" if angle is None else f", largest angle {angle:.2g}°"
    return f"{choice.cost}; {choice.warning}{off}"
