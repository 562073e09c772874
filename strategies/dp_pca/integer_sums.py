r"""Sums over rows for differential privacy: sensitivities, integer noise, and rows on an integer grid.

**Sensitivity.** For rows :math:`u_i` with :math:`|u_i| \le 1` the released statistic is

.. math:: (a \sum u_i,\; b \sum u_i u_i^T,\; c \, n)

and its sensitivity is the largest Euclidean (for the matrix: Frobenius) distance between its values on two neighbouring
data sets. Two relations are known:

* ``add-remove``: one row more or less. One row changes the statistic by at most :math:`\sqrt{a^2 + b^2 + c^2}`;
* ``replace-one``: one row differs, the number of rows does not. Rows ``u, w`` of length 1 with cosine ``t`` are the
  worst: :math:`a^2 (2 - 2t) + b^2 (2 - 2t^2)`, largest at :math:`t = -a^2 / 2b^2`, or at -1 if that lies beyond.

Other values beside ``u_i u_i^T`` that are never negative and no longer than 1 (the group of a row among several, the
squares of its scores) count as products: two replaced rows are no farther apart in them than orthogonal ones, which are
the worst for products too, and so weights of several join b as ``sqrt(b^2 + ...)``.

**Integer noise** comes from the discrete Gaussian distribution, exactly, by the operating system's randomness: the
probability of an integer x is proportional to :math:`e^{-x^2 / 2 \sigma^2}` (Canonne, Kamath and Steinke 2020, "The
discrete Gaussian for differential privacy"). Only integers are drawn, and nothing is rounded: floats that hide a sum
show it again, since they are not evenly spaced and so few of them can be reached (Mironov 2012).

With an integer :math:`\sigma`, :math:`|x| = k \sigma + j` for integers k and :math:`0 \le j < \sigma`. So a sign, k
with probability :math:`2^{-k-1}` (how often a coin falls on one side) and a uniform j are drawn, and accepted with
probability

.. math:: p = 2^{k-1} e^{(1 - (k + j / \sigma)^2) / 2} \le 1

(von Neumann's rejection; every second proposal is accepted): if a uniform number below 1, of which 53 bits are drawn,
is below p. Floats know p to `PROBABILITY_ERROR`, by far. If that does not decide, as many more bits of both are taken
as do: no rounding ever decides (a floating-point filter, as Shewchuk 1997 has them for geometry).

**Why the noise is private.** Integers plus this noise are as private as plus continuous normal noise of variance
:math:`\sigma^2 - 4`. From the latter the former follows: draw an integer x about each value y with probability
proportional to :math:`e^{-(x - y)^2 / 8}`. The sum of these weights over all x depends on y by a factor within :math:`1
\pm 10^{-33}` (Poisson's summation: :math:`2 e^{-8 \pi^2}`), so the result is as near to the discrete Gaussian (Peikert
2010, "An efficient and parallel Gaussian sampler for lattices", theorem 3.1). Post-processing of private numbers costs
no privacy, so the accounting of continuous noise (`fedpca_flwr.maths.privacy`) holds, in any dimension and without
another delta. For the same reason the sum of several parties' shares is one draw of the summed variance, up to such
factors (Kairouz, Liu and Steinke 2021, "The distributed discrete Gaussian mechanism").

**Rows on a grid.** Rows are shortened, measured in steps of ``bound / GRID_STEPS`` and rounded *as vectors*: to the
nearest integers, which makes a row longer by ``sqrt(d) / 2`` steps at most, and rows are first shortened to so much
less than the bound. No row is longer than the bound then, and so no sum over rows becomes more sensitive, as it would
if the sum were rounded. Sums of rows are integers of steps, and sums of products integers of squared steps. (Rounding
toward zero needs no margin, but makes variances smaller, by 2 % for rows of a tenth of the bound.)
"""

import math
import os
from collections.abc import Callable, Iterable, Iterator
from decimal import Decimal, localcontext
from fractions import Fraction
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import blas

from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.moments import CHUNK_ELEMENTS, diagonal_positions, pack, packed_size
from fedpca_flwr.maths.rows import Rows, chunks, row_lengths
from fedpca_flwr.strategies.dp_pca.private_scatter import (
    SHELL_END,
    SHELL_LENGTH_LIMIT,
    assign_shells,
    bounded_scores,
    octave_counts,
    row_directions,
)

# most candidates proposed at once (their arrays fit a processor's cache), and how many candidates are proposed beyond
# twice as many as are missing (about every second is accepted)
MAX_PROPOSALS, MIN_SPARE_PROPOSALS = 2**14, 16
COINS_PER_WORD = 10  # bits of a random 64-bit word that are coin tosses, beside a sign and the 53 bits of a uniform
# for each integer of COINS_PER_WORD bits: the number of its trailing zeros (all are zeros in the first, 0)
ZEROS_BEFORE_ONE = np.array([COINS_PER_WORD, *((i & -i).bit_length() - 1 for i in range(1, 2**COINS_PER_WORD))])
# bound on the float64 error of an acceptance probability: a hundred times the sum of its rounding errors
PROBABILITY_ERROR = 2.0**-45
# variance of whole noise beyond continuous noise that protects as well: half of it is needed, for entries of half of it
VARIANCE_MARGIN = 8
MAX_DEVIATION = 2**39  # standard deviation up to which the noise of 2^16 parties adds up in a word of 64 bits
# steps of a grid in the bound. On MNIST 2^10 and 2^16 give the same components behind the noise of epsilon 2.
GRID_STEPS = 2**13
MAX_ROWS = 2**26  # most rows of one party: their sums of products, and noise, are whole numbers that float64 holds
# a clipped row is this much shorter than the bound, so that no rounding of floating point makes it longer
CLIP_MARGIN = 1 - 1e-12

Relation = Literal["add-remove", "replace-one"]


def sensitivity(relation: Relation, *, sums: float = 0.0, products: float = 0.0, count: float = 0.0) -> float:
    """Compute the sensitivity of ``(sums * sum u, products * sum uu', count * n)`` over n rows u with ``|u| <= 1``.

    It is the largest Euclidean distance of this statistic between data sets that differ by ``relation``; `replace-one`
    leaves the count.
    """
    if relation == "add-remove":
        return math.hypot(sums, products, count)
    if sums**2 <= 2 * products**2 and products:
        return (sums**2 + 2 * products**2) / (math.sqrt(2) * products)
    return 2 * sums


Source = Callable[[int], bytes]  # gives as many random bytes as it is asked for
Integers = NDArray[np.int64]
Mask = NDArray[np.bool_]


def system_randomness() -> Source:
    """Return the operating system's source of random bytes, which gives as many as its argument says."""
    return os.urandom


def seeded_randomness(*seed: int) -> Source:
    """Return a source of random bytes that are the same for the same nonnegative seed, and so not private."""
    return np.random.default_rng(seed).bytes


def integer_deviation(deviation: float) -> int:
    """Compute the deviation at which discrete Gaussian noise is as private as continuous noise of a given deviation."""
    return math.isqrt(math.ceil(deviation) ** 2 + VARIANCE_MARGIN) + 1


def discrete_gaussian(size: int, deviation: int, source: Source) -> Integers:
    r"""Draw integers (size,) from the discrete Gaussian distribution of :math:`\sigma` ``deviation``, exactly.

    The standard deviation is nearly :math:`\sigma`, and never more. Raise ValueError if it is not 1 to `MAX_DEVIATION`.
    """
    if not 1 <= deviation <= MAX_DEVIATION:
        raise ValueError(f"the deviation of whole noise is {deviation}, expected 1 to {MAX_DEVIATION}")
    values, count = np.empty(size, np.int64), 0
    while count < size:
        drawn, accepted = _propose(min(2 * (size - count) + MIN_SPARE_PROPOSALS, MAX_PROPOSALS), deviation, source)
        new = drawn[accepted][: size - count]
        values[count : count + new.size] = new
        count += new.size
    return values


def symmetric_noise(d: int, deviation: int, source: Source) -> Integers:
    r"""Draw discrete Gaussian noise for a symmetric (d, d) matrix, for the Frobenius norm, as a packed triangle.

    Off the diagonal, where each value stands for two entries, the deviation is :math:`\sqrt{1/2}` of ``deviation``,
    rounded up. Raise ValueError if ``deviation`` is not 1 to `MAX_DEVIATION`.
    """
    on = diagonal_positions(d)
    noise = discrete_gaussian(packed_size(d), math.isqrt(deviation**2 // 2) + 1, source)
    noise[on] = discrete_gaussian(d, deviation, source)
    return noise


def _propose(size: int, deviation: int, source: Source) -> tuple[Integers, Mask]:
    """Return candidates for discrete Gaussian integers (size,), and whether rejection sampling accepts each (size,)."""
    # of each random 64-bit word: 1 bit is the sign, 10 bits toss coins for k, and 53 bits decide the acceptance
    # the absolute value k deviation + j is proposed with probability proportional to 2^-k, and j below the deviation
    words = np.frombuffer(source(8 * size), "<u8")
    negative = (words & np.uint64(1)).astype(np.bool_)
    k = ZEROS_BEFORE_ONE[(words >> np.uint64(1)) & np.uint64(2**COINS_PER_WORD - 1)]
    unfinished = np.flatnonzero(k == COINS_PER_WORD)
    while unfinished.size:
        k[unfinished] += (zeros := ZEROS_BEFORE_ONE[_uniform_integers(2**COINS_PER_WORD, unfinished.size, source)])
        unfinished = unfinished[zeros == COINS_PER_WORD]
    drawn = k * deviation + _uniform_integers(deviation, size, source)
    accepted = _accept(words >> np.uint64(1 + COINS_PER_WORD), k, drawn, deviation, source)
    accepted &= ~(negative & (drawn == 0))  # there is one zero, not two
    return np.where(negative, -drawn, drawn), accepted


def _accept(bits: NDArray[np.uint64], k: Integers, sizes: Integers, deviation: int, source: Source) -> Mask:
    """Return whether rejection sampling accepts each candidate, of absolute value ``sizes``.

    It does if a uniform number of first 53 bits ``bits`` is below the acceptance probability; k = sizes // deviation.
    """
    # the probability is 2^(k - 1) exp((1 - (size / deviation)^2) / 2): that of the Gaussian over that of the proposal
    margins = np.ldexp(np.exp((1 - (sizes / deviation) ** 2) / 2), k - 1) - bits * 2.0**-53
    accepted: Mask = margins > 0
    for i in np.flatnonzero(np.abs(margins) <= PROBABILITY_ERROR):
        accepted[i] = _accept_exactly(int(bits[i]), int(sizes[i]), deviation, source)
    return accepted


def _accept_exactly(drawn: int, size: int, deviation: int, source: Source) -> bool:
    """Return whether a uniform number of first 53 bits ``drawn`` is below the acceptance probability of ``size``."""
    bits = 53
    while True:
        with localcontext(prec=bits):
            power = Decimal(deviation**2 - size**2) / (2 * deviation**2)
            probability = Fraction(power.exp()) * Fraction(2) ** (size // deviation - 1)
        error = Fraction(1, 10 ** (bits // 2))  # rounding makes a relative one of (2 + |power|) 10^(1 - bits)
        if Fraction(drawn + 1, 2**bits) <= probability - error:
            return True
        if Fraction(drawn, 2**bits) >= probability + error:
            return False
        drawn, bits = drawn << 64 | int.from_bytes(source(8), "little"), bits + 64


def _uniform_integers(limit: int, size: int, source: Source) -> Integers:
    """Draw uniform integers (size,) from 0 to ``limit`` - 1, by rejection of random 64-bit words that are too large."""
    values = np.empty(0, np.uint64)
    # the largest word accepted: the words from 0 to it are a multiple of ``limit``, so each remainder is equally likely
    fair = np.uint64(2**64 // limit * limit - 1)
    while values.size < size:
        words = np.frombuffer(source(8 * (size - values.size)), "<u8")
        values = np.concatenate([values, words[words <= fair] % np.uint64(limit)])
    return values.astype(np.int64)


def clip_rows(rows: Array, bound: float) -> Array:
    """Scale rows (n, d) that are longer than ``bound`` down to this Euclidean length, and all rows by `CLIP_MARGIN`."""
    clipped: Array = rows / np.maximum(np.sqrt(np.einsum("ij,ij->i", rows, rows)), bound)[:, None]
    clipped *= bound * CLIP_MARGIN
    return clipped


def round_to_grid(rows: Array, bound: float) -> Array:
    """Shorten rows (n, d) to the length ``bound`` and round the entries to whole multiples of ``bound / GRID_STEPS``.

    Return the multiples, as floats; no row of them is longer than `GRID_STEPS`.
    """
    margin = math.sqrt(rows.shape[1]) / (2 * GRID_STEPS)
    steps = clip_rows(rows, bound * (1 - margin))
    steps *= GRID_STEPS / bound
    return np.rint(steps, out=steps)


def integer_sum(data: Rows, centre: Array, bound: float) -> Array:
    """Sum the differences of rows (n, d) and a centre (d,), shortened and rounded by `round_to_grid`, in grid steps."""
    total = np.zeros(data.shape[1])
    for rows in _differences(data, centre):
        total += round_to_grid(rows, bound).sum(axis=0)
    return total


def integer_products(data: Rows, centre: Array, bound: float) -> Array:
    """Sum the outer products vv' of the differences v of rows and a centre, shortened and rounded to integer multiples.

    The sum is in squared grid steps, of ``bound / GRID_STEPS``: integers, as floats, for at most `MAX_ROWS` rows.
    Shapes: data (n, d), centre (d,) -> packed (d (d + 1) / 2,).
    """
    return _sum_of_products((round_to_grid(rows, bound) for rows in _differences(data, centre)), data.shape[1])


def integer_shell_products(data: Rows, centre: Array, shells: Array) -> Array:
    """Sum the outer products of rows' directions from a centre, for each range of distances ("shell"), as integers.

    The direction of a row is its difference from the centre, of length 1, or shorter in proportion if the row is nearer
    than the shell's length limit, if it has one. It is rounded to multiples of ``1 / GRID_STEPS``, and sums are in
    units of the square. Each row is in exactly one of the ``shells`` of `choose_shells`.
    Shapes: data (n, d), centre (d,), shells (s, 3) -> packed (s, d (d + 1) / 2).
    """

    def shell_rows(shell: int) -> Iterator[Array]:
        """Yield the directions of the rows in a single shell, rounded to integers (multiples of 1 / GRID_STEPS)."""
        for rows in _differences(data, centre):
            length = row_lengths(rows)
            in_shell = assign_shells(length, shells) == shell
            relative_lengths = np.ones(in_shell.sum())
            if limit := shells[shell, SHELL_LENGTH_LIMIT]:
                with np.errstate(over="ignore"):
                    relative_lengths = np.minimum(length[in_shell] / limit, 1.0)
            yield round_to_grid(row_directions(rows[in_shell]) * relative_lengths[:, None], 1.0)

    return np.stack([_sum_of_products(shell_rows(shell), data.shape[1]) for shell in range(len(shells))])


def integer_energies(data: Rows, centre: Array, shells: Array) -> Array:
    """Sum (distance / end)^2 over the rows of each shell (s,), a range of distances from a centre up to an end.

    Each ratio is at most 1 and is rounded to multiples of ``1 / GRID_STEPS``; sums are in units of the square.
    Shapes: data (n, d), centre (d,), shells (s, 3) -> (s,).
    """
    total = np.zeros(len(shells))
    for rows in _differences(data, centre):
        length = row_lengths(rows)
        shell = assign_shells(length, shells)
        with np.errstate(over="ignore"):
            share = np.minimum(length / shells[shell, SHELL_END], 1.0)
        total += np.bincount(shell, np.rint(GRID_STEPS * share) ** 2, minlength=len(shells))
    return total


def integer_octave_counts(data: Rows, centre: Array) -> Array:
    """Count rows (n, d) by distance from a centre (d,), in octaves (`octave_counts`), and multiply by `GRID_STEPS`."""
    return np.asarray(GRID_STEPS * np.sum([octave_counts(rows) for rows in _differences(data, centre)], axis=0))


def integer_score_squares(data: Rows, centre: Array, components: Array, bound: float) -> Array:
    """Sum the squared scores of rows on components, and the squared lengths that the components leave, as integers.

    The rows are differences from the centre, shortened to the bound and rounded; sums are in squared grid steps, of
    ``bound / GRID_STEPS``. The squares of one row, as a vector, are no longer than its squared length.
    Shapes: data (n, d), centre (d,), components (k, d), orthonormal -> (k + 1,), the remainder last.
    """
    total = np.zeros(len(components) + 1)
    for rows in _differences(data, centre):
        total += (round_to_grid(bounded_scores(rows, components, bound), bound) ** 2).sum(axis=0)
    return total


def _differences(data: Rows, centre: Array) -> Iterator[Array]:
    """Yield the rows less a centre, in chunks of rows (arrays (rows, d) that fit a processor's cache)."""
    for chunk in chunks(data):
        yield np.subtract(chunk, centre, dtype=np.float64)


def _sum_of_products(placed: Iterable[Array], d: int) -> Array:
    """Return the packed triangle of the sum of the outer products of all rows in ``placed``, arrays of rows (n, d)."""
    total = np.zeros((d, d), order="F")
    for rows in _merge_chunks(placed):
        blas.dsyrk(1.0, rows.T, beta=1.0, c=total, overwrite_c=1, lower=1)
    return pack(total)


def _merge_chunks(placed: Iterable[Array]) -> Iterator[Array]:
    """Stack arrays of rows to larger ones, of at least `CHUNK_ELEMENTS` values, on which BLAS products are faster."""
    pending: list[Array] = []
    for rows in placed:
        pending.append(rows)
        if sum(map(np.size, pending)) >= CHUNK_ELEMENTS:
            yield np.vstack(pending)
            pending = []
    if pending:
        yield np.vstack(pending)
