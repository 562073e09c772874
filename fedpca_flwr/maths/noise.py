"""Gaussian noise from the operating system's randomness.

NumPy's generators are predictable from their output, so their noise can be subtracted again. Here each value is the
inverse normal distribution of a uniform number made of random bytes of `os.urandom`.

What the mathematics promises for real numbers holds only nearly for float64: its values are not evenly spaced, and
which of them a noisy sum can take depends a little on the sum (Mironov 2012, "On significance of the least significant
bits for differential privacy"). The values end at 8.2 standard deviations, which a Gaussian exceeds with probability
2e-16.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import numpy as np
from scipy.special import ndtri

from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.moments import diagonal_positions, packed_size

Source = Callable[[int], bytes]
"""Gives so many random bytes."""

BITS = 52
"""Of a uniform number: with half a step more it is a float64, and never 0 or 1."""


def system() -> Source:
    """The operating system's randomness."""
    return os.urandom


def fixed(*seed: int) -> Source:
    """The same bytes for the same seed: not private."""
    return np.random.default_rng(seed).bytes


def gaussian(size: int, source: Source) -> Array:
    """Independent standard normal values, shape (size,)."""
    words = np.frombuffer(source(8 * size), dtype="<u8") >> np.uint64(64 - BITS)
    values: Array = ndtri((words + 0.5) * 2.0**-BITS)
    return values


def symmetric(d: int, source: Source) -> Array:
    """Packed triangle of ``(G + G') / 2`` for a standard normal ``G`` (d, d), shape (d (d + 1) / 2,).

    Variance 1 on the diagonal and 1/2 off it, where each value stands for two entries: the noise of the Gaussian
    mechanism for the Frobenius norm, projected to the symmetric matrices.
    """
    noise = gaussian(packed_size(d), source)
    diagonal = diagonal_positions(d)
    on = noise[diagonal]
    noise *= np.sqrt(0.5)
    noise[diagonal] = on
    return noise
