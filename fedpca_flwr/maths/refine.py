r"""Sketch and refine: an approximation of a matrix that every product makes exact in one more block.

Each party first sends a truncated factor, so that the server has :math:`M_0 \approx A` (low rank plus a multiple of the
identity). For every block of an orthonormal basis :math:`Q` whose product :math:`A Q` has been asked since, the
approximation is corrected to agree with :math:`A` on the span of ``Q``, with :math:`D = A Q - M_0 Q`::

    M = M_0 + D Q' + Q D' - Q (Q' D) Q'

(the symmetric block secant update). Its leading eigenvectors are the answer so far and the next question.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.sparse.linalg import LinearOperator, eigsh

from fedpca_flwr.maths.eigen import Eigenpairs, fix_signs
from fedpca_flwr.maths.factors import Factor
from fedpca_flwr.maths.krylov import KnownProducts, Ritz

Array = NDArray[np.float64]


class RefinedSketch:
    """The approximation ``M`` of the scatter ``A``.

    Parameters
    ----------
    sketch : Factor
        Of all parties: ``M_0 = rows.T @ rows + floor * identity``, with ``|A - M_0| <= floor`` (spectral norm), as
        parties that fill half of their first omitted eigenvalue guarantee.
    """

    def __init__(self, sketch: Factor) -> None:
        self.sketch = sketch
        self.known = KnownProducts(sketch.rows.shape[1])

    def product(self, V: Array) -> Array:
        """``M_0 @ V``."""
        rows = self.sketch.rows
        return rows.T @ (rows @ V) + self.sketch.floor * V

    def leading(self, k: int) -> Eigenpairs:
        """The k leading eigenpairs of ``M``, k < d."""
        values, vectors = self._eigsh(self._apply, k + 1)
        return Eigenpairs(values[:k], fix_signs(vectors[:, :k]), float(values[k]))

    def certificate(self, ritz: Ritz, k: int) -> float:
        """`Ritz.certificate` where nothing large can be outside the span of the products asked, else 90.

        Outside that span ``A`` has no eigenvalue above ``lambda_max(P M P) + floor`` with ``P = 1 - Q Q'``.
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
            rounding = 2.0**-22 * float(np.vdot(self.sketch.rows, self.sketch.rows))  # of factors sent in float32
            if largest + self.sketch.floor + rounding >= ritz.values[k - 1]:
                return 90.0
        return ritz.certificate(k)

    def _apply(self, x: Array) -> Array:
        Q = self.known.Q
        correction = self.known.AQ - self.product(Q)
        inside = Q.T @ x
        return self.product(x) + correction @ inside + Q @ (correction.T @ x) - Q @ (Q.T @ (correction @ inside))

    def _eigsh(self, matvec, k: int) -> tuple[Array, Array]:
        d = self.sketch.rows.shape[1]
        start = np.random.default_rng(0).standard_normal(d)
        values, vectors = eigsh(LinearOperator((d, d), matvec=matvec, dtype=np.float64), k, tol=0, v0=start)
        order = np.argsort(values)[::-1]
        return values[order], vectors[:, order]
