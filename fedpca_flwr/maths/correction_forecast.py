r"""How many corrections (`fedpca_flwr.maths.refine.corrected`) a scatter in multiples of a step will need.

The bound that ends a run (`corrected_angle_bound`) takes, of each party, the spectral norms of what its encoding gets
wrong: everywhere, and on the block of the last correction. Errors of rounding that are independent have a norm of
:math:`2 \sqrt{d}` deviations, and a block of b columns meets :math:`\sqrt{d} + \sqrt{b}` of them. The components lie
beside a block by as much as rounding moved them since it was asked, and by the rounding of the block itself.

A forecast only: errors that are not independent, and eigenvalues that are not as surveyed, make it wrong by a round. A
run that follows it ends by the bound.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.certificate import EXACT, sine_theorem
from fedpca_flwr.maths.refine import CORRECTION_BITS, SAME, block_bits

DEVIATIONS = 6.0
"""The largest of the numbers that share a scale is about so many times their root mean square: some 4 of Gaussians,
more of features that do not vary alike."""


def rounded_share(bits: int) -> float:
    """Deviation of the error of numbers that share a scale and are rounded to so many bits, over their own."""
    return float(DEVIATIONS / np.sqrt(12) / (2 ** (bits - 1) - 1))


def coded_bits(bits: int) -> float:
    """Bits in which such a number travels, once compressed: the entropy of a Gaussian."""
    return float(bits - 1 - np.log2(DEVIATIONS) + 0.5 * np.log2(2 * np.pi * np.e))


@dataclass(frozen=True)
class Corrections:
    """Corrections of scatters in multiples of a step.

    Attributes
    ----------
    spectrum : ndarray of shape (d,)
        Eigenvalues of the sum of the scatters, descending.
    k : int
        Components that are wanted.
    width : int
        Columns of a block.
    parties : int
    step : float
        In squared units of the data.
    """

    spectrum: Array
    k: int
    width: int
    parties: int
    step: float

    def needed(self, tolerance: float, most: int) -> int | None:
        """After how many corrections, ``most`` or fewer, the bound is at ``tolerance`` degrees; else None."""
        d, b, deviation = self.spectrum.size, self.width, self.step / np.sqrt(12)
        everywhere = float(self.parties * deviation * 2 * np.sqrt(d))
        on_block = float(self.parties * deviation * (np.sqrt(d) + np.sqrt(b)))
        reach, moved, rounded = on_block / np.sqrt(self.parties), np.inf, 0.0  # reach: of all parties' errors together
        for number in range(most + 1):

            def wrong_about(last: int, on: float = on_block, by: float = moved, bits: float = rounded) -> float:
                return min(everywhere, on + everywhere * self._beside(last, by, bits))

            if self._holds(tolerance, everywhere, wrong_about):
                return number
            moved = on_block / np.sqrt(self.parties) + reach * self._beside(self.k, moved, rounded) if number else reach
            rounded = rounded_share(block_bits(number)) * (1 + float(np.sqrt(b / d)))
            on_block *= rounded_share(CORRECTION_BITS)
        return None

    def _beside(self, last: int, moved: float, rounded: float) -> float:
        """How far the eigenvectors up to ``last`` lie beside a rounded block, of a matrix that was wrong by ``moved``
        where the block is of."""
        if self.width >= self.spectrum.size and moved < np.inf:
            return 0.0
        gap = self.spectrum[last - 1] - (self.spectrum[self.width] if self.width < self.spectrum.size else 0.0)
        return min(1.0, float(moved / gap) + rounded) if gap > 0 else 1.0

    def _holds(self, tolerance: float, everywhere: float, wrong_about: Callable[[int], float]) -> bool:
        """Whether a run ends: by `corrected_angle_bound`, and of exact components by their variances too."""
        values, k, wrong = np.append(self.spectrum, 0.0), self.k, wrong_about(self.k)
        following = float(values[k]) + everywhere
        for more in range(k + 1, min(self.width, self.spectrum.size) + 1):
            coupled = wrong_about(more)
            first, second = float(values[k]) + coupled, float(values[more]) + everywhere
            following = min(following, (first + second) / 2 + float(np.hypot((first - second) / 2, coupled)))
        if tolerance <= EXACT and wrong > SAME * values[k - 1]:
            return False
        return sine_theorem(wrong, float(values[k - 1]) - following) <= tolerance
