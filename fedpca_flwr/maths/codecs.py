"""Ways to send a scatter matrix in fewer bytes; each encodes and decodes a packed triangle.

Numbers become small integers times a scale (float32, rounded up so that nothing is clipped). The integers are split
into byte planes, all low bytes before the next ones, and the planes are compressed with zstd. Decoding trusts no
length: zstd writes into as many bytes as the receiver expects, and into no others.

`encode` returns what `decode` will return, so that the sender can measure the error.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import blas, eigh

from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.eigen import leading_eigenpairs, polar_factor
from fedpca_flwr.maths.krylov import random_block
from fedpca_flwr.maths.moments import diagonal_positions, pack, packed_size, unpack
from fedpca_flwr.maths.refine import MAX_BITS

ZSTD_LEVEL = 9  # higher levels take 2 % fewer bytes of covariances, and ten times as long
SCALE_BLOCK = 128  # so many consecutive numbers share a scale
FORECAST_RUN = 16  # of so many consecutive entries one mean size makes the forecast of their bytes
ORTHONORMALITY_TOLERANCE = 0.1  # rounding may change inner products of an orthonormal block's columns by as much


@dataclass(frozen=True)
class Coded:
    """Numbers in code: compressed integers, and one scale for each block of them."""

    scales: NDArray[np.float32]
    code: NDArray[np.uint8]


def quantise(values: Array, bits: int, block: int) -> tuple[Coded, Array]:
    """Round numbers (n,) to integers of few bits; each block of consecutive numbers has a scale of its own.

    Return the code, and the numbers (n,) that `dequantise` returns: none is off by more than half its scale.
    """
    max_integer = 2 ** (bits - 1) - 1
    padded = np.zeros(-(-values.size // block) * block)
    padded[: values.size] = values
    blocks = padded.reshape(-1, block)
    scales = np.nextafter((np.abs(blocks).max(axis=1) / max_integer).astype(np.float32), np.float32(np.inf))
    units = scales.astype(np.float64)[:, None]
    integers = np.rint(blocks / units).astype(np.int32)
    rounded: Array = (integers * units).reshape(-1)[: values.size]
    return Coded(scales, _compress_integers(integers.reshape(-1)[: values.size], -(-bits // 8))), rounded


def dequantise(coded: Coded, bits: int, block: int, size: int) -> Array:
    """Decode the numbers (size,) that `quantise` encoded with the same bits and block, or raise ValueError."""
    blocks = -(-size // block)
    if coded.scales.size != blocks or not (np.isfinite(coded.scales).all() and (coded.scales > 0).all()):
        raise ValueError(f"{coded.scales.size} scales, expected {blocks} positive ones")
    max_integer = 2 ** (bits - 1) - 1
    integers = _decompress_integers(coded.code, size, -(-bits // 8))
    if integers.max(initial=0) > max_integer or integers.min(initial=0) < -max_integer:
        raise ValueError("a code word that no number has")
    return integers * np.repeat(coded.scales.astype(np.float64), block)[:size]


def _compress_integers(integers: NDArray[np.int32], count: int) -> NDArray[np.uint8]:
    """Compress integers in ``count`` byte planes; the signs are folded in: 0, -1, 1, -2, ... are 0, 1, 2, 3, ...."""
    folded = (integers.view(np.uint32) << np.uint32(1)) ^ (integers >> 31).view(np.uint32)
    return compress(np.ascontiguousarray(folded.astype("<u4").view(np.uint8).reshape(-1, 4)[:, :count].T).reshape(-1))


def _decompress_integers(code: NDArray[np.uint8], size: int, count: int) -> NDArray[np.int32]:
    """Return the integers (size,) that `_compress_integers` compressed in ``count`` byte planes."""
    table = np.zeros((size, 4), np.uint8)
    table[:, :count] = decompress(code, count * size).reshape(count, size).T
    folded = table.view("<u4").reshape(-1).astype(np.uint32)
    return ((folded >> np.uint32(1)) ^ (np.uint32(0) - (folded & np.uint32(1)))).view(np.int32)


def power_of_two_unit(size: float) -> float:
    """Return the power of two near a size, 1 for size 0, at most 2^1023; over it, numbers have scales in float32."""
    return float(np.ldexp(1.0, min(int(np.frexp(size)[1]), 1023))) if size > 0 else 1.0


def encode_block(block: Array, bits: int) -> tuple[Coded, Array]:
    """Encode a block (d, b), with a scale for each column; return the code, and what `decode_block` returns."""
    coded, rounded = quantise(block.T.reshape(-1), bits, len(block))
    return coded, rounded.reshape(block.T.shape).T


def decode_block(coded: Coded, bits: int, shape: tuple[int, int]) -> Array:
    """Decode the block of shape (d, b) that `encode_block` encoded, or raise ValueError for another code."""
    d, columns = shape
    return dequantise(coded, bits, d, d * columns).reshape(columns, d).T


def decode_orthonormal_block(coded: Coded, bits: int, shape: tuple[int, int]) -> Array:
    """Decode a block (d, b) and return the nearest block with orthonormal columns, which server and party both compute.

    Raise ValueError if the code is not that of such a block, or its columns are far from orthonormal.
    """
    d, columns = shape
    if not 0 < columns <= d:
        raise ValueError(f"a block of {columns} columns, expected 1 to {d}")
    block = decode_block(coded, bits, shape)
    if not _is_nearly_orthonormal(block):
        raise ValueError("its columns are far from orthonormal")
    return polar_factor(block)


def encode_components(vectors: Array, bits: int) -> tuple[Coded, int, Array]:
    """Encode orthonormal columns (d, b), with more bits if the given bits would not leave them nearly orthonormal.

    Return the code, the bits that were needed, and the columns that `decode_orthonormal_block` returns. A column of
    many features with one large entry is far from itself in 8 bits: all small entries become zero.
    """
    coded, rounded = encode_block(vectors, bits)
    while bits < MAX_BITS and not _is_nearly_orthonormal(rounded):
        bits += 8
        coded, rounded = encode_block(vectors, bits)
    return coded, bits, polar_factor(rounded)


def _is_nearly_orthonormal(block: Array) -> bool:
    """Return whether inner products of the columns are within `ORTHONORMALITY_TOLERANCE` of the identity."""
    return bool(
        np.abs(block).max() <= 2 and np.abs(block.T @ block - np.eye(block.shape[1])).max() <= ORTHONORMALITY_TOLERANCE
    )


def compress(content: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Compress bytes without loss."""
    return np.frombuffer(_zstd().compress(content), np.uint8)


def decompress(code: NDArray[np.uint8], size: int) -> NDArray[np.uint8]:
    """Decompress ``size`` bytes, or raise ValueError if the code holds others; it takes no more memory than these."""
    try:
        return np.frombuffer(_zstd().decompress(np.ascontiguousarray(code), size), np.uint8)
    except OSError:  # damaged, too short, or of another number of bytes: zstd writes none beyond them
        raise ValueError(f"the code does not hold {size} bytes") from None


def _zstd() -> Any:
    """Return the codec of pyarrow."""
    from pyarrow import Codec  # not at the start of a site's process, where most methods need no codec

    return Codec("zstd", compression_level=ZSTD_LEVEL)


@dataclass(frozen=True)
class Quantise:
    """A codec of packed triangles that rounds each entry to few bits; each 128 entries have a scale of their own."""

    bits: int

    def encode(self, triangle: Array, d: int) -> tuple[Coded, Array]:
        """Encode a packed triangle (d (d + 1) / 2,), and return the code and the triangle that `decode` returns."""
        return quantise(triangle, self.bits, SCALE_BLOCK)

    def decode(self, coded: Coded, d: int) -> Array:
        """Decode a packed triangle (d (d + 1) / 2,), or raise ValueError if the code is not that of one."""
        return dequantise(coded, self.bits, SCALE_BLOCK, packed_size(d))


@dataclass(frozen=True)
class SharedStep:
    """A codec of integer multiples of a step that is the same at every party, so that the integers could be added.

    The integers are compressed as they are, or as the mixed differences ``a[i,j] - a[i,j-1] - a[i-1,j] + a[i-1,j-1]``
    of the symmetric matrix, which are small if neighbouring features are similar, as pixels are. The codec chooses the
    form of less entropy (`_entropy_bits`), and the first byte says which.
    """

    step: float  # in squared units of the data

    def encode(self, triangle: Array, d: int) -> tuple[Coded, Array]:
        """Encode a packed triangle; return the code and what `decode` returns. ValueError for entries over 27 bits."""
        integers = np.rint(triangle / self.step)
        if np.abs(integers).max(initial=0) >= 2**27:
            raise ValueError("the step is too small: entries have more than 27 bits")
        candidates = (integers, mixed_differences(integers, d))
        bits = [_entropy_bits(candidate, np.ones(1))[0] for candidate in candidates]
        best_index = int(bits[1] < bits[0])
        code = _compress_integers(candidates[best_index].astype(np.int32), 4)
        coded = Coded(np.empty(0, np.float32), np.concatenate([np.array([best_index], np.uint8), code]))
        return coded, integers * self.step

    def decode(self, coded: Coded, d: int) -> Array:
        """Decode a packed triangle (d (d + 1) / 2,), or raise ValueError if the code is not that of one."""
        if coded.scales.size or coded.code.size < 1 or coded.code[0] > 1:
            raise ValueError("damaged code")
        integers = _decompress_integers(coded.code[1:], packed_size(d), 4).astype(np.float64)
        return self.step * (_sum_differences(integers, d) if coded.code[0] else integers)


def mixed_differences(triangle: Array, d: int) -> Array:
    """Compute the packed ``a[i,j] - a[i,j-1] - a[i-1,j] + a[i-1,j-1]`` of a packed symmetric matrix (d, d)."""
    differences = triangle.copy()
    starts = [*diagonal_positions(d).tolist(), triangle.size]
    above, row = triangle[:0], triangle[:0]
    for start, end in pairwise(starts):
        above, row = row, triangle[start:end]
        part = differences[start:end]
        if above.size:
            part -= above[1:]
        part[1:] = np.diff(part)
        if above.size:  # the matrix is symmetric: left of the diagonal is the entry above its first to the right
            part[0] -= above[1] - above[0]
    return differences


def _sum_differences(differences: Array, d: int) -> Array:
    """Return the packed triangle whose `mixed_differences` are given; exact for integers."""
    triangle = differences.copy()
    starts = [*diagonal_positions(d).tolist(), triangle.size]
    above = triangle[:0]
    for start, end in pairwise(starts):
        row = triangle[start:end]
        if above.size:
            row[0] += above[1] - above[0]
        np.cumsum(row, out=row)
        if above.size:
            row += above[1:]
        above = row
    return triangle


def forecast_bytes(triangle: Array, d: int, steps: Array) -> Array:
    """Forecast the bytes (m,) of a triangle in `SharedStep`'s code from the entropy of its entries, for steps (m,).

    The forecast is the entropy of multiples of a step whose sizes are distributed exponentially about their mean, for
    each `FORECAST_RUN` consecutive entries. It is within some tenth of what zstd needs for covariances.
    """
    bits = np.array([_entropy_bits(entries, steps) for entries in (triangle, mixed_differences(triangle, d))])
    return np.asarray(bits.min(axis=0) / 8)


def _entropy_bits(entries: Array, steps: Array) -> Array:
    """Return the entropy in bits of entries rounded to multiples of a step, for each of ``steps`` (m,)."""
    starts = np.arange(0, entries.size, FORECAST_RUN)
    sizes = np.diff(starts, append=entries.size)
    means = np.add.reduceat(np.abs(entries), starts) / sizes
    return np.array([sizes @ np.log2(1 + 2 * np.e * (means / step)) for step in steps])


@dataclass(frozen=True)
class LowRank:
    """A codec that keeps the leading eigenvectors of a matrix, times the square roots of their eigenvalues.

    With `filler`, half of the first omitted eigenvalue (`Factor.with_floor`) travels as the last of the scales.
    """

    rank: int  # number of eigenvectors
    bits: int  # of a number; with 0, float64
    filler: bool = True

    def encode(self, triangle: Array, d: int) -> tuple[Coded, Array]:
        """Encode a packed triangle (d (d + 1) / 2,), and return the code and the triangle that `decode` returns."""
        pairs = leading_eigenpairs(unpack(triangle, d), self.rank)
        floor = np.float32(max(0.0, pairs.following) / 2 if self.filler else 0.0)
        rows = (pairs.vectors * np.sqrt((pairs.values - floor).clip(min=0.0))).T
        if not self.bits:
            code = compress(np.ascontiguousarray(rows, "<f8").reshape(-1).view(np.uint8))
            return Coded(np.array([floor]), code), self._scatter(rows, floor, d)
        coded, rounded = quantise(rows.reshape(-1), self.bits, d)
        return Coded(np.append(coded.scales, floor), coded.code), self._scatter(rounded, floor, d)

    def decode(self, coded: Coded, d: int) -> Array:
        """Decode a packed triangle (d (d + 1) / 2,) of low rank, or raise ValueError if the code is not that of one."""
        if not (coded.scales.size and np.isfinite(coded.scales[-1]) and coded.scales[-1] >= 0):
            raise ValueError("its filler is not a number from 0")
        if not self.bits:
            rows = decompress(coded.code, 8 * self.rank * d).view("<f8")
            return self._scatter(rows, coded.scales[-1], d)
        numbers = Coded(coded.scales[:-1], coded.code)
        return self._scatter(dequantise(numbers, self.bits, d, self.rank * d), coded.scales[-1], d)

    def _scatter(self, rows: Array, floor: np.float32, d: int) -> Array:
        """Return the packed scatter of the rows (rank * d,) of a factor, plus a multiple of the identity."""
        scatter = blas.dsyrk(1.0, rows.reshape(self.rank, d).T, lower=1)
        np.einsum("ii->i", scatter)[:] += floor
        return pack(scatter)


@dataclass(frozen=True)
class Sketch:
    """A codec of products with random vectors of a common seed (Nystroem), for comparison: `LowRank` is better."""

    rank: int  # number of random vectors
    bits: int  # of a number
    seed: int

    def encode(self, triangle: Array, d: int) -> tuple[Coded, Array]:
        """Encode a packed triangle (d (d + 1) / 2,), and return the code and the triangle that `decode` returns."""
        vectors = np.asfortranarray(random_block(d, self.rank, self.seed))
        products = blas.dsymm(1.0, unpack(triangle, d), vectors, lower=1)
        coded, rounded = quantise(products.T.reshape(-1), self.bits, d)
        return coded, self._scatter(rounded, d)

    def decode(self, coded: Coded, d: int) -> Array:
        """Decode a packed triangle (d (d + 1) / 2,) of low rank, or raise ValueError if the code is not that of one."""
        return self._scatter(dequantise(coded, self.bits, d, self.rank * d), d)

    def _scatter(self, numbers: Array, d: int) -> Array:
        """Return the packed Nystroem approximation from the numbers (rank * d,) of the products."""
        products = numbers.reshape(self.rank, d).T
        inner = random_block(d, self.rank, self.seed).T @ products
        values, vectors = eigh((inner + inner.T) / 2)
        # eigenvalues at the level of the rounding carry nothing, and dividing by them would blow it up
        resolved = values > values[-1] * d * 2.0 ** (1 - self.bits)
        rows = (products @ (vectors[:, resolved] / np.sqrt(values[resolved]))).T
        if not resolved.any():
            return np.zeros(packed_size(d))
        return pack(blas.dsyrk(1.0, np.ascontiguousarray(rows).T, lower=1))


# `decode` raises ValueError for what is not the code of a triangle of d features, and needs no more memory than that
ScatterCodec = Quantise | SharedStep | LowRank | Sketch
