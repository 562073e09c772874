"""Payload fields of count, mean and second moments of a party's rows, and functions that write and read the fields.

Where rounding the mean would cost digits (a feature whose mean is more than about 200 times its standard deviation),
the rounding error follows as ``d`` more values. Otherwise ``remainder`` is empty.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.factors import Factor
from fedpca_flwr.maths.moments import Head, Moments
from fedpca_flwr.protocol.admission import Reply
from fedpca_flwr.protocol.payload import Field, Fields, Payload
from fedpca_flwr.protocol.question import Public, Question, Questions

COUNT = Field("count", (), dtype="int64", kind="count")

HEAD = (COUNT, Field("mean", ("d",)), Field("remainder", ("d",), optional=True))
"""Count and mean: the beginning of every first reply."""

TRUNCATED = Payload((*HEAD, Field("trace", ()), Field("omitted", ()), Field("rows", ("r", "d"))))
"""A truncated factor: the leading r eigenvectors of a scatter times the roots of their eigenvalues."""

MOMENTS = Payload((*HEAD, Field("scatter", ("d(d+1)/2",), kind="scatter")))

NEGLIGIBLE_REMAINDER = 2e-14  # standard deviations, by which an error of the mean does no more than rounding


def remainder_if_needed(head: Head, diagonal: Array, negligible: float = NEGLIGIBLE_REMAINDER) -> Array:
    """Return the rounding error (d,) of a mean, or (0,) if it is up to ``negligible`` deviations of every feature.

    ``diagonal`` (d,) is that of the rows' scatter.
    """
    spread = np.sqrt(diagonal / head.n)
    return head.remainder if (np.abs(head.remainder) > negligible * spread).any() else np.empty(0)


def head_fields(head: Head, diagonal: Array, negligible: float = NEGLIGIBLE_REMAINDER) -> Fields:
    """Return ``count``, ``mean`` and ``remainder`` of a reply, as `remainder_if_needed` has the last one."""
    return {
        "count": np.asarray(head.n),
        "mean": head.mean,
        "remainder": remainder_if_needed(head, diagonal, negligible),
    }


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
        factor = party.vault.truncated(rank(party.public))
        return {
            **head_fields(*party.vault.head_and_diagonal()),
            "trace": np.asarray(factor.trace),
            "omitted": np.asarray(factor.omitted),
            "rows": factor.rows,
        }

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
    """Return the count, mean and rounding error of the mean that the fields of a checked reply hold."""
    mean = fields["mean"]
    remainder = fields["remainder"] if fields["remainder"].size else np.broadcast_to(0.0, mean.shape)  # takes no room
    return Head(fields["count"].item(), mean, remainder)


def read_moments(fields: Fields) -> Moments:
    """Return the count, mean and packed scatter that a checked reply holds in the fields of `MOMENTS`."""
    return Moments(*read_head(fields), scatter=fields["scatter"])
