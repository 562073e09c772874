"""Moments of all rows at the server, the evidence that comes with the moments, and what a run stores of both."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fedpca_flwr.errors import ConfigError
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.moments import Moments
from fedpca_flwr.model.solution import Solution
from fedpca_flwr.protocol.admission import Reply
from fedpca_flwr.protocol.card import PCAOptions
from fedpca_flwr.protocol.question import Round
from fedpca_flwr.questions.influence import AddedContributions, Contributions

if TYPE_CHECKING:
    from fedpca_flwr.model.second_moments import SecondMoments

STORED_MOMENTS_NOTE = "the moments of all rows were kept; they tell far more than this model (docs/statistics.md)"
UNSCALED_MOMENTS_NOTE = (
    "the kept moments are those of the features in their own units: analyses of this model's scaled features take "
    "model.moments_.scaled(model.scale_)"
)


def stored_moments(
    options: PCAOptions, pooled: Moments, parties: Mapping[str, Moments], *, error_bound: Array
) -> SecondMoments | None:
    """Return the moments of all rows (and of each party) that the run stores with the model, None by most options.

    ``error_bound`` (d,) is that of the scatter's diagonal, by rounding in fixed point.
    """
    count = options.stored_moments_count(len(parties))
    if not count:
        return None
    from fedpca_flwr.model.second_moments import SecondMoments  # few runs store moments

    party_moments = parties if count > 1 else {}
    return SecondMoments(pooled, parties=party_moments, error_bound=error_bound if error_bound.any() else np.zeros(0))


def party_names(replies: Sequence[Reply]) -> list[str]:
    """Return the member name of each reply, or if two are the same the sender of each."""
    names = [reply.member for reply in replies]
    return names if len(set(names)) == len(names) else [reply.sender for reply in replies]


def require_storable_sums(keep: str, *, within: bool) -> None:
    """Raise ConfigError if the option ``keep`` asks for moments that secure aggregation does not show the server.

    ``within`` says that the scatters are about each party's own mean: then the server lacks the moments of all rows.
    """
    if within and keep != "nothing":
        raise ConfigError(
            f"run-config: 'keep' is '{keep}', but with secure-aggregation and 'harmonise' the server has no moments "
            "with what lies between the parties; use keep=nothing"
        )
    if keep == "parties":
        raise ConfigError(
            "run-config: 'keep' is 'parties', but with secure-aggregation the server has the sum over all parties "
            "only; use keep=moments"
        )


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """Facts about pooled moments for the model's log."""

    error_bound: Array = field(
        default_factory=partial(np.zeros, 1)
    )  # (d,) or (1,), on rounding of variances times rows
    cautions: Sequence[str] = ()  # for the reader of the model
    contributions: Contributions | AddedContributions | None = None  # of each party, where the server sees them
    units: Sequence[dict[str, Any]] | None = None  # features in another unit at a party; None: as contributions say
    stored: SecondMoments | None = None  # moments of all rows, where the run stores them


Fitting = Generator[Round, Any, Solution]
"""Server's half of a method: a generator that yields questions and returns the result."""


class PooledMoments(NamedTuple):
    """Pooled moments of all parties, the single parties' moments if known, and facts for the model's log."""

    moments: Moments  # of all rows, or without the scatter between the parties' means
    diagonal: Array  # (d,) of the scatter of all rows
    total: Moments | None = None  # of all rows, where the server has them
    parts: Mapping[str, Moments] = MappingProxyType({})  # by each party's name in texts, where stored
    names: Sequence[str] = ()  # of the parties, the same in every run, in the same order
    evidence: Evidence = Evidence()


Pooling = Generator[Round, Any, PooledMoments]
