"""The server's half of a secure sum over the parties that survive: one sum a run, opened once.

Rounds: ``keys``; ``shares`` (each party's seed and mask key, shared among all); the method's own sum; ``agree`` (each
survivor proves to each other that it was told the same survivors); ``reveal`` (the shares by which the sum opens).
`fedpca_flwr.double_masks` has the protocol. A party may drop out in any of them while ``survivors`` are left: if its
vector came it is in the sum, else the sum is without it.

One sum a run, because the difference of two sums over different parties is the share of those that left: with a second
sum, a party that drops out between the two would be shown to the server. So methods that need several are refused.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
from flwr.common import Parameters, Scalar
from numpy.typing import NDArray

from fedpca_flwr.contract import Field, Payload
from fedpca_flwr.double_masks import PROOF, SEALED, SHARE, Ring, opened, require_threshold
from fedpca_flwr.maths.fixed_point import Layout
from fedpca_flwr.secure import KEY_BYTES, Words
from strategies.base import MethodCard, PCAStrategy, Reply, Request, Solution
from strategies.secure import KEYS, MASKED, summed

AROUND = {
    "keys": KEYS,
    "shares": Payload((Field("sealed", ("parties", "sealed"), "uint8"),)),
    "agree": Payload((Field("proofs", ("survivors", "proof"), "uint8"),)),
    "reveal": Payload((Field("shares", ("members", "share"), "uint8"),)),
}

NOTE = (
    "the server saw one sum, over these parties; to see more it must relay false keys (which a 'group-secret' of the "
    "sites prevents) or collude with a third of the parties"
)


def survivors_card(card: MethodCard, phase: str) -> MethodCard:
    """The card of a summable method with a sum over the survivors, which ``phase`` asks for."""
    return replace(card, payloads={**AROUND, phase: MASKED}, rounds=len(AROUND) + 1, private=True)


class SurvivorsStrategy(PCAStrategy):
    """Base of the strategies that go on with the survivors. A method adds `phase`, `layout` and `aggregate_sum`.

    Attributes
    ----------
    survivors : list of int
        Places, in the order of their partitions, of the parties in the sum.
    """

    phase: ClassVar[str]

    def __init__(self, config, options) -> None:
        super().__init__(config, options)
        self.survivors: list[int] = []
        self._stages = ["keys", "shares", self.phase, "agree", "reveal"]
        self._ring = Ring(())
        self._places: dict[int, int] = {}  # by partition
        self._sealed: dict[int, NDArray] = {}  # by place, as what follows
        self._proofs: dict[int, NDArray] = {}
        self._total = np.zeros(0, np.uint64)
        self._in_sum: list[dict[str, Any]] = []

    # What a method writes

    @abstractmethod
    def layout(self) -> Layout:
        """Of the sum."""

    @abstractmethod
    def aggregate_sum(self, total: Words) -> tuple[Parameters | None, dict[str, Scalar]]:
        """The aggregation of the opened sum over the survivors."""

    # What the base calls

    @property
    def rounds(self) -> int:
        return self.card.rounds

    def request(self) -> Request:
        stage, members, survivors = self._stages[0], list(self._sealed), self.survivors
        if stage == "keys":
            require_threshold(self.config.survivors, self.quorum.total)
            return Request(stage, sizes={"key": 2 * KEY_BYTES})
        if stage == "shares":
            publics = np.stack([np.frombuffer(keys, np.uint8) for keys in self._ring.publics])
            return Request(stage, [publics], {"parties": len(publics), "sealed": SEALED})
        if stage == self.phase:
            return Request(stage, [np.asarray(members)], {"words": self.layout().size})
        if stage == "agree":
            return Request(stage, [np.asarray(survivors)], {"survivors": len(survivors), "proof": PROOF})
        each = {party: self._addressed_to(place) for party, place in self._places.items()}
        return Request(stage, [np.asarray(list(self._proofs))], {"members": len(members), "share": SHARE}, each)

    def aggregate_fit(self, server_round, results, failures):
        replies = self.collect(server_round, results, failures)
        stage = self._stages.pop(0)
        if stage == "keys":
            self._places = {reply.party: place for place, reply in enumerate(replies)}
            self._ring = Ring([reply.fields["public"].tobytes() for reply in replies])
        elif stage == "shares":
            self._sealed = self._by_place(replies, "sealed")
        elif stage == self.phase:
            self.survivors, self._in_sum = [self._places[reply.party] for reply in replies], self.quorum.parties()
            self._total = summed(self.layout(), [reply.fields["masked"] for reply in replies])
        elif stage == "agree":
            self._proofs = self._by_place(replies, "proofs")
        else:
            return self.aggregate_sum(self._opened(self._by_place(replies, "shares")))
        return None, {}

    def finish(self, solution: Solution, *, notes=(), measured=None) -> tuple[Parameters, dict[str, Scalar]]:
        left, total = len(self.survivors), self.quorum.total
        told = {"secure aggregation": f"double masks, {left} of {total} parties"}
        inside = {party["party"] for party in self._in_sum}
        absent = [name for party, name in sorted(self.quorum.dropped.items()) if party not in inside]
        if absent:
            notes = [f"the PCA of {left} of {total} parties: {', '.join(absent)} dropped out", *notes]
        return super().finish(solution, notes=[*notes, NOTE], measured={**(measured or {}), **told})

    def history(self, pairs, notes=(), measured=None) -> dict[str, Any]:
        parties = [{**party, "rows": None} for party in self._in_sum]
        return {**super().history(pairs, notes, measured), "parties": parties}

    # Inside

    def _by_place(self, replies: Sequence[Reply], field: str) -> dict[int, NDArray]:
        return {self._places[reply.party]: reply.fields[field] for reply in replies}

    def _addressed_to(self, place: int) -> list[NDArray]:
        """What the other parties said to one of those that agree: shares, and proofs."""
        if place not in self._proofs:
            return []
        column = self.survivors.index(place)
        sealed = [rows[place] for rows in self._sealed.values()]
        return [np.stack(sealed), np.stack([rows[column] for rows in self._proofs.values()])]

    def _opened(self, shares: dict[int, NDArray]) -> Words:
        members = list(self._sealed)
        enough = sorted(shares)[: self.config.survivors]
        revealed = {
            place: {member: row.tobytes() for member, row in zip(members, shares[place], strict=True)}
            for place in enough
        }
        return opened(self._total, self._ring, self.phase, members, self.survivors, revealed)
