"""Pairwise masks: each party adds random words to its vector, and in the sum over all parties they cancel exactly.

Bonawitz et al., Practical Secure Aggregation for Privacy-Preserving Machine Learning (CCS 2017), section 4.1. Every two
parties agree on a secret (X25519, RFC 7748), derive a key for one request from it (HKDF-SHA256, RFC 5869) and expand
that into words (ChaCha20, RFC 8439); one of the two adds them to its vector and the other subtracts them, modulo 2^64.
A sum without one of the parties is noise.

Flower's SecAgg+ is not used: it has 32-bit arithmetic, and its masks come from 32 bits of seed and a non-cryptographic
generator.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import NDArray

from fedpca_flwr.errors import ContractError

if TYPE_CHECKING:
    from _hashlib import HASH


Words = NDArray[np.uint64]

KEY_BYTES = 32
KEY_PURPOSE = b"fedpca secure sum"

BLOCK_WORDS = 2**16
"""Words of a mask that are made at once: half a MiB stays in a processor's cache."""


def new_private_key() -> bytes:
    """Return a new private key: 32 random bytes of the operating system."""
    return X25519PrivateKey.generate().private_bytes_raw()


def public_key(private: bytes) -> bytes:
    """Return the X25519 public key of a private key."""
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def split_keys(joined: bytes, size: int = KEY_BYTES) -> list[bytes]:
    """Split concatenated keys into a list of keys of ``size`` bytes each."""
    return [joined[i : i + size] for i in range(0, len(joined), size)]


def hash_pieces(pieces: Iterable[bytes], prefix: HASH | None = None) -> HASH:
    """Return a new SHA-256 of byte strings (after `prefix`), each preceded by its length, so that lists differ."""
    digest = prefix.copy() if prefix else hashlib.sha256()
    for piece in pieces:
        digest.update(len(piece).to_bytes(8, "little"))
        digest.update(piece)
    return digest


def digest_pieces(*pieces: bytes) -> bytes:
    """Return the SHA-256 digest of byte strings, each preceded by its length, so that different lists differ."""
    return hash_pieces(pieces).digest()


def describe_arrays(arrays: Iterable[NDArray[Any]]) -> Iterator[bytes]:
    """Yield each array's type and shape, then its values, as byte strings to hash."""
    for array in arrays:
        yield f"{array.dtype.str} {array.shape}".encode()
        yield array.tobytes()


def transcript(phase: str, context: bytes, publics: Sequence[bytes], arrays: Sequence[NDArray[Any]]) -> bytes:
    """Return a digest of a question, its arrays, the run, and the keys of the parties that take part.

    Every mask depends on it, so masks cancel only if all parties were asked the same: a server that sends zeros to all
    but one learns nothing. Of questions that can come twice the arrays hold the number, so no two answers share a mask.
    """
    return digest_pieces(phase.encode(), context, *publics, *describe_arrays(arrays))


def mask(private: bytes, publics: Sequence[bytes], context: bytes, size: int) -> Words:
    """Return a party's mask (`add_mask`); distinct public keys have its own. Raise ContractError for one not valid."""
    total = np.zeros(size, np.uint64)
    add_mask(total, public_key(private), shared_secrets(private, publics), context)
    return total


def add_mask(words: Words, local_key: bytes, secrets: Mapping[bytes, bytes], context: bytes) -> None:
    """Add to words, in place, the keystream with each peer (secrets by key); subtract it if the own key is larger."""
    buffers = Buffers(words.size)
    for peer, secret in secrets.items():
        operation = np.add if local_key < peer else np.subtract
        combine(words, derive_key(secret, local_key, peer, context), operation, buffers)


class Buffers:
    """Buffers for a single block of a keystream, allocated once and used for all masks of a vector."""

    def __init__(self, size: int) -> None:
        self.words = np.empty(min(size, BLOCK_WORDS), "<u8")
        self.bytes = self.words.data.cast("B")
        self.zeros = memoryview(bytes(self.words.nbytes))


def combine(words: Words, key: bytes, operation: np.ufunc, buffers: Buffers | None = None) -> None:
    """Add the ChaCha20 keystream of a key to words in place, by `numpy.add`, or subtract it, by `numpy.subtract`."""
    stream, buffers = keystream(key), buffers or Buffers(words.size)
    for start in range(0, words.size, BLOCK_WORDS):
        block = words[start : start + BLOCK_WORDS]
        stream.update_into(buffers.zeros[: block.nbytes], buffers.bytes[: block.nbytes])
        operation(block, buffers.words[: block.size], out=block)


def shared_secrets(private: bytes, publics: Iterable[bytes]) -> dict[bytes, bytes]:
    """Return the X25519 secret with each other party, by its key; raise ContractError for a point of small order."""
    key = X25519PrivateKey.from_private_bytes(private)
    local_key = key.public_key().public_bytes_raw()
    return {peer: _exchange_key(key, peer) for peer in publics if peer != local_key}


def agreed_key(key: X25519PrivateKey, peer: bytes, context: bytes) -> bytes:
    """Return the 256-bit key of two parties for one request; raise ContractError for a point of small order."""
    return derive_key(_exchange_key(key, peer), key.public_key().public_bytes_raw(), peer, context)


def keystream(key: bytes) -> CipherContext:
    """Return a ChaCha20 encryptor that turns zeros into the keystream; the nonce is zero, as each key serves once."""
    return Cipher(ChaCha20(key, bytes(16)), mode=None).encryptor()


def _exchange_key(private: X25519PrivateKey, peer: bytes) -> bytes:
    """Return the X25519 secret of a private key and a peer's; raise ContractError for a point of small order."""
    try:
        return private.exchange(X25519PublicKey.from_public_bytes(peer))
    except ValueError:
        text = "the server relayed a public key that is not valid; does it run the same version?"
        raise ContractError(text) from None


def derive_key(shared: bytes, local_key: bytes, peer: bytes, context: bytes) -> bytes:
    """Derive the 256-bit key of two parties, in any order, for one request from their shared secret, by HKDF-SHA256."""
    info = KEY_PURPOSE + context + b"".join(sorted([local_key, peer]))
    return HKDF(SHA256(), KEY_BYTES, salt=None, info=info).derive(shared)
