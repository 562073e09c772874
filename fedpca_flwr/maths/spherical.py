r"""Directions of rows about a centre: what they need of the rows' lengths, which are in no known range.

Every row has length 1 once it is divided by its distance from a centre, so one row changes :math:`\sum u_i u_i^T` by 1,
whatever the data, and a row that is far off counts no more than any other (Locantore et al. 1999, "Robust principal
component analysis for functional data"; differentially private: Kim and Jung 2025, "Robust and differentially private
principal component analysis"). For rows whose distribution is elliptical, the components are those of the covariance.

How long rows are, is told by how many there are between any two powers of two, with noise. The mean of rows that are
shortened to what this says is a centre. It is as good as the origin is near: so the same is done once more about it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.denoise import NoisyCentre

LOWEST, HIGHEST = -500, 500
"""Exponents of the public range, 1e-150 to 1e150: at its ends are also the rows beyond."""

OCTAVES = HIGHEST - LOWEST + 1

STANDS_OUT = 4.5
"""Of all noisy numbers of no rows, one is above so many standard deviations in three of 1,000 cases."""

MOST = 0.9
"""Of the rows are to be within the bound that is read off; the others may be anywhere."""


def lengths(rows: Array) -> Array:
    """The lengths (n,) of rows (n, d), of any size."""
    largest = np.abs(rows).max(axis=1, initial=0.0)
    unit = np.where(largest > 0, largest, 1.0)
    scaled = rows / unit[:, None]
    found: Array = np.sqrt(np.einsum("ij,ij->i", scaled, scaled)) * unit
    return found


def directions(rows: Array) -> Array:
    """Rows (n, d) divided by their lengths; those of length 0 stay."""
    largest = np.abs(rows).max(axis=1, initial=0.0)
    scaled = rows / np.where(largest > 0, largest, 1.0)[:, None]
    found: Array = scaled / np.where(largest > 0, lengths(scaled), 1.0)[:, None]
    return found


def octaves(rows: Array) -> Array:
    """How many rows (n, d) have a length from each power of two to the next, shape (`OCTAVES`,)."""
    length = lengths(rows)
    exponent = np.where(np.isfinite(length), np.frexp(length)[1], HIGHEST)
    exponent = np.where(length > 0, exponent, LOWEST).clip(LOWEST, HIGHEST)
    return np.bincount(exponent - LOWEST, minlength=OCTAVES).astype(np.float64)


def placed(rows: Array, components: Array, bound: float) -> Array:
    """Scores on components (k, d), and the length that they leave, of rows shortened to a bound, shape (n, k + 1)."""
    unit = directions(rows)
    scores = unit @ components.T
    left = np.sqrt((1.0 - np.einsum("ij,ij->i", scores, scores)).clip(min=0.0))
    found: Array = np.column_stack([scores, left]) * np.minimum(lengths(rows), bound)[:, None]
    return found


# From noisy sums: post-processing, which costs no privacy.


class Reach(NamedTuple):
    """How far rows reach from a centre.

    Attributes
    ----------
    bound : float
        A power of two that most rows are within.
    stands_out : bool
        Whether noise alone does not explain it; where it may, the bound is that of the largest number.
    """

    bound: float
    stands_out: bool


def reach(counts: Array, deviation: float) -> Reach:
    """How far most rows reach, from their noisy numbers (`OCTAVES`,) with noise of a known deviation."""
    kept = np.where(counts > STANDS_OUT * deviation, counts, 0.0)
    if not kept.any():
        return Reach(2.0 ** (int(counts.argmax()) + LOWEST), False)
    within = np.searchsorted(np.cumsum(kept), MOST * kept.sum())
    return Reach(2.0 ** (int(within) + LOWEST), True)


def moved(centre: Array, step: NoisyCentre) -> tuple[Array, float]:
    """The centre moved by the mean of the rows about it, and how far off it is in 99 of 100 cases.

    The mean is drawn towards the old centre as far as noise explains it (James and Stein 1961, the positive part).
    """
    length, noise = float(np.linalg.norm(step.value)), np.sqrt(step.value.size) * step.of_sum / step.rows
    kept = max(0.0, 1.0 - (noise / length) ** 2) if length else 0.0
    return centre + kept * step.value, step.radius + (1.0 - kept) * length


def descending(noisy: Array, deviation: float) -> Array:
    """Variances (k,) in the order of their components: the nearest that descend, at least half a deviation."""
    from scipy.optimize import isotonic_regression  # a tenth of a second to import, and used once in a run

    fitted = isotonic_regression(noisy, increasing=False).x
    least: Array = np.maximum(fitted, deviation / 2)
    return least
