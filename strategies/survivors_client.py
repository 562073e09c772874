"""A party's half of a secure sum over the parties that survive: its keys, its shares and what it reveals, once."""

from __future__ import annotations

import json
import secrets
from abc import abstractmethod
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from flwr.app import ConfigRecord
from numpy.typing import NDArray

from fedpca_flwr.contract import Field, Fields, Payload
from fedpca_flwr.double_masks import PROOF, SEALED, SHARE, Channels, Ring, hide, require_threshold
from fedpca_flwr.errors import ContractError, DisclosureError
from fedpca_flwr.maths import shamir
from fedpca_flwr.maths.fixed_point import Layout
from fedpca_flwr.secure import KEY_BYTES, new_private_key, public_key, shared_secret
from strategies.secure_client import SERVER, STATE, SecureClient

ASKED = {
    "shares": Payload((Field("publics", ("any", "key"), "uint8"),)),
    "agree": Payload((Field("survivors", ("any",), "int64"),)),
    "reveal": Payload(
        (
            Field("agreed", ("any",), "int64"),
            Field("sealed", ("members", "sealed"), "uint8"),
            Field("proofs", ("any", "proof"), "uint8"),
        )
    ),
}
"""What the server sends with each request."""

SUM = Payload((Field("members", ("any",), "int64"),))
"""What it sends with that of the method's own sum."""


class SurvivorsClient(SecureClient):
    """Base of the clients whose sum goes on with the survivors. A method adds `parts`.

    All that a party needs to remember is in its record of the run: its keys and seed, the lists that it was told, and
    how far it is. Each request is answered once, in order, and none after one that failed.
    """

    @abstractmethod
    def parts(self, phase: str) -> tuple[Sequence[Fields], Layout]:
        """What this party adds to the sum, itself as a sum (see `Layout.encode_sum`), and the layout."""

    def permit_survivors(self, dropped: int) -> None:
        """Refuse to open a sum without so many of the parties, where that breaks a promise."""

    # What the base calls

    def summands(self, phase, received):
        raise ContractError(f"phase '{phase}' is not one of this method with 'survivors'")

    def statistics(self, phase: str, received: list[NDArray]) -> Fields:
        if phase == "keys":
            return {"public": np.frombuffer(self._new_keys(), np.uint8)}
        record, stages = self._record(), ["keys", "shares", "sum", "agree", "reveal"]
        stage = phase if phase in ASKED else "sum"
        if (record["stage"], stage) not in pairwise(stages):
            raise ContractError(
                f"the server asked for '{phase}' after '{record['stage']}'; each is answered once, in the order "
                f"{', '.join(stages)}"
            )
        record["stage"] = stage
        payload = ASKED.get(phase, SUM)
        asked = payload.named(received, SERVER)
        members = len(record.get("members", []))
        payload.check(asked, SERVER, {"key": 2 * KEY_BYTES, "members": members, "sealed": SEALED, "proof": PROOF})
        if stage == "sum":
            return self._hidden(phase, asked)
        return {"shares": self._shares, "agree": self._agree, "reveal": self._reveal}[stage](asked)

    # One stage each

    def _new_keys(self) -> bytes:
        if STATE in self.context.state.config_records:
            raise ContractError("the server asked for a second key in one run; one is allowed")
        require_threshold(self.config.survivors, self.node.num_partitions)
        private, masking = new_private_key(), new_private_key()
        self.context.state.config_records[STATE] = ConfigRecord(
            {"private": private, "masking": masking, "seed": secrets.token_bytes(shamir.SECRET_BYTES), "stage": "keys"}
        )
        return public_key(private) + public_key(masking)

    def _shares(self, asked: Fields) -> Fields:
        """This party's seed and mask key, a share for each party, which only that party can read."""
        record, publics = self._record(), [keys.tobytes() for keys in asked["publics"]]
        single = {half for keys in publics for half in (keys[:KEY_BYTES], keys[KEY_BYTES:])}
        own = public_key(record["private"]) + public_key(record["masking"])
        if len(single) != 2 * len(publics) or len(publics) > self.node.num_partitions or own not in publics:
            raise ContractError(
                f"the server sent {2 * len(publics)} keys, of which {len(single)} differ, expected two each of at most "
                f"{self.node.num_partitions} parties, this site's own included"
            )
        self._require_enough(len(publics))
        self._permit_parties(len(publics))
        record["keys"], record["own"] = publics, publics.index(own)
        channels, sealed = self._channels(), []
        both = [shamir.split(record[name], self.config.survivors, len(publics)) for name in ("seed", "masking")]
        for place, (seed, key) in enumerate(zip(*both, strict=True)):
            sealed.append(np.frombuffer(channels.sealed(place, seed + key), np.uint8))
        return {"sealed": np.stack(sealed)}

    def _hidden(self, phase: str, asked: Fields) -> Fields:
        record = self._record()
        members = record["members"] = self._places(asked["members"], range(len(record["keys"])))
        parts, layout = self.parts(phase)
        vector = self.encoded(lambda: layout.encode_sum(parts))
        ring = self._channels().ring
        return {"masked": hide(vector, ring, phase, members, record["masking"], record["seed"])}

    def _agree(self, asked: Fields) -> Fields:
        """Proofs for the other survivors that this party was told the same, if its rules allow their sum."""
        record = self._record()
        survivors = self._places(asked["survivors"], record["members"])
        self._permit_parties(len(survivors))
        self.permit_survivors(self.node.num_partitions - len(survivors))
        record["survivors"] = survivors
        channels = self._channels()
        proofs = [channels.proof(channels.own, place, record["members"], survivors) for place in survivors]
        return {"proofs": np.stack([np.frombuffer(proof, np.uint8) for proof in proofs])}

    def _reveal(self, asked: Fields) -> Fields:
        """A share of each survivor's seed, and of each other party's mask key: once enough survivors agree."""
        record, channels = self._record(), self._channels()
        members, survivors = record["members"], record["survivors"]
        agreed = self._places(asked["agreed"], survivors)  # as many as the threshold
        proofs = [proof.tobytes() for proof in asked["proofs"]]
        if len(proofs) != len(agreed) or not all(
            channels.agrees(place, proof, members, survivors) for place, proof in zip(agreed, proofs, strict=True)
        ):
            raise ContractError(
                "another site was told other survivors, or knows other keys, another configuration or another "
                "'group-secret'; nothing is revealed"
            )
        revealed = []
        for place, text in zip(members, asked["sealed"], strict=True):
            shares = channels.unsealed(place, text.tobytes())
            revealed.append(np.frombuffer(shares[:SHARE] if place in survivors else shares[SHARE:], np.uint8))
        record["publics"] = [channels.ring.run_key(place) for place in survivors]  # the last round is over these
        return {"shares": np.stack(revealed)}

    # Inside

    def _channels(self) -> Channels:
        record = self._record()
        ring = Ring(list(record["keys"]), json.dumps(dict(self.context.run_config), sort_keys=True))
        return Channels(ring, record["own"], record["private"], shared_secret(self.node.group_secret))

    def _places(self, told: NDArray, among: Sequence[int]) -> list[int]:
        """Places of parties, checked: this party's and enough others, in order, ``among`` those that there were."""
        places, own = told.tolist(), self._record()["own"]
        if places != sorted(set(places)) or not set(places) <= set(among) or own not in places:
            raise ContractError(
                f"the server's list of parties is {places}, expected some of {list(among)}, in order, with this "
                f"site's own place {own}"
            )
        self._require_enough(len(places))
        return places

    def _permit_parties(self, parties: int) -> None:
        if parties < self.node.min_parties:
            raise DisclosureError(
                f"the sum would have {parties} different parties, this site asks for at least {self.node.min_parties} "
                "(node-config 'min-parties')"
            )

    def _require_enough(self, parties: int) -> None:
        if parties < self.config.survivors:
            raise ContractError(
                f"the server goes on with {parties} parties, fewer than the run's 'survivors' = {self.config.survivors}"
            )
