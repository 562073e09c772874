"""Masked: the server sees sums over all parties only (pairwise masks, `fedpca_flwr.transports.pairwise_masks`).

The round ``keys`` comes before the first sum: each party sends a new public key, which it signs, and the server passes
all of them on with that sum, in the order of the parties. Each party verifies all of them before it masks anything. A
party that is missing leaves noise and ends the run, as everywhere; a sum that goes on without some parties is in
`fedpca_flwr.transports.surviving`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from fedpca_flwr.protocol.messages import Reply
from fedpca_flwr.protocol.payload import Field, Fields, Payload
from fedpca_flwr.protocol.phase import Ask, Phase, Phases, Program, Public, Sum
from fedpca_flwr.protocol.quorum import Quorum
from fedpca_flwr.protocol.transport import Answering, PartyTransport, Running, ServerTransport, Transport
from fedpca_flwr.transports.pairwise_masks import (
    KEY_BYTES,
    mask_of,
    new_private_key,
    public_key,
    shared_secrets,
    split_keys,
    transcript,
)
from fedpca_flwr.transports.signed import SIGNATURE, SIZES
from fedpca_flwr.transports.words import (
    MASKED,
    Group,
    RunningSum,
    encoded,
    require_sums,
    secret_of,
    whole_answer,
)

KEYS = (Field("publics", ("parties", "key"), "uint8"), Field("signatures", ("parties", "signature"), "uint8"))
"""The parties' public keys, which the server sends with the first sum."""

NOTE = (
    "the server saw sums over all parties only; to see more it must collude with all parties but one (it cannot act in "
    "place of a site that has an 'identity')"
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
                script["keys"] = Phase(reply=Payload((Field("public", ("key",), "uint8"), SIGNATURE)), sizes=_key_size)
                phase = replace(phase, asked=Payload((*KEYS, *phase.asked.fields)), sizes=_with_keys(phase))
            script[name] = phase if phase.in_clear else replace(phase, reply=MASKED, summed=phase.reply)
        return script


class MaskedServer(Masked, ServerTransport):
    def questions(self, program: Program, run: Running) -> Program:
        keys: Fields | None = None
        relayed, answer = False, None
        while True:
            try:
                question = program.send(answer)
            except StopIteration:
                return
            if not isinstance(question, Sum):
                answer = yield question
                continue
            if keys is None:
                replies = yield Ask("keys")
                keys = relayed_keys(replies)
            asked = question.asked if relayed else {**keys, **question.asked}
            relayed = True
            total = RunningSum(self.own[question.phase].layout(question.asked, run.public))
            replies = yield Ask(question.phase, asked, take=total.add)
            answer = total.decoded(replies)

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
            public = self._new_key(party)
            signature = self.group.signer.sign("run keys", public)
            return {"public": np.frombuffer(public, np.uint8), "signature": signature}
        own = self.own[phase]
        if own.in_clear:
            return whole_answer(party.statistics(phase, asked))
        if "publics" in asked:
            self._accept(party, asked["publics"], asked["signatures"])
        publics, shared = (split_keys(secret_of(party, name)) for name in ("publics", "shared"))
        own_asked = {field.name: asked[field.name] for field in own.asked.fields}
        about = transcript(phase, self.group.signer.about, publics, [np.asarray(party.number), *own_asked.values()])
        vector = encoded(party, phase, own, own_asked)
        others = [public for public in publics if public != publics[self._place]]
        vector += mask_of(publics[self._place], dict(zip(others, shared, strict=True)), about, vector.size)
        return {"masked": vector}

    @property
    def _place(self) -> int:
        return self.group.signer.identity.party

    def _new_key(self, party: Answering) -> bytes:
        private = new_private_key()
        party.journal.keep("private", private)
        return public_key(private)

    def _accept(self, party: Answering, keys: NDArray[np.uint8], signatures: NDArray[np.uint8]) -> None:
        """Take the public keys of this run, if each is that of its party, and the parties are enough."""
        publics = [key.tobytes() for key in keys]
        self.group.require(len(publics))
        private = secret_of(party, "private")
        self.group.signer.require_keys(range(len(publics)), publics, signatures, public_key(private))
        party.permit_sum(self.group.members(range(len(publics))))
        party.journal.keep("shared", b"".join(shared_secrets(private, publics).values()))
        party.journal.keep("publics", b"".join(publics))


def first_sum(phases: Phases) -> str:
    """The first phase that is a sum, with which keys travel: it is asked once."""
    name = next(name for name, phase in phases.items() if not phase.in_clear)
    assert phases[name].times == 1
    return name


def _key_size(public: Public) -> Mapping[str, int]:
    return {"key": KEY_BYTES, **SIZES}


def _with_keys(phase: Phase) -> Callable[[Public], Mapping[str, int]]:
    return lambda public: {**phase.sizes(public), "parties": public.parties, **_key_size(public)}


def relayed_keys(replies: Sequence[Reply]) -> Fields:
    """The parties' keys with their signatures, as the server passes them on."""
    return {
        "publics": np.stack([reply.fields["public"] for reply in replies]),
        "signatures": np.stack([reply.fields["signature"] for reply in replies]),
    }
