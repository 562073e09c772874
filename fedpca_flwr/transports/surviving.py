"""Surviving: one sum a run over the parties that are still there, opened once (`fedpca_flwr.double_masks`).

Rounds: ``keys``; ``shares`` (each party's seed and mask key, shared among all); the method's own sum; ``agree`` (each
survivor proves to each other that it was told the same survivors); ``reveal`` (the shares by which the sum opens). A
party may drop out in any of them while ``survivors`` are left: if its vector came it is in the sum, else the sum is
without it. The last round is a sum under pairwise masks of the survivors, left out where one of them has gone.

One sum a run, because the difference of two sums over different parties is the share of those that left: with a second
sum, a party that drops out between the two would be shown to the server. So methods that need several are refused.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedpca_flwr.double_masks import PROOF, SEALED, SHARE, Channels, Ring, hide, require_threshold
from fedpca_flwr.double_masks import opened as unmasked
from fedpca_flwr.errors import ConfigError, ContractError
from fedpca_flwr.maths import shamir
from fedpca_flwr.protocol.payload import Field, Fields, Payload
from fedpca_flwr.protocol.phase import Ask, Phase, Phases, Program, Sum, Total
from fedpca_flwr.protocol.quorum import Quorum
from fedpca_flwr.protocol.transport import Answering, PartyTransport, Running, ServerTransport, Transport
from fedpca_flwr.secure import KEY_BYTES, mask, new_private_key, public_key, transcript
from fedpca_flwr.transports.masked import (
    MASKED,
    Group,
    encoded,
    kept,
    missed_by,
    only,
    opened,
    require_sums,
    split_keys,
    summed,
)

KEYS = 2 * KEY_BYTES
"""A run key and a mask key."""

NOTE = (
    "the server saw one sum, over these parties; to see more it must relay false keys (which a 'group-secret' of the "
    "sites prevents) or collude with a third of the parties"
)


def _sizes(public: object) -> dict[str, int]:
    return {"key": KEYS, "sealed": SEALED, "proof": PROOF, "share": SHARE}


def _around(*reply: Field, asked: Sequence[Field] = ()) -> Phase:
    return Phase(asked=Payload(tuple(asked)), reply=Payload(reply), sizes=_sizes)


MEMBERS, SURVIVORS = Field("members", ("any",), "int64"), Field("survivors", ("any",), "int64")
BEFORE: Phases = {
    "keys": _around(Field("public", ("key",), "uint8")),
    "shares": _around(Field("sealed", ("any", "sealed"), "uint8"), asked=[Field("publics", ("any", "key"), "uint8")]),
}
AFTER: Phases = {
    "agree": _around(Field("proofs", ("any", "proof"), "uint8"), asked=[SURVIVORS]),
    "reveal": _around(
        Field("shares", ("any", "share"), "uint8"),
        asked=[
            Field("agreed", ("any",), "int64"),
            Field("sealed", ("any", "sealed"), "uint8"),
            Field("proofs", ("any", "proof"), "uint8"),
        ],
    ),
}


class Surviving(Transport):
    """The method's one sum as masked words, with the rounds around it."""

    sums_only = True

    def __init__(self) -> None:
        self.own: Phases = {}
        self.sum = ""  # the phase that is opened

    def script(self, method: str, phases: Phases) -> Phases:
        require_sums(method, phases)
        sums = [name for name, phase in phases.items() if not (phase.open or phase.closing)]
        if len(sums) != 1 or phases[sums[0]].times != 1:
            raise ConfigError(
                f"run-config: 'survivors' is set, but '{method}' asks for several sums ({', '.join(sums)}), and the "
                "difference of two over different parties would show the share of those that left; take a method that "
                "needs one sum (or 'survivors' 0: everyone or no one)"
            )
        self.own, (self.sum,) = phases, sums
        script: dict[str, Phase] = {}
        for name, phase in phases.items():
            if name == self.sum:
                asked = Payload((MEMBERS, *phase.asked.fields))
                script |= {**BEFORE, name: replace(phase, asked=asked, reply=MASKED), **AFTER}
            else:
                script[name] = phase if phase.open else replace(phase, reply=MASKED)
        return script


class SurvivingServer(Surviving, ServerTransport):
    def __init__(self, threshold: int) -> None:
        super().__init__()
        self.threshold = threshold
        self._in_sum: list[dict[str, Any]] = []

    def questions(self, program: Program, run: Running) -> Program:
        answer = None
        while True:
            try:
                question = program.send(answer)
            except StopIteration:
                return
            if not isinstance(question, Sum):
                answer = yield question
            elif question.phase == self.sum:
                answer = yield from self._survivors(question, run)
            else:
                answer = yield from self._last(question, run)

    def measured(self, quorum: Quorum) -> dict[str, str]:
        return {"secure aggregation": f"double masks, {len(self._in_sum)} of {quorum.total} parties"}

    def notes(self, quorum: Quorum) -> list[str]:
        inside = {party["party"] for party in self._in_sum}
        absent = [name for party, name in sorted(quorum.dropped.items()) if party not in inside]
        gone = f"the PCA of {len(inside)} of {quorum.total} parties: {', '.join(absent)} dropped out"
        return [*([gone] if absent else []), NOTE]

    def parties(self, quorum: Quorum) -> list[dict[str, Any]]:
        return self._in_sum

    def _survivors(self, question: Ask, run: Running) -> Program:
        """The sum over those that are there, opened."""
        require_threshold(self.threshold, run.quorum.total)
        replies = yield Ask("keys")
        place = {reply.party: i for i, reply in enumerate(replies)}
        ring = Ring([reply.fields["public"].tobytes() for reply in replies])
        publics = np.stack([np.frombuffer(keys, np.uint8) for keys in ring.publics])
        replies = yield Ask("shares", {"publics": publics})
        sealed = {place[r.party]: _whole(r.fields["sealed"], len(publics), r.sender) for r in replies}
        layout = self.own[question.phase].layout(question.asked, run.public)
        replies = yield Ask(question.phase, {"members": np.asarray(list(sealed)), **question.asked})
        there, self._in_sum = [place[r.party] for r in replies], run.quorum.parties()
        total = summed(layout, [r.fields["masked"] for r in replies], [r.sender for r in replies])
        replies = yield Ask("agree", {"survivors": np.asarray(there)})
        proofs = {place[r.party]: _whole(r.fields["proofs"], len(there), r.sender) for r in replies}
        each = {party: _addressed(own, sealed, proofs, there) for party, own in place.items()}
        replies = yield Ask("reveal", {"agreed": np.asarray(list(proofs))}, each)
        shares = {place[r.party]: _whole(r.fields["shares"], len(sealed), r.sender) for r in replies}
        enough = sorted(shares)[: self.threshold]
        revealed = {p: {m: row.tobytes() for m, row in zip(sealed, shares[p], strict=True)} for p in enough}
        fields = layout.decode_double(unmasked(total, ring, question.phase, list(sealed), there, revealed))[1]
        return Total(
            {name: high for name, (high, _) in fields.items()},
            len(there),
            low={name: low for name, (_, low) in fields.items()},
            missed=missed_by(layout, len(there)),
        )

    def _last(self, question: Ask, run: Running) -> Program:
        """A sum under pairwise masks, if all survivors are still there: that of fewer would show who left."""
        layout = self.own[question.phase].layout(question.asked, run.public)
        replies = yield question
        if len(replies) < len(self._in_sum):
            return None
        return opened(layout, [r.fields["masked"] for r in replies], [r.sender for r in replies])


class SurvivingParty(Surviving, PartyTransport):
    """Hides this party's answer, shares what would open it, and reveals that once."""

    def __init__(self, group: Group) -> None:
        super().__init__()
        self.group = group

    def answer(self, party: Answering, phase: str, asked: Fields) -> Fields:
        stages = {"keys": self._new_keys, "shares": self._shares, "agree": self._agree, "reveal": self._reveal}
        if phase in stages:
            return stages[phase](party, asked)
        if phase == self.sum:
            return self._hidden(party, asked)
        if self.own[phase].open:
            return only(party.statistics(phase, asked))
        return self._last(party, phase, asked)

    # One stage each

    def _new_keys(self, party: Answering, asked: Fields) -> Fields:
        require_threshold(self.group.survivors, self.group.parties)
        private, masking = new_private_key(), new_private_key()
        party.journal.keep("private", private)
        party.journal.keep("masking", masking)
        party.journal.keep("seed", secrets.token_bytes(shamir.SECRET_BYTES))
        return {"public": np.frombuffer(public_key(private) + public_key(masking), np.uint8)}

    def _shares(self, party: Answering, asked: Fields) -> Fields:
        """This party's seed and mask key, a share for each party, which only that party can read."""
        publics = [keys.tobytes() for keys in asked["publics"]]
        single = {half for keys in publics for half in (keys[:KEY_BYTES], keys[KEY_BYTES:])}
        own = public_key(kept(party, "private")) + public_key(kept(party, "masking"))
        if len(single) != 2 * len(publics) or len(publics) > self.group.parties or own not in publics:
            raise ContractError(
                f"the server sent {2 * len(publics)} keys, of which {len(single)} differ, expected two each of at most "
                f"{self.group.parties} parties, this site's own included"
            )
        self._require_enough(len(publics))
        self.group.require(len(publics))
        party.journal.keep("keys", b"".join(publics))
        channels, sealed = self._channels(party), []
        both = [shamir.split(kept(party, name), self.group.survivors, len(publics)) for name in ("seed", "masking")]
        for place, (seed, key) in enumerate(zip(*both, strict=True)):
            sealed.append(np.frombuffer(channels.sealed(place, seed + key), np.uint8))
        return {"sealed": np.stack(sealed)}

    def _hidden(self, party: Answering, asked: Fields) -> Fields:
        channels = self._channels(party)
        members = self._places(party, asked["members"], range(len(channels.ring.publics)))
        _keep_places(party, "members", members)
        own = self.own[self.sum]
        vector = encoded(party, self.sum, own, {field.name: asked[field.name] for field in own.asked.fields})
        hidden = hide(vector, channels.ring, self.sum, members, kept(party, "masking"), kept(party, "seed"))
        return {"masked": hidden}

    def _agree(self, party: Answering, asked: Fields) -> Fields:
        """Proofs for the other survivors that this party was told the same, if its rules allow their sum."""
        members = _kept_places(party, "members")
        survivors = self._places(party, asked["survivors"], members)
        self.group.require(len(survivors))
        party.permit_survivors(self.group.parties - len(survivors))
        _keep_places(party, "survivors", survivors)
        channels = self._channels(party)
        proofs = [channels.proof(channels.own, place, members, survivors) for place in survivors]
        return {"proofs": np.stack([np.frombuffer(proof, np.uint8) for proof in proofs])}

    def _reveal(self, party: Answering, asked: Fields) -> Fields:
        """A share of each survivor's seed, and of each other party's mask key: once enough survivors agree."""
        channels = self._channels(party)
        members, survivors = _kept_places(party, "members"), _kept_places(party, "survivors")
        agreed = self._places(party, asked["agreed"], survivors)  # as many as the threshold
        proofs = [proof.tobytes() for proof in asked["proofs"]]
        if len(proofs) != len(agreed) or not all(
            channels.agrees(place, proof, members, survivors) for place, proof in zip(agreed, proofs, strict=True)
        ):
            raise ContractError(
                "another site was told other survivors, or knows other keys, another configuration or another "
                "'group-secret'; nothing is revealed"
            )
        if len(asked["sealed"]) != len(members):
            raise ContractError(f"the server sent {len(asked['sealed'])} sealed shares, expected {len(members)}")
        revealed = []
        for place, text in zip(members, asked["sealed"], strict=True):
            shares = channels.unsealed(place, text.tobytes())
            revealed.append(np.frombuffer(shares[:SHARE] if place in survivors else shares[SHARE:], np.uint8))
        return {"shares": np.stack(revealed)}

    def _last(self, party: Answering, phase: str, asked: Fields) -> Fields:
        channels = self._channels(party)
        publics = [channels.ring.run_key(place) for place in _kept_places(party, "survivors")]
        vector = encoded(party, phase, self.own[phase], asked)
        told = transcript(phase, self.group.configuration, publics, list(asked.values()))
        vector += mask(kept(party, "private"), publics, told, self.group.secret, vector.size)
        return {"masked": vector}

    # Inside

    def _channels(self, party: Answering) -> Channels:
        publics = split_keys(kept(party, "keys"), KEYS)
        private = kept(party, "private")
        own = publics.index(public_key(private) + public_key(kept(party, "masking")))
        return Channels(Ring(publics, self.group.configuration), own, private, self.group.secret)

    def _places(self, party: Answering, told: NDArray, among: Sequence[int]) -> list[int]:
        """Places of parties, checked: this party's and enough others, in order, ``among`` those that there were."""
        places, own = told.tolist(), self._channels(party).own
        if places != sorted(set(places)) or not set(places) <= set(among) or own not in places:
            raise ContractError(
                f"the server's list of parties is {places}, expected some of {list(among)}, in order, with this "
                f"site's own place {own}"
            )
        self._require_enough(len(places))
        return places

    def _require_enough(self, parties: int) -> None:
        if parties < self.group.survivors:
            raise ContractError(
                f"the server goes on with {parties} parties, fewer than the run's 'survivors' = {self.group.survivors}"
            )


def _addressed(
    own: int, sealed: Mapping[int, NDArray], proofs: Mapping[int, NDArray], there: Sequence[int]
) -> dict[str, NDArray]:
    """What the other parties said to one of those that agree: shares, and proofs."""
    if own not in proofs:
        return {"sealed": np.empty((0, SEALED), np.uint8), "proofs": np.empty((0, PROOF), np.uint8)}
    column = there.index(own)
    return {
        "sealed": np.stack([rows[own] for rows in sealed.values()]),
        "proofs": np.stack([rows[column] for rows in proofs.values()]),
    }


def _whole(rows: NDArray, expected: int, sender: str) -> NDArray:
    if len(rows) != expected:
        raise ContractError(f"{sender}: it sent something for {len(rows)} parties, expected {expected}")
    return rows


def _keep_places(party: Answering, name: str, places: Sequence[int]) -> None:
    party.journal.keep(name, np.asarray(places, "<i8").tobytes())


def _kept_places(party: Answering, name: str) -> list[int]:
    return np.frombuffer(kept(party, name), "<i8").tolist()
