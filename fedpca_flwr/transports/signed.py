"""Signatures on the parties' messages to each other through an untrusted server (Ed25519, RFC 8032).

A signature is of one run, one configuration and one list of members: it cannot be taken from another run, and the
server, which has no private key, can relay a party's run key or withhold it, not replace it.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fedpca_flwr.errors import DisclosureError
from fedpca_flwr.protocol.payload import Field
from fedpca_flwr.transports.identity import SIGNATURE_BYTES, Identity
from fedpca_flwr.transports.pairwise_masks import digest_pieces, split_keys

SIGNATURE_PURPOSE = b"fedpca signature"

SIGNATURE_FIELD = Field("signature", ("signature",), "uint8")
SIGNATURE_SIZES = {"signature": SIGNATURE_BYTES}

NO_ANSWER_TEXT = "nothing is answered"


@dataclass(frozen=True)
class Signer:
    """Signer of a party's messages in a run, which also checks the signatures of the other members."""

    identity: Identity  # the party's private key and its list of members
    run: str  # Flower's id of the run
    configuration: str  # text of the run's configuration

    @cached_property
    def context(self) -> bytes:
        """Digest of run, configuration and list of members, on which all messages and keys of the run depend."""
        return digest_pieces(self.run.encode(), self.configuration.encode(), self.identity.digest)

    def sign(self, subject: str, *parts: bytes) -> NDArray[np.uint8]:
        """Return this party's signature (64,) on byte strings, bound to the run and to a subject."""
        return np.frombuffer(self.identity.sign(self._message(self.identity.party, subject, parts)), np.uint8)

    def require_signature(self, party: int, subject: str, signature: NDArray[np.uint8], *parts: bytes) -> None:
        """Raise DisclosureError, with the party, unless it made this signature (64,) on `parts` in this run."""
        if not self.identity.is_signed_by(party, self._message(party, subject, parts), signature.tobytes()):
            raise DisclosureError(
                f"the signature of party {party} under the {subject} is not right by its key in this site's list "
                "(node-config 'identities'), for this run, its configuration and this list: it is somebody else's or "
                "of another run, or that party was told something else than this site, or the sites' lists differ; "
                f"{NO_ANSWER_TEXT}"
            )

    def require_keys(
        self, parties: Sequence[int], keys: Sequence[bytes], signatures: NDArray[np.uint8], local_key: bytes
    ) -> None:
        """Raise DisclosureError unless each run key is signed by a different listed party, and this one's is its own.

        Parts of keys that two parties have are refused too. Shapes: signatures (len(parties), 64).
        """
        partitions, times = range(len(self.identity.member_keys)), Counter(parties)
        for party in parties:
            if party not in partitions:
                raise DisclosureError(
                    f"the server relays keys of party {party}, and this site's list (node-config 'identities') has "
                    f"parties 0 to {partitions[-1]}; {NO_ANSWER_TEXT}"
                )
            if times[party] > 1:
                raise DisclosureError(f"the server relays keys of party {party} more than once; {NO_ANSWER_TEXT}")
        if dict(zip(parties, keys, strict=True)).get(self.identity.party) != local_key:
            raise DisclosureError(
                f"the server relays no keys, or others than its own, as those of this site, party "
                f"{self.identity.party}; {NO_ANSWER_TEXT}"
            )
        for party, key, signature in zip(parties, keys, signatures, strict=True):
            if party != self.identity.party:
                self.require_signature(party, "run keys", signature, key)
        holders: dict[bytes, int] = {}
        for party, key in zip(parties, keys, strict=True):
            for part in split_keys(key):
                if holders.setdefault(part, party) != party:
                    pair = f"parties {holders[part]} and {party}"
                    raise DisclosureError(f"{pair} have signed the same key; {NO_ANSWER_TEXT}")

    def _message(self, party: int, subject: str, parts: Sequence[bytes]) -> bytes:
        """Return the digest of run, subject, party and byte strings that a signature covers."""
        return digest_pieces(SIGNATURE_PURPOSE, self.context, subject.encode(), str(party).encode(), *parts)
