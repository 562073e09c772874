"""The arithmetic of secure sums: fixed point, neighbours on a ring, and shares of a secret.

**Fixed point** for sums of integers modulo 2^64: exact addition in any order, with resolution where the data are. A
value x travels as ``rint(x 2^e)`` in two's complement. The exponent e is the largest for which the *sum over all
parties* stays below 2^63, given a limit on that sum which both sides know. As public limits say little of the data,
further *digits* hold the rounding of those before: each is a full word, or shares a word with the same digit of other
values. A digit has room for the rounding of all parties, so that digits need not carry while they are added up, and a
vector stays one of independent words. If a limit says much, all digits of a value share a word with others
(`fedpca_flwr.maths.short_words`).

**Neighbours on a ring**: how many neighbours connect honest parties, if the colluding ones stand anywhere on the ring.
Parties sit on a ring in a random order, and each is tied to the ``k / 2`` next ones on either side: Harary's graph on
permuted places, as in Bell, Bonawitz, Gascon, Lepoint and Raykova, Secure Single-Server Aggregation with
(Poly)Logarithmic Overhead (CCS 2020), section 3.3. They bound the probability that the honest are not connected; if no
party drops out it follows exactly. Two honest parties with only colluders between them are tied unless these are
``k / 2`` or more, a *gap*. One gap leaves a path; two or more cut the honest into arcs.

**Shares of a secret** (Shamir, How to share a secret, CACM 1979) of 32 bytes: t shares give the secret, fewer say
nothing. The secret is the value at 0 of a polynomial of degree t - 1 over the field of the smallest prime above 2^256,
whose other coefficients are random; the share of party i (from 0) is the value at i + 1. For any t - 1 shares each
secret has exactly one polynomial through them, so they say nothing about it.
"""

import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import count, pairwise, takewhile
from math import comb
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.moments import two_sum
from fedpca_flwr.maths.short_words import ShortWords
from fedpca_flwr.maths.sums import slices

WORD_BITS = 64
BLOCK_VALUES = 2**13  # how many values are encoded or decoded at once
MAX_PARTS = 16  # most numbers whose sum is a party's value: their digits of one place add up before they carry
PRIME = 2**256 + 297
SECRET_BYTES = 32
SHARE_BYTES = 33

Words = NDArray[np.uint64]
Integers = NDArray[np.int64]
Digits = tuple[int, ...]  # by digit of a value, the first one first: how many values share the digit's word


@dataclass(frozen=True)
class Layout:
    """A fixed-point encoding of named arrays ("fields") in a vector of 64-bit words, to be summed modulo 2^64.

    The vector's first word is 1, so that the first word of the sum counts the parties in it. Each value is one or more
    fixed-point integers ("digits"): the first holds the value rounded, and each further one what the digits before
    rounded off. Methods raise ValueError as `further_digit_bits` and `ShortWords` do.
    """

    limits: Mapping[str, Array]  # by field, the largest absolute value of each entry of the sum over all parties
    words: int | Mapping[str, Digits] = 1  # digits a value, a word each; or by field, values that share a word by digit
    short: Mapping[str, ShortWords] = field(default_factory=dict)  # further fields, encoded last
    parties: int = 2**16  # largest number of vectors that are added up
    spare_bits: Mapping[str, int] = field(default_factory=dict)  # by field: sums are at most 2^-bits of limits

    @property
    def size(self) -> int:
        """Number of 64-bit words of an encoded vector, with the first, which counts the parties."""
        digit_words = sum(digits_size(limit.size, self.digits(name)) for name, limit in self.limits.items())
        return 1 + digit_words + sum(words.size for words in self.short.values())

    def digits(self, name: str) -> Digits:
        """Return for each digit of a field's values, the most significant first, how many values share its word."""
        return (1,) * self.words if isinstance(self.words, int) else self.words.get(name, (1,))

    def encode(self, *parts: Mapping[str, NDArray[Any]]) -> Words:
        """Encode a party's arrays as a vector (size,) of 64-bit words; values are sums of several parts, added exactly.

        A field that a part lacks is zero there, and fields of `ShortWords` are those of the first part; there are at
        most `MAX_PARTS`. Arrays are read by blocks, so an array may be computed where it is sliced. Raise ValueError if
        a field is in no part or has another shape, or if a value is not finite, or beyond the limit on the sum; the
        text has the field's name only.
        """
        assert len(parts) <= MAX_PARTS, len(parts)
        vector = np.zeros(self.size, np.int64)
        vector[0] = 1
        for name, limit in self.limits.items():
            values = [part[name] for part in parts if name in part]
            if not values or any(np.shape(value) != limit.shape for value in values):
                raise ValueError(f"'{name}' is beyond its public limit")
            flat = [value if value.shape == (limit.size,) else value.reshape(-1) for value in values]
            flat_limit, regions = _flat(limit), self._regions(name)
            for part in slices(limit.size, BLOCK_VALUES):
                block_values = np.array([value[part] for value in flat], dtype=np.float64)
                limits = flat_limit[part] if flat_limit.size > 1 else flat_limit
                if not (np.abs(block_values.sum(axis=0)) <= limits).all():
                    raise ValueError(f"'{name}' is beyond its public limit")
                digits = _encode(block_values, self._exponents(name, limits))
                for shared, region, numbers in zip(self.digits(name), regions, digits, strict=True):
                    _add_numbers(vector[region], numbers, part.start, shared)
        start = self.size - sum(words.size for words in self.short.values())
        for name, words in self.short.items():
            end = start + words.size
            vector[start:end] = words.encode(parts[0][name], name)
            start = end
        return vector.view(np.uint64)

    def decode(
        self, total: Words, near: Mapping[str, Array] | None = None
    ) -> tuple[dict[str, Array], dict[str, Array]]:
        """Decode a sum of encoded vectors (size,) to each field's sum of arrays, and to what float64 rounds off it.

        Fields of `ShortWords` have no second part; if they have residuals, ``near`` has values that are near the sums.
        """
        high, low = dict[str, Array](), dict[str, Array]()
        for name, limit in self.limits.items():
            flat_limit = _flat(limit)
            sums, rest = np.empty(limit.size), np.empty(limit.size)
            for part in slices(limit.size, BLOCK_VALUES):
                exponents = self._exponents(name, flat_limit[part] if flat_limit.size > 1 else flat_limit)
                sums[part], rest[part] = _decode_digits(self._digits_of(total, name, part), exponents)
            high[name], low[name] = sums.reshape(limit.shape), rest.reshape(limit.shape)
        start = self.size - sum(words.size for words in self.short.values())
        for name, words in self.short.items():
            end = start + words.size
            high[name] = words.decode(total.view(np.int64)[start:end], (near or {}).get(name))
            start = end
        return high, low

    def decode_exactly(self, total: Words, name: str) -> tuple[NDArray[np.object_], NDArray[np.int32]]:
        """Decode a field, not of `ShortWords`, from a sum (size,): whole numbers n and exponents e, for n 2^-e."""
        limit = self.limits[name]
        exponents, digits = self._exponents(name, _flat(limit)), self._digits_of(total, name, slice(0, limit.size))
        numbers = digits[0].astype(object)
        for i in range(1, len(digits)):
            numbers = numbers * 2 ** int((exponents[i] - exponents[i - 1])[0]) + digits[i].astype(object)
        last: NDArray[np.int32] = np.broadcast_to(exponents[-1], limit.size).reshape(limit.shape)
        return numbers.reshape(limit.shape), last

    def _regions(self, name: str) -> list[slice]:
        """Return the words of an encoded vector that hold each digit of a field's values."""
        before = takewhile(lambda other: other != name, self.limits)
        start = 1 + sum(digits_size(self.limits[other].size, self.digits(other)) for other in before)
        ends = np.cumsum([start, *(-(-self.limits[name].size // shared) for shared in self.digits(name))]).tolist()
        return [slice(*pair) for pair in pairwise(ends)]

    def _digits_of(self, total: Words, name: str, part: slice) -> Integers:
        """Return the fixed-point integers (digits, n) of n consecutive values of a field in a sum of vectors."""
        words = total.view(np.int64)
        regions = zip(self.digits(name), self._regions(name), strict=True)
        return np.stack([_split_words(words[region], part, shared) for shared, region in regions])

    def error_bound(self, parties: int) -> dict[str, Array]:
        """Bound by field the rounding error of each entry of a sum over parties, each of which encodes one part."""
        bounds = {
            name: np.broadcast_to(parties * self.resolution(name) * _flat(limit), limit.size).reshape(limit.shape)
            for name, limit in self.limits.items()
        }
        return bounds | {name: words.error_bound for name, words in self.short.items()}

    def resolution(self, name: str = "") -> float:
        """Bound the rounding error of a field's values, for each encoded part of each party, relative to the limit."""
        (*_, last) = self._exponents(name, np.full(1, 0.5))  # half a step, and the limit is half a power of two or more
        return float(np.ldexp(1.0, -last)[0])

    def _exponents(self, name: str, limit: Array) -> list[NDArray[np.int32]]:
        """Return each digit's exponents e of its steps ``2^-e``; ``limit`` (n,) bounds the sums over all parties."""
        _, above = np.frexp(limit * (1 + 2.0**-40))  # the sum stays below 2^63, with all rounding errors
        exponents = [WORD_BITS - 1 - above + self.spare_bits.get(name, 0)]
        for shared in self.digits(name)[1:]:
            exponents.append(exponents[-1] + further_digit_bits(WORD_BITS // shared, self.parties))
        return exponents


def further_digit_bits(bits: int, parties: int) -> int:
    """Compute how many bits finer a further fixed-point digit of a value is than the digit before.

    The digit holds the rounding error of the digit before, half a step for each party. The sum of these over all
    parties fits into the digit's bits, and that over all parties' parts into a word. Raise ValueError if the parties'
    rounding fills the digit.
    """
    room: int = min((2**bits - 2) // parties, (2**WORD_BITS - 2) // (MAX_PARTS * parties))
    if room < 2:
        raise ValueError(f"digits of {bits} bits have no place for what {parties} parties round off")
    return room.bit_length() - 1


def digits_size(values: int, digits: Digits) -> int:
    """Count the 64-bit words of values with several digits each, where ``digits`` says how many values share a word."""
    return sum(-(-values // shared) for shared in digits)


def _flat(limit: Array) -> Array:
    """Return limits of values as a vector (n,), or as (1,) if they are a single number that was broadcast."""
    if any(limit.strides):
        return limit.ravel()
    return limit[(slice(1),) * limit.ndim].reshape(-1)


def _times_power(value: Array, exponent: NDArray[np.int32]) -> Array:
    """Return ``value 2^exponent``, elementwise; by multiplication, which is faster, if float64 holds the power."""
    if np.abs(exponent).max(initial=0) < 1000:
        return value * np.ldexp(1.0, exponent)
    return np.asarray(np.ldexp(value, exponent))


def _encode(remaining: Array, exponents: Sequence[NDArray[np.int32]]) -> Integers:
    """Return the fixed-point digits (digits, n), modulo 2^64, of sums of values (parts, n), which are overwritten."""
    digits = np.empty((len(exponents), remaining.shape[1]), np.int64)
    for i, exponent in enumerate(exponents):  # in multiples of 2^-exponent
        rounded = np.rint(_times_power(remaining, exponent))
        if i + 1 < len(exponents):
            remaining -= _times_power(rounded, -exponent)
        if not (np.abs(rounded) < 2.0 ** (WORD_BITS - 1)).all():
            rounded -= 2.0**WORD_BITS * np.floor(rounded * 2.0**-WORD_BITS + 0.5)  # exact
        rounded.astype(np.int64).sum(axis=0, out=digits[i])
    _carry(digits, exponents)
    return digits


def _carry(digits: Integers, exponents: Sequence[NDArray[np.int32]]) -> None:
    """Carry in place between digits (digits, n), the last first: each is at most half a step of the digit before."""
    for i in range(len(digits) - 1, 0, -1):
        bits = int((exponents[i] - exponents[i - 1])[0])
        carried = (digits[i] + (1 << (bits - 1))) >> bits  # digits[i] / 2^bits, rounded to the nearest
        digits[i] -= carried << bits
        digits[i - 1] += carried


def _add_numbers(words: Integers, numbers: Integers, start: int, shared: int) -> None:
    """Add consecutive numbers, from number ``start``, to words that hold ``shared`` numbers each, modulo 2^64.

    Number j is in word j modulo the number of words, the lowest bits of all words first.
    """
    bits = WORD_BITS // shared
    for slot, part in _slots(words.size, slice(start, start + numbers.size)):
        size = part.stop - part.start
        words[part] += numbers[:size] << (bits * slot)
        numbers = numbers[size:]


def _split_words(words: Integers, part: slice, shared: int) -> Integers:
    """Return consecutive numbers of words that hold ``shared`` signed numbers each (`_add_numbers`)."""
    if shared == 1 or not words.size:
        return words[part]
    bits, numbers = WORD_BITS // shared, []
    for slot, among in _slots(words.size, part):
        remaining = words[among]
        for place in range(slot + 1):
            number = remaining
            if place < shared - 1:  # the lowest bits as a signed number, by an arithmetic shift to the top and back
                number = (remaining << (WORD_BITS - bits)) >> (WORD_BITS - bits)
                remaining = (remaining - number) >> bits
        numbers.append(number)
    return np.concatenate(numbers)


def _slots(words: int, part: slice) -> Iterator[tuple[int, slice]]:
    """Yield, for the consecutive numbers of ``part`` that share words, each place in a word and the words it fills."""
    for slot in range(part.start // words, -(-part.stop // words)):
        first = slot * words
        yield slot, slice(max(part.start - first, 0), min(part.stop - first, words))


def _decode_digits(digits: Integers, exponents: Sequence[NDArray[np.int32]]) -> tuple[Array, Array]:
    """Return n values as two arrays ``high + low``, from digits (digits, n) in multiples of ``2^-exponents[i]``."""
    digits = digits.copy()
    _carry(digits, exponents)  # else large first digits could cancel and leave the rounding errors of the others
    high, low = np.zeros(digits.shape[1]), np.zeros(digits.shape[1])
    for part, exponent in zip(reversed(digits), reversed(exponents), strict=True):
        # halves of a word are exact in float64; both are signed, since -1 as -2^32 + (2^32 - 1) would round off what
        # further digits hold
        lower = part.astype(np.int32)
        upper = (part >> 32) + (lower < 0)
        for half, e in ((lower, exponent), (upper, exponent - 32)):  # the smallest first
            high, error = two_sum(_times_power(half.astype(np.float64), -e), high)
            low += error
    return two_sum(high, low)


def expected_arcs(parties: int, colluding: int, degree: int) -> Fraction:
    """Compute the expected number of ordered pairs of gaps on a random ring: a bound on P(honest parties disconnected).

    Each party is joined to the ``degree / 2`` next parties on either side. A gap is as many colluders in a row; two
    gaps cut the honest parties apart. The h honest parties leave h intervals between them, over which the colluders are
    spread, every way as likely as every other (stars and bars). For each of the h (h - 1) ordered pairs of intervals,
    both are gaps if these hold ``degree / 2`` colluders each and the other colluders are anywhere; 0 if none can be.
    """
    honest, free = parties - colluding, colluding - degree
    if honest < 2 or free < 0:
        return Fraction(0)
    ways = comb(free + honest - 1, honest - 1)
    return Fraction(honest * (honest - 1) * ways, comb(colluding + honest - 1, honest - 1))


def min_degree(parties: int, colluding: int, bits: int) -> int:
    """Compute the fewest neighbours, an even number, that connect honest parties, but for probability 2^-bits."""
    return next(k for k in count(2, 2) if expected_arcs(parties, colluding, k) * 2**bits <= 1)


def split_secret(secret: bytes, threshold: int, parties: int) -> list[bytes]:
    """Split a secret into a share for each party (Shamir), any ``threshold`` of which give the secret.

    Fewer say nothing about it. A share is the polynomial at 1, 2, ... as `SHARE_BYTES` big-endian bytes; its
    coefficients come from the operating system's randomness. Raise ValueError unless the secret has 32 bytes and 1 <=
    threshold <= parties.
    """
    if len(secret) != SECRET_BYTES or not 1 <= threshold <= parties:
        raise ValueError(f"{len(secret)} bytes in {parties} shares of which {threshold} give them")
    coefficients = [int.from_bytes(secret, "big"), *(secrets.randbelow(PRIME) for _ in range(threshold - 1))]
    return [_evaluate(coefficients, party + 1).to_bytes(SHARE_BYTES, "big") for party in range(parties)]


def combine_shares(shares: Mapping[int, bytes]) -> bytes:
    """Compute the secret of `split_secret` from at least ``threshold`` of its shares, by index of the party from 0.

    A wrong share gives a wrong secret, or by chance a result not below 2^256, which raises ValueError.
    """
    value = interpolate({party + 1: int.from_bytes(share, "big") for party, share in shares.items()}, 0)
    if value >= 2**256:
        raise ValueError("the shares do not belong together")
    return value.to_bytes(SECRET_BYTES, "big")


def interpolate(points: Mapping[int, int], x: int) -> int:
    """Evaluate the polynomial of lowest degree through points (value by argument) at ``x`` modulo `PRIME`."""
    total = 0
    for node, value in points.items():
        above = below = 1
        for other_node in points:
            if other_node != node:
                above = above * (x - other_node) % PRIME
                below = below * (node - other_node) % PRIME
        total += value * above * pow(below, -1, PRIME)
    return total % PRIME


def _evaluate(coefficients: list[int], x: int) -> int:
    """Return the value at ``x``, modulo `PRIME`, of the polynomial with the coefficients, that of degree 0 first."""
    value = 0
    for coefficient in reversed(coefficients):  # Horner
        value = (value * x + coefficient) % PRIME
    return value


def min_survivors(parties: int) -> int:
    """Compute the smallest number of remaining parties with which a secure sum may continue: more than two thirds."""
    return 2 * parties // 3 + 1
