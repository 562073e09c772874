"""The sums over parties with different columns of the same rows, and the public limits of their fixed point.

The first sum is the energy E of all columns. It needs `bound`, and travels in six words, so `bound` may be 10^30 times
the data's size. With x_r a row and A = X X', E bounds what follows, for the sum and for the sum of the parties'
absolute values (Cauchy and Schwarz), so that fixed point resolves 2^-62 of E::

    |A_rs| <= |x_r| |x_s| <= E,    |(A Q)_rb| <= E |q_b|,    |x_r - x_s|^2 <= 2 E,    |x_r v_j| <= sqrt(E)

Distances do not change when the columns are centred; their E is about the columns' means.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.moments import packed_size
from fedpca_flwr.protocol.phase import SumLimits

MEASURE_WORDS = 6
"""For each value of the first sums."""

ROUNDING = 2.0**-20
"""By how much, relatively, limits exceed the bounds above, which floating point may touch."""

LARGEST_SCALED = 2.0**70
"""No value is so many standard deviations in size."""


def measure_limits(
    names: Sequence[str], bound: float, rows: int, columns: int, *, scaled: bool, centred: Collection[str]
) -> SumLimits:
    """Of all entries together: their sum, their energy, and their squared deviation (``spread``) from a level.

    Those ``centred`` are of entries about the means of their columns: once scaled they are at most the root of the
    rows in size, whatever the unit. A constant column is as large as `bound` where its mean stays.
    """
    entries = float(rows) * columns

    def limit(name: str) -> float:
        largest = max(2 * bound, LARGEST_SCALED if scaled else 0.0)
        if scaled and name in centred:
            largest = 2 * rows**0.5
        return entries * {"energy": largest**2, "sum": largest, "spread": 4 * largest**2}[name]

    return {name: np.array(limit(name)) for name in names}


def product_limits(energy: float, block: Array) -> SumLimits:
    """``X X'`` times ``block`` (n, b)."""
    return {"product": np.tile(_enlarged(energy) * np.linalg.norm(block, axis=0), (len(block), 1))}


def inner_product_limits(name: str, energy: float, rows: int) -> SumLimits:
    """Packed ``X X'`` (n (n + 1) / 2,)."""
    return {name: np.full(packed_size(rows), _enlarged(energy))}


def distance_limits(energy: float, rows: int) -> SumLimits:
    """Squared distances of the rows (n (n - 1) / 2,)."""
    return {"distances": np.full(packed_size(rows - 1), 2 * _enlarged(energy))}


def landmark_limits(energy: float, rows: int, landmarks: int) -> SumLimits:
    """Squared distances of the rows from some of them, or inner products with them, (n, c)."""
    return {"landmarks": np.full((rows, landmarks), 2 * _enlarged(energy))}


def score_limits(energy: float, rows: int, components: int) -> SumLimits:
    """Scores (n, k) by orthonormal loadings."""
    return {"scores": np.full((rows, components), np.sqrt(_enlarged(energy)))}


def projection_limits(energy: float) -> SumLimits:
    """The energy that the last round finds left: at most all of it, and some rounding."""
    return {"squared": np.array(2 * energy)}


def _enlarged(energy: float) -> float:
    return energy * (1 + ROUNDING)
