"""Rules of a script: the order of its questions, and constants of the run that no question may change."""

from collections.abc import Sequence

import numpy as np

from fedpca_flwr.errors import ContractError, value_text
from fedpca_flwr.protocol.journal import State
from fedpca_flwr.protocol.payload import Fields, Payload
from fedpca_flwr.protocol.question import SERVER, Public, Questions


def require_next(script: Questions, answered: Sequence[str], phase: str, public: Public) -> None:
    """Raise ContractError for a question that the script lacks, has at another place, or does not allow so often.

    `answered` has the phases of earlier questions, the last one last.
    """
    max_times = script[phase].max_times(public) if phase in script else 0
    if not max_times:
        raise ContractError(
            f"the server asked for {value_text(phase)}, expected one of: {_allowed_names(script, public)}; do all "
            "parties run the same version?"
        )
    names = list(script)
    position, last = names.index(phase), names.index(answered[-1]) if answered else -1
    times = answered.count(phase)
    if position >= last and times >= max_times:
        raise ContractError(f"the server asked for '{phase}' {times + 1} times in one run; {times} are allowed")
    skipped = [script[name] for name in names[last + 1 : position] if not script[name].optional]
    if position < last or any(question.max_times(public) for question in skipped):
        before, order = f"after '{answered[-1]}'" if answered else "first", _allowed_names(script, public)
        raise ContractError(f"the server asked for '{phase}' {before}; a run asks in the order {order}")


def _allowed_names(script: Questions, public: Public) -> str:
    """Return the names of the questions that a run may ask, for an error."""
    return ", ".join(name for name, question in script.items() if question.max_times(public))


def require_unchanged(payload: Payload, request: Fields, state: State) -> None:
    """Raise ContractError if a constant of the run, such as its centre, differs from an earlier question.

    The first value of each constant is stored in `state`.
    """
    for entry in payload.fields:
        if not (entry.constant or entry.constant_or_zero):
            continue
        value, name = request[entry.name], f"told {entry.constant or entry.constant_or_zero}"
        is_constant, is_stored = bool(entry.constant and value.size), name in state
        if is_constant and not is_stored:
            state[name] = [value]
            continue
        must_equal = is_constant or (entry.constant_or_zero and is_stored and value.any())
        if must_equal and not np.array_equal(state[name][0], value):
            raise ContractError(f"{SERVER}: '{entry.name}' differs from the value in an earlier question of this run")


def max_questions(script: Questions, public: Public) -> int:
    """Return the largest number of questions that a run can ask by its script, optional ones included."""
    return sum(question.max_times(public) for question in script.values())
