"""Codecs of symmetric matrices and blocks: fewer bytes for a bounded error; decoding trusts no length.

Numbers become small integers times a scale (float32, rounded up so that nothing is clipped). The integers are packed
to the given number of bits, or split into byte planes, and then compressed with LZMA, whose output is only read up to
the length that the receiver expects.
"""

from __future__ import annotations

import lzma
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

FILTERS = [{"id": lzma.FILTER_LZMA2, "preset": 6}]


@dataclass(frozen=True)
class Coded:
    """Encoded numbers.

    Attributes
    ----------
    scales : ndarray of float32, shape (blocks,)
    code : ndarray of uint8, shape (bytes,)
    """

    scales: NDArray[np.float32]
    code: NDArray[np.uint8]


@dataclass(frozen=True)
class Decoded:
    """Decoded numbers, and a bound on the error of each (shape like ``values``, or a scalar)."""

    values: Array
    error: Array | float


def quantise(values: Array, bits: int, block: int) -> Coded:
    """Round ``values`` (n,) to ``bits`` bits, each ``block`` consecutive ones by a scale of their own."""
    top = 2 ** (bits - 1) - 1
    padded = np.zeros(-(-values.size // block) * block)
    padded[: values.size] = values
    blocks = padded.reshape(-1, block)
    scales = np.nextafter((np.abs(blocks).max(axis=1) / top).astype(np.float32), np.float32(np.inf))
    integers = np.rint(blocks / scales.astype(np.float64)[:, None]).astype(np.int64).reshape(-1)[: values.size]
    return Coded(scales, _squeeze(_pack((integers + top).astype(np.uint64), bits)))


def dequantise(coded: Coded, bits: int, block: int, size: int) -> Decoded:
    """What `quantise` encoded.

    Raises
    ------
    ValueError
        If the code is not that of ``size`` numbers.
    """
    blocks = -(-size // block)
    if coded.scales.size != blocks or not (np.isfinite(coded.scales).all() and (coded.scales > 0).all()):
        raise ValueError(f"{coded.scales.size} scales, expected {blocks} positive ones")
    top = 2 ** (bits - 1) - 1
    integers = _unpack(_expand(coded.code, -(-size * bits // 8)), bits, size).astype(np.int64) - top
    if np.abs(integers).max(initial=0) > top:
        raise ValueError("a code word that no number has")
    scales = np.repeat(coded.scales.astype(np.float64), block)[:size]
    return Decoded(integers * scales, scales / 2)


def round_to_step(values: Array, step: float) -> Coded:
    """Round ``values`` (n,) to multiples of ``step``, the same at every party, so that the integers could be summed.

    Raises
    ------
    ValueError
        If an integer does not fit 32 bits: the step is too small.
    """
    integers = np.rint(values / step)
    if np.abs(integers).max(initial=0) >= 2**31:
        raise ValueError("the step is too small for 32-bit integers")
    planes = integers.astype("<i4").view(np.uint8).reshape(-1, 4).T
    return Coded(np.empty(0, np.float32), _squeeze(np.ascontiguousarray(planes)))


def from_step(coded: Coded, step: float, size: int) -> Decoded:
    """What `round_to_step` encoded; `ValueError` if the code is not that of ``size`` numbers."""
    planes = _expand(coded.code, 4 * size).reshape(4, size)
    return Decoded(np.ascontiguousarray(planes.T).view("<i4").reshape(-1) * step, step / 2)


def _squeeze(content: NDArray[np.uint8]) -> NDArray[np.uint8]:
    return np.frombuffer(lzma.compress(content.tobytes(), lzma.FORMAT_RAW, filters=FILTERS), np.uint8)


def _expand(code: NDArray[np.uint8], size: int) -> NDArray[np.uint8]:
    """Exactly ``size`` bytes, never more memory than that, whatever the code claims."""
    decoder = lzma.LZMADecompressor(lzma.FORMAT_RAW, filters=FILTERS)
    try:
        content = decoder.decompress(code.tobytes(), max_length=size + 1)
    except lzma.LZMAError:
        raise ValueError("damaged code") from None
    if len(content) != size:
        raise ValueError(f"the code does not hold {size} bytes")
    return np.frombuffer(content, np.uint8)


def _pack(integers: NDArray[np.uint64], bits: int) -> NDArray[np.uint8]:
    if bits in {8, 16, 32}:
        return integers.astype(f"<u{bits // 8}").view(np.uint8)
    columns = [(integers >> np.uint64(j)).astype(np.uint8) & 1 for j in range(bits)]
    return np.packbits(np.stack(columns, axis=1))


def _unpack(content: NDArray[np.uint8], bits: int, size: int) -> NDArray[np.uint64]:
    if bits in {8, 16, 32}:
        return content.view(f"<u{bits // 8}").astype(np.uint64)
    table = np.unpackbits(content)[: size * bits].reshape(size, bits).astype(np.uint64)
    return table @ (np.uint64(1) << np.arange(bits, dtype=np.uint64))
