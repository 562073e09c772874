"""Who a site is to the other sites: an Ed25519 key pair of its own, and a list of all sites' public keys.

Flower's node keys are not these: by them the SuperLink knows its nodes, and they say nothing to another site, which
sees only what whoever holds the SuperLink passes on.

The files of both are in `fedpca_flwr.site.identity_files`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from fedpca_flwr.errors import ConfigError
from fedpca_flwr.node_config import NodeConfig
from fedpca_flwr.site.identity_files import COMMAND, line_of, read_members, read_private_key

SIGNATURE_BYTES = 64


@dataclass(frozen=True)
class Identity:
    """A party's own key, and everybody's public keys.

    Attributes
    ----------
    party : int
        The partition.
    private : Ed25519PrivateKey
    members : sequence of bytes
        Public keys (32 bytes each) by partition, its own among them.
    """

    party: int
    private: Ed25519PrivateKey
    members: Sequence[bytes]

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 of the list: sites with other lists do not agree."""
        return hashlib.sha256(b"".join(self.members)).digest()

    def sign(self, said: bytes) -> bytes:
        """64 bytes by which everybody who has the list knows who said it."""
        return self.private.sign(said)

    def signed(self, party: int, said: bytes, signature: bytes) -> bool:
        """Whether a party of the list said it."""
        try:
            Ed25519PublicKey.from_public_bytes(self.members[party]).verify(signature, said)
        except (InvalidSignature, ValueError):
            return False
        return True


def identity_of(node: NodeConfig) -> Identity:
    """A site's identity, from the files that its node-config names.

    A party without data of its own, as in a simulation, has an identity that anybody can make: it protects nothing.

    Raises
    ------
    ConfigError
    """
    if not node.identity:
        if node.data:
            raise ConfigError(
                "this site's node-config names no 'identity' and no 'identities', by which it knows the other sites; "
                "with secure aggregation, and so with trust='distributed', a site with data of its own needs both: "
                f"make a key with '{COMMAND}'"
            )
        return simulated(node.num_partitions, node.partition_id)
    private = read_private_key(node.identity)
    members = read_members(node.identities, node.num_partitions)
    if members[node.partition_id] != private.public_key().public_bytes_raw():
        raise ConfigError(
            f"node-config: the file of 'identities' has another key for partition {node.partition_id} than that of the "
            "site's own 'identity'; its own line belongs there",
            local=line_of(node.partition_id, private),
        )
    return Identity(node.partition_id, private, members)


def simulated(parties: int, party: int) -> Identity:
    """An identity for a simulation: made from the number of the party, so that anybody can make it."""
    return Identity(party, _simulated_key(party), _simulated_members(parties))


def _simulated_key(party: int) -> Ed25519PrivateKey:
    return Ed25519PrivateKey.from_private_bytes(hashlib.sha256(f"fedpca-flwr simulated {party}".encode()).digest())


@lru_cache(maxsize=8)
def _simulated_members(parties: int) -> tuple[bytes, ...]:
    return tuple(_simulated_key(party).public_key().public_bytes_raw() for party in range(parties))
