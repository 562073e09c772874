"""A fifth of a party's rows, which it holds out: keyed digests of the rows decide, not where they stand."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedpca_flwr.maths.blocks import Rows, chunks


def held_out(rows: Rows, seed: int) -> NDArray[np.bool_]:
    """Which fifth of the rows (n, d) is held out by a seed that everybody may know."""
    return fifth(digests(rows, str(seed).encode()))


def digests(rows: Rows, key: bytes) -> list[bytes]:
    """A keyed digest of each row; ``key`` has at most 64 bytes."""
    return [
        hashlib.blake2b((row + 0.0).tobytes(), key=key, digest_size=16).digest()
        for chunk in chunks(rows)
        for row in chunk
    ]


def fifth(digests: Sequence[bytes]) -> NDArray[np.bool_]:
    """Which fifth of them, rounded down, comes first."""
    chosen = np.zeros(len(digests), dtype=bool)
    chosen[sorted(range(len(digests)), key=digests.__getitem__)[: len(digests) // 5]] = True
    return chosen
