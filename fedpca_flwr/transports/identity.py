"""A site's identity for the other sites: an Ed25519 key pair of its own, and a list of all sites' public keys.

The private key is a file (PEM, PKCS 8). The list, which sites get over a channel that they trust, has a line for each
party: ``<partition-id> <64 hexadecimal digits>``; what follows a ``#`` is a comment. Flower's node keys prove nothing
to another site.
"""

import hashlib
import os
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key

from fedpca_flwr.config.node_config import NodeConfig
from fedpca_flwr.config.run_config import NAME_CHARACTERS
from fedpca_flwr.errors import ConfigError
from fedpca_flwr.state.files import read_text, unreadable_error, write_new

SIGNATURE_BYTES = 64


@dataclass(frozen=True)
class Identity:
    """A party's Ed25519 private key, and the public keys of all parties."""

    party: int  # partition of the party
    private_key: Ed25519PrivateKey
    member_keys: Sequence[bytes]  # 32 bytes each, by partition, the party's own among them

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 of all public keys in order, by which sites notice that their lists differ."""
        return hashlib.sha256(b"".join(self.member_keys)).digest()

    def sign(self, message: bytes) -> bytes:
        """Return the Ed25519 signature (64 bytes) of a message, which everybody who has the list of keys can verify."""
        return self.private_key.sign(message)

    def is_signed_by(self, party: int, message: bytes, signature: bytes) -> bool:
        """Check that a signature of the message was made with the private key of this party."""
        return _is_signature(self.member_keys[party], message, signature)


@lru_cache(maxsize=1024)
def _is_signature(public_key: bytes, message: bytes, signature: bytes) -> bool:
    """Check an Ed25519 signature, once for all parties of a simulation, which verify the same ones."""
    with suppress(InvalidSignature, ValueError):
        Ed25519PublicKey.from_public_bytes(public_key).verify(signature, message)
        return True
    return False


def load_identity(node: NodeConfig) -> Identity:
    """Load the site's private key and the list of public keys; a party without data gets keys without secrecy.

    Raise ConfigError if a site with data names no identity, or its files are faulty or do not fit each other.
    """
    if not node.identity:
        if node.data:
            raise ConfigError(
                "this site's node-config names no 'identity' and no 'identities', by which it knows the other sites; "
                "with secure aggregation, and so with trust='distributed', a site with data of its own needs both: "
                f"make a key with '{KEYS_COMMAND}'"
            )
        return simulated_identity(node.num_partitions, node.partition_id)
    private_key = read_private_key(node.identity)
    member_keys = read_member_keys(node.identities, node.num_partitions)
    if member_keys[node.partition_id] != private_key.public_key().public_bytes_raw():
        raise ConfigError(
            f"node-config: the file of 'identities' has another key for partition {node.partition_id} than that of the "
            "site's own 'identity'; its own line belongs there",
            local=member_line(node.partition_id, private_key),
        )
    return Identity(node.partition_id, private_key, member_keys)


def simulated_identity(parties: int, party: int) -> Identity:
    """Return a key pair derived from the party's number: for simulations only, without any protection."""
    private_keys, members = _simulated_keys(parties)
    return Identity(party, private_keys[party], members)


@lru_cache(maxsize=8)
def _simulated_keys(parties: int) -> tuple[list[Ed25519PrivateKey], tuple[bytes, ...]]:
    """Derive private and public keys for all parties, in their order, from their numbers; anybody can do the same."""
    seeds = (hashlib.sha256(f"fedpca-flwr simulated {party}".encode()).digest() for party in range(parties))
    private_keys = list(map(Ed25519PrivateKey.from_private_bytes, seeds))
    return private_keys, tuple(key.public_key().public_bytes_raw() for key in private_keys)


KEYS_COMMAND = "fedpca site keys"
SMALL_ORDER_KEYS = {
    bytes(32),
    bytes.fromhex("26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05"),
    bytes.fromhex("c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a"),
    *(bytes.fromhex(f"{first}{'ff' * 30}7f") for first in ("ec", "ed", "ee")),
    bytes.fromhex(f"01{'00' * 31}"),
}
"""The points of small order, but for their sign: whoever has no private key can sign under these."""


def make_key(path: str, party: int, name: str = "") -> str:
    """Write a new Ed25519 private key to a file, and return the party's line for the list; ConfigError for faults."""
    if party < 0:
        raise ConfigError(f"partition-id is {party}, expected a number from 0")
    if not re.fullmatch(f"{NAME_CHARACTERS}{{0,64}}", name):
        raise ConfigError(f"name is {name!r}, expected at most 64 letters, digits, spaces, dashes or any of _.,'&()")
    private_key = Ed25519PrivateKey.generate()
    write_new(Path(path).expanduser(), private_key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return member_line(party, private_key, name)


def member_line(party: int, private_key: Ed25519PrivateKey, name: str = "") -> str:
    """Return a line "partition-id public-key # name" for the list of public keys; an empty name is left out."""
    comment = f"  # {name}" if name else ""
    return f"{party} {private_key.public_key().public_bytes_raw().hex()}{comment}"


def read_private_key(path: str) -> Ed25519PrivateKey:
    """Read an Ed25519 private key from a PEM file; raise ConfigError if it is none, or others may read or write it."""
    file = Path(path).expanduser()
    try:
        text = file.read_bytes()
        is_exposed = os.name == "posix" and file.stat().st_mode & 0o077
    except OSError as error:
        raise unreadable_error("identity", path, error) from None
    if is_exposed:
        raise ConfigError(
            "node-config: the file of 'identity' is a private key that others than its owner may read or write; "
            "let only the owner (chmod 600)",
            local=path,
        )
    with suppress(ValueError, TypeError):
        private_key = load_pem_private_key(text, password=None)
        if isinstance(private_key, Ed25519PrivateKey):
            return private_key
    raise ConfigError(
        "node-config: the file of 'identity' does not contain an Ed25519 private key in PEM; make a key with "
        f"'{KEYS_COMMAND}'",
        local=path,
    )


def read_member_keys(path: str, parties: int) -> tuple[bytes, ...]:
    """Read the public keys of all parties, by partition; raise a ConfigError that lists all faults of the file."""
    keys: dict[int, bytes] = {}
    lines: list[str] = []
    faults = []
    try:
        lines = read_text(Path(path).expanduser()).splitlines()
    except OSError as error:
        raise unreadable_error("identities", path, error) from None
    except UnicodeDecodeError:
        faults.append("it is not a text in UTF-8")
    for number, line in enumerate(lines, 1):
        if entry := line.split("#")[0].strip():
            fault = _add_member(keys, entry, parties)
            faults += [f"line {number}: {fault}"] if fault else []
    missing = ", ".join(str(party) for party in range(parties) if party not in keys)
    faults += [f"no line for partition {missing}"] if missing else []
    if faults:
        raise ConfigError(
            f"node-config: the file of 'identities' must have a line '<partition-id> <64 hexadecimal digits>' for each "
            f"of the {parties} parties (num-partitions): " + "; ".join(faults),
            local=path,
        )
    return tuple(keys[party] for party in range(parties))


def _add_member(keys: dict[int, bytes], entry: str, parties: int) -> str:
    """Parse a line of the list of public keys; add its key to `keys`, or return its fault ("" if none)."""
    parts = re.fullmatch(r"(\d{1,9})\s+([0-9a-fA-F]{64})", entry, re.ASCII)
    if not parts:
        return "it is not a partition-id and 64 hexadecimal digits"
    party, key = int(parts[1]), bytes.fromhex(parts[2])
    if party >= parties:
        return f"partition {party}, expected 0 to {parties - 1}"
    if party in keys:
        return f"partition {party} has a line already"
    # without the highest bit, the sign of x: a point and its negative have the same order
    if key[:-1] + bytes([key[-1] & 127]) in SMALL_ORDER_KEYS:
        return f"partition {party} has a key with which anybody can sign"
    if key in keys.values():
        holder = next(other for other, other_key in keys.items() if other_key == key)
        return f"partition {party} has the key of partition {holder}"
    keys[party] = key
    return ""
