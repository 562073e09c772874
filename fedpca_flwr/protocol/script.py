"""A run's script: which question may come when. Server and parties read the same one, and neither knows the other.

The phases come in their order, each at most `Phase.times` times in a row; those that are not optional at least once.
A pure function of the run-config and the number of parties: what is not in it is never answered. Numbers of the run
that several questions name (its centre, its rows) stay what they were in the first of them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedpca_flwr.errors import ContractError
from fedpca_flwr.protocol.payload import Fields, Payload
from fedpca_flwr.protocol.phase import SERVER, Phases, Public
from fedpca_flwr.protocol.state import State

SPREAD = "told spread"
"""Where a party keeps the roots of the scatter's diagonal that a run told."""


def require_next(phases: Phases, answered: Sequence[str], phase: str, public: Public) -> None:
    """Refuse a question that is not the next of the script.

    Parameters
    ----------
    phases : mapping of str to Phase
        The script.
    answered : sequence of str
        The phases of all questions so far.
    phase : str
        Of the question.
    public : Public
        What the times depend on, where they are no fixed number.

    Raises
    ------
    ContractError
    """
    names = [name for name in phases if phases[name].most(public)]
    if phase not in names:
        raise ContractError(
            f"the server asked for '{phase[:20]}', expected one of: {', '.join(names)}; do all parties run the same "
            "version?"
        )
    place, last = names.index(phase), names.index(answered[-1]) if answered else -1
    times = list(answered).count(phase)
    if place >= last and times >= phases[phase].most(public):
        raise ContractError(f"the server asked for '{phase}' {times + 1} times in one run; {times} are allowed")
    if place == last:
        return
    skipped = [name for name in names[last + 1 : place] if not phases[name].optional]
    if place < last or skipped:
        before = f"after '{answered[-1]}'" if answered else "first"
        raise ContractError(f"the server asked for '{phase}' {before}; a run asks in the order {', '.join(names)}")


ROUNDING = 2.0**-40
"""Share of a number and of its spread by which one that is rounded otherwise may differ from it."""


def require_as_told(payload: Payload, asked: Fields, state: State) -> None:
    """Refuse a number of the run that is not what the party was told earlier in it; keep those told first.

    Raises
    ------
    ContractError
    """
    for field in payload.fields:
        value, name = asked[field.name], f"told {field.fixed or field.near}"
        if field.fixed and value.size and name not in state:
            state[name] = [value]
        elif field.fixed and value.size:
            require_same(field.name, np.array_equal(state[name][0], value))
        elif field.near and name in state and value.any():
            told, spread = (np.abs(one[0]) for one in (state[name], state[SPREAD]))
            require_same(field.name, bool(np.all(np.abs(value - state[name][0]) <= ROUNDING * (told + spread))))


def require_same(name: str, same: bool) -> None:
    """Refuse a number that changes within a run.

    Raises
    ------
    ContractError
    """
    if not same:
        raise ContractError(f"{SERVER}: '{name}' is not what an earlier question of this run said")


def most_rounds(phases: Phases, public: Public) -> int:
    """So many questions a run has, at most."""
    return sum(phase.most(public) for phase in phases.values())
