"""How many digits of a sum are asked for: a few where these show what there is, else more.

Limits are public, and far above sums of most rows (`fedpca_flwr.questions.row_limits`). So a question whose values
travel in few digits has another one beside it, for the same sum in more. The run asks one of the two: which one follows
from sums that opened before, and tells nothing but digits.
"""

from collections.abc import Generator
from dataclasses import replace
from typing import Any

import numpy as np

from fedpca_flwr.config.run_config import RunConfig
from fedpca_flwr.maths.eigen import frobenius
from fedpca_flwr.protocol.payload import Fields
from fedpca_flwr.protocol.question import Ask, Question, Questions, Sum, Total, by_transport
from fedpca_flwr.protocol.strategy import PCAStrategy
from fedpca_flwr.questions.row_limits import require_resolved

SHOWS = 2.0**-40
"""Share of all variance that fixed point may cost before more digits are asked for."""

MANY = 4
"""Words of a value in more digits."""

FINER = "finer_"


def in_digits(config: RunConfig, name: str, question: Question) -> Questions:
    """A question, where only sums open in two words a value or in `MANY`."""
    either = replace(question, optional=True)
    both = {name: replace(either, words=2), FINER + name: replace(either, words=MANY)}
    return by_transport(config, clear={name: question}, masked=both)


def summed(
    run: PCAStrategy, name: str, asked: Fields, variance: float, or_else: str = ""
) -> Generator[Ask, Any, Total]:
    """The sum of the replies to it, in digits that show so much ``variance``.

    Raises
    ------
    ConfigError
        Where no digits do: the bound is too far above the data.
    """
    if FINER + name in run.phases:
        if _missed(run, name, asked) > SHOWS * variance:
            name = FINER + name
        require_resolved(run.config.bound, np.array([_missed(run, name, asked)]), np.array([variance]), or_else)
    total: Total = yield Sum(name, asked)
    return total


def _missed(run: PCAStrategy, name: str, asked: Fields) -> float:
    """What rounding may cost the sum (Frobenius norm)."""
    return max(map(frobenius, run.phases[name].layout(asked, run.public).missed(run.public.parties).values()))
