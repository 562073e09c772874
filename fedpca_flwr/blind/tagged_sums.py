"""Sums of integers in a prime field with a linear tag, which reveals changes by anybody without the key.

Each party sends integers x and the tag ``a . x`` for a secret vector a, hidden by pads; the sum has the tag ``a . sum
x``. Whoever does not know a guesses the tag of a changed sum with a probability of 1 over the prime. Integers and tags
are in one field, so that no multiple of another modulus leaves the tag.

The prime is the Mersenne prime 2^521 - 1: it holds sums of squares of float64 numbers without rounding, and 521 bits of
a stream are uniform in it but for one value.
"""

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from fedpca_flwr.blind.rotation import secret_stream

PRIME = 2**521 - 1
ELEMENT_BYTES = 66
MAX_FLOAT_BITS = 1074  # bits after the point of the smallest number that float64 holds
Elements = list[int]  # of the field, from 0 to `PRIME` - 1


def secret_elements(key: bytes, n: int) -> Elements:
    """Return n uniform elements of the field (`PRIME` may stand for 0) from a 32-byte key, for one stream only."""
    stream = secret_stream(key, ELEMENT_BYTES * n)
    places = range(0, len(stream), ELEMENT_BYTES)
    return [int.from_bytes(stream[i : i + ELEMENT_BYTES], "little") & PRIME for i in places]


def linear_tag(key: bytes, integers: Iterable[int]) -> int:
    """Return the inner product, in the field, of integers and a secret vector from a 32-byte key that is used once."""
    integers = list(integers)
    return sum(a * x for a, x in zip(secret_elements(key, len(integers)), integers, strict=True)) % PRIME


def combine_elements(elements: Sequence[int], others: Sequence[int], sign: int = 1) -> Elements:
    """Add equally many ``others`` to elements of the field, or with ``sign`` -1 subtract them, one by one."""
    return [(a + sign * b) % PRIME for a, b in zip(elements, others, strict=True)]


def signed_integer(element: int) -> int:
    """Return the integer of smallest size, -(PRIME // 2) to PRIME // 2, that an element of the field stands for."""
    return element if element <= PRIME // 2 else element - PRIME


def elements_to_bytes(elements: Sequence[int]) -> NDArray[np.uint8]:
    """Write elements of the field as little-endian bytes, in rows (n, ELEMENT_BYTES)."""
    text = b"".join(element.to_bytes(ELEMENT_BYTES, "little") for element in elements)
    return np.frombuffer(text, np.uint8).reshape(-1, ELEMENT_BYTES)


def elements_from_bytes(rows: NDArray[np.uint8]) -> Elements:
    """Read elements from little-endian rows (n, ELEMENT_BYTES), or raise ValueError for one not below the prime."""
    elements = [int.from_bytes(row.tobytes(), "little") for row in rows]
    if any(element >= PRIME for element in elements):
        raise ValueError("a number is not below the prime")
    return elements


def scaled_integer(parts: Iterable[float], bits: int) -> int:
    """Return the number of multiples of ``2^-bits``, up to 1073 bits, nearest to the exact sum of finite numbers."""
    total = 0
    for part in parts:
        numerator, denominator = part.as_integer_ratio()  # a power of two, of at most 2^1074
        total += numerator << (MAX_FLOAT_BITS + 1 - denominator.bit_length())
    shift = MAX_FLOAT_BITS - bits
    return (total + (1 << (shift - 1))) >> shift
