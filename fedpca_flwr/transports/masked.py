"""Masked: the server sees sums over all parties only (pairwise masks, `fedpca_flwr.transports.pairwise_masks`).

The round ``keys`` comes before the first sum: each party sends a new public key, and the server passes all of them on
with that sum. A party that is missing leaves noise and ends the run, as everywhere; a sum that goes on without some
parties is in `fedpca_flwr.transports.surviving`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from fedpca_flwr.errors import ContractError
from fedpca_flwr.protocol.payload import Field, Fields, Payload
from fedpca_flwr.protocol.phase import Ask, Phase, Phases, Program, Public, Sum
from fedpca_flwr.protocol.quorum import Quorum
from fedpca_flwr.protocol.transport import Answering, PartyTransport, Running, ServerTransport, Transport
from fedpca_flwr.transports.pairwise_masks import KEY_BYTES, mask, new_private_key, public_key, transcript
from fedpca_flwr.transports.words import (
    MASKED,
    Group,
    encoded,
    kept,
    only,
    opened,
    require_sums,
    split_keys,
)

PUBLICS = Field("publics", ("parties", "key"), "uint8")
"""The parties' public keys, which the server sends with the first sum."""

NOTE = (
    "the server saw sums over all parties only; to see more it must relay false keys (which a 'group-secret' of the "
    "sites prevents) or collude with all parties but one"
)


class Masked(Transport):
    """The method's sums as masked words, after the round ``keys``."""

    sums_only = True

    def __init__(self) -> None:
        self.own: Phases = {}

    def script(self, method: str, phases: Phases) -> Phases:
        require_sums(method, phases)
        self.own = phases
        first = first_sum(phases)
        script: dict[str, Phase] = {}
        for name, phase in phases.items():
            if name == first:
                script["keys"] = Phase(reply=Payload((Field("public", ("key",), "uint8"),)), sizes=_key_size)
                phase = replace(phase, asked=Payload((PUBLICS, *phase.asked.fields)), sizes=_with_keys(phase))
            script[name] = phase if phase.open else replace(phase, reply=MASKED)
        return script


class MaskedServer(Masked, ServerTransport):
    def questions(self, program: Program, run: Running) -> Program:
        publics: NDArray[np.uint8] | None = None
        relayed, answer = False, None
        while True:
            try:
                question = program.send(answer)
            except StopIteration:
                return
            if not isinstance(question, Sum):
                answer = yield question
                continue
            if publics is None:
                replies = yield Ask("keys")
                publics = np.stack([reply.fields["public"] for reply in replies])
            asked = question.asked if relayed else {"publics": publics, **question.asked}
            relayed = True
            layout = self.own[question.phase].layout(question.asked, run.public)
            replies = yield Ask(question.phase, asked)
            answer = opened(layout, [reply.fields["masked"] for reply in replies], [r.sender for r in replies])

    def measured(self, quorum: Quorum) -> dict[str, float]:
        return {"pairwise_masked_parties": quorum.expected}

    def notes(self, quorum: Quorum) -> list[str]:
        return [NOTE]


class MaskedParty(Masked, PartyTransport):
    """Adds this party's masks."""

    def __init__(self, group: Group) -> None:
        super().__init__()
        self.group = group

    def answer(self, party: Answering, phase: str, asked: Fields) -> Fields:
        if phase == "keys":
            return {"public": np.frombuffer(self._new_key(party), np.uint8)}
        own = self.own[phase]
        if own.open:
            return only(party.statistics(phase, asked))
        if "publics" in asked:
            self._accept(party, asked["publics"])
        private, publics = kept(party, "private"), split_keys(kept(party, "publics"))
        told = [asked[field.name] for field in own.asked.fields]
        about = transcript(phase, self.group.configuration, publics, told)
        vector = encoded(party, phase, own, {field.name: asked[field.name] for field in own.asked.fields})
        vector += mask(private, publics, about, self.group.secret, vector.size)
        return {"masked": vector}

    def _new_key(self, party: Answering) -> bytes:
        private = new_private_key()
        party.journal.keep("private", private)
        return public_key(private)

    def _accept(self, party: Answering, told: NDArray[np.uint8]) -> None:
        """Take the public keys of this run, if they are those of all parties, and those are enough."""
        publics = [key.tobytes() for key in told]
        known, expected = len(set(publics)), self.group.parties
        self.group.require(known)
        if known != len(publics) or known != expected or public_key(kept(party, "private")) not in publics:
            raise ContractError(
                f"the server sent {len(publics)} keys, of which {known} differ, expected those of {expected} parties, "
                "this site's own included"
            )
        party.permit_sum(self.group.members(publics))
        party.journal.keep("publics", b"".join(publics))


def first_sum(phases: Phases) -> str:
    """The first phase that is a sum, with which keys travel: it is asked once."""
    name = next(name for name, phase in phases.items() if not phase.open)
    assert phases[name].times == 1
    return name


def _key_size(public: Public) -> Mapping[str, int]:
    return {"key": KEY_BYTES}


def _with_keys(phase: Phase) -> Callable[[Public], Mapping[str, int]]:
    return lambda public: {**phase.sizes(public), "parties": public.parties, "key": KEY_BYTES}
