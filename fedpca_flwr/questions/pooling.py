"""Moments of rows: the fields in which parties send them, and what the server pools, learns from them and stores.

If rounding the mean would cost digits (more than about 200 deviations), ``remainder`` has its error, else no value.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fedpca_flwr.errors import ConfigError
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.factors import Factor
from fedpca_flwr.maths.moments import Head, Moments
from fedpca_flwr.model.solution import Solution
from fedpca_flwr.protocol.admission import Reply
from fedpca_flwr.protocol.card import PCAOptions
from fedpca_flwr.protocol.payload import Field, Fields, Payload
from fedpca_flwr.protocol.question import Public, Question, Questions, Round
from fedpca_flwr.questions.influence import AddedContributions, Contributions

if TYPE_CHECKING:
    from fedpca_flwr.model.second_moments import SecondMoments

COUNT = Field("count", (), dtype="int64", kind="count")

HEAD = (COUNT, Field("mean", ("d",)), Field("remainder", ("d",), optional=True))
"""Count and mean: the beginning of every first reply."""

TRUNCATED = Payload((*HEAD, Field("trace", ()), Field("omitted", ()), Field("rows", ("r", "d"))))
"""A truncated factor: the leading r eigenvectors of a scatter times the roots of their eigenvalues."""

MOMENTS = Payload((*HEAD, Field("scatter", ("d(d+1)/2",), kind="scatter")))

NEGLIGIBLE_REMAINDER = 2e-14  # standard deviations, by which an error of the mean does no more than rounding


def remainder_if_needed(head: Head, diagonal: Array, negligible: float = NEGLIGIBLE_REMAINDER) -> Array:
    """Return the rounding error (d,) of a mean, or (0,) if it is up to ``negligible`` deviations of every feature."""
    spread = np.sqrt(diagonal / head.n)
    return head.remainder if (np.abs(head.remainder) > negligible * spread).any() else np.empty(0)


def head_fields(head: Head, diagonal: Array, negligible: float = NEGLIGIBLE_REMAINDER) -> Fields:
    """Return the reply fields of count, mean, and (unless negligible) the rounding error of the mean.

    Parameters
    ----------
    head : Head
        Count and mean of the rows.
    diagonal : ndarray of shape (d,)
        Diagonal of the rows' scatter.
    negligible : float
        Rounding error of the mean, in standard deviations, that is left out.

    Returns
    -------
    mapping of str to ndarray
        ``count``, ``mean`` and ``remainder`` (d,) or (0,).
    """
    remainder = remainder_if_needed(head, diagonal, negligible)
    return {"count": np.asarray(head.n), "mean": head.mean, "remainder": remainder}


def truncated_questions(rank: Callable[[Public], int]) -> Questions:
    """Return the question for each party's rank-r factor of its scatter: eigenvectors times root eigenvalues.

    Parameters
    ----------
    rank : callable
        Function of the public parameters that returns the number of rows of the factor.

    Returns
    -------
    mapping of str to Question
        ``truncated``.
    """

    def answer(party: Any, request: Fields) -> Fields:
        """Return a party's count, mean, trace, first omitted eigenvalue and factor rows (r, d)."""
        factor, fields = party.vault.truncated(rank(party.public)), head_fields(*party.vault.head_and_diagonal())
        numbers = {"trace": np.asarray(factor.trace), "omitted": np.asarray(factor.omitted)}
        return {**fields, **numbers, "rows": factor.rows}

    return {"truncated": Question(reply=TRUNCATED, answer=answer, sizes=lambda public: {"r": rank(public)})}


def read_factor(reply: Reply) -> Factor:
    """Return the low-rank factor of a party's scatter that a checked reply holds.

    Parameters
    ----------
    reply : Reply
        Reply with the fields of `TRUNCATED`.

    Returns
    -------
    Factor
    """
    fields = reply.fields
    return Factor(read_head(fields), fields["rows"], float(fields["trace"]), float(fields["omitted"]))


def read_head(fields: Fields) -> Head:
    """Return the count, mean and rounding error of the mean that the fields of a checked reply hold.

    Parameters
    ----------
    fields : mapping of str to ndarray
        Fields of `HEAD`.

    Returns
    -------
    Head
    """
    mean = fields["mean"]
    remainder = fields["remainder"] if fields["remainder"].size else np.broadcast_to(0.0, mean.shape)  # takes no room
    return Head(fields["count"].item(), mean, remainder)


def read_moments(fields: Fields) -> Moments:
    """Return the moments that a checked reply holds in the fields of `MOMENTS`.

    Parameters
    ----------
    fields : mapping of str to ndarray
        ``count``, ``mean`` (d,), and ``scatter``, the packed triangle (d (d + 1) / 2,).

    Returns
    -------
    Moments
        The same, with the scatter about the mean.
    """
    return Moments(*read_head(fields), scatter=fields["scatter"])


STORED_MOMENTS_NOTE = "the moments of all rows were kept; they tell far more than this model (docs/statistics.md)"


def stored_moments(
    options: PCAOptions, pooled: Moments, parties: Mapping[str, Moments], *, error_bound: Array
) -> SecondMoments | None:
    """Return the moments of all rows (and parties) that the run stores; ``error_bound`` (d,) is of their diagonal."""
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
    """Raise ConfigError if ``keep`` asks for moments that secure sums, or sums ``within`` parties, do not show."""
    if within and keep != "nothing":
        raise ConfigError(
            f"run-config: 'keep' is '{keep}', but with secure-aggregation and 'harmonise' the server has no moments "
            "with what lies between the parties; use keep='nothing'"
        )
    if keep == "parties":
        raise ConfigError(
            "run-config: 'keep' is 'parties', but with secure-aggregation the server has the sum over all parties "
            "only; use keep='moments'"
        )


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """Facts about pooled moments for the model's log."""

    error_bound: Array = field(default_factory=partial(np.zeros, 1))  # (d,) or (1,), on rounding of variances times n
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
