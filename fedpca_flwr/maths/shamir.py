"""Shamir's secret sharing (How to share a secret, CACM 1979) of 32 bytes: t shares give them, fewer say nothing.

The secret is the value at 0 of a polynomial of degree t - 1 over the field of the smallest prime above 2^256, whose
other coefficients are random; the share of party i (from 0) is the value at i + 1. For any t - 1 shares each secret has
exactly one polynomial through them, so they say nothing about it.

Not PyCryptodome's, which Flower brings along: its field holds 16 bytes, and its arithmetic goes bit by bit.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping

PRIME = 2**256 + 297

SECRET_BYTES = 32
SHARE_BYTES = 33


def split(secret: bytes, threshold: int, parties: int) -> list[bytes]:
    """One share for each party, any ``threshold`` of which give ``secret`` (32 bytes).

    Coefficients come from the operating system's randomness.
    """
    if len(secret) != SECRET_BYTES or not 1 <= threshold <= parties:
        raise ValueError(f"{len(secret)} bytes in {parties} shares of which {threshold} give them")
    coefficients = [int.from_bytes(secret, "big"), *(secrets.randbelow(PRIME) for _ in range(threshold - 1))]
    return [_at(coefficients, party + 1).to_bytes(SHARE_BYTES, "big") for party in range(parties)]


def combine(shares: Mapping[int, bytes]) -> bytes:
    """The secret that these shares (by party from 0) give: the right one if they are enough and all are right.

    Raises
    ------
    ValueError
        If the shares do not belong together, as far as that shows.
    """
    value = interpolated({party + 1: int.from_bytes(share, "big") for party, share in shares.items()}, 0)
    if value >= 2**256:
        raise ValueError("the shares do not belong together")
    return value.to_bytes(SECRET_BYTES, "big")


def interpolated(points: Mapping[int, int], x: int) -> int:
    """The value at ``x`` of the polynomial of the lowest degree through ``points`` (Lagrange)."""
    total = 0
    for own, value in points.items():
        above = below = 1
        for other in points:
            if other != own:
                above = above * (x - other) % PRIME
                below = below * (own - other) % PRIME
        total += value * above * pow(below, -1, PRIME)
    return total % PRIME


def _at(coefficients: list[int], x: int) -> int:
    value = 0
    for coefficient in reversed(coefficients):  # Horner
        value = (value * x + coefficient) % PRIME
    return value
