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
from fedpca_flwr.maths.eigen import frobenius_norm
from fedpca_flwr.protocol.payload import Fields
from fedpca_flwr.protocol.question import Question, Questions, Round, SumRound, Total, by_transport
from fedpca_flwr.protocol.strategy import PCAStrategy
from fedpca_flwr.questions.row_limits import require_resolved

MAX_ROUNDING_SHARE = 2.0**-40
"""Share of all variance that fixed point may cost before more digits are asked for."""

FINE_WORDS = 4
"""Words of a value in more digits."""

FINE_PREFIX = "finer_"


def digits_questions(config: RunConfig, name: str, question: Question) -> Questions:
    """A question, where only sums open in two words a value or in `MANY`."""
    optional_question = replace(question, optional=True)
    masked = {
        name: replace(optional_question, words=2),
        FINE_PREFIX + name: replace(optional_question, words=FINE_WORDS),
    }
    return by_transport(config, clear={name: question}, masked=masked)


def sum_in_digits(
    run: PCAStrategy, name: str, request: Fields, variance: float, advice: str = ""
) -> Generator[Round, Any, Total]:
    """The sum of the replies to it, in digits that show so much ``variance``.

    Raises
    ------
    ConfigError
        Where no digits do: the bound is too far above the data.
    """
    if FINE_PREFIX + name in run.script:
        if _rounding_bound(run, name, request) > MAX_ROUNDING_SHARE * variance:
            name = FINE_PREFIX + name
        require_resolved(
            run.config.bound, np.array([_rounding_bound(run, name, request)]), np.array([variance]), advice
        )
    total: Total = yield SumRound(name, request)
    return total


def _rounding_bound(run: PCAStrategy, name: str, request: Fields) -> float:
    """What rounding may cost the sum (Frobenius norm)."""
    return max(
        map(frobenius_norm, run.script[name].layout(request, run.public).error_bound(run.public.parties).values())
    )
