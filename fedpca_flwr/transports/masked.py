"""Masked: the server sees sums over all parties only (pairwise masks, `fedpca_flwr.transports.pairwise_masks`).

The round ``keys`` comes before the first sum: each party sends a new public key, which it signs, and the server passes
all of them on with that sum, in the order of the parties. Each party verifies all of them before it masks anything. A
party that is missing leaves noise and ends the run, as everywhere; a sum that goes on without some parties is in
`fedpca_flwr.transports.surviving`.

Of many parties each shares masks with some (`fedpca_flwr.transports.neighbours`). In ``keys`` it sends a commitment to
its public key, which one round more, ``openings``, opens; and it verifies the signatures of its neighbours only. A
key of the server's in the place of another party is found by the honest neighbours of that place, which send nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from fedpca_flwr.errors import DisclosureError
from fedpca_flwr.protocol.admission import Reply
from fedpca_flwr.protocol.payload import Field, Fields, Payload
from fedpca_flwr.protocol.question import Ask, Program, Public, Question, Questions, Sum
from fedpca_flwr.protocol.quorum import Quorum
from fedpca_flwr.protocol.transport import Party, PartyTransport, Run, ServerTransport, Transport, whole
from fedpca_flwr.transports import neighbours
from fedpca_flwr.transports.encoding import MASKED, Group, MaskedSum, as_sums, encoded, secret_of
from fedpca_flwr.transports.pairwise_masks import (
    KEY_BYTES,
    mask_of,
    new_private_key,
    public_key,
    shared_secrets,
    split_keys,
    transcript,
)
from fedpca_flwr.transports.signed import SIGNATURE, SIZES, UNANSWERED

KEY_FIELDS = (Field("publics", ("parties", "key"), "uint8"), Field("signatures", ("parties", "signature"), "uint8"))
"""The parties' public keys, which the server sends with the first sum."""


def _sizes(public: Public) -> Mapping[str, int]:
    return {"parties": public.parties, "key": KEY_BYTES, **SIZES}


OPENINGS = Question(
    asked=Payload((Field("commitments", ("parties", "key"), "uint8"),)),
    reply=Payload((Field("public", ("key",), "uint8"),)),
    sizes=_sizes,
)
"""The parties' commitments to their public keys, which are of as many bytes; a party opens its own."""

NOTE = (
    "the server saw sums over all parties only; to see more it must collude with {whom} (it cannot act in "
    "place of a site that has an 'identity')"
)


class Masked(Transport):
    """The method's sums as masked words, after the round ``keys``."""

    sums_only = True

    def __init__(self) -> None:
        self.own: Questions = {}

    def commits(self, parties: int) -> bool:
        """Whether each party shares masks with some of so many only, so that keys are committed to first."""
        return not self._noised and neighbours.degree(parties) < parties - 1

    @property
    def _noised(self) -> bool:
        """Whether noise makes sums private: how many honest parties it needs is the run's to say, not the graph's."""
        return any(phase.differentially_private for phase in self.own.values())

    def script(self, method: str, phases: Questions) -> Questions:
        self.own = phases = as_sums(method, phases)
        first = next(name for name, phase in phases.items() if not phase.in_clear)
        assert phases[first].times == 1  # the keys travel with it
        script: dict[str, Question] = {}
        for name, phase in phases.items():
            if name == first:
                script["keys"] = Question(reply=Payload((Field("public", ("key",), "uint8"), SIGNATURE)), sizes=_sizes)
                if not self._noised:
                    script["openings"] = replace(OPENINGS, times=lambda public: int(self.commits(public.parties)))
                phase = replace(phase, asked=Payload((*KEY_FIELDS, *phase.asked.fields)), sizes=_with_keys(phase))
            script[name] = phase if phase.in_clear else replace(phase, reply=MASKED, summed=phase.reply)
        return script


class MaskedServer(Masked, ServerTransport):
    def __init__(self) -> None:
        super().__init__()
        self._keys_are_relayed = False

    def summed(self, question: Sum, run: Run) -> Program:
        keys = {} if self._keys_are_relayed else (yield from self._keys(run.public.parties))
        self._keys_are_relayed = True
        total = MaskedSum(self.own[question.phase].layout(question.asked, run.public))
        replies = yield Ask(question.phase, {**keys, **question.asked}, take=total.add)
        return total.decoded(replies, question.near)

    def _keys(self, parties: int) -> Program:
        """Ask for the parties' keys; those that are to be relayed to all of them."""
        keys = relayed_keys((yield Ask("keys")))
        if not self.commits(parties):
            return keys
        replies = yield Ask("openings", {"commitments": keys["publics"]})
        return {**keys, "publics": np.stack([reply.fields["public"] for reply in replies])}

    def measured(self, quorum: Quorum) -> dict[str, float]:
        return {"pairwise_masked_parties": quorum.expected}

    def notes(self, quorum: Quorum) -> list[str]:
        few = int(neighbours.COLLUDING * quorum.total)
        whom = f"more than {few} of the parties" if self.commits(quorum.total) else "all parties but one"
        return [NOTE.format(whom=whom)]


class MaskedParty(Masked, PartyTransport):
    """Adds this party's masks."""

    def __init__(self, group: Group) -> None:
        super().__init__()
        self.group = group

    def answer(self, party: Party, phase: str, asked: Fields) -> Fields:
        if phase == "keys":
            return self._new_key(party)
        if phase == "openings":
            return self._opened(party, asked["commitments"])
        own = self.own[phase]
        if own.in_clear:
            return whole(party.statistics(phase, asked))
        if "publics" in asked:
            self._accept(party, asked["publics"], asked["signatures"])
        listed, others, shared = (split_keys(secret_of(party, name)) for name in ("listed", "others", "shared"))
        own_asked = {field.name: asked[field.name] for field in own.asked.fields}
        about = transcript(phase, self.group.signer.about, listed, [np.asarray(party.number), *own_asked.values()])
        vector = encoded(party, phase, own, own_asked)
        vector += mask_of(secret_of(party, "public"), dict(zip(others, shared, strict=True)), about, vector.size)
        return {"masked": vector}

    @property
    def _place(self) -> int:
        return self.group.signer.identity.party

    def _new_key(self, party: Party) -> Fields:
        """A new public key or a commitment to it, and this party's signature under the key."""
        private = new_private_key()
        public = public_key(private)
        party.journal.keep("private", private)
        party.journal.keep("public", public)
        shown = neighbours.commitment(self._place, public) if self.commits(party.public.parties) else public
        return {"public": np.frombuffer(shown, np.uint8), "signature": self.group.signer.sign("run keys", public)}

    def _opened(self, party: Party, commitments: NDArray[np.uint8]) -> Fields:
        """This party's public key, now that it has bound all others to theirs."""
        public = secret_of(party, "public")
        if commitments[self._place].tobytes() != neighbours.commitment(self._place, public):
            raise DisclosureError(
                f"the server relays another commitment than its own as that of this site, party {self._place}; "
                f"{UNANSWERED}"
            )
        party.journal.keep("commitments", commitments.tobytes())
        return {"public": np.frombuffer(public, np.uint8)}

    def _accept(self, party: Party, keys: NDArray[np.uint8], signatures: NDArray[np.uint8]) -> None:
        """Take the public keys of this run, if those that count are their parties', and the parties are enough."""
        publics = [key.tobytes() for key in keys]
        self.group.require(len(publics))
        listed, among = publics, list(range(len(publics)))
        if self.commits(party.public.parties):
            neighbours.require_opened(split_keys(secret_of(party, "commitments")), publics)
            seed = neighbours.seed_of(self.group.signer.about, publics)
            listed, among = [seed], neighbours.neighbours(seed, len(publics), self._place)
            among = sorted([*among, self._place])
        near, own = [publics[place] for place in among], secret_of(party, "public")
        self.group.signer.require_keys(among, near, signatures[among], own)
        party.permit_sum(self.group.members(range(len(publics))))
        shared = shared_secrets(secret_of(party, "private"), near)
        party.journal.keep("listed", b"".join(listed))
        party.journal.keep("others", b"".join(shared))
        party.journal.keep("shared", b"".join(shared.values()))


def _with_keys(phase: Question) -> Callable[[Public], Mapping[str, int]]:
    return lambda public: {**phase.sizes(public), **_sizes(public)}


def relayed_keys(replies: Sequence[Reply]) -> Fields:
    """The parties' keys with their signatures, as the server passes them on."""
    return {
        "publics": np.stack([reply.fields["public"] for reply in replies]),
        "signatures": np.stack([reply.fields["signature"] for reply in replies]),
    }
