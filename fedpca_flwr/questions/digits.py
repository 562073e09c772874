"""Number of digits of a secure sum: few digits if these resolve the variance, and more otherwise.

Limits are public, and far above sums of most rows (`fedpca_flwr.questions.row_limits`). So two questions are for the
same sum, of which the run asks one by sums that opened before.
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
from fedpca_flwr.questions.row_limits import MAX_ROUNDING_SHARE, require_resolved

FINE_WORDS = 4  # words of 64 bits for a value in finer digits
FINE_PREFIX = "finer_"


def digits_questions(config: RunConfig, name: str, question: Question) -> Questions:
    """Return the question by ``name`` in clear; with secure sums one of 2 words a value, and a finer one."""
    words = {name: 2, FINE_PREFIX + name: FINE_WORDS}
    masked = {key: replace(question, optional=True, words=number) for key, number in words.items()}
    return by_transport(config, clear={name: question}, masked=masked)


def sum_in_digits(
    run: PCAStrategy, name: str, request: Fields, variance: float, advice: str = ""
) -> Generator[Round, Any, Total]:
    """Return the sum of the replies to a question, in digits that resolve ``variance``; ConfigError if none do."""
    if FINE_PREFIX + name in run.script:
        if _rounding_bound(run, name, request) > MAX_ROUNDING_SHARE * variance:
            name = FINE_PREFIX + name
        error_bound = np.array([_rounding_bound(run, name, request)])
        require_resolved(run.config.bound, error_bound, np.array([variance]), advice)
    total: Total = yield SumRound(name, request)
    return total


def _rounding_bound(run: PCAStrategy, name: str, request: Fields) -> float:
    """Return a bound on the Frobenius norm of the fixed-point rounding error of a question's sum."""
    error_bounds = run.script[name].layout(request, run.public).error_bound(run.public.parties)
    return max(map(frobenius_norm, error_bounds.values()))
