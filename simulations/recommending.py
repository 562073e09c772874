"""Recommendations of a comparison: for each wish, the cheapest method that fulfils the wish."""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from fedpca_flwr.maths.eigen import EXACT_ANGLE_DEGREES
from fedpca_flwr.simulations.records import Record, card_of, format_result, method_text

TOLERANCES_DEGREES = (0.1, 1.0, 10.0)  # largest angles for each of which the cheapest method is recommended
SERVER_SAW = "the server saw "  # beginning of the note of a transport that shows the server sums


class Choice(NamedTuple):
    """Wish, such as exact in the fewest rounds, and the run of a comparison that meets the wish best."""

    wish: str
    run: Record

    @property
    def cost(self) -> str:
        """Number of rounds and mean size sent by a party, in words."""
        rounds = "one round" if self.run["rounds"] == 1 else f"{format_result(self.run, 'rounds')} rounds"
        return f"{rounds}, mean {format_result(self.run, 'MB up')} up"

    @property
    def warning(self) -> str:
        """Text on how few components of a private run stand out of the noise; empty if all do."""
        above, k = self.run["measured"].get("components_above_noise"), self.run["components"]
        if above is None or above >= k:
            return ""
        return f"{f'only {above:g}' if above else 'none'} of {k} components above the noise"

    @property
    def server_sees(self) -> str:
        """Text on what the server sees: sums, by the run's notes, or whatever the method sends in clear."""
        notes = self.run.get("notes", [])
        sums = [note.removeprefix(SERVER_SAW) for note in notes if note.startswith(SERVER_SAW)]
        return "; ".join(sums) or card_of(self.run["method"]).server_sees


def choices(records: Iterable[Record]) -> list[Choice]:
    """Choose the best run of a setting, among methods for rows, for each wish that some run meets."""
    good = [r for r in records if "error" not in r and card_of(r["method"]).split == "rows"]
    with_angle = [r for r in good if r["max angle"] is not None]
    exact = [r for r in with_angle if r["exact"] and largest_angle(r) <= EXACT_ANGLE_DEGREES]
    within = {degrees: [r for r in with_angle if largest_angle(r) <= degrees] for degrees in TOLERANCES_DEGREES}
    judged = [r for r in good if r.get("captured variance") is not None]
    private = [r for r in judged if card_of(r["method"]).differentially_private]
    wishes: list[tuple[str, list[Record], Callable[[Record], tuple[float, ...]]]] = [
        ("exact, in the fewest rounds", exact, lambda r: (r["rounds"], r["MB up"])),
        ("exact, with the fewest bytes up", exact, lambda r: (r["MB up"], r["rounds"])),
        *((f"within {degrees:g}°", near, lambda r: (r["MB up"],)) for degrees, near in within.items()),
        ("differentially private", private, lambda r: (-r["captured variance"],)),
    ]
    best_runs: list[Choice] = []
    for wish, runs, cost in wishes:
        best = min(runs, key=cost, default=None)
        if best and not (wish.startswith("within") and best in [choice.run for choice in best_runs]):  # no cheaper one
            best_runs.append(Choice(wish, best))
    return best_runs


def largest_angle(record: Record) -> float:
    """Return the largest angle of a record with angles, in degrees: of the run, or of all runs that it averages."""
    return float(record["largest angle"] if "largest angle" in record else record["max angle"])


def recommendation_text(recommended: Sequence[Choice]) -> str:
    """Write a sentence for each recommended method, with its wishes and costs; empty without recommendations."""
    wishes: dict[str, list[str]] = {}
    costs = {method_text(choice.run): _cost_with_warning(choice) for choice in recommended}
    for choice in recommended:
        wishes.setdefault(method_text(choice.run), []).append(choice.wish)
    sentences = [f"{'; '.join(texts)}: {name} ({costs[name]})" for name, texts in wishes.items()]
    return " ".join(f"{text[0].upper()}{text[1:]}." for text in sentences)


def _cost_with_warning(choice: Choice) -> str:
    """Write a run's cost; if some components are noise, add the warning and the largest angle."""
    if not choice.warning:
        return choice.cost
    angle = choice.run["max angle"]
    off = "" if angle is None else f", largest angle {angle:.2g}°"
    return f"{choice.cost}; {choice.warning}{off}"
