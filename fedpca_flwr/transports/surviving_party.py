"""A party's half of a sum over the parties that survive: its keys, its shares, and what it reveals, once."""

from __future__ import annotations

import secrets
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedpca_flwr.errors import ContractError
from fedpca_flwr.maths import shamir
from fedpca_flwr.protocol.payload import Fields
from fedpca_flwr.protocol.transport import Answering, PartyTransport
from fedpca_flwr.transports.double_masks import SHARE, Channels, Ring, hide, require_threshold
from fedpca_flwr.transports.pairwise_masks import KEY_BYTES, mask, new_private_key, public_key, transcript
from fedpca_flwr.transports.surviving import KEYS, Surviving
from fedpca_flwr.transports.words import Group, encoded, kept, only, split_keys


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
        party.permit_sum(self.group.members([channels.ring.run_key(place) for place in survivors]))
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

    def _places(self, party: Answering, told: NDArray[np.int64], among: Sequence[int]) -> list[int]:
        """Places of parties, checked: this party's and enough others, in order, ``among`` those that there were."""
        places: list[int] = told.tolist()
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


def _keep_places(party: Answering, name: str, places: Sequence[int]) -> None:
    party.journal.keep(name, np.asarray(places, "<i8").tobytes())


def _kept_places(party: Answering, name: str) -> list[int]:
    return [int(place) for place in np.frombuffer(kept(party, name), "<i8")]
