r"""Block iteration: eigenpairs of a symmetric matrix from one product with a block at a time, to a certified angle.

The matrix :math:`A` (d x d) is known only through products with blocks. Block Krylov with Rayleigh-Ritz keeps the span
of everything asked (`fedpca_flwr.maths.krylov`); the plain iteration keeps the last block only.

A block of more than k columns misses nothing (with probability 1). Where it is narrower, an eigenvalue that occurs more
often than the block has columns could hide, so `PROBES` more rounds look for it from a fresh random block.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import qr

from fedpca_flwr.maths.krylov import KnownProducts, Ritz

Array = NDArray[np.float64]

PROBES = 3
"""Rounds after convergence in which narrow blocks look for eigenvalues that occur more often than they have columns."""

NEGLIGIBLE = 1e-12
"""Share of the trace that counts as nothing."""


class BlockIteration:
    """The state of an iteration for the k largest eigenvalues of a positive semidefinite ``A`` (d x d).

    Parameters
    ----------
    d, k : int
    width : int
        Columns of a block.
    trace : float
        Of ``A``: it tells how much may be orthogonal to an invariant span.
    tolerance : float
        Certified largest angle, in degrees, at which `add` says that it is enough.
    accelerated : bool
        Block Krylov; else the plain iteration.

    Attributes
    ----------
    block : ndarray of shape (d, b <= width)
        Orthonormal; what to multiply next.
    ritz : Ritz
        The best pairs so far.
    certificate : float
        Bound on the largest angle of the first k, in degrees. Unless `proven`, it presumes that no eigenvalue occurs
        more than ``width`` times.
    """

    block: Array
    ritz: Ritz
    certificate: float

    def __init__(self, d: int, k: int, *, width: int, trace: float, tolerance: float, accelerated: bool) -> None:
        self.k, self.width, self.trace, self.tolerance = k, width, trace, tolerance
        self.accelerated = accelerated
        self.known = KnownProducts(d)
        self.proven = width > k
        self._probes = 0

    def add(self, V: Array, AV: Array) -> bool:
        """Take the product with a block ``V`` (d, b), choose the next `block`; true where the pairs are certified."""
        if not self.accelerated:
            self.known = KnownProducts(len(V))
        self.known.add(V, AV)
        self.ritz = self.known.ritz()
        self.certificate = self.ritz.certificate(self.k)
        if self.accelerated:
            self.block = self.known.next_block(self.ritz, V.shape[1], self.k)
        else:
            self.block, _ = qr(self.known.AQ, mode="economic")
        if self.block.shape[1] == 0:  # the span is invariant, but other eigenvectors may be orthogonal to all of it
            self.certificate = self._of_invariant()
            self.block = self.known.fresh_block(V.shape[1])
        if self.certificate > self.tolerance:
            self._probes = 0
            return False
        if not self._must_probe():
            return True
        self.block = self._probe(V.shape[1])
        return False

    @property
    def forgiving(self) -> bool:
        """Whether the next block may be rounded to float32 at no loss, if the product is that of the rounded block.

        The plain iteration forgets all but its last block, so rounding would stay in the answer. Narrow blocks build
        their space over many rounds: rounding an early one costs later ones (Simoncini and Szyld 2003).
        """
        return self.accelerated and not (self.width < self.k and self.certificate == 90.0)

    def _of_invariant(self) -> float:
        """The certificate where the trace tells how much is orthogonal to an invariant span."""
        values, outside = self.ritz.values, max(0.0, self.trace - float(self.ritz.values.sum()))
        nothing = NEGLIGIBLE * self.trace
        if outside <= nothing and values.size >= self.k and values[self.k - 1] <= nothing:
            self.proven = True
            return 0.0  # all of it is found, and the last pairs have none
        certificate = self.ritz.certificate(self.k, outside)
        self.proven |= certificate <= self.tolerance
        return certificate

    def _must_probe(self) -> bool:
        """Whether a repeated eigenvalue could hide from blocks so narrow, and has not been looked for yet."""
        d, known = self.known.Q.shape
        return self.accelerated and not self.proven and self._probes < PROBES and known < d

    def _probe(self, size: int) -> Array:
        """A block that looks outside the span: random at first, then what its products add."""
        block = self.known.continued_block(size) if self._probes else np.empty((0, 0))
        self._probes += 1
        return block if block.shape[1] else self.known.fresh_block(size)
