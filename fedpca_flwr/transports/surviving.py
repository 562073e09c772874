"""Surviving: one sum a run over the parties that are still there, opened once (`fedpca_flwr.transports.double_masks`).

Rounds: ``keys``; ``shares`` (each party's seed and mask key, shared among all); the method's own sum; ``agree`` (each
survivor signs which survivors it was told); ``reveal`` (the shares by which the sum opens). A
party may drop out in any of them while ``survivors`` are left: if its vector came it is in the sum, else the sum is
without it. The last round is a sum under pairwise masks of the survivors, left out where one of them has gone.

One sum a run, because the difference of two sums over different parties is the share of those that left: with a second
sum, a party that drops out between the two would be shown to the server. So methods that need several are refused,
unless each sum is differentially private: then their difference tells no more than they do, and the rounds are gone
through for each, with new keys, by the parties that are still there.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedpca_flwr.errors import ContractError, TravelError
from fedpca_flwr.maths import secure
from fedpca_flwr.protocol.payload import Field, Fields, Payload
from fedpca_flwr.protocol.question import Ask, Program, Question, Questions, Sum
from fedpca_flwr.protocol.quorum import Quorum
from fedpca_flwr.protocol.transport import Party, PartyTransport, Run, ServerTransport, Transport, whole
from fedpca_flwr.transports.double_masks import (
    SEALED,
    SHARE,
    Channels,
    Ring,
    fewest_colluders,
    hide,
    require_threshold,
    unmasked,
)
from fedpca_flwr.transports.encoding import (
    MASKED,
    Group,
    MaskedSum,
    as_sums,
    encoded,
    secret_of,
    total_of,
)
from fedpca_flwr.transports.masked import relayed_keys
from fedpca_flwr.transports.pairwise_masks import KEY_BYTES, mask, new_private_key, public_key, split_keys, transcript
from fedpca_flwr.transports.signed import SIGNATURE, SIZES, Signer

TWO_KEYS = 2 * KEY_BYTES
"""A run key and a mask key."""

NOTE = (
    "the server saw {what}, over these parties; to see more it must collude with at least {colluders} of the {parties} "
    "parties (it cannot act in place of a site that has an 'identity')"
)


def _sizes(public: object) -> dict[str, int]:
    return {"key": TWO_KEYS, "sealed": SEALED, "share": SHARE, **SIZES}


def _around(*reply: Field, asked: Sequence[Field] = ()) -> Question:
    return Question(asked=Payload(tuple(asked)), reply=Payload(reply), sizes=_sizes)


MEMBERS, SURVIVORS = Field("members", ("any",), "int64"), Field("survivors", ("any",), "int64")
BEFORE: Questions = {
    "keys": _around(Field("public", ("key",), "uint8"), SIGNATURE),
    "shares": _around(
        Field("sealed", ("any", "sealed"), "uint8"),
        asked=[
            Field("parties", ("any",), "int64"),
            Field("publics", ("any", "key"), "uint8"),
            Field("signatures", ("any", "signature"), "uint8"),
        ],
    ),
}
AFTER: Questions = {
    "agree": _around(SIGNATURE, asked=[SURVIVORS]),
    "reveal": _around(
        Field("shares", ("any", "share"), "uint8"),
        asked=[
            Field("agreed", ("any",), "int64"),
            Field("signatures", ("any", "signature"), "uint8"),
            Field("sealed", ("any", "sealed"), "uint8"),
        ],
    ),
}


class Surviving(Transport):
    """The method's one sum as masked words, with the rounds around it."""

    sums_only = True

    def __init__(self) -> None:
        self.own: Questions = {}
        self.sums: list[str] = []  # the phases that are opened
        self.stages: dict[str, tuple[str, str]] = {}  # by phase: its stage, and the sum that it is of

    def script(self, method: str, phases: Questions) -> Questions:
        phases = as_sums(method, phases)
        sums = [name for name, phase in phases.items() if not (phase.in_clear or phase.closing)]
        several = len(sums) != 1 and not all(phases[name].differentially_private for name in sums)
        if several or any(phases[name].times != 1 for name in sums):
            raise TravelError(
                f"run-config: 'survivors' is set, but '{method}' asks for several sums ({', '.join(sums)}), and the "
                "difference of two over different parties would show the share of those that left; set 'survivors' to "
                "0 (everyone or no one), or take a method or options with one sum"
            )
        self.own, self.sums = phases, sums
        script: dict[str, Question] = {}
        for name, phase in phases.items():
            if name in sums:
                hidden = replace(phase, asked=Payload((MEMBERS, *phase.asked.fields)), reply=MASKED, summed=phase.reply)
                for stage, around in {**BEFORE, name: hidden, **AFTER}.items():
                    called = name if stage == name else self.called(stage, name)
                    self.stages[called] = stage, name
                    script[called] = around
            else:
                script[name] = phase if phase.in_clear else replace(phase, reply=MASKED, summed=phase.reply)
        return script

    def called(self, stage: str, of: str) -> str:
        """The phase of a stage around a sum."""
        return stage if of == self.sums[0] else f"{of} {stage}"


class SurvivingServer(Surviving, ServerTransport):
    def __init__(self, threshold: int) -> None:
        super().__init__()
        self.threshold = threshold
        self._in_sum: list[dict[str, Any]] = []

    def summed(self, question: Sum, run: Run) -> Program:
        return (yield from (self._survivors if question.phase in self.sums else self._last)(question, run))

    def measured(self, quorum: Quorum) -> dict[str, float]:
        return {"double_masked_parties": len(self._in_sum), "expected_parties": quorum.total}

    def notes(self, quorum: Quorum) -> list[str]:
        inside = {party["party"] for party in self._in_sum}
        absent = [name for party, name in sorted(quorum.dropped.items()) if party not in inside]
        gone = f"the PCA of {len(inside)} of {quorum.total} parties: {', '.join(absent)} dropped out"
        saw = "one sum" if len(self.sums) == 1 else f"{len(self.sums)} sums with noise, the last"
        colluders = fewest_colluders(self.threshold, quorum.total)
        note = NOTE.format(what=saw, colluders=colluders, parties=quorum.total)
        return [gone, note] if absent else [note]

    def parties(self, quorum: Quorum) -> list[dict[str, Any]]:
        return self._in_sum

    def _survivors(self, question: Ask, run: Run) -> Program:
        """The sum over those that are there, opened."""
        require_threshold(self.threshold, run.quorum.total)
        replies = yield Ask(self.called("keys", question.phase))
        place = {reply.party: i for i, reply in enumerate(replies)}
        ring = Ring([reply.fields["public"].tobytes() for reply in replies])
        replies = yield Ask(
            self.called("shares", question.phase), {"parties": np.asarray(list(place)), **relayed_keys(replies)}
        )
        sealed = {place[r.party]: _whole(r.fields["sealed"], len(place), r.sender) for r in replies}
        layout = self.own[question.phase].layout(question.asked, run.public)
        arriving = MaskedSum(layout)
        asked = {"members": np.asarray(list(sealed)), **question.asked}
        replies = yield Ask(question.phase, asked, take=arriving.add)
        there, self._in_sum = [place[r.party] for r in replies], run.quorum.parties()
        total = arriving.whole(replies)
        replies = yield Ask(self.called("agree", question.phase), {"survivors": np.asarray(there)})
        agreed = {place[r.party]: r.fields["signature"] for r in replies}
        agreement = {"agreed": np.asarray(list(agreed)), "signatures": np.stack(list(agreed.values()))}
        each = {party: {"sealed": np.stack([rows[own] for rows in sealed.values()])} for party, own in place.items()}
        replies = yield Ask(self.called("reveal", question.phase), agreement, each)
        shares = {place[r.party]: _whole(r.fields["shares"], len(sealed), r.sender) for r in replies}
        enough = sorted(shares)[: self.threshold]
        revealed = {p: {m: row.tobytes() for m, row in zip(sealed, shares[p], strict=True)} for p in enough}
        own_asked = [question.asked[field.name] for field in self.own[question.phase].asked.fields]
        context = ring.mask_context(question.phase, list(sealed), own_asked)
        opened = unmasked(total, ring, context, list(sealed), there, revealed)
        return total_of(layout, opened, len(there))

    def _last(self, question: Ask, run: Run) -> Program:
        """A sum under pairwise masks, if all survivors are still there: that of fewer would show who left."""
        total = MaskedSum(self.own[question.phase].layout(question.asked, run.public))
        replies = yield Ask(question.phase, question.asked, take=total.add)
        if len(replies) < len(self._in_sum):
            return None
        return total.decoded(replies, {})


def _whole(rows: NDArray[np.uint8], expected: int, sender: str) -> NDArray[np.uint8]:
    if len(rows) != expected:
        raise ContractError(f"{sender}: it sent something for {len(rows)} parties, expected {expected}")
    return rows


class SurvivingParty(Surviving, PartyTransport):
    """Hides this party's answer, shares what would open it, and reveals that once."""

    def __init__(self, group: Group) -> None:
        super().__init__()
        self.group = group
        self.sum = ""  # that the open question is of

    def answer(self, party: Party, phase: str, asked: Fields) -> Fields:
        stages = {"keys": self._new_keys, "shares": self._shares, "agree": self._agree, "reveal": self._reveal}
        stage, self.sum = self.stages.get(phase, ("", self.sums[-1]))
        if stage:
            return stages.get(stage, self._hidden)(party, asked)
        if self.own[phase].in_clear:
            return whole(party.statistics(phase, asked))
        return self._last(party, phase, asked)

    # One stage each

    def _new_keys(self, party: Party, asked: Fields) -> Fields:
        require_threshold(self.group.survivors, self.group.parties)
        private, masking = new_private_key(), new_private_key()
        party.journal.keep("private", private)
        party.journal.keep("masking", masking)
        party.journal.keep("seed", secrets.token_bytes(secure.SECRET_BYTES))
        public = public_key(private) + public_key(masking)
        return {"public": np.frombuffer(public, np.uint8), "signature": self._signer.sign("run keys", public)}

    def _shares(self, party: Party, asked: Fields) -> Fields:
        """This party's seed and mask key, a share for each party, which only that party can read."""
        parties, publics = asked["parties"].tolist(), [keys.tobytes() for keys in asked["publics"]]
        if not len(parties) == len(publics) == len(asked["signatures"]):
            raise ContractError(
                f"the server sent keys of {len(publics)} parties, {len(asked['signatures'])} signatures, and a list of "
                f"{len(parties)} parties"
            )
        self._require_enough(len(publics))
        self.group.require(len(publics))
        self._signer.require_keys(parties, publics, asked["signatures"], self._own_keys(party))
        party.journal.keep("keys", b"".join(publics))
        _keep_places(party, "parties", parties)
        channels, sealed = self._channels(party), []
        both = [
            secure.split(secret_of(party, name), self.group.survivors, len(publics)) for name in ("seed", "masking")
        ]
        for place, (seed, key) in enumerate(zip(*both, strict=True)):
            sealed.append(np.frombuffer(channels.sealed(place, seed + key), np.uint8))
        return {"sealed": np.stack(sealed)}

    def _hidden(self, party: Party, asked: Fields) -> Fields:
        channels = self._channels(party)
        members = self._places(party, asked["members"], range(len(channels.ring.publics)))
        _keep_places(party, "members", members)
        own = self.own[self.sum]
        own_asked = {field.name: asked[field.name] for field in own.asked.fields}
        vector = encoded(party, self.sum, own, own_asked)
        about = channels.ring.mask_context(self.sum, members, list(own_asked.values()))
        hidden = hide(vector, channels.ring, about, members, secret_of(party, "masking"), secret_of(party, "seed"))
        return {"masked": hidden}

    def _agree(self, party: Party, asked: Fields) -> Fields:
        """This party's signature under what it was told, if its rules allow the sum of these survivors."""
        members = _kept_places(party, "members")
        survivors = self._places(party, asked["survivors"], members)
        self.group.require(len(survivors))
        party.permit_survivors(self.group.parties - len(survivors))
        _keep_places(party, "survivors", survivors)
        return {"signature": self._signer.sign("survivors", *_signed_by_survivors(party))}

    def _reveal(self, party: Party, asked: Fields) -> Fields:
        """A share of each survivor's seed, and of each other party's mask key: once enough survivors agree."""
        channels = self._channels(party)
        members, survivors = _kept_places(party, "members"), _kept_places(party, "survivors")
        agreed = self._places(party, asked["agreed"], survivors)  # as many as the threshold
        if (len(asked["signatures"]), len(asked["sealed"])) != (len(agreed), len(members)):
            raise ContractError(
                f"the server sent {len(asked['signatures'])} signatures and {len(asked['sealed'])} sealed shares, "
                f"expected {len(agreed)} and {len(members)}"
            )
        parties = _kept_places(party, "parties")
        for place, signature in zip(agreed, asked["signatures"], strict=True):
            self._signer.require(parties[place], "survivors", signature, *_signed_by_survivors(party))
        party.permit_sum(self.group.members([parties[place] for place in survivors]))
        revealed = []
        for place, text in zip(members, asked["sealed"], strict=True):
            shares = channels.unsealed(place, text.tobytes())
            revealed.append(np.frombuffer(shares[:SHARE] if place in survivors else shares[SHARE:], np.uint8))
        return {"shares": np.stack(revealed)}

    def _last(self, party: Party, phase: str, asked: Fields) -> Fields:
        channels = self._channels(party)
        publics = [channels.ring.run_key(place) for place in _kept_places(party, "survivors")]
        vector = encoded(party, phase, self.own[phase], asked)
        about = transcript(phase, self._signer.about, publics, list(asked.values()))
        vector += mask(secret_of(party, "private"), publics, about, vector.size)
        return {"masked": vector}

    # Inside

    @property
    def _signer(self) -> Signer:
        """What is signed for one sum holds for no other one."""
        signer, of = self.group.signer, "" if self.sum == self.sums[0] else self.sum
        return replace(signer, configuration=signer.configuration + of)

    def _channels(self, party: Party) -> Channels:
        publics = split_keys(secret_of(party, "keys"), TWO_KEYS)
        own = publics.index(self._own_keys(party))
        return Channels(Ring(publics, self._signer.about), own, secret_of(party, "private"))

    def _own_keys(self, party: Party) -> bytes:
        return public_key(secret_of(party, "private")) + public_key(secret_of(party, "masking"))

    def _places(self, party: Party, listed: NDArray[np.int64], among: Sequence[int]) -> list[int]:
        """Places of parties, checked: this party's and enough others, in order, ``among`` those that there were."""
        places: list[int] = listed.tolist()
        own = self._channels(party).own
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


def _signed_by_survivors(party: Party) -> list[bytes]:
    """What survivors must agree on: everybody's keys, whose masks are in the vectors, and whose vectors came."""
    return [secret_of(party, name) for name in ("keys", "members", "survivors")]


def _keep_places(party: Party, name: str, places: Sequence[int]) -> None:
    party.journal.keep(name, np.asarray(places, "<i8").tobytes())


def _kept_places(party: Party, name: str) -> list[int]:
    return [int(place) for place in np.frombuffer(secret_of(party, name), "<i8")]
