"""Ways to send a scatter matrix in fewer bytes. Each has ``encode`` and ``decode``, on packed triangles.

What an encoding gets wrong its sender can measure, since it can decode its own code: `spectral_norm` of the difference.
No bound has to be derived for a codec, and none is loose.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from scipy.linalg import blas, eigh

from fedpca_flwr.maths import codec
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.codec import Coded
from fedpca_flwr.maths.eigen import leading_eigenpairs
from fedpca_flwr.maths.krylov import random_block
from fedpca_flwr.maths.moments import diagonal_positions, pack, packed_size, unpack

BLOCK = 128
"""Numbers that share a scale."""


class ScatterCodec(Protocol):
    """``decode(encode(triangle, d), d)`` is about ``triangle``, the packed scatter of d features.

    ``decode`` raises `ValueError` for what is not the code of such a triangle, and never needs more memory than that.
    """

    def encode(self, triangle: Array, d: int) -> Coded: ...

    def decode(self, coded: Coded, d: int) -> Array: ...


@dataclass(frozen=True)
class Quantise:
    """Every entry in ``bits`` bits, each 128 by a scale of their own."""

    bits: int

    def encode(self, triangle: Array, d: int) -> Coded:
        return codec.quantise(triangle, self.bits, BLOCK)

    def decode(self, coded: Coded, d: int) -> Array:
        return codec.dequantise(coded, self.bits, BLOCK, packed_size(d))


@dataclass(frozen=True)
class SharedStep:
    """Whole multiples of ``step`` (in squared units of the data), the same at every party."""

    step: float

    def encode(self, triangle: Array, d: int) -> Coded:
        return codec.round_to_step(triangle, self.step, d)

    def decode(self, coded: Coded, d: int) -> Array:
        return codec.from_step(coded, self.step, d)


@dataclass(frozen=True)
class LowRank:
    """The ``rank`` leading eigenvectors times the roots of their eigenvalues, in ``bits`` bits.

    Half of the first eigenvalue left out is assumed in every direction left out (see `Factor.filled`); it travels as
    the last of the scales.
    """

    rank: int
    bits: int

    def encode(self, triangle: Array, d: int) -> Coded:
        pairs = leading_eigenpairs(unpack(triangle, d), self.rank)
        floor = np.float32(max(0.0, pairs.following) / 2)
        rows = (pairs.vectors * np.sqrt((pairs.values - floor).clip(min=0.0))).T
        coded = codec.quantise(rows.reshape(-1), self.bits, d)
        return Coded(np.append(coded.scales, floor), coded.code)

    def decode(self, coded: Coded, d: int) -> Array:
        if not (coded.scales.size and np.isfinite(coded.scales[-1]) and coded.scales[-1] >= 0):
            raise ValueError("its filler is not a number from 0")
        numbers = Coded(coded.scales[:-1], coded.code)
        rows = codec.dequantise(numbers, self.bits, d, self.rank * d).reshape(self.rank, d)
        scatter = blas.dsyrk(1.0, np.ascontiguousarray(rows).T, lower=1)
        np.einsum("ii->i", scatter)[:] += coded.scales[-1]
        return pack(scatter)


@dataclass(frozen=True)
class Combined:
    """`LowRank`, and what it leaves out by `SharedStep`."""

    low_rank: LowRank
    shared_step: SharedStep

    def encode(self, triangle: Array, d: int) -> Coded:
        first = self.low_rank.encode(triangle, d)
        second = self.shared_step.encode(triangle - self.low_rank.decode(first, d), d)
        return Coded(first.scales, np.concatenate([first.code, second.code]))

    def decode(self, coded: Coded, d: int) -> Array:
        _, rest = codec.decompress_first(coded.code, -(-self.low_rank.rank * d * self.low_rank.bits // 8))
        first = coded.code[: coded.code.size - rest.size]
        triangle = self.low_rank.decode(Coded(coded.scales, first), d)
        return triangle + self.shared_step.decode(Coded(np.empty(0, np.float32), rest), d)


@dataclass(frozen=True)
class TopEntries:
    """The diagonal and the share ``keep`` of the other entries that are largest, in ``bits`` bits; the others are zero.

    For comparison: a covariance whose small entries are all left out has other eigenvectors.
    """

    keep: float
    bits: int

    def encode(self, triangle: Array, d: int) -> Coded:
        size = np.abs(triangle)
        size[diagonal_positions(d)] = np.inf
        kept = np.zeros(triangle.size, bool)
        kept[np.argsort(-size, kind="stable")[: self._count(d)]] = True
        coded = codec.quantise(triangle[kept], self.bits, BLOCK)
        return Coded(coded.scales, np.concatenate([codec.compress(np.packbits(kept)), coded.code]))

    def decode(self, coded: Coded, d: int) -> Array:
        total, count = packed_size(d), self._count(d)
        mask, code = codec.decompress_first(coded.code, -(-total // 8))
        kept = np.unpackbits(mask)[:total].astype(bool)
        if kept.sum() != count:
            raise ValueError(f"{kept.sum()} entries, expected {count}")
        triangle = np.zeros(total)
        triangle[kept] = codec.dequantise(Coded(coded.scales, code), self.bits, BLOCK, count)
        return triangle

    def _count(self, d: int) -> int:
        return d + int(self.keep * (packed_size(d) - d))


@dataclass(frozen=True)
class Sketch:
    """Products with ``rank`` random vectors that both sides make from ``seed``, in ``bits`` bits (Nyström).

    For comparison: the same bytes as `LowRank`, and worse.
    """

    rank: int
    bits: int
    seed: int

    def encode(self, triangle: Array, d: int) -> Coded:
        products = blas.dsymm(
            1.0, unpack(triangle, d), np.asfortranarray(random_block(d, self.rank, self.seed)), lower=1
        )
        return codec.quantise(products.T.reshape(-1), self.bits, d)

    def decode(self, coded: Coded, d: int) -> Array:
        products = codec.dequantise(coded, self.bits, d, self.rank * d).reshape(self.rank, d).T
        inner = random_block(d, self.rank, self.seed).T @ products
        values, vectors = eigh((inner + inner.T) / 2)
        # eigenvalues at the level of the rounding carry nothing, and dividing by them would blow it up
        safe = values > values[-1] * d * 2.0 ** (1 - self.bits)
        rows = (products @ (vectors[:, safe] / np.sqrt(values[safe]))).T
        return pack(blas.dsyrk(1.0, np.ascontiguousarray(rows).T, lower=1)) if safe.any() else np.zeros(packed_size(d))
