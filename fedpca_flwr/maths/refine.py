r"""Sketch and refine: an approximation of a matrix that every product makes exact in a single more block.

**The correction.** Each party first sends a truncated factor, so that the server has :math:`M_0 \approx A` (low rank
plus a multiple of the identity), or a scatter in multiples of a step. For every block of an orthonormal basis :math:`Q`
whose product :math:`A Q` is known since, the approximation is corrected to agree with :math:`A` on the span of ``Q``,
with :math:`D = A Q - M_0 Q`::

    M = M_0 + D Q' + Q D' - Q (Q' D) Q'

(the symmetric block secant update). Its leading eigenvectors are the answer so far and the next block.

**Its bound** (`corrected_angle_bound`) takes the spectral norms of the error :math:`F = A - M`: everywhere, and on the
block of the last correction. Let U be the first k eigenvectors of M, W some of the next and Z the rest, and Y the first
k of A. The equation ``A Y = Y (Y' A Y)`` bounds ``W'Y`` and ``Z'Y``, with the gaps g of their eigenvalues to the k-th
of A:

    ``g_W |W'Y| <= |W'F U| + |W'F Z| |Z'Y|,    g_Z |Z'Y| <= |Z'F U| + |Z'F W| |W'Y|.``

The block holds U and W but for a little, so the two terms of W, whose gap is small, are small too: ``F V`` is.

**How many corrections** a scatter in multiples of a step will need (`Corrections`). Errors of rounding that are
independent have a norm of :math:`2 \sqrt{d}` deviations, and a block of b columns meets :math:`\sqrt{d} + \sqrt{b}` of
them. The components lie off a block by as much as rounding moved them since the block was chosen, and by the rounding
of the block itself. The part of a block off the block before it meets the whole error. Errors that are not independent,
and eigenvalues that are not as surveyed, make the forecast wrong by a round; a run ends by the bound.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import qr

from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.eigen import (
    EXACT_ANGLE_DEGREES,
    Eigenpairs,
    fix_signs,
    leading_eigenpairs,
    rounding_bound,
    sine_theorem,
)
from fedpca_flwr.maths.factors import Factor
from fedpca_flwr.maths.krylov import ProductBasis, Ritz, random_block

CORRECTION_BITS = 8  # bits of each value of an approximation's error on a block, as it is sent
MAX_BITS = 32  # most bits of each value of a block
EXACT_ERROR_SHARE = 1e-9  # of the last of the variances of exact components: they are off by no more
# the largest of the numbers that share a scale is about so many times their root mean square: some 4 of Gaussians, more
# of features that do not vary alike
PEAK_TO_RMS = 6.0


def block_bits(number: int) -> int:
    """Return the bits with which each value of a block of columns is sent for correction ``number``, from 0.

    A correction shrinks the block's error by some two digits, and its rounding must follow: by 8 bits each, up to 32.
    """
    return min(8 * (number + 1), MAX_BITS)


def correct_on_block(matrix: Array, V: Array, E: Array) -> Array:
    """Correct a symmetric matrix M (d, d) to have the product ``M V + E`` with an orthonormal block V (d, b).

    This is the symmetric block secant update ``M + E V' + V E' - V sym(V' E) V'``, for V and E (d, b).
    """
    inner = V.T @ E
    change = (E - V @ ((inner + inner.T) / 4)) @ V.T
    return matrix + change + change.T


def corrected_angle_bound(
    pairs: Eigenpairs, k: int, error: float, on_block: float, block: NDArray[Any] | None, on_first: float | None = None
) -> tuple[float, float]:
    """Bound the errors of k components computed from an approximation of a matrix that was corrected on a block.

    Return the bounds on the largest angle in degrees between the two subspaces, and on the error of the eigenvalues.
    ``pairs`` are at least k leading eigenpairs of the approximation; ``error``, ``on_block`` and ``on_first`` bound the
    spectral norms of its error, and of its error's product with the orthonormal ``block`` of the last correction (None
    before any) and with the block's first k columns (None if not known).
    Shapes: block (d, b).
    """
    values = np.append(pairs.values, pairs.following)
    rounded = rounding_bound(len(pairs.vectors)) * float(pairs.values[0])
    errors = CorrectionErrors(error + rounded, on_block + rounded, on_block + rounded, 1.0, 1.0)
    V = np.zeros((len(pairs.vectors), 0)) if block is None else block.astype(np.float64)
    inside = V.T @ pairs.vectors
    outside = pairs.vectors - V @ inside
    if on_first is not None:
        cross = float(np.linalg.norm(inside[k:, :k], 2)) if len(inside) > k else 0.0
        errors = errors._replace(on_first=on_first + rounded + errors.on_block * cross)
    if block is not None:
        errors = errors._replace(first=float(np.linalg.norm(outside[:, :k], 2)))
    angle = 90.0
    for end in range(k, values.size):  # the best bound over how many eigenvectors after the k-th count as "next"
        if block is not None and end > k:
            errors = errors._replace(next=float(np.linalg.norm(outside[:, k:end], 2)))
        angle = min(angle, _angle_bound(values, k, end, errors))
    moved = (float(values[0]) + error) * float(np.sin(np.radians(angle))) ** 2
    return angle, min(errors.norm_first, errors.inner_first + moved)


class CorrectionErrors(NamedTuple):
    """Bounds (spectral norms) on the error F of a matrix corrected on a block: eigenvectors U (first k), W (next)."""

    everywhere: float  # norm of F
    on_block: float  # norm of the product of F and the block
    on_first: float  # norm of the product of F and the part of U in the span of the block
    first: float  # norm of the part of U orthogonal to the block
    next: float  # norm of the part of W orthogonal to the block

    @property
    def norm_first(self) -> float:
        """Bound on the spectral norm of F U: the error F on the first k eigenvectors U."""
        return min(self.everywhere, self.on_first + self.everywhere * self.first)

    @property
    def norm_next(self) -> float:
        """Bound on the spectral norm of F W: the error F on the next eigenvectors W."""
        return min(self.everywhere, self.on_block + self.everywhere * self.next)

    @property
    def inner_first(self) -> float:
        """Bound on the spectral norm of U'F U: the error F within the span of the first k eigenvectors U."""
        return min(self.norm_first, self.on_first * (1 + 2 * self.first) + self.everywhere * self.first**2)

    @property
    def inner_next(self) -> float:
        """Bound on the spectral norm of W'F W: the error F within the span of the next eigenvectors W."""
        return min(self.norm_next, self.on_block * (1 + 2 * self.next) + self.everywhere * self.next**2)

    @property
    def cross_norm(self) -> float:
        """Bound on the spectral norm of W'F U: how far the error F mixes the first eigenvectors U with the next W."""
        cross_terms = self.on_first * self.next + self.on_block * self.first + self.everywhere * self.first * self.next
        return min(self.norm_first, self.norm_next, self.on_first + cross_terms)


def _angle_bound(values: Array, k: int, end: int, errors: CorrectionErrors) -> float:
    """Bound the angle (degrees) between the first k eigenvectors of a matrix and of its approximation; 90: no bound.

    ``values`` are at least the end + 1 leading eigenvalues of the approximation, descending. Its eigenvectors k to
    ``end`` - 1, counted from 0 (W; none if ``end`` is k), are treated apart from the rest.
    """
    # gaps of the k-th eigenvalue of A to those of the rest Z and of W, less errors; bounds of the module's docstring
    last = float(values[k - 1]) - errors.inner_first
    to_rest = last - float(values[end]) - errors.everywhere
    if end == k:
        return sine_theorem(errors.norm_first, to_rest)
    to_next, coupled = last - float(values[k]) - errors.inner_next, errors.norm_next
    by_rest = coupled / to_rest if to_rest > 0 else np.inf
    if to_next <= by_rest * coupled:
        return 90.0
    next_sine = (errors.cross_norm + by_rest * errors.norm_first) / (to_next - by_rest * coupled)
    return sine_theorem(float(np.hypot(next_sine, (errors.norm_first + coupled * next_sine) / to_rest)), 1.0)


class RefinedSketch:
    """An approximation M of a scatter matrix A, corrected to agree with all known products of A and blocks of columns.

    It begins as ``M_0 = rows.T @ rows + floor * identity``, from a low-rank factor ("sketch") whose rows (h, d) were
    rounded to float32 after its error was bounded. `products` has all blocks and their products; `error` bounds the
    spectral norm of ``A - M_0``.
    """

    def __init__(self, sketch: Factor) -> None:
        rows, limits = sketch.rows, np.finfo(np.float32)
        self.rows, self.floor, self.d = rows, sketch.floor, rows.shape[1]
        length = float(np.linalg.norm(rows))
        lost = length * float(limits.eps) + np.sqrt(rows.size) * float(limits.smallest_subnormal)
        # rounding the rows R to R + L, with |L| <= lost, moves R'R by at most (2 |R| + |L|) |L|
        self.error: float = sketch.error + (2 * length + lost) * lost
        self.products = ProductBasis(self.d)
        self._image: Array = np.empty((self.d, 0))  # M_0 Q

    def product(self, V: Array) -> Array:
        """Multiply the uncorrected approximation ``M_0 = rows.T @ rows + floor * identity`` by a block V (d, b)."""
        return self.rows.T @ (self.rows @ V) + self.floor * V

    def renew(self, ritz: Ritz, AU: Array) -> None:
        """Start again from the Ritz vectors in the span of all blocks; AU (d, k) are products of A and the first k."""
        self.products.renew(ritz, AU)
        self._image = np.empty((self.d, 0))

    def next_block(self, width: int) -> Array:
        """Choose the next block: leading eigenvectors of the approximation, made orthogonal to all earlier blocks.

        Shapes: -> (d, b), orthonormal, with b <= width; b = 0 if the blocks span the whole space.
        """
        width, Q = min(width, self.products.room), self.products.Q
        if not width:
            return np.empty((self.d, 0))
        block = self.leading(width).vectors
        for _ in range(2):  # twice, as one projection leaves rounding errors
            block, _ = qr(block - Q @ (Q.T @ block), mode="economic")
        return block

    def leading(self, k: int) -> Eigenpairs:
        """Compute the k <= d leading eigenpairs of the corrected approximation M.

        If the sketch's rows and the products span fewer than d dimensions, M restricted to their span suffices: M is a
        multiple of the identity on the orthogonal complement, so a few random directions complete the basis.
        """
        Q, change = self.products.Q, self._change()
        if len(self.rows) + 2 * Q.shape[1] + k >= self.d:
            return leading_eigenpairs(np.asfortranarray(self._dense + change @ Q.T + Q @ change.T), k)
        basis, _ = qr(np.hstack([Q, self.rows.T, change, random_block(self.d, k + 1, seed=0)]), mode="economic")
        inner, outer = self.rows @ basis, (basis.T @ change) @ (Q.T @ basis)
        small = inner.T @ inner + self.floor * np.eye(len(inner.T)) + outer + outer.T
        pairs = leading_eigenpairs(np.asfortranarray(small), k)
        return Eigenpairs(pairs.values, fix_signs(basis @ pairs.vectors), pairs.following)

    @property
    def outside_bound(self) -> float:
        """Bound on the largest eigenvalue of P A P, for P = I - QQ': that of P M_0 P plus the error of M_0."""
        Q = self.products.Q
        rows = self.rows - (self.rows @ Q) @ Q.T
        gram = rows @ rows.T if len(rows) < self.d else rows.T @ rows
        (largest,) = leading_eigenpairs(np.asfortranarray(gram), 1).values
        return float(largest) + self.floor + self.error

    @cached_property
    def _dense(self) -> Array:
        """The uncorrected approximation ``M_0 = rows.T @ rows + floor * identity`` as a full matrix (d, d)."""
        return self.rows.T @ self.rows + self.floor * np.eye(self.d)

    def _change(self) -> Array:
        """Return C of the approximation ``M_0 + C Q' + Q C'`` of the scatter; the columns of Q span all blocks."""
        Q, count = self.products.Q, self._image.shape[1]
        self._image = np.hstack([self._image, self.product(Q[:, count:])])
        D = self.products.AQ - self._image
        inner = Q.T @ D
        return D - Q @ ((inner + inner.T) / 4)


def relative_rounding(bits: int) -> float:
    """Compute the relative rounding error of values quantised to integers of some bits with a common scale.

    It is the error's standard deviation over the values', whose largest is taken as `PEAK_TO_RMS` times that.
    """
    return float(PEAK_TO_RMS / np.sqrt(12) / (2 ** (bits - 1) - 1))


def entropy_bits(bits: int) -> float:
    """Compute the entropy, in bits, of a Gaussian value quantised to an integer of ``bits`` bits: its compressed size.

    The largest value, which sets the scale, is taken as `PEAK_TO_RMS` standard deviations.
    """
    # the differential entropy of the Gaussian in steps of the grid, 0.5 log2(2 pi e) + log2(deviation / step)
    return float(bits - 1 - np.log2(PEAK_TO_RMS) + 0.5 * np.log2(2 * np.pi * np.e))


@dataclass(frozen=True)
class Corrections:
    """A forecast of how many corrections the sum of the parties' rounded scatter matrices needs, for k components."""

    spectrum: Array  # eigenvalues (d,) of the sum of the scatters, descending
    k: int
    width: int  # columns of a block
    parties: int
    step: float  # to whose multiples each scatter is rounded, in squared units of the data

    def count_needed(self, tolerance: float, max_corrections: int) -> int | None:
        """Forecast how many corrections bring the angle's bound to a tolerance (degrees); None if more than allowed."""
        d, b, deviation = self.spectrum.size, self.width, self.step / np.sqrt(12)
        everywhere = float(self.parties * deviation * 2 * np.sqrt(d))
        on_block = float(self.parties * deviation * (np.sqrt(d) + np.sqrt(b)))
        # reach: norm of the sum of the parties' independent errors on a block; moved: norm of the error that moved the
        # vectors of the block; rounded: rounding error of the block
        reach, moved, rounded = on_block / np.sqrt(self.parties), np.inf, 0.0
        for number in range(max_corrections + 1):
            if self._is_reached(tolerance, everywhere, on_block, partial(self._offset, moved=moved, rounded=rounded)):
                return number
            moved = on_block / np.sqrt(self.parties) + reach * self._offset(self.k, moved, rounded) if number else reach
            rounded = relative_rounding(block_bits(number)) * (1 + float(np.sqrt(b / d)))
            if number:
                on_block += everywhere * self._offset(self.width, moved, rounded)
            on_block *= relative_rounding(CORRECTION_BITS)
        return None

    def _offset(self, last: int, moved: float, rounded: float) -> float:
        """Estimate the sine of the angle between the ``last`` leading eigenvectors and a block that approximates these.

        The block's vectors were computed with an error of norm ``moved`` in the matrix and then ``rounded`` (relative).
        """
        if self.width >= self.spectrum.size and moved < np.inf:
            return 0.0
        gap = self.spectrum[last - 1] - (self.spectrum[self.width] if self.width < self.spectrum.size else 0.0)
        return min(1.0, float(moved / gap) + rounded) if gap > 0 else 1.0

    def _is_reached(self, tolerance: float, everywhere: float, on_block: float, offset: Callable[[int], float]) -> bool:
        """Return whether the bound on the angle is within ``tolerance`` degrees, and exact components' variances too.

        ``offset(j)`` is the sine of the angle between the block and the first j eigenvectors; the others are norms.
        """
        values, k = np.append(self.spectrum, 0.0)[: max(self.k, self.width) + 1], self.k
        errors = CorrectionErrors(everywhere, on_block, on_block, offset(k), 0.0)
        angles = [_angle_bound(values, k, end, errors._replace(next=offset(end))) for end in range(k, values.size)]
        values_reached = tolerance > EXACT_ANGLE_DEGREES or errors.inner_first <= EXACT_ERROR_SHARE * values[k - 1]
        return min(angles) <= tolerance and values_reached
