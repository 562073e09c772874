"""The sums over parties with different columns of the same rows, and the public limits of their fixed point.

The first sum is the energy E of all columns. It needs `bound`, and travels in six words, so `bound` may be 10^30 times
the data's size. With x_r a row and A = X X', E bounds what follows, for the sum and for the sum of the parties'
absolute values (Cauchy and Schwarz), so that fixed point resolves 2^-62 of E::

    |A_rs| <= |x_r| |x_s| <= E,    |(A Q)_rb| <= E |q_b|,    |x_r - x_s|^2 <= 2 E,    |x_r v_j| <= sqrt(E)

Distances do not change when the columns are centred; their E is about the columns' means.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedpca_flwr.maths.fixed_point import Layout
from fedpca_flwr.maths.moments import packed_size

WORDS = 6
"""For each value of the first sums."""

ROUNDING = 2.0**-20
"""By how much, relatively, limits exceed the bounds above, which floating point may touch."""

LARGEST_SCALED = 2.0**70
"""No value is so many standard deviations in size."""


def of_measures(names: Sequence[str], bound: float, rows: int, columns: int, *, scaled: bool) -> Layout:
    """Of all entries together: their sum, their energy, and their squared deviation (``spread``) from a level."""
    entries = float(rows) * columns
    largest = max(2 * bound, LARGEST_SCALED if scaled else 0.0)
    limits = {"energy": largest**2, "sum": largest, "spread": 4 * largest**2}
    return Layout({name: np.array(entries * limits[name]) for name in names}, words=WORDS)


def of_part(phase: str, rows: int, energy: float, received: Sequence[NDArray]) -> Layout:
    """What the parties' parts add up to in a phase whose field has its name; ``received`` is what each was sent."""
    most = energy * (1 + ROUNDING)
    if phase == "product":
        limit = np.tile(most * np.linalg.norm(received[0], axis=0), (rows, 1))
    elif phase == "distances":
        limit = np.full(packed_size(rows - 1), 2 * most)
    elif phase == "landmarks":
        limit = np.full((rows, received[0].size), 2 * most)
    elif phase == "scores":
        limit = np.full((rows, int(received[0])), np.sqrt(most))
    else:
        limit = np.full(packed_size(rows), most)
    return Layout({phase: limit})


def of_left(energy: float) -> Layout:
    """The energy that the last round finds left: at most all of it, and some rounding."""
    return Layout({"squared": np.array(2 * energy)})
