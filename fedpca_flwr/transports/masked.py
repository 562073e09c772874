"""Masked: the server sees sums over all parties only (pairwise masks, `fedpca_flwr.secure`).

The round ``keys`` comes before the first sum: each party sends a new public key, and the server passes all of them on
with that sum. A party that is missing leaves noise and ends the run, as everywhere; a sum that goes on without some
parties is in `fedpca_flwr.transports.surviving`.

A limit on a sum comes from the server. A party whose share exceeds it must not say so, or a server could lower the
limit until it knows the share: it sends random words, and the sum opens for nobody.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fedpca_flwr.errors import ConfigError, ContractError, DisclosureError
from fedpca_flwr.maths.fixed_point import Layout
from fedpca_flwr.protocol.payload import Field, Fields, Payload
from fedpca_flwr.protocol.phase import SERVER, Ask, Phase, Phases, Program, Sum, Total
from fedpca_flwr.protocol.quorum import Quorum
from fedpca_flwr.protocol.transport import Answering, PartyTransport, Running, ServerTransport, Transport
from fedpca_flwr.secure import KEY_BYTES, Words, mask, new_private_key, public_key, transcript

PUBLICS = Field("publics", ("parties", "key"), "uint8")
"""The parties' public keys, which the server sends with the first sum."""

MASKED = Payload((Field("masked", ("any",), "uint64"),))

NOTE = (
    "the server saw sums over all parties only; to see more it must relay false keys (which a 'group-secret' of the "
    "sites prevents) or collude with all parties but one"
)

logger = logging.getLogger("fedpca_flwr.client")


@dataclass(frozen=True)
class Group:
    """Whose sums a party takes part in, by its own rules.

    Attributes
    ----------
    parties : int
        How many there are.
    least : int
        With fewer it refuses.
    secret : bytes
        What the sites share and the server does not know; may be empty.
    configuration : str
        The run's: masks depend on it.
    survivors : int
        Of a run that goes on without some: with so many at least.
    """

    parties: int
    least: int
    secret: bytes
    configuration: str
    survivors: int = 0

    def require(self, parties: int) -> None:
        """Refuse a sum of too few.

        Raises
        ------
        DisclosureError
        """
        if parties < self.least:
            raise DisclosureError(
                f"the sum would have {parties} different parties, this site asks for at least {self.least} "
                "(node-config 'min-parties')"
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
        publics: NDArray | None = None
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

    def measured(self, quorum: Quorum) -> dict[str, str]:
        return {"secure aggregation": f"pairwise masks, {quorum.expected} parties"}

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

    def _accept(self, party: Answering, told: NDArray) -> None:
        """Take the public keys of this run, if they are those of all parties, and those are enough."""
        publics = [key.tobytes() for key in told]
        known, expected = len(set(publics)), self.group.parties
        self.group.require(known)
        if known != len(publics) or known != expected or public_key(kept(party, "private")) not in publics:
            raise ContractError(
                f"the server sent {len(publics)} keys, of which {known} differ, expected those of {expected} parties, "
                "this site's own included"
            )
        party.journal.keep("publics", b"".join(publics))


# Both transports with masks


def require_sums(method: str, phases: Phases) -> None:
    """Refuse a method that needs more than sums of the parties' replies.

    Raises
    ------
    ConfigError
    """
    shown = [name for name, phase in phases.items() if not phase.open and phase.limits is None]
    if shown:
        raise ConfigError(
            f"run-config: 'secure-aggregation' is true, but '{method}' needs more than a sum of the parties' replies "
            f"('{shown[0]}')"
        )


def first_sum(phases: Phases) -> str:
    """The first phase that is a sum, with which keys travel: it is asked once."""
    name = next(name for name, phase in phases.items() if not phase.open)
    assert phases[name].times == 1
    return name


def encoded(party: Answering, phase: str, own: Phase, asked: Fields) -> Words:
    """This party's answer in fixed point, or random words where it is beyond the limit that the server set."""
    layout = own.layout(asked, party.public)
    require_finite(layout, phase)
    answer = party.statistics(phase, asked)
    try:
        return layout.encode_sum([answer] if isinstance(answer, Mapping) else list(answer))
    except ValueError as error:
        logger.error("phase '%s': %s; this site sent random words, so that the sum opens for nobody", phase, error)
        return np.frombuffer(secrets.token_bytes(8 * layout.size), "<u8").copy()


def require_finite(layout: Layout, phase: str) -> None:
    """Refuse limits beyond float64, which follow from what was asked alone.

    Raises
    ------
    ContractError
    """
    if not all(np.isfinite(limit).all() for limit in layout.limits.values()):
        raise ContractError(f"{SERVER}: what it asked in phase '{phase}' makes limits that are not finite")


def opened(layout: Layout, vectors: Sequence[NDArray], senders: Sequence[str]) -> Total:
    """The sum of masked vectors: masks cancel only if those of all parties are in it.

    Raises
    ------
    ContractError
    """
    parties, fields = layout.decode(summed(layout, vectors, senders))
    if parties != len(vectors):
        raise ContractError(
            f"the masks of the {len(vectors)} parties do not cancel: a site's 'group-secret' is not that of the "
            "others, a key or a request was altered on its way, or a site's share was beyond its public limit (did "
            "its data change during the run?); its own log says so. Nothing can be read from the sum"
        )
    return Total(fields, parties, missed=missed_by(layout, parties))


def missed_by(layout: Layout, parties: int) -> dict[str, NDArray[np.float64]]:
    """Bound on what fixed point rounded off in each entry of a sum over so many parties."""
    return {name: parties * layout.resolution * limit for name, limit in layout.limits.items()}


def summed(layout: Layout, vectors: Iterable[NDArray], senders: Iterable[str]) -> Words:
    """The sum of vectors modulo 2^64.

    Raises
    ------
    ContractError
    """
    total = np.zeros(layout.size, np.uint64)
    for vector, sender in zip(vectors, senders, strict=True):
        if vector.size != layout.size:
            raise ContractError(
                f"{sender}: field 'masked' has shape {vector.shape}, expected {(layout.size,)}; do its data have "
                "another number of features, or does it run another version?"
            )
        total += vector
    return total


def kept(party: Answering, name: str) -> bytes:
    """A secret of this run.

    Raises
    ------
    ContractError
    """
    value = party.journal.recall(name)
    if value is None:
        raise ContractError("this site has no key of this run: it was started anew, or never asked for one")
    return value


def split_keys(joined: bytes, size: int = KEY_BYTES) -> list[bytes]:
    return [joined[i : i + size] for i in range(0, len(joined), size)]


def only(answer: Fields | Sequence[Fields]) -> Fields:
    """An answer that is not a sum of parts."""
    assert isinstance(answer, Mapping)
    return answer


def _key_size(public: object) -> dict[str, int]:
    return {"key": KEY_BYTES}


def _with_keys(phase: Phase):
    return lambda public: {**phase.sizes(public), "parties": public.parties, "key": KEY_BYTES}
