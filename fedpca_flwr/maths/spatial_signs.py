r"""Generalised spatial signs: the directions of rows from a robust centre, without the rows that are too far off.

The spatial median :math:`c` minimises :math:`\sum |x_i - c|`. Weiszfeld's step needs two sums,
:math:`c + \sum u_i / \sum 1/r_i` with :math:`r_i = |x_i - c|, u_i = (x_i - c) / r_i`; it is slow along a direction
that most rows lie in, which acceleration mends (`fedpca_flwr.maths.anderson`).

Their *generalised* sign covariance :math:`\sum \xi(r_i)^2 (x_i - c)(x_i - c)^T` has the eigenvectors of the covariance
where rows are elliptical, whatever the radial function :math:`\xi` is (Raymaekers and Rousseeuw 2019, "A generalized
spatial sign covariance matrix"; with 1 / r Visuri, Koivunen and Oja 2000). Here :math:`\xi^2` is 1 for the rows that
are as near as nearly all clean ones, and falls to 0 on a straight line: so rows that are far off have no part, and of
clean normal ones hardly anything is lost. How far these are is read off the inner half of all distances, whose power
2/3 is nearly normal.

The eigenvalues are not the variances, which come from the median of the scores' sizes, by a histogram of counts.

A row nearer than a ``floor`` to the centre counts by its distance over that: u is (x - c) / floor. So one row never
changes a sum by more than 2, and no faster than the centre moves over the floor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np
import scipy  # `scipy.special` is loaded when it is used, which no message to a site does
from numpy.typing import NDArray

from fedpca_flwr.maths.anderson import Anderson
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.rows import lengths

STEPS = 8  # bins an octave
LOWEST, HIGHEST = -12, 8  # octaves of the unit that a histogram has; what is nearer or farther is counted at its ends
BINS = STEPS * (HIGHEST - LOWEST)

MEDIAN = 0.6744897501960817  # of the size of a standard normal value
QUARTILES = 2 * MEDIAN  # the distance of a standard normal value's quartiles

MOST_PASSES = 300
CLOSE = 1e-9  # of the mean sign, at which the search ends

NEAR, FAR = 0, 1
EVERYWHERE: Array = np.array([2.0**1000, 2.0**1001])
"""A reach within which all rows are."""
NOWHERE: Array = np.array([-2.0, -1.0])
"""One within which none is."""

LESS, NOTHING = 1.96, 3.29
"""Deviations above the middle from which on a row counts less, and nothing: one in 40 clean rows, and one in 2,000."""

NEAREST = 2.0**-960
"""A floor so small that it only keeps sums of 1 / r finite."""

FLOOR = 0.25
"""A party's floor is this share of the median distance of its rows from their own median."""


class SignSums(NamedTuple):
    """Sums over rows about a centre."""

    signs: Array  # (d,): of u
    weight: float  # of 1 / r
    rows: float

    @property
    def step(self) -> Array:
        """Weiszfeld's step to the next centre (d,)."""
        return self.signs / self.weight if self.weight > 0 else np.zeros_like(self.signs)

    @property
    def size(self) -> float:
        """Of the mean sign, which is 0 at the median."""
        return float(np.linalg.norm(self.signs)) / self.rows


def sign_sums(centred: Iterable[Array], d: int, floor: float, reach: Array = EVERYWHERE) -> SignSums:
    """The sums of rows (n, d) that are about the centre, chunk by chunk; ``reach`` (2,) is from where on rows count
    less, and nothing."""
    signs, weight, count = np.zeros(d), 0.0, 0
    for rows in centred:
        inverse = _inverse(rows, floor, reach)
        signs += inverse @ rows
        weight += float(inverse.sum())
        count += len(rows)
    return SignSums(signs, weight, count)


def sign_scatter(centred: Iterable[Array], d: int, unit: float, reach: Array) -> Array:
    """The generalised sign covariance (d, d), times rows, of rows (n, d) about the centre, chunk by chunk, in a
    ``unit``; ``reach`` as in `sign_sums`."""
    scatter = np.zeros((d, d))
    for rows in centred:
        counted = _counted(lengths(rows), reach)
        inside = rows[counted > 0] / unit  # others may be so far that their squares are infinite
        scatter += (inside * counted[counted > 0, None]).T @ inside
    return scatter


def _counted(distances: Array, reach: Array) -> Array:
    """How much rows at these ``distances`` (n,) count."""
    found: Array = ((reach[FAR] - distances) / (reach[FAR] - reach[NEAR])).clip(0.0, 1.0)
    return found


def _inverse(rows: Array, floor: float, reach: Array) -> Array:
    distance = lengths(rows)
    counted = _counted(distance, reach)
    distance = np.maximum(distance, floor)
    return np.divide(counted, distance, out=np.zeros_like(distance), where=distance > 0)


def spatial_median(sums_about: Callable[[Array], SignSums], start: Array) -> Array:
    """The spatial median (d,), by the sums about any centre."""
    search = median_search(start)
    for _ in range(MOST_PASSES):
        sums = sums_about(search.point)
        if sums.size <= CLOSE:
            break
        search.add(search.point + sums.step, -sums.size)
    return search.point


def where_half_lie(rows_about: Callable[[Array], Iterable[Array]], median: Array) -> Array:
    """The row that is nearest to the median (d,), where half of all rows or more are the same as it: the median itself.

    The search only comes near to it, and rounding would be the distance of most rows. ``rows_about`` gives the rows
    about any centre, chunk by chunk.
    """
    distances = np.concatenate([lengths(rows) for rows in rows_about(median)])
    place = int(distances.argmin())
    for rows in rows_about(np.zeros_like(median)):
        if place < len(rows):
            nearest: Array = rows[place].copy()
            break
        place -= len(rows)
    same = sum(int((rows == 0).all(axis=1).sum()) for rows in rows_about(nearest))
    return nearest if 2 * same >= len(distances) else median


def median_search(start: Array) -> Anderson:
    """The search for a median from a centre (d,), whose image is Weiszfeld's step and whose height is the mean sign
    below zero."""
    return Anderson(start, lambda centre: bool(np.isfinite(centre).all()))


def floor_of(distances: Array) -> float:
    """The floor of rows at these ``distances`` (n,) from their own median; 1 where all rows are alike."""
    typical = float(np.median(distances)) or float(distances.mean()) or 1.0 / FLOOR
    return FLOOR * typical


def within(distances: Array, reach: Array, least: int) -> NDArray[np.bool_]:
    """Which rows at these ``distances`` (n,) are within reach: all, where the others are fewer than ``least``."""
    near = distances < reach[FAR]
    return near if int(near.sum()) <= near.size - least else np.ones_like(near)


def histogram(sizes: Array, unit: float, least: int) -> NDArray[np.int64]:
    """How many of ``sizes`` (n,) are in each bin of a grid in a ``unit``.

    Neighbours that are fewer than ``least`` are counted together, where the middle one of them is.
    """
    with np.errstate(divide="ignore"):
        place = np.floor(STEPS * (np.log2(sizes / unit) - LOWEST))
    ordered = np.sort(np.clip(place, 0, BINS - 1).astype(np.int64))
    counts = np.zeros(BINS, dtype=np.int64)
    start = 0
    while start < ordered.size:
        end = min(start + least, ordered.size)
        end = int(np.searchsorted(ordered, ordered[end - 1], side="right"))
        if ordered.size - end < least:
            end = ordered.size
        counts[ordered[(start + end - 1) // 2]] += end - start
        start = end
    return counts


def quantile(counts: Array, share: float, unit: float) -> float:
    """The quantile of sizes in a histogram, between the ends of its bin as if they were spread evenly over it."""
    above = np.cumsum(counts)
    wanted = share * above[-1]
    place = int(np.searchsorted(above, wanted))
    inside = (wanted - (above[place] - counts[place])) / counts[place] if counts[place] else 0.5
    return unit * float(2.0 ** ((place + inside) / STEPS + LOWEST))


def reach_of(counts: Array, unit: float) -> Array:
    """The reach (2,) by the histogram of distances: those beyond the median have no part in it."""
    first, middle = (quantile(counts, share, unit) ** (2 / 3) for share in (0.25, 0.5))
    deviation = (middle - first) / MEDIAN
    reach: Array = (middle + np.array([LESS, NOTHING]) * max(deviation, 1e-3 * middle)) ** 1.5
    return reach


def normal_variance(counts: Array, unit: float) -> float:
    """The variance of values whose sizes have this histogram, as that of normal values with the same median size."""
    return (quantile(counts, 0.5, unit) / MEDIAN) ** 2


class Errors(NamedTuple):
    """The squared distances of rows from the components: their cube roots are nearly normal (Wilson and Hilferty)."""

    middle: float  # median of the cube roots
    deviation: float  # of the cube roots, from their quartiles

    @classmethod
    def of(cls, counts: Array, unit: float) -> Errors:
        """By the histogram of the distances."""
        first, middle, third = (quantile(counts, share, unit) ** (2 / 3) for share in (0.25, 0.5, 0.75))
        return cls(middle, (third - first) / QUARTILES)

    @property
    def mean(self) -> float:
        """Of the squared distances."""
        return self.middle**3 + 3 * self.middle * self.deviation**2

    def limit(self, level: float) -> float:
        """Of the squared distances, of which a share ``level`` is below it."""
        root = self.middle + float(scipy.special.ndtri(level)) * self.deviation
        return float(root**3)


def median_of_matrices(matrices: Sequence[Array]) -> Array:
    """The spatial median of matrices (p, q), as vectors of their entries."""
    held = np.array([matrix.ravel() for matrix in matrices])
    found = spatial_median(lambda centre: sign_sums([held - centre], held.shape[1], 1e-12), held.mean(axis=0))
    median: Array = found.reshape(matrices[0].shape)
    return median
