r"""Directions of rows about a noisy centre, and the eigenpairs behind a scatter matrix with noise of known deviation.

**Directions of rows.** If the lengths of rows are in no known range, their directions about a centre take their
place. Every row has length 1 once it is divided by its distance from a centre, so one row changes
:math:`\sum u_i u_i^T` by 1, whatever the data, and a row that is far off counts no more than any other (Locantore et
al. 1999, "Robust principal component analysis for functional data"; differentially private: Kim and Jung 2025, "Robust
and differentially private principal component analysis"). For rows whose distribution is elliptical, the components are
those of the covariance.

The number of rows with a length between any two powers of two is released with noise. The mean of rows that are
shortened accordingly is a centre. The first centre is only as good as the origin is near: so the same is done once more
about it.

**Behind the noise.** For a matrix of size m with noise of deviation :math:`\tau` off the diagonal, the noise alone has
eigenvalues up to :math:`2q, q = \tau \sqrt{m}`. An eigenvalue :math:`\lambda > q` shows up as
:math:`\theta = \lambda + q^2 / \lambda`, one below :math:`q` not at all (Baik, Ben Arous and Péché 2005;
Benaych-Georges and Nadakuditi 2011, theorem 2.1). Only released numbers are used: post-processing costs no privacy.

If the centre is noisy too, rows without any variance have a second moment about it (`NoisyCentre`): an eigenvalue
like any other to the noise of the matrix, but not of the data. Only an excess over both together is of the data.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.eigen import Eigenpairs, leading_eigenpairs
from fedpca_flwr.maths.moments import unpack
from fedpca_flwr.maths.rows import row_lengths

# columns of an array of shells: where a shell of distances begins, where it ends, and up to which distance the
# direction of a row has a length in proportion to the row's (0: all have length 1)
SHELL_START, SHELL_END, SHELL_LENGTH_LIMIT = range(3)
MIN_EXPONENT, MAX_EXPONENT = -500, 500  # of the public range, 1e-150 to 1e150; rows beyond are counted at its ends
OCTAVES = MAX_EXPONENT - MIN_EXPONENT + 1
DETECTION_DEVIATIONS = 5.2  # of all noisy numbers of no rows, one is above these in one of 10,000 cases
BOUND_ROW_SHARE = 0.9  # this share of the rows is to be within the bound that is read off; the others may be anywhere
MAX_NOISE_SHARE = 0.05  # a bound is made larger only where the noise stays below this share of what most rows reach
COORDINATE_DEVIATIONS = 2.0  # of its noise: a coordinate whose noisy sum of squares is less is dropped
# a spike counts for at most so many times the middle one where coordinates are chosen: one direction alone, which rows
# that are far off may have made, must not decide it
MAX_SPIKE_RATIO = 4.0
TRACY_WIDOM_99 = 2.02  # the noise's largest eigenvalue, less 2q and over q m^(-2/3), is below this in 99 of 100 cases
LIPSCHITZ_TAIL = 3.04  # constants by which a function of normal values exceeds its mean in 1 of 100 cases: exp(-t^2/2)
NORMAL_99 = 2.33  # in 99 of 100 cases a normal value is below so many standard deviations


def row_directions(rows: Array) -> Array:
    """Divide each of the rows (n, d) by its Euclidean length, without overflow; rows of length 0 stay 0."""
    largest = np.abs(rows).max(axis=1, initial=0.0)
    scaled = rows / np.where(largest > 0, largest, 1.0)[:, None]
    return scaled / np.where(largest > 0, row_lengths(scaled), 1.0)[:, None]


def octave_counts(rows: Array) -> Array:
    """Count the rows (n, d) whose Euclidean length is between successive powers of 2, by exponent (OCTAVES,).

    The exponents are from `MIN_EXPONENT` to `MAX_EXPONENT`; the two ends include all rows beyond.
    """
    length = row_lengths(rows)
    exponent = np.where(np.isfinite(length), np.frexp(length)[1], MAX_EXPONENT)
    exponent = np.where(length > 0, exponent, MIN_EXPONENT).clip(MIN_EXPONENT, MAX_EXPONENT)
    return np.bincount(exponent - MIN_EXPONENT, minlength=OCTAVES).astype(np.float64)


def assign_shells(length: Array, shells: Array) -> NDArray[np.intp]:
    """Find the index of the shell (range of distances) with each length (n,); the first holds those before it.

    Shapes: length (n,), shells (s, 3), ascending, by where they begin -> (n,).
    """
    return np.asarray((length[:, None] >= shells[1:, SHELL_START]).sum(axis=1))


def bounded_scores(rows: Array, components: Array, bound: float) -> Array:
    """Compute the scores of rows shortened to a bound, and in a last column the rows' lengths orthogonal to components.

    Shapes: rows (n, d), components (k, d), orthonormal -> (n, k + 1).
    """
    scores = row_directions(rows) @ components.T
    remainder = np.sqrt((1.0 - np.einsum("ij,ij->i", scores, scores)).clip(min=0.0))
    return np.column_stack([scores, remainder]) * np.minimum(row_lengths(rows), bound)[:, None]


class Reach(NamedTuple):
    """A distance from a centre within which most rows lie, read from noisy counts of rows by distance."""

    bound: float  # a power of two
    stands_out: bool  # some count is too large to be noise; else the bound is that of the largest count


def row_reach(counts: Array, deviation: float, *, noise: float = np.inf, power: int = 1) -> Reach:
    """Choose the length to which rows are clipped, from noisy counts (OCTAVES,) of rows by length.

    Each count has noise of ``deviation``; ``noise`` is that in the sum of rows (``power`` 1), or of their squares (2),
    that are shortened to a bound of 1. The bound is larger than `BOUND_ROW_SHARE` of the rows need if that makes noise
    and clipped lengths smaller together, and the noise is still small beside those rows (`MAX_NOISE_SHARE`).
    """
    significant = np.where(counts > DETECTION_DEVIATIONS * deviation, counts, 0.0)
    if not significant.any():
        return Reach(2.0 ** (int(counts.argmax()) + MIN_EXPONENT), False)
    filled = np.flatnonzero(significant)
    # the octave within whose end the share of rows lies; larger ones are tried for less error by noise and clipping
    within = int(np.searchsorted(np.cumsum(significant), BOUND_ROW_SHARE * significant.sum()))
    best, best_error = within, np.inf
    for octave in filled[filled >= within].tolist():
        with np.errstate(all="ignore"):  # a bound beyond float64 has an infinite error and is not chosen
            growth = np.exp2(power * (octave - within))
            error = np.hypot(growth * noise, growth * excess_beyond(significant, octave, power))
        if error < best_error and (octave == within or growth * noise <= MAX_NOISE_SHARE * significant.sum()):
            best, best_error = octave, error
    return Reach(2.0 ** (best + MIN_EXPONENT), True)


def excess_beyond(counts: Array, octave: int, power: int) -> float:
    """Sum how much the lengths of rows (or squared lengths, for ``power`` 2) exceed the upper end of an octave.

    The unit is this end, or its square. In an octave of the counts (OCTAVES,), lengths are taken as log-uniform.
    """
    farther = octave + 1 + np.flatnonzero(counts[octave + 1 :])
    spread = (1 - 0.5**power) / (power * np.log(2.0))  # mean of x^power for x log-uniform on 1/2 to 1
    return float((counts[farther] * (np.exp2(power * (farther - octave)) * spread - 1)).sum())


def move_centre(centre: Array, step: NoisyCentre) -> tuple[Array, float]:
    """Move a centre (d,) by the noisy mean of the centred rows, shrunk by the share of noise in the mean.

    The shrinkage is the positive part of that of James and Stein (1961). Return also a bound on the new centre's
    distance from the mean of the clipped rows, in 99 of 100 cases.
    """
    length, noise = float(np.linalg.norm(step.value)), np.sqrt(step.value.size) * step.sum_deviation / step.rows
    retained_share = max(0.0, 1.0 - (noise / length) ** 2) if length else 0.0
    return centre + retained_share * step.value, step.radius + (1.0 - retained_share) * length


def make_descending(noisy: Array, deviation: float) -> Array:
    """Fit descending variances to noisy ones (k,) (isotonic regression), none below half the noise's deviation."""
    from scipy.optimize import isotonic_regression  # a tenth of a second to import, and used once in a run

    return np.asarray(np.maximum(isotonic_regression(noisy, increasing=False).x, deviation / 2))


class NoisyCentre(NamedTuple):
    """A centre of rows, computed from a noisy sum and a noisy number of rows, and the uncertainty of its position.

    With m the mean of the n clipped rows, z the noise of their sum and g that of their number, the centre is ``c = (n m
    + z) / (n + g)``, shortened to the bound; so ``|c - m| <= (|z| + |g| |m|) / (n + g)``.
    """

    value: Array  # the centre c, (d,)
    rows: int  # the noisy number of rows, n + g
    bound: float  # length to which rows were clipped
    count_deviation: float  # standard deviation of g
    sum_deviation: float  # standard deviation of each value of z

    @property
    def radius(self) -> float:
        """Bound on the centre's distance from the mean of the clipped rows, in 99 of 100 cases of the noise."""
        z = self.sum_deviation * (np.sqrt(self.value.size) + LIPSCHITZ_TAIL)
        g, length = LIPSCHITZ_TAIL * self.count_deviation, np.linalg.norm(self.value)
        near = (z + g * length) / (self.rows - g) if self.rows > g else np.inf
        return float(min((z + g * self.bound) / self.rows, near, 2 * self.bound))

    def subtraction_eigenvalue(self) -> float:
        """Bound the largest eigenvalue that the centre's error e = c - m gives the scatter of n rows that all equal m.

        The matrix ``n m m' - (n + g) c c'`` is ``-(n + g) (m e' + e m' + e e') - g m m'``, where ``-m'e <= |e|^2 / 2``
        if the centre was shortened, for then ``|c| >= |m|``; if not, z has a random direction, and ``|z| - z'm / |m|``
        stays below `radius` too.
        """
        radius = self.radius
        length = min(float(np.linalg.norm(self.value)) + radius, self.bound)
        return self.rows * radius * (length + radius / 2) + LIPSCHITZ_TAIL * self.count_deviation * length**2


class Denoised(NamedTuple):
    """Estimated leading eigenpairs of a scatter matrix of which only a noisy copy is known."""

    pairs: Eigenpairs  # leading eigenvectors of the noisy scatter, and eigenvalues estimated without the noise
    total: float  # estimate of the trace
    detectable: int  # number of pairs whose noisy eigenvalues are larger than noise alone makes them
    coordinate_count: int  # number of features that were not dropped
    noisy: Array  # leading eigenvalues (k,) of the noisy scatter


def denoise(scatter: Array, d: int, k: int, deviation: float, *, excess: float = 0.0) -> Denoised:
    """Estimate the k leading eigenpairs of a packed scatter (d (d + 1) / 2,) from a copy with Gaussian noise.

    They are computed from all coordinates, or only from those whose diagonal value is well above the noise: whichever
    leaves more variance of the data in the noisy eigenvectors. The noise has ``deviation`` on the diagonal, in squared
    units of the data, and ``deviation / sqrt(2)`` off it; ``excess`` is as in `noise_limit`.
    """
    matrix = unpack(scatter, d)
    diagonal = np.diagonal(matrix)
    order = np.argsort(-diagonal, kind="stable")
    above = max(k, int((diagonal > COORDINATE_DEVIATIONS * deviation).sum()))
    choices: list[_CoordinateSubset] = []
    for count in sorted({above, d}):
        selected = np.sort(order[:count])
        noisy = leading_eigenpairs(np.asfortranarray(matrix[np.ix_(selected, selected)]), k)
        choices.append(_CoordinateSubset(selected, noisy, deviation * float(np.sqrt(len(selected) / 2))))
    spikes = np.concatenate([choice.spikes for choice in choices])
    typical = float(np.median(spikes)) if spikes.size else 0.0
    best = max(choices, key=lambda choice: choice.explained_variance(MAX_SPIKE_RATIO * typical))
    vectors = np.zeros((d, k))
    vectors[best.coordinates] = best.noisy.vectors
    values = denoise_eigenvalues(best.noisy.values, best.edge)
    following = float(denoise_eigenvalues(np.array(best.noisy.following), best.edge))
    total = max(float(diagonal.sum()), float(values.sum()))
    above = count_detectable(best.noisy.values, d, deviation, excess)
    return Denoised(Eigenpairs(values, vectors, following), total, above, len(best.coordinates), best.noisy.values)


def count_detectable(noisy: Array, d: int, deviation: float, excess: float) -> int:
    """Count the eigenvalues (k,) of a noisy scatter above the largest of noise alone, in 99 of 100 cases.

    The limit for all d features (`noise_limit`) holds for any choice of features too: no principal submatrix has a
    larger eigenvalue than the matrix (Cauchy interlacing).
    """
    return int((noisy > noise_limit(d, deviation, excess)).sum())


class _CoordinateSubset(NamedTuple):
    """Noisy eigenpairs of a scatter's submatrix of some coordinates, and half the largest eigenvalue of its noise."""

    coordinates: NDArray[np.intp]
    noisy: Eigenpairs
    edge: float

    @property
    def spikes(self) -> Array:
        """Estimated eigenvalues without noise, of those large enough to be seen in the noise."""
        behind = denoise_eigenvalues(self.noisy.values, self.edge)
        return behind[behind > self.edge]

    def explained_variance(self, max_spike: float) -> float:
        """Estimate the data's variance in the noisy components, where no eigenvalue counts for more than ``max_spike``.

        A noisy eigenvector has the cosine ``sqrt(1 - (q / spike)^2)`` with the eigenvector without noise, for its
        eigenvalue and half the noise's largest eigenvalue q (Benaych-Georges and Nadakuditi 2011, theorem 2.2).
        """
        spikes = self.spikes
        return float((np.minimum(spikes, max_spike) * (1 - (self.edge / spikes) ** 2)).sum())


def noise_limit(d: int, deviation: float, excess: float = 0.0) -> float:
    """Compute the value that the largest eigenvalue of a symmetric matrix of noise exceeds in 1 of 100 cases.

    The noise has ``deviation`` on the diagonal and ``deviation / sqrt(2)`` off it; ``excess`` is the largest eigenvalue
    that the error of a noisy centre adds. An excess s above the noise's edge ``q = deviation sqrt(d / 2)`` shows up as
    ``s + q^2 / s``, with the standard deviation ``deviation sqrt(1 - (q / s)^2)`` (Benaych-Georges, Guionnet and Maïda
    2011). By Weyl's inequality the same holds for eigenvalue i if the data have i - 1 directions only.
    """
    edge = deviation * np.sqrt(d / 2)
    spike = max(excess, edge)
    if spike == 0.0:
        return 0.0
    above = (edge / spike) ** 2
    chance = TRACY_WIDOM_99 * edge * d ** (-2 / 3) + NORMAL_99 * deviation * np.sqrt(1 - above)
    return float(spike * (1 + above) + chance)


def denoise_eigenvalues(theta: Array, edge: float) -> Array:
    """Estimate the eigenvalues of a scatter from those of its noisy copy: theta becomes s with ``s + q^2 / s = theta``.

    The noise alone has eigenvalues up to 2q, for q = ``edge``; a ``theta`` below this is halved. No result is negative.
    """
    theta = theta.clip(min=0.0)
    return np.asarray((theta + np.sqrt((theta - 2 * edge).clip(min=0.0)) * np.sqrt(theta + 2 * edge)) / 2)
