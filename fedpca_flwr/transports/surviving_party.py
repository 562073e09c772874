"""A party's half of a sum over the parties that survive: its keys, its shares, and what it reveals, once."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from fedpca_flwr.errors import ContractError
from fedpca_flwr.maths import shamir
from fedpca_flwr.protocol.payload import Fields
from fedpca_flwr.protocol.transport import Answering, PartyTransport
from fedpca_flwr.transports.double_masks import SHARE, Channels, Ring, hide, require_threshold
from fedpca_flwr.transports.pairwise_masks import mask, new_private_key, public_key, split_keys, transcript
from fedpca_flwr.transports.signed import Signer
from fedpca_flwr.transports.surviving import KEYS, Surviving
from fedpca_flwr.transports.words import Group, encoded, secret_of, whole_answer


class SurvivingParty(Surviving, PartyTransport):
    """Hides this party's answer, shares what would open it, and reveals that once."""

    def __init__(self, group: Group) -> None:
        super().__init__()
        self.group = group
        self.sum = ""  # that the open question is of

    def answer(self, party: Answering, phase: str, asked: Fields) -> Fields:
        stages = {"keys": self._new_keys, "shares": self._shares, "agree": self._agree, "reveal": self._reveal}
        stage, self.sum = self.stages.get(phase, ("", self.sums[-1]))
        if stage:
            return stages.get(stage, self._hidden)(party, asked)
        if self.own[phase].in_clear:
            return whole_answer(party.statistics(phase, asked))
        return self._last(party, phase, asked)

    # One stage each

    def _new_keys(self, party: Answering, asked: Fields) -> Fields:
        require_threshold(self.group.survivors, self.group.parties)
        private, masking = new_private_key(), new_private_key()
        party.journal.keep("private", private)
        party.journal.keep("masking", masking)
        party.journal.keep("seed", secrets.token_bytes(shamir.SECRET_BYTES))
        public = public_key(private) + public_key(masking)
        return {"public": np.frombuffer(public, np.uint8), "signature": self._signer.sign("run keys", public)}

    def _shares(self, party: Answering, asked: Fields) -> Fields:
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
            shamir.split(secret_of(party, name), self.group.survivors, len(publics)) for name in ("seed", "masking")
        ]
        for place, (seed, key) in enumerate(zip(*both, strict=True)):
            sealed.append(np.frombuffer(channels.sealed(place, seed + key), np.uint8))
        return {"sealed": np.stack(sealed)}

    def _hidden(self, party: Answering, asked: Fields) -> Fields:
        channels = self._channels(party)
        members = self._places(party, asked["members"], range(len(channels.ring.publics)))
        _keep_places(party, "members", members)
        own = self.own[self.sum]
        own_asked = {field.name: asked[field.name] for field in own.asked.fields}
        vector = encoded(party, self.sum, own, own_asked)
        about = channels.ring.mask_context(self.sum, members, list(own_asked.values()))
        hidden = hide(vector, channels.ring, about, members, secret_of(party, "masking"), secret_of(party, "seed"))
        return {"masked": hidden}

    def _agree(self, party: Answering, asked: Fields) -> Fields:
        """This party's signature under what it was told, if its rules allow the sum of these survivors."""
        members = _kept_places(party, "members")
        survivors = self._places(party, asked["survivors"], members)
        self.group.require(len(survivors))
        party.permit_survivors(self.group.parties - len(survivors))
        _keep_places(party, "survivors", survivors)
        return {"signature": self._signer.sign("survivors", *_signed_by_survivors(party))}

    def _reveal(self, party: Answering, asked: Fields) -> Fields:
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

    def _last(self, party: Answering, phase: str, asked: Fields) -> Fields:
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

    def _channels(self, party: Answering) -> Channels:
        publics = split_keys(secret_of(party, "keys"), KEYS)
        own = publics.index(self._own_keys(party))
        return Channels(Ring(publics, self._signer.about), own, secret_of(party, "private"))

    def _own_keys(self, party: Answering) -> bytes:
        return public_key(secret_of(party, "private")) + public_key(secret_of(party, "masking"))

    def _places(self, party: Answering, listed: NDArray[np.int64], among: Sequence[int]) -> list[int]:
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


def _signed_by_survivors(party: Answering) -> list[bytes]:
    """What survivors must agree on: everybody's keys, whose masks are in the vectors, and whose vectors came."""
    return [secret_of(party, name) for name in ("keys", "members", "survivors")]


def _keep_places(party: Answering, name: str, places: Sequence[int]) -> None:
    party.journal.keep(name, np.asarray(places, "<i8").tobytes())


def _kept_places(party: Answering, name: str) -> list[int]:
    return [int(place) for place in np.frombuffer(secret_of(party, name), "<i8")]
