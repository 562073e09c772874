"""A party's half of secure aggregation: its keys, its own rules about the sums it takes part in, and its masks."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np
from flwr.app import ConfigRecord
from numpy.typing import NDArray

from fedpca_flwr.contract import Fields
from fedpca_flwr.errors import ContractError, DisclosureError
from fedpca_flwr.maths.fixed_point import Layout
from fedpca_flwr.secure import Words, mask, new_private_key, public_key, shared_secret, transcript
from strategies.client import PCAClient

SERVER = "the server"
"""How errors name whoever sent a request."""

STATE = "secure"
"""Where this run's keys lie in Flower's state of this party, which never leaves the site."""


class SecureClient(PCAClient):
    """Base of the clients with secure aggregation. A method adds `summands`."""

    @abstractmethod
    def summands(self, phase: str, received: list[NDArray]) -> tuple[Fields, Layout]:
        """What this party adds to the sum that a phase asks for, and the layout of that sum."""

    # What the base calls

    def statistics(self, phase: str, received: list[NDArray]) -> Fields:
        if phase == "keys":
            return {"public": np.frombuffer(self._new_keys(), np.uint8)}
        own = received
        if "publics" not in self._record():
            if not (received and received[0].dtype == np.uint8 and received[0].ndim == 2):
                raise ContractError("the server asked for a sum before it sent the parties' keys")
            self._accept([key.tobytes() for key in received[0]])
            own = received[1:]
        fields, layout = self.summands(phase, own)
        return {"masked": self.masked(phase, received, fields, layout)}

    # Keys and masks

    def _new_keys(self) -> bytes:
        if STATE in self.context.state.config_records:
            raise ContractError("the server asked for a second key in one run; one is allowed")
        private = new_private_key()
        self.context.state.config_records[STATE] = ConfigRecord({"private": private})
        return public_key(private)

    def _accept(self, publics: list[bytes]) -> None:
        """Take the public keys of this run, once, if they are those of all parties, and those are enough."""
        record = self._record()
        if "publics" in record:
            raise ContractError("the server sent the parties' keys twice; other keys would be another sum")
        known, expected = len(set(publics)), self.node.num_partitions
        if known < self.node.min_parties:
            raise DisclosureError(
                f"the sum would have {known} different parties, this site asks for at least {self.node.min_parties} "
                "(node-config 'min-parties')"
            )
        if known != len(publics) or known != expected or public_key(record["private"]) not in publics:
            raise ContractError(
                f"the server sent {len(publics)} keys, of which {known} differ, expected those of {expected} parties, "
                "this site's own included"
            )
        record["publics"] = publics

    def masked(self, phase: str, received: list[NDArray], fields: Fields, layout: Layout) -> NDArray[np.uint64]:
        """This party's vector with its masks; for each request once, since the masks depend on nothing else."""
        record = self._record()
        configuration = json.dumps(dict(self.context.run_config), sort_keys=True)
        asked = transcript(phase, configuration, record["publics"], received)
        answered = record.get("answered", [])
        if asked in answered:
            raise ContractError("the server asked for the same sum twice; a mask hides one reply only")
        record["answered"] = [*answered, asked]
        vector = self.encoded(lambda: layout.encode(fields))
        vector += mask(record["private"], record["publics"], asked, shared_secret(self.node.group_secret), layout.size)
        return vector

    def encoded(self, encode: Callable[[], Words]) -> Words:
        """This party's vector in fixed point, or an error that ends its part in the run."""
        try:
            return encode()
        except ValueError as error:
            # or a server could try limit after limit until it knows this party's share
            self._record()["ended"] = True
            raise ContractError(f"{error}: did this site's data change during the run?") from None

    def _record(self) -> Any:
        if STATE not in self.context.state.config_records:
            raise ContractError("this site has no key of this run: it was started anew, or never asked for one")
        record = self.context.state.config_records[STATE]
        if "ended" in record:
            raise ContractError("this site answers no more in this run: a limit that it was sent did not hold")
        return record
