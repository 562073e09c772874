r"""Spatial signs: the directions of rows from a robust centre, and the rows that lie far off.

The spatial median :math:`c` minimises :math:`\sum |x_i - c|`. Weiszfeld's step needs two sums,
:math:`c + \sum u_i / \sum 1/r_i` with :math:`r_i = |x_i - c|, u_i = (x_i - c) / r_i`; it is slow along a direction
that most rows lie in, which acceleration mends (`fedpca_flwr.maths.anderson`).

The sign covariance :math:`\sum u_i u_i^T` has the eigenvectors of the covariance if rows are elliptical (Locantore
et al. 1999; Visuri, Koivunen and Oja 2000), and no row moves it by more than 1. Its eigenvectors are the *directions*;
a direction's middle and spread are the median of the rows' scores along it, and their median distance from that.

Rows that lie together within reach of the others still turn these directions. They stand out once all directions have
the same spread: the sign covariance of clean rows so *whitened* is near I / m, and a share p of rows in one direction
adds p to it there. So eigenvectors whose eigenvalues stand out of those that clean rows have by chance (Marchenko and
Pastur 1967) are directions along which such rows are far off, whatever clean rows look like (two scatters compared:
Tyler et al. 2009, "Invariant co-ordinate selection"). Along these a row counts less from `CUT_SPREADS` spreads on, and
from one spread more on nothing; and so it does if it is farther from the middle than nearly all clean rows, which is
read off the inner half of all distances, whose power 2/3 is nearly normal.

Medians come from histograms of counts. A row nearer than a ``floor`` to the centre counts by its distance over that: u
is (x - c) / floor. So one row never changes a sum by more than 2, and no faster than the centre moves over the floor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import scipy  # `scipy.special` is loaded when it is used, which no message to a site does
from numpy.typing import NDArray

from fedpca_flwr.maths.anderson import Anderson
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.rows import row_lengths

BINS_PER_OCTAVE = 8  # equal bins between two successive powers of 2
# exponents of 2, in units, between which a histogram has bins on either side of zero; others count in its end bins
MIN_OCTAVE, MAX_OCTAVE = -6, 4
SIDE_BINS = BINS_PER_OCTAVE * (MAX_OCTAVE - MIN_OCTAVE)
BINS = 2 * SIDE_BINS
_POSITIVE_EDGES = 2.0 ** np.repeat(np.arange(MIN_OCTAVE, MAX_OCTAVE), BINS_PER_OCTAVE) * np.tile(
    1 + np.arange(BINS_PER_OCTAVE) / BINS_PER_OCTAVE, MAX_OCTAVE - MIN_OCTAVE
)
# ends of the bins, in units, from the farthest below zero to the farthest above it (BINS + 1,)
BIN_EDGES: Array = np.concatenate(
    [[-(2.0**MAX_OCTAVE)], -_POSITIVE_EDGES[:0:-1], [0.0], _POSITIVE_EDGES[1:], [2.0**MAX_OCTAVE]]
)
NORMAL_MEDIAN_SIZE = 0.6744897501960817  # median of the absolute value of a standard normal variable
NORMAL_QUARTILE_RANGE = 2 * NORMAL_MEDIAN_SIZE  # the distance of a standard normal value's quartiles
MAX_PASSES = 300
SIGN_TOLERANCE = 1e-9  # length of the mean direction of rows from a centre at which the search for their median ends
# spreads from which on a row counts less along a direction that stands out: of clean normal rows one in 80
CUT_SPREADS = 2.5
# deviations above the middle distance from which on a row counts less, and nothing: one in 40 clean rows, and in 2,000
REDUCED_DEVIATIONS, EXCLUDED_DEVIATIONS = 1.96, 3.29
MAX_SPREADS = 2.0**4  # from the middle, along each direction, beyond which no row counts
MIN_WHITENED_SHARE = 1e-9  # of the largest eigenvalue of whitened rows: below, they do not vary along a direction
# a direction that does not stand out has a spread larger than its own by one over this: no row is far off along it
MIN_STRENGTH = 2.0**-20
# half of all rows have the same score along a direction whose spread is a smaller share of its unit
COINCIDENT_SPREAD = 2.0 ** (MIN_OCTAVE + 1)
UNCUT_SPREAD = 16.0  # units that then count as a spread, since such rows do not show which of them lie far off
MAX_WHITENED_SCORE = 2.0**500  # larger numbers of spreads count as this one, so that squares are finite
MIN_FLOOR = 2.0**-960  # smallest distance r, so small that it only keeps sums of 1 / r finite
FLOOR_SHARE = 0.25  # a party's floor is this share of the median distance of its rows from their own median


class SignSums(NamedTuple):
    """Sums over rows of a Weiszfeld step to the spatial median: unit directions from a centre, inverse distances."""

    signs: Array  # (d,), sum of the unit vectors from the centre to the rows
    weight: float  # sum of the inverse distances of the rows from the centre
    rows: float  # number of rows

    @property
    def step(self) -> Array:
        """Weiszfeld's step (d,) to the next centre: sum of unit directions over sum of inverse distances, or 0."""
        return self.signs / self.weight if self.weight > 0 else np.zeros_like(self.signs)

    @property
    def mean_sign_length(self) -> float:
        """Length of the mean of the rows' unit directions from the centre, which is 0 at their spatial median."""
        return float(np.linalg.norm(self.signs)) / self.rows


def sign_sums(centred: Iterable[Array], d: int, floor: float) -> SignSums:
    """Sum directions and inverse distances of rows less a centre, in chunks (n, d); distances are at least floor."""
    signs, weight, count = np.zeros(d), 0.0, 0
    for rows in centred:
        distance = np.maximum(row_lengths(rows), floor)
        inverse = np.divide(1.0, distance, out=np.zeros_like(distance), where=distance > 0)
        signs += inverse @ rows
        weight += float(inverse.sum())
        count += len(rows)
    return SignSums(signs, weight, count)


def sign_scatter(centred: Iterable[Array], d: int, floor: float) -> Array:
    """Sum ``u u'`` (d, d) over directions u of rows less a centre, in chunks (n, d); distances are at least floor."""
    scatter = np.zeros((d, d))
    for rows in centred:
        distance = np.maximum(row_lengths(rows), floor)
        signs = rows / np.where(distance > 0, distance, 1.0)[:, None]
        scatter += signs.T @ signs
    return scatter


def spatial_median(sums_about: Callable[[Array], SignSums], start: Array) -> Array:
    """Compute the spatial median (d,) of rows, the point of least summed distance, by accelerated Weiszfeld steps.

    ``sums_about`` returns the `SignSums` of the rows about a centre. The search ends after `MAX_PASSES` steps, or when
    the mean direction is shorter than `SIGN_TOLERANCE`.
    """
    search = median_search(start)
    for _ in range(MAX_PASSES):
        sums = sums_about(search.point)
        if sums.mean_sign_length <= SIGN_TOLERANCE:
            break
        search.add(search.point + sums.step, -sums.mean_sign_length)
    return search.point


def snap_to_majority(rows_about: Callable[[Array], Iterable[Array]], median: Array) -> Array:
    """Replace an approximate spatial median (d,) by the row nearest to it, if at least half of all rows equal this row.

    Such a row is the true median; else most rows' distance from it would be a rounding error. ``rows_about`` yields the
    rows less a centre (d,), in chunks (m, d).
    """
    distances = np.concatenate([row_lengths(rows) for rows in rows_about(median)])
    position = int(distances.argmin())
    for rows in rows_about(np.zeros_like(median)):
        if position < len(rows):
            nearest: Array = rows[position].copy()
            break
        position -= len(rows)
    same = sum(int((rows == 0).all(axis=1).sum()) for rows in rows_about(nearest))
    return nearest if 2 * same >= len(distances) else median


def median_search(start: Array) -> Anderson:
    """Create an Anderson-accelerated iteration for a spatial median from a centre (d,), with finite centres only.

    Its user adds the next centre by Weiszfeld's step, and minus the length of the mean direction as the objective.
    """
    return Anderson(start, lambda centre: bool(np.isfinite(centre).all()))


def distance_floor(distances: Array) -> float:
    """Compute the floor of distances for directions: a quarter of their median (n,), else of their mean, else 1."""
    typical = float(np.median(distances)) or float(distances.mean()) or 1.0 / FLOOR_SHARE
    return FLOOR_SHARE * typical


@dataclass(frozen=True)
class Directions:
    """Orthonormal directions, with the median ("middle") and robust deviation ("spread") of rows' scores along each."""

    vectors: Array  # (m, d)
    middles: Array  # (m,), median of the scores
    spreads: Array  # (m,), median distance from the middle, scaled to be the deviation of normal scores

    def whitened(self, centred: Array) -> Array:
        """Compute the scores (n, m) of centred rows (n, d), less their medians, over robust deviations, and clipped."""
        scores: Array = centred @ self.vectors.T
        scores -= self.middles
        scores /= self.spreads
        return np.clip(scores, -MAX_WHITENED_SCORE, MAX_WHITENED_SCORE, out=scores)


@dataclass(frozen=True)
class Survivors:
    """A robust rule that weights rows from 0 to 1: outliers along a direction, or by their distance, count less."""

    shape: Directions  # of the whitened rows; spreads are larger where no rows lie far off
    reach: Array  # (2,), lengths of a whitened row from which on it counts less, and nothing

    def blunt(self, local_spreads: Array, local_gap: float) -> Survivors:
        """Return the rule with wider transitions from weight 1 to 0, so that sums do not reveal a party's single rows.

        The spreads become at least `FLOOR_SHARE` of the party's ``local_spreads`` (m,), and the transition by distance
        at least ``local_gap`` wide (`local_spreads_and_gap`).
        """
        inner, outer = self.reach
        shape = replace(self.shape, spreads=np.maximum(self.shape.spreads, FLOOR_SHARE * local_spreads))
        return Survivors(shape, np.array([inner, max(outer, inner + local_gap)]))

    def row_weights(self, whitened: Array) -> Array:
        """Compute the weight (n,) of each whitened row (n, m): 1 for usual rows, falling linearly to 0 for outliers."""
        inner, outer = self.reach
        # the weight falls from 1 at CUT_SPREADS to 0 one spread farther, along the direction where a row is farthest
        along = CUT_SPREADS + 1 - np.abs(self.shape.whitened(whitened)).max(axis=1)
        weights: Array = np.minimum(along, (outer - row_lengths(whitened)) / (outer - inner)).clip(0.0, 1.0)
        return np.where(np.abs(whitened).max(axis=1) <= MAX_SPREADS, weights, 0.0)


def shape_values(whitened: Array, vectors: Array) -> Array:
    """Compute the values for histograms of whitened rows: scores along m directions, and lengths less ``sqrt(m)``.

    Less ``sqrt(m)``, the lengths have much the same distribution for any m.
    Shapes: whitened (n, m), vectors (m, m), directions in rows -> (n, m + 1).
    """
    return np.column_stack([whitened @ vectors.T, row_lengths(whitened) - np.sqrt(whitened.shape[1])])


def find_survivors(vectors: Array, values: Array, rows: int, counts: Array) -> Survivors:
    """Derive the rule that weights outlying rows down, from the sign covariance and histograms of whitened rows.

    ``vectors``, in rows, and ``values``, descending and of any sum, are the eigenpairs of the sign covariance (the mean
    of ``u u'`` for unit directions u); ``counts`` are the histograms of all rows' `shape_values`.
    Shapes: vectors (m, m), values (m,), counts (m + 1, BINS).
    """
    m = len(values)
    shape = directions_from_counts(vectors, np.ones(m), counts[:-1])
    varying = int((values > MIN_WHITENED_SHARE * values[0]).sum())
    # the largest eigenvalue of the covariance of independent unit values (Marchenko and Pastur 1967): an upper bound,
    # as the rows also determine how they are whitened
    edge = (1 + np.sqrt(varying / rows)) ** 2
    # excess of the eigenvalues over those of clean rows, 1 at the edge; the rule acts from 3/4 on, in full from 5/4 on
    standing_out = (varying * values / values.sum() - 1) / (edge - 1)
    strength = np.round(2 * standing_out - 1.5, 6).clip(MIN_STRENGTH, 1.0)  # no digits that rounding may change
    # lengths of clean rows to the power 2/3 (cube roots of squares) are nearly normal: mean and deviation by quartiles
    first, middle = (
        (np.sqrt(m) + max(float(quantile(counts[-1], share)), -np.sqrt(m))) ** (2 / 3) for share in (0.25, 0.5)
    )
    deviation = max((middle - first) / NORMAL_MEDIAN_SIZE, 1e-3)
    reach: Array = (middle + np.array([REDUCED_DEVIATIONS, EXCLUDED_DEVIATIONS]) * deviation) ** 1.5
    return Survivors(replace(shape, spreads=shape.spreads / strength), reach)


def local_spreads_and_gap(counts: Array) -> tuple[Array, float]:
    """Compute a party's robust deviations (m,) along directions, and its distances' median less first quartile.

    ``counts`` (m + 1, BINS) are the histograms of the party's `shape_values`; a deviation is that of normal values with
    the same median distance from the median.
    """
    return medians_and_spreads(counts[:-1])[1], float(quantile(counts[-1], 0.5) - quantile(counts[-1], 0.25))


def whitened_signs(whitened: Array) -> Array:
    """Divide whitened rows (n, m) by their lengths, or by a quarter of ``sqrt(m)``, the usual length, if shorter."""
    floor = FLOOR_SHARE * np.sqrt(whitened.shape[1])
    return np.asarray(whitened / np.maximum(row_lengths(whitened), floor)[:, None])


def tally(values: Array) -> NDArray[np.int64]:
    """Compute a histogram (BINS,) by `BIN_EDGES` of each column of values (n, m); values beyond are in the end bins."""
    # the bits of a float64 without its sign, shifted to leave the exponent (biased by 1023) and 3 bits of the fraction:
    # the number of the bin among 8 to each power of 2
    exponents_and_bins = np.abs(values).view(np.int64) >> (52 - 3)
    bins = (exponents_and_bins - BINS_PER_OCTAVE * (1023 + MIN_OCTAVE)).clip(0, SIDE_BINS - 1)
    positions = np.where(np.signbit(values), SIDE_BINS - 1 - bins, SIDE_BINS + bins) + BINS * np.arange(values.shape[1])
    return np.bincount(positions.ravel(), minlength=BINS * values.shape[1]).reshape(-1, BINS)


def merge_small_bins(histograms: NDArray[np.int64], min_count: int) -> NDArray[np.int64]:
    """Merge neighbouring bins of (m, BINS) into that of their median, until counts are 0 or at least ``min_count``."""
    merged, above = np.zeros_like(histograms), np.cumsum(histograms, axis=1)
    rows = above[:, -1]
    # a sorted array for all histograms: each begins above the end of the one before
    bases = (rows.max() + 1) * np.arange(len(rows))
    edges = (above + bases[:, None]).ravel()

    def bins_of(values: NDArray[np.int64], which: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the bins of values by their place in the order of all values of a histogram."""
        return np.asarray(np.searchsorted(edges, values + bases[which], side="right") - above.shape[1] * which)

    # over the values in order, from ``start`` to ``end``: whole bins until there are enough, the rest in the last
    start = np.zeros_like(rows)
    while (which := np.flatnonzero(start < rows)).size:
        end = above[which, bins_of(np.minimum(start[which] + min_count, rows[which]) - 1, which)]
        end = np.where(rows[which] - end < min_count, rows[which], end)
        merged[which, bins_of((start[which] + end - 1) // 2, which)] += end - start[which]
        start[which] = end
    return merged


def quantile(counts: Array, share: float) -> Array:
    """Compute the quantiles below which a ``share`` of histograms (..., BINS) lies, values spread evenly over bins."""
    above = np.cumsum(counts, axis=-1)
    target = share * above[..., -1:]
    position = (above < target).sum(axis=-1, keepdims=True)
    count = np.take_along_axis(counts, position, -1)
    rest = target - (np.take_along_axis(above, position, -1) - count)
    inside = np.divide(rest, count, out=np.full(rest.shape, 0.5), where=count > 0)
    return np.asarray(BIN_EDGES[position] + inside * (BIN_EDGES[position + 1] - BIN_EDGES[position]))[..., 0]


def medians_and_spreads(counts: Array) -> tuple[Array, Array]:
    """Compute medians (m,) of histograms (m, BINS), and median distances from these as deviations of normal values."""
    middles = quantile(counts, 0.5)[:, None]
    above = np.cumsum(np.pad(counts, ((0, 0), (1, 0))), axis=1) / counts.sum(axis=1, keepdims=True)

    def shares_below(values: Array) -> Array:
        """Return the shares of the histograms below values (m, q)."""
        position = np.searchsorted(BIN_EDGES, values, side="right").clip(1, BINS) - 1
        low, high = (np.take_along_axis(above, position + step, 1) for step in (0, 1))
        part = (values - BIN_EDGES[position]) / (BIN_EDGES[position + 1] - BIN_EDGES[position])
        return np.asarray(low + part.clip(0.0, 1.0) * (high - low))

    distances = np.sort(np.abs(BIN_EDGES - middles), axis=1)
    # share of the values within each of these distances of the median
    inside = shares_below(middles + distances) - shares_below(middles - distances)
    sizes = np.array([np.interp(0.5, *curve) for curve in zip(inside, distances, strict=True)])
    return middles[:, 0], sizes / NORMAL_MEDIAN_SIZE


def directions_from_counts(vectors: Array, units: Array, counts: Array) -> Directions:
    """Compute medians ("middles") and robust deviations ("spreads") along directions from histograms of rows' scores.

    ``units`` (m,) are those of the edges, in the data's unit. Where half of the rows have the same score the spread is
    large (`UNCUT_SPREAD`), so that no row counts as far off.
    Shapes: vectors (m, d), units (m,), counts (m, BINS).
    """
    middles, spreads = medians_and_spreads(counts)
    middles = np.where(np.maximum(np.abs(middles), spreads) > COINCIDENT_SPREAD, middles, 0.0)
    return Directions(vectors, middles * units, np.where(spreads > COINCIDENT_SPREAD, spreads, UNCUT_SPREAD) * units)


def variances_from_counts(units: Array, counts: Array) -> Array:
    """Estimate variances (m,) as those of normal values with the same median absolute deviation, from histograms.

    The edges of the histograms (m, BINS) are in ``units`` (m,). The variance is 0 if half of the values are equal.
    """
    _, spreads = medians_and_spreads(counts)
    return np.where(spreads > COINCIDENT_SPREAD, spreads * units, 0.0) ** 2


class SquaredErrors(NamedTuple):
    """The distribution of squared reconstruction errors, whose cube roots are taken as normal (Wilson and Hilferty)."""

    middle: float  # median of the cube roots of the squared errors
    deviation: float  # standard deviation of the cube roots, by their quartiles

    @classmethod
    def from_counts(cls, counts: Array, unit: float) -> SquaredErrors:
        """Fit the distribution to a histogram (BINS,) of the rows' distances from the components' span, in ``unit``."""
        # distance^(2/3) is the cube root of the squared distance
        first, middle, third = ((unit * float(quantile(counts, share))) ** (2 / 3) for share in (0.25, 0.5, 0.75))
        return cls(middle, (third - first) / NORMAL_QUARTILE_RANGE)

    @property
    def mean(self) -> float:
        """Mean of the squared errors: ``E X^3`` of a normal X with the median and deviation of the cube roots."""
        return self.middle**3 + 3 * self.middle * self.deviation**2

    def limit(self, level: float) -> float:
        """Compute a quantile of the squared errors: the value that a share ``level`` of rows, from 0 to 1, is below."""
        return float((self.middle + float(scipy.special.ndtri(level)) * self.deviation) ** 3)


def median_of_matrices(matrices: Sequence[Array]) -> Array:
    """Compute the spatial median of matrices (p, q): the matrix of least summed Frobenius distances from all."""
    vectors = np.array([matrix.ravel() for matrix in matrices])
    d = vectors.shape[1]
    median = spatial_median(lambda centre: sign_sums([vectors - centre], d, 1e-12), vectors.mean(axis=0))
    return median.reshape(matrices[0].shape)
