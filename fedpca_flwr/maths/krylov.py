r"""The server's side of subspace iteration: Rayleigh-Ritz on all products seen, a certificate, the next query.

The symmetric matrix :math:`A` (d x d, here the scatter of all rows) is known only through products :math:`A V` with
blocks :math:`V` that the server chooses. With an orthonormal basis ``Q`` of all blocks so far and ``AQ`` their
products, the Ritz pairs of ``Q.T @ AQ`` are the best eigenpairs within the span (Rayleigh-Ritz), and their residuals
need no further product. Asking for the product of the residuals next makes the span a block Krylov space (Golub and
Underwood 1977; Musco and Musco 2015).
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import eigh, norm, svd

from fedpca_flwr.maths.eigen import Eigenpairs, fix_signs

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Ritz:
    """Ritz pairs by descending value.

    Attributes
    ----------
    values : ndarray of shape (m,)
    vectors : ndarray of shape (d, m)
    residuals : ndarray of shape (d, m)
        ``A @ vectors - vectors * values``, as far as the products are known.
    error : float
        Bound on the spectral norm of what rounding on the wire may add to the residuals.
    """

    values: Array
    vectors: Array
    residuals: Array
    error: float

    def certificate(self, k: int, outside: float | None = None) -> float:
        """Bound, in degrees, on the largest principal angle between the first k Ritz vectors and eigenvectors.

        Davis and Kahan's sine theorem with the residual of the k pairs over the gap to the next::

            sin(angle) <= |R_k| / (theta_k - theta_{k+1} - |r_{k+1}|)

        It is 90 where the gap is not resolved yet. It presumes that no direction with a larger eigenvalue is orthogonal
        to everything asked so far. A random first block of more than k columns makes that certain (probability 1); one
        of b <= k columns only if no eigenvalue is repeated more than b times.

        Parameters
        ----------
        k : int
        outside : float, optional
            Bound on every eigenvalue whose vector is orthogonal to the span, where one is known.
        """
        if self.values.size == len(self.vectors):
            return 0.0  # the span is everything
        if self.values.size < k or (self.values.size == k and outside is None):
            return 90.0
        residual = np.linalg.norm(self.residuals[:, :k], 2) + self.error
        following = -np.inf if outside is None else outside
        if self.values.size > k:
            following = max(following, self.values[k] + norm(self.residuals[:, k])) + self.error
        gap = self.values[k - 1] - following
        return float(np.degrees(np.arcsin(min(1.0, residual / gap)))) if gap > 0 else 90.0

    def pairs(self, k: int) -> Eigenpairs:
        """The first k as eigenpairs."""
        following = float(self.values[k]) if self.values.size > k else 0.0
        return Eigenpairs(self.values[:k], fix_signs(self.vectors[:, :k]), following)


class KnownProducts:
    """An orthonormal basis ``Q`` (d, m) of blocks whose products with ``A`` are known, and those products."""

    def __init__(self, d: int) -> None:
        self.Q: Array = np.empty((d, 0))
        self.AQ: Array = np.empty((d, 0))
        self.error = 0.0

    def add(self, V: Array, AV: Array, *, error: float = 0.0) -> None:
        """Add a block ``V`` (d, b) and its product; directions that depend on others, or are known, add nothing.

        Parameters
        ----------
        V, AV : ndarray of shape (d, b)
        error : float
            Bound on the Frobenius norm of what is wrong in ``AV`` (rounding on the wire).
        """
        for _ in range(2):  # once loses digits, twice is enough (Kahan; Parlett 1998, section 6.9)
            inside = self.Q.T @ V
            V, AV = V - self.Q @ inside, AV - self.AQ @ inside
            left, sizes, right = svd(V, full_matrices=False, check_finite=False)
            new = sizes > 1e-10 * max(sizes.max(initial=0.0), np.finfo(float).tiny)
            V, AV = left[:, new], AV @ (right[new].T / sizes[new])
            error *= 1 / float(sizes[new].min(initial=np.inf))
        self.Q, self.AQ = np.hstack([self.Q, V]), np.hstack([self.AQ, AV])
        self.error = float(np.hypot(self.error, error))

    def ritz(self) -> Ritz:
        projected = self.Q.T @ self.AQ
        values, rotation = eigh((projected + projected.T) / 2, check_finite=False)
        values, rotation = values[::-1], rotation[:, ::-1]
        vectors = self.Q @ rotation
        return Ritz(values, vectors, self.AQ @ rotation - vectors * values, self.error)

    def next_block(self, ritz: Ritz, size: int, k: int) -> Array:
        """An orthonormal block (d, b <= size) to ask for next: the largest directions in the leading residuals.

        In exact arithmetic all residuals lie in the span of the newest products. Taking them from the residuals also
        asks again for what rounding a block on the wire has left out. Empty where the span is invariant: nothing new
        exceeds rounding, and every Ritz pair is an eigenpair. There may be others, which `fresh_block` asks for.
        """
        Z = ritz.residuals[:, : max(size, k + 10)]
        for _ in range(2):
            Z = Z - self.Q @ (self.Q.T @ Z)
        left, singular, _ = svd(Z, full_matrices=False, check_finite=False)
        room = self.Q.shape[0] - self.Q.shape[1]
        block = left[:, : min(room, size, int((singular > 1e-14 * ritz.values[0]).sum()))]
        return block - self.Q @ (self.Q.T @ block)

    def continued_block(self, size: int) -> Array:
        """What the newest products (of at most ``size`` directions) add to the span, orthonormal; may be empty."""
        Z = self.AQ[:, -size:]
        scale = float(np.linalg.norm(Z))
        for _ in range(2):
            Z = Z - self.Q @ (self.Q.T @ Z)
        left, singular, _ = svd(Z, full_matrices=False, check_finite=False)
        room = self.Q.shape[0] - self.Q.shape[1]
        return left[:, : min(room, int((singular > 1e-13 * scale).sum()))]

    def fresh_block(self, size: int) -> Array:
        """A random orthonormal block (d, at most size) outside the span."""
        d, known = self.Q.shape
        block = random_block(d, min(size, d - known), seed=known)
        for _ in range(2):
            block, _, _ = svd(block - self.Q @ (self.Q.T @ block), full_matrices=False)
        return block


def random_block(d: int, b: int, seed: int) -> Array:
    """A random block (d, b) of numbers between -1 and 1 that every party can make from a number.

    From SHAKE-256, not from a random generator whose stream could differ between versions of NumPy: parties that
    disagree about the block would give a wrong answer without notice. Odd multiples of 2^-23, which float32 holds
    exactly: a square block of signs would be singular with a noticeable probability, and a vector of signs can be
    orthogonal to an eigenvector.
    """
    digest = hashlib.shake_256(f"{seed}/{d}/{b}".encode()).digest(4 * d * b)
    odd = 2 * (np.frombuffer(digest, "<u4") >> 9).astype(np.float64) + 1
    return odd.reshape(d, b) / 2.0**23 - 1
