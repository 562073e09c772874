"""Double masks: the sum over the parties that survive opens once, and no single share of any party.

Bonawitz et al., Practical Secure Aggregation for Privacy-Preserving Machine Learning (CCS 2017), section 4, with the
check of consistency. A party hides its vector under pairwise masks and under a self mask from a seed of its own. It
gives every party a Shamir share of that seed and of its mask key. When the survivors are known, each of them reveals
for every party one of the two: the seed's share if that party survived, else the key's. So the server can remove the
self masks of survivors and the pairwise masks with those that dropped out, and never both of one party.

A party has two key pairs, new in each run. The *mask key* makes the pairwise masks of this one sum; its private half is
what a dropped party's shares give. The *run key* is never shared: from it come the keys under which shares travel, and
the masks of the last round. Each party signs the public halves of both with its identity, and later the survivors that
it was told (`fedpca_flwr.transports.signed`), as in the paper.
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
    """Refuse fewer survivors than the protocol is secure with: more than two thirds of the parties.

    For the vector of a party the server needs ``t`` shares of its seed and ``t`` of its key. Of each party an honest
    party reveals only a share of the seed or of the key; ``c`` parties that collude with the server give both. So ``2 t
    > n + c`` keeps every vector hidden from a server that tells the parties different things (section 6 of the paper),
    and ``t > 2 n / 3`` does while fewer than a third collude. A majority would be enough against a server without any
    party on its side only.

    Parameters
    ----------
    survivors : int
        Threshold ``t``: number of survivors that the run requires.
    parties : int
        Number ``n`` of parties.

    Raises
    ------
    ConfigError
        If there are too few survivors, or more than parties.
    """
    minimum = secure.min_survivors(parties)
    if not minimum <= survivors <= parties:
        raise ConfigError(
            f"run-config: 'survivors' is {survivors}, expected {minimum} to {parties}, more than two thirds of the "
            f"{parties} parties (0: everyone or no one)"
        )


def min_colluders(survivors: int, parties: int) -> int:
    """Return the smallest number of parties that must collude with the server before the vector of a party can show.

    This is the smallest ``c`` without ``2 t > n + c`` (`require_threshold`). If nobody may drop out, all parties but
    one must collude: they subtract their own vectors from the sum.

    Parameters
    ----------
    survivors : int
        Threshold ``t``.
    parties : int
        Number ``n`` of parties.

    Returns
    -------
    int
        Number of parties.
    """
    return min(2 * survivors - parties, parties - 1)


@dataclass(frozen=True)
class PublicKeys:
    """Public keys of all parties, as known to a party or the server.

    Parameters
    ----------
    keys : sequence of bytes
        For each position the public run key of a party, then its public mask key.
    context : bytes
        Digest of the run (`Signer.context`), on which messages between parties depend; the server does not know it.
    """

    keys: Sequence[bytes]  # by place: the public run key of a party, then its public mask key
    context: bytes = b""  # the run (`Signer.about`); the server does not know it

    def run_key(self, position: int) -> bytes:
        """Return the public run key of a party.

        Parameters
        ----------
        position : int
            Position of the party.

        Returns
        -------
        bytes
            The key.
        """
        return self.keys[position][:KEY_BYTES]

    def mask_keys(self, positions: Sequence[int]) -> list[bytes]:
        """Return the public mask keys of some parties.

        Parameters
        ----------
        positions : sequence of int
            Positions of the parties.

        Returns
        -------
        list of bytes
            The keys.
        """
        return [self.keys[position][KEY_BYTES:] for position in positions]

    def shares_context(self, sender: int, recipient: int) -> bytes:
        """Return the context of the key for shares from a party to another.

        Parameters
        ----------
        sender : int
            Position of the sender.
        recipient : int
            Position of the recipient.

        Returns
        -------
        bytes
            A digest.
        """
        return hash_pieces(describe_arrays([np.array([sender, recipient])]), self._shares_prefix).digest()

    @cached_property
    def _shares_prefix(self) -> HASH:
        """Hash of the part that all pairs share, computed once because the part grows with the number of parties."""
        return hash_pieces([b"shares", self.context, *self.keys])

    def mask_context(self, phase: str, positions: Sequence[int], request: Sequence[NDArray[Any]] = ()) -> bytes:
        """Return the context of the pairwise masks of some parties, a digest of everything that the parties were asked.

        Parameters
        ----------
        phase : str
            Name of the question.
        positions : sequence of int
            Positions of the parties.
        request : sequence of ndarray
            Arrays of the question.

        Returns
        -------
        bytes
            A digest.
        """
        return transcript(phase, b"", self.keys, [np.asarray(positions), *request])


@dataclass(frozen=True)
class Channels:
    """Encrypted channels of a party to the others, through a server that can neither read nor alter the messages.

    Parameters
    ----------
    public_keys : PublicKeys
        Public keys of all parties.
    position : int
        Position of this party.
    private : bytes
        Private run key of this party.
    """

    public_keys: PublicKeys
    position: int  # this party's place
    private: bytes  # its run key

    def seal(self, recipient: int, shares: bytes) -> bytes:
        """Encrypt shares for another party.

        Parameters
        ----------
        recipient : int
            Position of the recipient.
        shares : bytes
            The shares.

        Returns
        -------
        bytes
            The ciphertext.
        """
        return self._cipher(self.position, recipient).encrypt(bytes(12), shares, None)

    def unseal(self, sender: int, sealed: bytes) -> bytes:
        """Decrypt shares from another party.

        Parameters
        ----------
        sender : int
            Position of the sender.
        sealed : bytes
            The ciphertext.

        Returns
        -------
        bytes
            The shares.

        Raises
        ------
        ContractError
            If the ciphertext was made under other keys, or altered.
        """
        try:
            return self._cipher(sender, self.position).decrypt(bytes(12), sealed, None)
        except InvalidTag:
            raise ContractError(
                "the shares of another site cannot be read: it was told other keys, or they were altered on their way"
            ) from None

    def _cipher(self, sender: int, recipient: int) -> ChaCha20Poly1305:
        """Return the cipher with the key of a single message, for which a constant nonce is right."""
        peer = recipient if sender == self.position else sender
        context = self.public_keys.shares_context(sender, recipient)
        return ChaCha20Poly1305(agreed_key(self._key, self.public_keys.run_key(peer), context))

    @cached_property
    def _key(self) -> X25519PrivateKey:
        return X25519PrivateKey.from_private_bytes(self.private)


def hide(
    vector: Words, public_keys: PublicKeys, context: bytes, members: Sequence[int], private: bytes, seed: bytes
) -> Words:
    """Return a party's vector under its pairwise masks with the other members and under its self mask.

    Parameters
    ----------
    vector : ndarray of uint64
        The vector.
    public_keys : PublicKeys
        Public keys of all parties.
    context : bytes
        Context of the masks (`PublicKeys.mask_context`).
    members : sequence of int
        Positions of the parties with masks.
    private : bytes
        Private mask key of this party.
    seed : bytes
        Seed of the self mask.

    Returns
    -------
    ndarray of uint64
        The hidden vector.
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
    """Return the plain sum of the survivors' hidden vectors.

    Parameters
    ----------
    total : ndarray of uint64
        Sum of the hidden vectors.
    public_keys : PublicKeys
        Public keys of all parties.
    context : bytes
        Context of the masks (`PublicKeys.mask_context`).
    members : sequence of int
        Positions of the parties whose masks are in the vectors.
    survivors : sequence of int
        Positions of the parties whose vectors are in the sum.
    revealed : mapping of int to mapping of int to bytes
        By position of the revealing party and by member, a share of the member's seed or key.

    Returns
    -------
    ndarray of uint64
        The plain sum.

    Raises
    ------
    ContractError
        If the shares do not give the keys, or the unmasked sum does not count the survivors.
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
    if int(total[0]) != len(survivors):
        raise ContractError(WRONG_SHARES_TEXT)
    return total
