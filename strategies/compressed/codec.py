"""How a scatter and a correction of the compressed method travel: what parties encode and the server decodes."""

from __future__ import annotations

import numpy as np

from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.codec import Coded, dequantise, quantise
from fedpca_flwr.maths.refine import MOST_BITS
from fedpca_flwr.maths.scatter_codecs import (
    Combined,
    LowRank,
    Quantise,
    ScatterCodec,
    SharedStep,
    Sketch,
    TopEntries,
)
from fedpca_flwr.maths.stiefel import polar

from .script import CompressedOptions

NEAR = 0.1
"""Rounding may change inner products of an orthonormal block's columns by as much."""


def codec_of(options: CompressedOptions, d: int, step: float, seed: int) -> ScatterCodec:
    """The codec that the options name, for ``d`` features; ``step`` is in squared units of the data."""
    rank = min(options.rank or 2 * options.n_components, d)
    low_rank, shared_step = LowRank(rank, options.bits), SharedStep(step)
    codecs: dict[str, ScatterCodec] = {
        "quantise": Quantise(options.bits),
        "shared-step": shared_step,
        "low-rank": low_rank,
        "combined": Combined(low_rank, shared_step),
        "top-k": TopEntries(options.keep, options.bits),
        "sketch": Sketch(rank, options.bits, seed),
    }
    return codecs[options.codec]


def unit_of(trace: float) -> float:
    """The power of two in which a scatter travels: scales are float32, whatever the unit of the data."""
    _, above = np.frexp(trace)
    return float(np.ldexp(1.0, min(int(above), 1023))) if trace > 0 else 1.0


def encoded_block(block: Array, bits: int) -> Coded:
    """A block (d, b), each of its columns by a scale of its own."""
    return quantise(block.T.reshape(-1), bits, len(block))


def decoded_block(coded: Coded, bits: int, shape: tuple[int, int]) -> Array:
    """The block (d, b) of such a code.

    Raises
    ------
    ValueError
        Where it is none.
    """
    d, columns = shape
    return dequantise(coded, bits, d, d * columns).reshape(columns, d).T


def orthonormal_block(coded: Coded, bits: int, shape: tuple[int, int]) -> Array:
    """The orthonormal columns (d, b) next to a block in code: what both sides take for it.

    Raises
    ------
    ValueError
        Where it is the code of no block, or of columns that are far from orthonormal.
    """
    d, columns = shape
    if not 0 < columns <= d:
        raise ValueError(f"a block of {columns} columns, expected 1 to {d}")
    block = decoded_block(coded, bits, shape)
    if not _nearly_orthonormal(block):
        raise ValueError("its columns are far from orthonormal")
    return polar(block)


def encoded_components(vectors: Array, bits: int) -> tuple[Coded, int]:
    """Orthonormal columns (d, b) in ``bits`` for each value, or in the fewest more bytes that keep them nearly so.

    A column of many features that has one large entry is far from itself in 8 bits: all small entries become zero.
    """
    coded = encoded_block(vectors, bits)
    while bits < MOST_BITS and not _nearly_orthonormal(decoded_block(coded, bits, vectors.shape)):
        bits += 8
        coded = encoded_block(vectors, bits)
    return coded, bits


def _nearly_orthonormal(block: Array) -> bool:
    return bool(np.abs(block).max() <= 2 and np.abs(block.T @ block - np.eye(block.shape[1])).max() <= NEAR)
