r"""Shells of distances from a centre: sums of the rows' directions for each range of distances.

Sums of directions :math:`\sum u_i u_i^T` forget how far rows are from the centre, whatever the privacy budget.
In *shells* of distances, from one power of two to another, it is known: with the mean squared distance
:math:`r_s^2` of a shell, :math:`\sum_s r_s^2 \sum_{i \in s} u_i u_i^T` is near the scatter. A row is in one shell
only, so all sums together change by no more than one of them does. Shells cost bytes, and no privacy.

The noisy numbers of rows by distance say which shells there are. From the outermost distance inward, distances are
joined until a shell has `MIN_ROWS_TO_NOISE` k times as many rows as the largest eigenvalue of its noise, for k
components: a component that holds 1/k of the shell's rows then loses 3 % of its variance to the noise. Few rows, or
much noise, give one shell. In a shell of many more rows (`LENGTH_ROWS_TO_NOISE`) the noise is so small that rows keep
their length, without any bias.

The noise of a shell far out grows with the squared distance. So each sum is freed of its noise first: an eigenvalue
:math:`\theta` becomes :math:`\sqrt{\theta^2 - (2q)^2}`, and 0 below the edge :math:`2q` (Gavish and Donoho 2017,
"Optimal shrinkage of singular values"). Only released numbers are used.
"""

from dataclasses import replace
from typing import NamedTuple

import numpy as np
from scipy.linalg import eigh

from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.eigen import leading_eigenpairs
from fedpca_flwr.maths.moments import unpack
from fedpca_flwr.strategies.dp_pca.private_scatter import (
    DETECTION_DEVIATIONS,
    MIN_EXPONENT,
    SHELL_END,
    SHELL_LENGTH_LIMIT,
    SHELL_START,
    Denoised,
    denoise,
    excess_beyond,
)

MAX_SHELLS = 6  # most shells, and so most sums that a party sends
MIN_ROWS_TO_NOISE, LENGTH_ROWS_TO_NOISE = 3.0, 40.0  # measured: `python -m fedpca_flwr.simulations.benchmarks privacy`
INTERVAL_DEVIATIONS = 1.645  # a normal value is within so many standard deviations in 90 of 100 cases
TIE_WEIGHT = 1e-6  # weight of the matrices with their noise, which decides only where no eigenvalue is above the edge
CERTAIN_DEVIATIONS = 6.0  # the largest of a thousand normal values is beyond so many deviations with probability 1e-6
MEAN_SQUARE_IN_OCTAVE = 0.375 / np.log(2.0)  # mean square of values whose logarithms are uniform from 1/2 to 1


def single_shell(end: float) -> Array:
    """Return a shell (1, 3) from 0 to ``end`` for all rows, in which all rows count as unit directions."""
    return np.array([[0.0, end, 0.0]])


def choose_shells(counts: Array, deviation: float, edge: float, k: int, *, centre_shift: float = 0.0) -> Array:
    """Choose ranges of distances from a centre ("shells") that hold many rows each, by noisy numbers of rows.

    ``deviation`` is that of the noise in each count, ``edge`` the largest eigenvalue of the noise in the products' sum
    of a shell, and ``centre_shift`` how far the centre has moved since the counts: no shell but the first begins nearer
    than four times that. The shells are from the innermost outward, each with the distance where it begins, where it
    ends, and up to which directions have a length in proportion to the row's distance (0: all have length 1).
    Shapes: counts (OCTAVES,) -> (s, 3).
    """
    significant = np.where(counts > CERTAIN_DEVIATIONS * deviation, counts, 0.0)
    if not significant.any():
        return single_shell(2.0 ** (int(counts.argmax()) + MIN_EXPONENT))
    # within[j]: rows in the octaves before j
    filled, within = np.flatnonzero(significant), np.concatenate([[0.0], np.cumsum(significant)])
    starts, end, min_rows = [0], len(significant), MIN_ROWS_TO_NOISE * k * edge
    for octave in filled[::-1]:  # from the outermost inward: begin a shell if it and the rest have enough rows
        enough = within[end] - within[octave] >= min_rows and within[octave] >= min_rows
        if enough and len(starts) < MAX_SHELLS and 2.0 ** (octave + MIN_EXPONENT - 1) >= 4 * centre_shift:
            starts.insert(1, octave)
            end = octave
    ends = [*starts[1:], int(filled[-1]) + 1]
    shells = np.zeros((len(starts), 3))
    for shell, start, end in zip(shells, starts, ends, strict=True):
        shell[SHELL_START] = 2.0 ** (start + MIN_EXPONENT - 1) if start else 0.0
        shell[SHELL_END] = 2.0 ** (end - 1 + MIN_EXPONENT)
        # squared distances of the shell's rows, in units of its squared end
        energy = MEAN_SQUARE_IN_OCTAVE * (significant[start:end] * 4.0 ** np.arange(start - end + 1.0, 1.0)).sum()
        if energy >= LENGTH_ROWS_TO_NOISE * k * edge and shell[SHELL_END] >= 4 * centre_shift:
            shell[SHELL_LENGTH_LIMIT] = shell[SHELL_END]
    return shells


class Combined(NamedTuple):
    """Components from noisy sums of products of directions, a sum for each range of distances ("shell")."""

    denoised: Denoised  # eigenpairs of the weighted sum over all shells
    noisy: Array  # (s, k), leading eigenvalues of each shell's sum, with the noise
    traces: Array  # (s,), trace of each shell's sum, at least 1: about the number of its rows
    squares: Array  # (s,), mean squared distance of each shell's rows, in squared units of the data
    deviation: float  # standard deviation of the noise on the diagonal of each sum


def combine_shells(sums: Array, energies: Array, shells: Array, d: int, k: int, deviation: float) -> Combined:
    """Estimate principal components from noisy sums of direction products, one for each range of distances ("shell").

    ``sums`` has a packed triangle for each shell, ``energies`` its rows' squared distances over the shell's squared
    end, and ``shells`` is that of `choose_shells`. The noise has ``deviation`` on the diagonal, and ``deviation /
    sqrt(2)`` off it. Each sum is denoised and weighted by its shell's mean squared distance. Eigenvalues are those of
    the scatter; of a single shell, those of its sum. Raise FloatingPointError if they are beyond float64.
    Shapes: sums (s, d (d + 1) / 2), energies (s,), shells (s, 3).
    """
    matrices = [unpack(packed, d) for packed in sums]
    traces = np.maximum([np.trace(matrix) for matrix in matrices], 1.0)
    means = np.clip(energies / traces, (shells[:, SHELL_START] / shells[:, SHELL_END]) ** 2, 1.0)
    with_lengths = shells[:, SHELL_LENGTH_LIMIT] > 0
    squares = np.where(with_lengths, MEAN_SQUARE_IN_OCTAVE, means) * shells[:, SHELL_END] ** 2
    if len(sums) == 1:
        denoised_sum = denoise(sums[0], d, k, deviation)
        return Combined(denoised_sum, denoised_sum.noisy[None], traces, squares, deviation)
    weights = np.where(with_lengths, 1.0, means) * (shells[:, SHELL_END] / shells[-1, SHELL_END]) ** 2
    edge, total, noisy = deviation * np.sqrt(2 * d), np.zeros((d, d), order="F"), []
    for matrix, weight in zip(matrices, weights, strict=True):
        values, vectors = eigh(matrix)
        noisy.append(values[::-1][:k])
        above = values > edge  # the shrinkage of Gavish and Donoho (2017) for the Frobenius norm
        shrunk = vectors[:, above] * np.sqrt(weight * np.sqrt(values[above] ** 2 - edge**2))
        total += shrunk @ shrunk.T + TIE_WEIGHT * weight * matrix
    pairs = leading_eigenpairs(total, k)
    unit = shells[-1, SHELL_END] ** 2
    with np.errstate(over="raise"):  # a party that sends false sums can make these as large as it likes
        pairs = replace(pairs, values=unit * pairs.values.clip(min=0.0), following=unit * max(pairs.following, 0.0))
        denoised_sum = Denoised(pairs, float(unit * np.trace(total)), 0, d, noisy[-1])
    return Combined(denoised_sum, np.array(noisy), traces, squares, deviation)


def variance_intervals(
    combination: Combined, squares: Array, rows: float, *, deviation: float, count_deviation: float, cut_bound: float
) -> Array:
    """Compute 90 % intervals (k, 2) for the variances along noisy components of rows that are shortened to a bound.

    An interval holds the mean square of the shortened rows, about the centre, along the model's component, and the
    eigenvalue of their second moment, in 90 of 100 cases or more. No private interval holds that of all rows: one row
    that is far enough changes it at will. Rows beyond the bound widen an interval: by ``cut_bound``
    (`clipped_squares_bound`), and by the eigenvalues if there are several shells. ``squares`` (k,) are the noisy sums
    of squared scores of the shortened rows, with noise of ``deviation``; ``rows`` is the noisy number of rows, at least
    2, with noise of ``count_deviation``. With the noisy eigenvalue theta, and half the largest eigenvalue q of the
    noise, a component loses the share ``(q / theta)^2`` of its variance to all others, and mixes with near ones by
    ``deviation / theta``.
    """
    values, theta = combination.denoised.pairs.values, combination.noisy.max(axis=0)
    edge = combination.deviation * np.sqrt(len(combination.denoised.pairs.vectors) / 2)
    mixed = np.divide(combination.deviation, theta, out=np.ones_like(theta), where=theta > edge)
    lost = np.divide(edge, theta, out=np.ones_like(theta), where=theta > edge) ** 2
    sums = squares.clip(min=0.0)
    half_widths = INTERVAL_DEVIATIONS * np.hypot(deviation, sums * (count_deviation / rows)) + sums * (lost + mixed)
    low, high = squares - half_widths, squares + half_widths + cut_bound
    if len(combination.traces) > 1:
        low, high = np.minimum(low, values), np.maximum(high, values)
    return np.column_stack([low.clip(min=0.0), high]) / (rows - 1)


def clipped_squares_bound(counts: Array, deviation: float, bound: float) -> float:
    """Bound the sum of squared lengths that rows lose if they are shortened to a bound, from noisy counts by length.

    Each count has noise of ``deviation``. In the octave after the last whose count is surely not noise, the noise may
    hide rows: as many are assumed there as the count and two standard deviations.
    Shapes: counts (OCTAVES,).
    """
    significant = np.where(counts > CERTAIN_DEVIATIONS * deviation, counts, 0.0)
    after = min(int(np.flatnonzero(significant)[-1]) + 1 if significant.any() else 0, len(significant) - 1)
    significant[after] = max(0.0, counts[after] + 2 * deviation)
    octave = int(np.log2(bound)) - MIN_EXPONENT
    with np.errstate(over="ignore"):
        return excess_beyond(significant, octave, 2) * bound**2


def share_within(counts: Array, deviation: float, bound: float, rows: float, rows_deviation: float) -> float:
    """Compute a lower bound of the share of the rows within a bound, in 90 of 100 cases, from noisy counts by length.

    Each count (OCTAVES,) has noise of ``deviation``, and the number of all rows has noise of ``rows_deviation``. Counts
    below the first that is surely not noise are left out, and so are their rows.
    """
    first = int(np.argmax(counts > DETECTION_DEVIATIONS * deviation))
    near = counts[first : int(np.log2(bound)) - MIN_EXPONENT + 1]
    least = float(near.sum()) - INTERVAL_DEVIATIONS * deviation * np.sqrt(near.size)
    return float(np.clip(least / (rows + INTERVAL_DEVIATIONS * rows_deviation), 0.0, 1.0))
