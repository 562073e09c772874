"""Double masks: the sum over the parties that survive opens once, and no single share of any party.

Bonawitz et al., Practical Secure Aggregation for Privacy-Preserving Machine Learning (CCS 2017), section 4, with the
check of consistency. A party hides its vector under pairwise masks and under a self mask from a seed of its own. It
gives every party a Shamir share of that seed and of its mask key. When the survivors are known, each of them reveals
for every party the seed's share if that party survived, else the key's. So the server can remove the self masks of
survivors and the pairwise masks with those that dropped out, and never both of one party.

A party has two key pairs, new in each run. The *mask key* makes the pairwise masks of this one sum; its private half is
what a dropped party's shares give. The *run key* is never shared: from it come the keys under which shares travel, and
the masks of the last round. Each party signs the public halves of both with its identity, and later the survivors that
it was told (`fedpca_flwr.transports.signed`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from numpy.typing import NDArray

from fedpca_flwr.errors import ConfigError, ContractError
from fedpca_flwr.maths import secure
from fedpca_flwr.transports.pairwise_masks import (
    KEY_BYTES,
    Words,
    agreed_key,
    combine,
    describe_arrays,
    hash_pieces,
    mask,
    public_key,
    transcript,
)

if TYPE_CHECKING:
    from _hashlib import HASH


SHARE_BYTES = secure.SHARE_BYTES
SEALED_BYTES = 2 * SHARE_BYTES + 16
"""Bytes of the shares of a seed and of a key, encrypted."""

WRONG_SHARES_TEXT = (
    "the masks of the survivors do not come off: a party revealed a wrong share, or its vector was altered on its way; "
    "nothing can be read from the sum"
)


def require_threshold(survivors: int, parties: int) -> None:
    """Raise ConfigError unless the survivors ``t`` are more than two thirds of the ``n`` parties, and at most all.

    For the vector of a party the server needs ``t`` shares of its seed and ``t`` of its key. An honest party reveals
    one of the two, and ``c`` parties that collude with the server give both. So ``2 t > n + c`` keeps every vector
    hidden (section 6 of the paper), and ``t > 2 n / 3`` does while fewer than a third collude.
    """
    minimum = secure.min_survivors(parties)
    if not minimum <= survivors <= parties:
        raise ConfigError(
            f"run-config: 'survivors' is {survivors}, expected {minimum} to {parties}, more than two thirds of the "
            f"{parties} parties (0: everyone or no one)"
        )


def min_colluders(survivors: int, parties: int) -> int:
    """Return the smallest ``c`` without ``2 t > n + c``: so many parties and the server uncover another's vector."""
    return min(2 * survivors - parties, parties - 1)


@dataclass(frozen=True)
class PublicKeys:
    """Public run key and public mask key of each party, by the party's position in the list of parties."""

    keys: Sequence[bytes]  # by position: the public run key of a party, then its public mask key
    context: bytes = b""  # digest of the run (`Signer.context`); the server does not know it

    def run_key(self, position: int) -> bytes:
        """Return a party's public run key, from which the keys that encrypt its messages are derived."""
        return self.keys[position][:KEY_BYTES]

    def mask_keys(self, positions: Sequence[int]) -> list[bytes]:
        """Return the public keys of some parties, in their order, from which their pairwise masks are derived."""
        return [self.keys[position][KEY_BYTES:] for position in positions]

    def shares_context(self, sender: int, recipient: int) -> bytes:
        """Return the digest of run, keys, sender and recipient to which the key that encrypts shares is bound."""
        return hash_pieces(describe_arrays([np.array([sender, recipient])]), self._shares_prefix).digest()

    @cached_property
    def _shares_prefix(self) -> HASH:
        """SHA-256 state after the run and all keys, computed once as the start of every pair's digest."""
        return hash_pieces([b"shares", self.context, *self.keys])

    def mask_context(self, phase: str, positions: Sequence[int], request: Sequence[NDArray[Any]] = ()) -> bytes:
        """Return the digest of question, keys and members to which the members' pairwise masks are bound."""
        return transcript(phase, b"", self.keys, [np.asarray(positions), *request])


@dataclass(frozen=True)
class Channels:
    """Encrypted channels of a party to the others, relayed by a server that can neither read nor alter messages."""

    public_keys: PublicKeys
    position: int  # position of this party
    private: bytes  # private run key of this party

    def seal(self, recipient: int, shares: bytes) -> bytes:
        """Return Shamir shares encrypted for another party (position); ContractError if its key is not valid."""
        return self._cipher(self.position, recipient).encrypt(bytes(12), shares, None)

    def unseal(self, sender: int, sealed: bytes) -> bytes:
        """Decrypt Shamir shares from another party; raise ContractError if they were altered or are of other keys."""
        try:
            return self._cipher(sender, self.position).decrypt(bytes(12), sealed, None)
        except InvalidTag:
            raise ContractError(
                "the shares of another site cannot be read: it was told other keys, or they were altered on their way"
            ) from None

    def _cipher(self, sender: int, recipient: int) -> ChaCha20Poly1305:
        """Return the cipher of a single message; its key is used once, so that a constant nonce is safe."""
        peer = recipient if sender == self.position else sender
        context = self.public_keys.shares_context(sender, recipient)
        return ChaCha20Poly1305(agreed_key(self._key, self.public_keys.run_key(peer), context))

    @cached_property
    def _key(self) -> X25519PrivateKey:
        """Private run key of this party as an X25519 key."""
        return X25519PrivateKey.from_private_bytes(self.private)


def hide(
    vector: Words, public_keys: PublicKeys, context: bytes, members: Sequence[int], private: bytes, seed: bytes
) -> Words:
    """Return a party's vector plus its pairwise masks (`private`) with the other members and its self mask (`seed`).

    `members` are positions, `context` is `PublicKeys.mask_context`. Raise ContractError for a key that is not valid.
    """
    vector = vector + mask(private, public_keys.mask_keys(members), context, vector.size)
    combine(vector, seed, np.add)
    return vector


def unmask(
    total: Words,
    public_keys: PublicKeys,
    context: bytes,
    members: Sequence[int],
    survivors: Sequence[int],
    revealed: Mapping[int, Mapping[int, bytes]],
) -> Words:
    """Return the sum of the survivors' hidden vectors without their self masks and the dropouts' pairwise masks.

    `revealed` has, by revealing party and member, a share of the member's seed or key. Raise ContractError if the
    shares do not give the keys, or if the sum does not count the survivors.
    """
    total = total.copy()
    for position in members:
        try:
            secret = secure.combine_shares({holder: shares[position] for holder, shares in revealed.items()})
        except ValueError:
            raise ContractError(WRONG_SHARES_TEXT) from None
        if position in survivors:
            combine(total, secret, np.subtract)
            continue
        if public_key(secret) != public_keys.keys[position][KEY_BYTES:]:
            raise ContractError(WRONG_SHARES_TEXT)
        keys = public_keys.mask_keys([position, *survivors])
        total += mask(secret, keys, context, total.size)
    if int(total[0]) != len(survivors):  # each vector begins with the word 1, so that the sum counts its vectors
        raise ContractError(WRONG_SHARES_TEXT)
    return total
