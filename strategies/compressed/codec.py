"""How a scatter and a correction of the compressed method travel: what parties encode and the server decodes."""

from __future__ import annotations

import numpy as np

from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.codec import Coded, dequantise, quantise
from fedpca_flwr.maths.scatter_codecs import (
    Combined,
    LowRank,
    Quantise,
    ScatterCodec,
    SharedStep,
    Sketch,
    TopEntries,
)
from strategies.compressed.script import CompressedOptions

CORRECTION_BITS = 8


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
    return float(2.0 ** np.frexp(trace)[1]) if trace > 0 else 1.0


def encoded_block(block: Array) -> Coded:
    """The block (d, b) of a correction, each of its columns by a scale of its own."""
    return quantise(block.T.reshape(-1), CORRECTION_BITS, len(block))


def decoded_block(coded: Coded, shape: tuple[int, int]) -> Array:
    """The block (d, b) of such a code.

    Raises
    ------
    ValueError
        Where it is none.
    """
    d, columns = shape
    return dequantise(coded, CORRECTION_BITS, d, d * columns).reshape(columns, d).T
