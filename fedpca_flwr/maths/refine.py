r"""Sketch and refine: an approximation of a matrix that every product makes exact in one more block.

Each party first sends a truncated factor, so that the server has :math:`M_0 \approx A` (low rank plus a multiple of the
identity). For every block of an orthonormal basis :math:`Q` whose product :math:`A Q` has been asked since, the
approximation is corrected to agree with :math:`A` on the span of ``Q``, with :math:`D = A Q - M_0 Q`::

    M = M_0 + D Q' + Q D' - Q (Q' D) Q'

(the symmetric block secant update). Its leading eigenvectors are the answer so far and the next question.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import qr
from scipy.sparse.linalg import LinearOperator, eigsh

from fedpca_flwr.maths.eigen import Eigenpairs, fix_signs
from fedpca_flwr.maths.factors import Factor
from fedpca_flwr.maths.krylov import KnownProducts, Ritz

Array = NDArray[np.float64]


def corrected(matrix: Array, V: Array, E: Array) -> Array:
    """``M + E V' + V E' - V sym(V' E) V'``, which maps the orthonormal block ``V`` as ``M V + E`` does.

    The symmetric block secant update for one block, on full matrices (d, d).
    """
    inner = V.T @ E
    half = E - V @ ((inner + inner.T) / 4)
    change = half @ V.T
    return matrix + change + change.T


class RefinedSketch:
    """The approximation ``M`` of the scatter ``A``.

    Parameters
    ----------
    product : callable
        ``M_0 @ V`` of a vector or a block ``V``.
    d : int
    error : float
        Bound on ``|A - M_0|`` (spectral norm).
    """

    def __init__(self, product: Callable[[Array], Array], d: int, error: float) -> None:
        self.product = product
        self.error = error
        self.d = d
        self.known = KnownProducts(d)

    @classmethod
    def of_factor(cls, sketch: Factor) -> RefinedSketch:
        """From ``M_0 = rows.T @ rows + floor * identity``, with rows that were sent in float32."""
        rows = sketch.rows
        rounding = 2.0**-22 * float(np.vdot(rows, rows))
        return cls(lambda V: rows.T @ (rows @ V) + sketch.floor * V, rows.shape[1], sketch.error + rounding)

    def next_block(self, width: int) -> Array:
        """The leading eigenvectors of ``M`` outside the span already asked, orthonormal (d, at most width)."""
        block, Q = self.leading(min(width, self.d - 2)).vectors, self.known.Q
        for _ in range(2):
            block, _ = qr(block - Q @ (Q.T @ block), mode="economic")
        return block[:, : self.d - Q.shape[1]]

    def leading(self, k: int) -> Eigenpairs:
        """The k leading eigenpairs of ``M``, k < d."""
        values, vectors = self._eigsh(self._apply, k + 1)
        return Eigenpairs(values[:k], fix_signs(vectors[:, :k]), float(values[k]))

    def certificate(self, ritz: Ritz, k: int) -> float:
        """`Ritz.certificate` where nothing large can be outside the span of the products asked, else 90.

        Outside that span ``A`` has no eigenvalue above ``lambda_max(P M_0 P) + error`` with ``P = 1 - Q Q'``.
        """
        if ritz.values.size <= k:
            return 90.0
        Q = self.known.Q

        def outside(x: Array) -> Array:
            x = x - Q @ (Q.T @ x)
            x = self.product(x)
            return x - Q @ (Q.T @ x)

        if Q.shape[1] < Q.shape[0] - 2:
            (largest,), _ = self._eigsh(outside, 1)
            if largest + self.error >= ritz.values[k - 1]:
                return 90.0
        return ritz.certificate(k)

    def _apply(self, x: Array) -> Array:
        Q = self.known.Q
        correction = self.known.AQ - self.product(Q)
        inside = Q.T @ x
        return self.product(x) + correction @ inside + Q @ (correction.T @ x) - Q @ (Q.T @ (correction @ inside))

    def _eigsh(self, matvec, k: int) -> tuple[Array, Array]:
        start = np.random.default_rng(0).standard_normal(self.d)
        unit = 2.0 ** np.frexp(float(np.linalg.norm(matvec(start))))[1]  # ARPACK's stopping test is absolute
        operator = LinearOperator((self.d, self.d), matvec=lambda x: matvec(x) / unit, dtype=np.float64)
        values, vectors = eigsh(operator, k, tol=0, v0=start)
        order = np.argsort(values)[::-1]
        return values[order] * unit, vectors[:, order]
