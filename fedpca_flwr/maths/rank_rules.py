r"""How many directions a stream needs: rules that look at the singular values after each block.

* `Fixed`: as many as asked.
* `Energy`: the fewest whose squares hold a fraction of all energy. What is usually meant, and the default.
* `Band`: Grammenos et al. 2019, equation 6. The share :math:`c = \sigma_r / \sum_{i \le r} \sigma_i` shall lie
  between alpha and beta: above, the rank grows by one; below, it falls by one. Since c <= 1 / r, it never grows beyond
  ceil(1 / beta).

As printed, `Band` goes 8, 9, 8, 9 for ever on a spectrum of eight equal values. With hysteresis it grows only where the
next direction would not be dropped again, and a fall waits until the rank has stood for ``hold`` blocks.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from fedpca_flwr.maths.arrays import Array


class RankRule(Protocol):
    """A rule, and the rank that it is at."""

    rank: int

    def step(self, sigma: Array, energy: float) -> int:
        """The rank after one more block.

        Parameters
        ----------
        sigma : ndarray of shape (k,)
            Descending.
        energy : float
            Trace of the scatter, tracked or not.
        """


class Fixed:
    """Always the same rank."""

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def step(self, sigma: Array, energy: float) -> int:
        return self.rank


class Energy:
    """The smallest rank whose squares hold ``target`` of the energy; one more than there are where they do not."""

    def __init__(self, target: float) -> None:
        self.target = target
        self.rank = 1

    def step(self, sigma: Array, energy: float) -> int:
        enough = np.cumsum(sigma**2) >= self.target * energy
        self.rank = int(enough.argmax()) + 1 if enough.any() else sigma.size + 1
        return self.rank


class Band:
    """The paper's rule.

    Parameters
    ----------
    rank : int
        To begin with.
    alpha, beta : float
        0 <= alpha < beta <= 1.
    hysteresis : bool
        Whether to look at the next singular value before growing.
    hold : int
        Blocks for which the rank must have stood before it falls.
    """

    def __init__(self, rank: int, alpha: float, beta: float, *, hysteresis: bool = True, hold: int = 2) -> None:
        self.rank = rank
        self.alpha = alpha
        self.beta = beta
        self.hysteresis = hysteresis
        self.hold = hold if hysteresis else 0
        self._stood = 0

    def step(self, sigma: Array, energy: float) -> int:
        r = min(self.rank, sigma.size)  # a block may have fewer directions than the rank
        if not r:
            return self.rank
        share = sigma[r - 1] / sigma[:r].sum()
        change = 0
        if share > self.beta and self._may_grow(sigma, r):
            change = 1
        elif share < self.alpha and r > 1 and self._stood >= self.hold:
            change = -1
        self._stood = 0 if change else self._stood + 1
        self.rank = r + change if change else self.rank
        return self.rank

    def stationary_rank(self, sigma: Array) -> int:
        """The rank at which the rule leaves these singular values alone, from the present one."""
        for _ in sigma:
            self._stood = self.hold
            before = self.rank
            if self.step(sigma, 0.0) == before:
                break
        return self.rank

    def _may_grow(self, sigma: Array, r: int) -> bool:
        if not self.hysteresis:
            return True
        return sigma.size > r and sigma[r] / sigma[: r + 1].sum() >= self.alpha
