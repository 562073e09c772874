"""The arithmetic of secure sums: fixed point, neighbours on a ring, and shares of a secret.

**Fixed point** for sums of whole numbers modulo 2^64: exact addition in any order, with resolution where the data are.
A value x travels as ``rint(x 2^e)`` in two's complement. The exponent e is the largest for which the *sum over all
parties* stays within 2^62, given a limit on that sum which both sides know: rounding then costs at most
``limit 2^-62`` a party, less than float64's own rounding of a value near the limit. Where a limit says little (a
generous one on raw values, before the variances are known) further words hold what those before rounded off. Where it
says much, several values share a word (`fedpca_flwr.maths.short_words`).

**Neighbours on a ring**: how many keep honest parties together, where those who collude stand anywhere on it. Parties
sit on a ring in a random order, and each is tied to the ``k / 2`` next ones on either side: Harary's graph on permuted
places, as in Bell, Bonawitz, Gascon, Lepoint and Raykova, Secure Single-Server Aggregation with (Poly)Logarithmic
Overhead (CCS 2020), section 3.3. They bound the probability that the honest are not connected; where nobody drops out
it follows exactly. Two honest parties with only colluders between them are tied unless these are ``k / 2`` or more, a
*gap*. One gap leaves a path; two or more cut the honest into arcs.

**Shares of a secret** (Shamir, How to share a secret, CACM 1979) of 32 bytes: t shares give them, fewer say nothing.
The secret is the value at 0 of a polynomial of degree t - 1 over the field of the smallest prime above 2^256, whose
other coefficients are random; the share of party i (from 0) is the value at i + 1. For any t - 1 shares each secret has
exactly one polynomial through them, so they say nothing about it. (PyCryptodome, which Flower brings along, has a field
of 16 bytes, and its arithmetic goes bit by bit.)
"""

import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import count
from math import comb
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.moments import two_sum
from fedpca_flwr.maths.short_words import ShortWords

FURTHER = 46  # bits that each further word adds: what up to 2^16 parties rounded off before stays within 2^62
BLOCK = 2**13  # how many values are encoded or decoded at once
PRIME = 2**256 + 297
SECRET_BYTES = 32
SHARE_BYTES = 33


Words = NDArray[np.uint64]


@dataclass(frozen=True)
class Layout:
    """How named arrays become one vector of 64-bit words, which begins with a 1 for each party in the sum."""

    # by field, the largest size that each entry of the sum over all parties can have; same shape as the field
    limits: Mapping[str, Array]
    words: int = 1  # words for each value
    short: Mapping[str, ShortWords] = field(default_factory=dict)  # the fields after these whose values share words

    @property
    def size(self) -> int:
        """Words of the vector."""
        whole = self.words * sum(limit.size for limit in self.limits.values())
        return 1 + whole + sum(words.size for words in self.short.values())

    def encode(self, values: Mapping[str, NDArray[Any]]) -> Words:
        """One party's vector (size,).

        For a value that is not finite, or beyond the limit on the sum, there is a `ValueError`, which holds the field's
        name only.
        """
        vector, start = np.ones(self.size, np.int64), 1
        for name, limit in self.limits.items():
            value, end = np.asarray(values[name], dtype=np.float64), start + self.words * limit.size
            if value.shape != limit.shape:
                raise ValueError(f"'{name}' is beyond its public limit")
            flat, most, numbers = value.ravel(), limit.ravel(), vector[start:end].reshape(self.words, limit.size)
            for part in _slices(limit.size):
                if not (np.abs(flat[part]) <= most[part]).all():
                    raise ValueError(f"'{name}' is beyond its public limit")
                self._encode(flat[part], most[part], numbers[:, part])
            start = end
        for name, words in self.short.items():
            end = start + words.size
            vector[start:end] = words.encode(values[name], name)
            start = end
        return vector.view(np.uint64)

    def _encode(self, value: Array, limit: Array, numbers: NDArray[np.int64]) -> None:
        """Write the words of a few values (n,), which are within their limits, into ``numbers`` (words, n)."""
        scales = self._exponents(limit)
        for i, exponents in enumerate(scales):
            whole = np.rint(np.ldexp(value, exponents))
            numbers[i] = whole
            if i + 1 < len(scales):
                value = value - np.ldexp(whole, -exponents)

    def encode_sum(self, parts: Sequence[Mapping[str, NDArray[Any]]]) -> Words:
        """One party's vector for the sum of ``parts``, each encoded by itself: nothing is rounded to float64 between.

        A field that a part lacks is zero there; errors are those of `encode`.
        """
        if len(parts) == 1 and parts[0].keys() >= self.limits.keys():  # as with short words always
            return self.encode(parts[0])
        zeros = {name: np.zeros(limit.shape) for name, limit in self.limits.items()}
        total = np.zeros(self.size, np.uint64)
        for part in parts:
            total += self.encode({**zeros, **part})
        total[0] = 1
        return total

    def decode(self, total: Words, near: Mapping[str, Array] | None = None) -> tuple[int, dict[str, Array]]:
        """How many parties are in a sum of vectors (modulo 2^64), and the sum of each field, of which some are known to
        be ``near`` these values."""
        parties, fields = self.decode_double(total)
        found = {name: high for name, (high, _) in fields.items()}
        start = self.size - sum(words.size for words in self.short.values())
        for name, words in self.short.items():
            end = start + words.size
            found[name] = words.decode(total.view(np.int64)[start:end], (near or {}).get(name))
            start = end
        return parties, found

    def decode_double(self, total: Words) -> tuple[int, dict[str, tuple[Array, Array]]]:
        """As `decode`, each sum as ``high + low``: two float64 numbers hold what one rounds off."""
        numbers, start, fields = total.view(np.int64), 1, {}
        for name, limit in self.limits.items():
            end = start + self.words * limit.size
            parts, most = numbers[start:end].reshape(self.words, limit.size), limit.ravel()
            high, low = np.empty(limit.size), np.empty(limit.size)
            for part in _slices(limit.size):
                high[part], low[part] = self._decode(parts[:, part], most[part])
            fields[name] = high.reshape(limit.shape), low.reshape(limit.shape)
            start = end
        return int(numbers[0]), fields

    def _decode(self, numbers: NDArray[np.int64], limit: Array) -> tuple[Array, Array]:
        """A few values (n,) of words (words, n), as ``high + low``."""
        high, low = np.zeros(limit.size), np.zeros(limit.size)
        for part, exponents in zip(reversed(numbers), reversed(self._exponents(limit)), strict=True):
            lower = part.astype(np.int32)  # half a word is exact in float64; signed, as -1 = 2^32 - 1 - 2^32 ...
            upper = (part >> 32) + (lower < 0)  # ... would round off what further words hold
            for half, e in ((lower, exponents), (upper, exponents - 32)):  # the smallest first
                high, error = two_sum(np.ldexp(half.astype(np.float64), -e), high)
                low += error
        return two_sum(high, low)

    def missed(self, parties: int) -> dict[str, Array]:
        """Bound on what rounding costs each entry of a sum over so many parties."""
        whole = {name: parties * self.resolution * limit for name, limit in self.limits.items()}
        return whole | {name: words.missed for name, words in self.short.items()}

    @property
    def resolution(self) -> float:
        """What rounding costs at most, for each party, in units of the limit."""
        return 2.0 ** -(62 + FURTHER * (self.words - 1))

    def _exponents(self, limit: Array) -> list[NDArray[np.int32]]:
        """For each word, the powers of two that values are multiplied by."""
        _, above = np.frexp(limit)  # limit <= 2^above <= 2 limit
        return [62 - above + FURTHER * word for word in range(self.words)]


def _slices(size: int) -> Iterator[slice]:
    """Blocks of an array of ``size`` values: what is computed of one stays in a processor's cache."""
    return (slice(start, start + BLOCK) for start in range(0, size, BLOCK))


def expected_arcs(parties: int, colluding: int, degree: int) -> Fraction:
    """Mean number of arcs of honest parties from one gap to another one, a bound on the probability of any.

    The h honest parties leave h intervals between them, over which the colluders are spread, every way as likely as
    every other (stars and bars). For each of the h (h - 1) ordered pairs of intervals the probability that both are
    gaps is that of the ways in which these hold ``k / 2`` colluders each (the degree k is even) and the rest is
    anywhere.
    """
    honest, free = parties - colluding, colluding - degree
    if honest < 2 or free < 0:
        return Fraction(0)
    ways = comb(free + honest - 1, honest - 1)
    return Fraction(honest * (honest - 1) * ways, comb(colluding + honest - 1, honest - 1))


def least_degree(parties: int, colluding: int, bits: int) -> int:
    """The smallest even degree with which fewer than ``2**-bits`` arcs are expected."""
    return next(k for k in count(2, 2) if expected_arcs(parties, colluding, k) * 2**bits <= 1)


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

    A `ValueError` where it shows that they do not belong together.
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


def fewest_survivors(parties: int) -> int:
    """With how many of so many parties a sum may go on at least: more than two thirds of them."""
    return 2 * parties // 3 + 1
