r"""Whether eigenvalues hide from narrow blocks, because they occur more often than a block has columns.

Block Krylov from b random columns sees b directions of an eigenspace, however long it goes on. So once the first j Ritz
vectors U of :math:`A` have converged, a fresh random block S starts again with what they leave,

.. math:: B = (I - U U^T) A (I - U U^T)

and :math:`\lambda_{j+1}(A) \le \lambda_1(B)` (Courant and Fischer), whatever U is. One direction suffices to bound
:math:`\lambda_1(B)`: any column of S shows a bit of it, since S was drawn after U was found. So nothing is presumed of
multiplicities (`fedpca_flwr.maths.eigenvalue_bounds.first_bound`).
"""

from __future__ import annotations

import numpy as np

from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.certificate import frobenius, rounding
from fedpca_flwr.maths.eigenvalue_bounds import first_bound
from fedpca_flwr.maths.first_block import FirstBlock
from fedpca_flwr.maths.krylov import KnownProducts, Ritz, random_block


class Probe:
    """Block Krylov with what the first j Ritz vectors leave.

    Parameters
    ----------
    ritz : Ritz
    j : int
        At least; more where so many have converged well enough to tell whether eigenvalue j + 1 is below the level.
    level : float
    width : int
        Columns of a block.
    turn : int
        How many came before: each starts from another block.

    Attributes
    ----------
    block : ndarray of shape (d, b)
        What to multiply with ``A`` next.
    top : float
        What an eigenvalue of ``A`` after the first j is at least, or nearly so.
    """

    def __init__(self, ritz: Ritz, j: int, level: float, width: int, *, turn: int) -> None:
        self.j = j = _converged(ritz, j, level)
        d = len(ritz.vectors)
        self._U, self._residuals, self._values = ritz.vectors[:, :j], ritz.residuals[:, :j], ritz.values[:j]
        self._error, self._wrong = ritz.error, ritz.residual(j)
        S = random_block(d, min(width, d - j), seed=-1 - turn)  # no seed of a first block
        self._known, self.block = KnownProducts(d), self._outside(S)
        self._start = FirstBlock(self.block)
        self._ritz: Ritz | None = None
        self.top = 0.0

    def add(self, V: Array, AV: Array, *, error: float) -> None:
        """Take the product of ``A`` with `block`, or with what rounding it on the wire made of it."""
        if self._ritz is None:
            self._start = FirstBlock(V - self._U @ (self._U.T @ V))
        else:
            self._start.make_room(self._known, self._ritz, self.block, 1)
        inside = self._U.T @ V
        V, AV = V - self._U @ inside, AV - (self._residuals + self._U * self._values) @ inside
        error += rounding(len(V)) * float(self._values[0]) * frobenius(V) + self._error * frobenius(inside)
        self._known.add(V, self._outside(AV), error=error)
        self._start.asked(self._known)
        self._ritz = ritz = self._known.ritz()
        self.top = float(ritz.values[0]) + self._wrong
        self.block = self._outside(self._known.next_block(ritz, self._start.columns, 1)) if self.room else V[:, :0]

    @property
    def room(self) -> int:
        """Dimensions outside all that is known."""
        return self._known.room - self.j

    def ceilings(self, level: float) -> dict[int, float]:
        """Bounds on eigenvalues i + 1 of ``A``, by i, where that of B is certainly below ``level``; else none."""
        assert self._ritz is not None
        level -= self._wrong
        first = float(self._ritz.values[0]) + 2 * self._ritz.error
        if self.room:
            first = first_bound(self._ritz, self._start, level - 2 * self._ritz.error)
        if first > level:
            return {}
        between = {i: max(float(self._values[i]), first) + self._wrong for i in range(1, self.j)}  # Weyl
        return {**between, self.j: first}

    def with_pairs(self) -> KnownProducts:
        """The products with ``A`` that are known of the first j Ritz vectors and from here."""
        Q, BQ, together = self._known.Q, self._known.AQ, KnownProducts(len(self._U))
        together.Q = np.hstack([self._U, Q])
        together.AQ = np.hstack([self._residuals + self._U * self._values, BQ + self._U @ (self._residuals.T @ Q)])
        together.error = float(np.hypot(self._error, self._known.error))
        return together

    def _outside(self, V: Array) -> Array:
        for _ in range(2):
            V = V - self._U @ (self._U.T @ V)
        return V


def _converged(ritz: Ritz, j: int, level: float) -> int:
    """How many first Ritz vectors, j at least, a probe may leave out to find whether eigenvalue j + 1 is below a level:
    the more, the sooner it knows."""
    following = float(ritz.values[j]) if ritz.values.size > j else 0.0
    wrong = np.sqrt(np.cumsum(np.linalg.norm(ritz.residuals, axis=0) ** 2)) + ritz.error
    return max(j, int((wrong <= (level - following) / 4).sum()))
