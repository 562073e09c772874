"""The server's half of secure aggregation: masked vectors are added, and only the sum over all parties is ever opened.

Every secure run begins with the round ``keys`` (each party's new public key, which the server passes on). Sums follow
(`fedpca_flwr.secure` has the masks). A party that is missing leaves noise and ends the run, as everywhere; a sum that
goes on without some parties is in `strategies.survivors`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from flwr.common import Parameters, Scalar
from numpy.typing import NDArray

from fedpca_flwr.contract import Field, Fields, Payload
from fedpca_flwr.errors import ContractError
from fedpca_flwr.maths.fixed_point import Layout
from fedpca_flwr.secure import KEY_BYTES, Words
from strategies.base import MethodCard, PCAStrategy, Reply, Request, Solution
from strategies.sums import ROWS

KEYS = Payload((Field("public", ("key",), "uint8"),))
MASKED = Payload((Field("masked", ("words",), "uint64"),))

NOTE = (
    "the server saw sums over all parties only; to see more it must relay false keys (which a 'group-secret' of the "
    "sites prevents) or collude with all parties but one"
)


def secure_card(card: MethodCard, *phases: str) -> MethodCard:
    """The card of a summable method with secure aggregation, whose sums these phases ask for."""
    payloads = {"keys": KEYS, **dict.fromkeys(phases, MASKED)}
    return replace(card, payloads=payloads, rounds=len(phases) + card.rounds, private=True)


class SecureStrategy(PCAStrategy):
    """Base of the strategies with secure aggregation. A method adds `ask` and `aggregate_sum`."""

    def __init__(self, config, options) -> None:
        super().__init__(config, options)
        self._publics: NDArray | None = None  # (parties, 32)
        self._relayed = False
        self.layout = Layout({})  # of the sum that is asked for

    # What a method writes

    @abstractmethod
    def ask(self) -> tuple[str, Sequence[NDArray], Layout]:
        """The next sum: its phase, what every party receives, and its layout."""

    @abstractmethod
    def aggregate_sum(self, fields: Fields, *, last: bool) -> tuple[Parameters | None, dict[str, Scalar]]:
        """The aggregation of the sum over all parties; ``last``: no further round is allowed."""

    # What the base calls

    def request(self) -> Request:
        if self._publics is None:
            return Request("keys", sizes={"key": KEY_BYTES})
        phase, arrays, self.layout = self.ask()
        if not self._relayed:
            arrays = [self._publics, *arrays]
        return Request(phase, arrays, {"words": self.layout.size})

    def aggregate_fit(self, server_round, results, failures):
        replies = self.collect(server_round, results, failures)
        if self._publics is None:
            self._publics = np.stack([reply.fields["public"] for reply in replies])
            return None, {}
        self._relayed = True
        fields = opened(self.layout, [reply.fields["masked"] for reply in replies])
        return self.aggregate_sum(fields, last=server_round == self.rounds)

    def finish(self, solution: Solution, *, notes=(), measured=None) -> tuple[Parameters, dict[str, Scalar]]:
        told = {"secure aggregation": f"pairwise masks, {self.quorum.expected} parties"}
        return super().finish(solution, notes=[*notes, NOTE], measured={**(measured or {}), **told})


def opened(layout: Layout, vectors: Sequence[NDArray]) -> Fields:
    """The sum of masked vectors: masks cancel only if those of all parties are in it.

    Raises
    ------
    ContractError
    """
    parties, fields = layout.decode(summed(layout, vectors))
    if parties != len(vectors):
        raise ContractError(
            f"the masks of the {len(vectors)} parties do not cancel: a site's 'group-secret' is not that of the "
            "others, or a key or a request was altered on its way; nothing can be read from the sum"
        )
    return fields


def opened_last(layout: Layout, replies: Sequence[Reply]) -> Fields:
    """The sum of the masked vectors that came with the replies of the last round.

    Raises
    ------
    ContractError
    """
    for reply in replies:
        if len(reply.sealed) != 8 * layout.size:
            raise ContractError(f"{reply.sender}: its masked error has another length than {8 * layout.size} bytes")
    return opened(layout, [np.frombuffer(reply.sealed, "<u8") for reply in replies])


def summed(layout: Layout, vectors: Sequence[NDArray]) -> Words:
    """The sum of vectors modulo 2^64."""
    total = np.zeros(layout.size, np.uint64)
    for vector in vectors:
        total += vector
    return total


def rows_of(count: NDArray, parties: int) -> int:
    """The number of rows that the parties of an opened sum have, checked: nobody can check a single share.

    Raises
    ------
    ContractError
    """
    rows = int(count)
    if not parties <= rows <= ROWS:
        raise ContractError(
            f"the {parties} parties together say that they have {rows} rows, expected {parties} to {ROWS:,}: the share "
            "of one of them is false, or was altered on its way"
        )
    return rows
