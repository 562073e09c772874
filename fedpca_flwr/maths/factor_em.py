r"""EM for probabilistic PCA of incomplete rows: the server's half, from products of the expected scatter with a block.

With mean m, directions V, variances L and noise s of n rows, the E-step (`fedpca_flwr.maths.factor_model`) gives the
sums ``a`` of the expected deviations from m, and ``B``, their expected products times V. The step to the next model is
one of subspace iteration, on the expected scatter about the new mean and the prior::

    m' = m + a / n,    T V = B - a a'V / n,    (T V + prior V) / (n + prior) = P D R',    V' = P, L' = D

s' is the mean of what the expected variance has besides D. Where it rests, the likelihood and the prior together are
at a maximum (Tipping and Bishop 1999, appendix A); ``prior I`` is worth so many rows of independent features of equal
variance, as in `fedpca_flwr.maths.gaussian_em`. Without missing values it is subspace iteration on the scatter.

The iteration is one on the block ``P (D - s)^1/2 R'``, whose map does not depend on how P and R are turned, with the
mean and log s beside, and `fedpca_flwr.maths.anderson` accelerates it: it took 23 to 46 steps where SQUAREM took 26 to
more than 70 (docs/missing.md).
"""

from __future__ import annotations

import math

import numpy as np
from scipy.linalg import eigh, svd

from fedpca_flwr.maths.anderson import Anderson
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.factor_model import Factors, FactorSums
from fedpca_flwr.maths.incomplete import FLOOR

ABOVE = 2.0**-20
"""By what share of the noise the variance along a factor is larger, at least."""

LEAST = 1e-6
"""Of the variance: by so much less than zero rounding may leave an eigenvalue of a scatter."""


class FactorEM:
    """The iteration, in the unit in which features have variances of 1 in the mean.

    Parameters
    ----------
    rows : int
        n, those with any value.
    mean : ndarray of shape (d,)
    block : ndarray of shape (d, q)
        To begin with; of full rank, q < d.
    prior : float
        How many rows the prior is worth; more than 0.

    Attributes
    ----------
    model : Factors
        Of which the sums are wanted next.
    mean : ndarray of shape (d,)
        m' of the last step.
    vectors : ndarray of shape (d, q)
        The best approximations, in the span of the last V, to eigenvectors of T.
    values : ndarray of shape (q,)
        Their eigenvalues, descending.
    total : float
        The trace of T.
    """

    mean: Array
    vectors: Array
    values: Array
    total: float

    def __init__(self, rows: int, mean: Array, block: Array, *, prior: float) -> None:
        self.rows = rows
        self.prior = max(prior, 4 * FLOOR * rows)
        basis, _, turn = svd(block, full_matrices=False)
        self.model = Factors(mean, basis, np.full(basis.shape[1], 2.0), 1.0)
        self._turn = turn
        self._anderson = Anderson(_point(mean, basis @ turn, 1.0), _allowed)

    def add(self, sums: FactorSums) -> None:
        """Take the sums of all rows that `model` gives.

        Raises
        ------
        ValueError
            Where they are those of no rows.
        """
        V, n, weight = self.model.basis, self.rows, self.rows + self.prior
        d, q = V.shape
        self.mean = self.model.mean + sums.first / n
        TV = sums.product - np.outer(sums.first, sums.first @ V) / n
        self.total = sums.square - float(sums.first @ sums.first) / n
        values, turned = eigh(V.T @ TV, check_finite=False)
        self.values, self.vectors = values[::-1], V @ turned[:, ::-1]
        if not (values[0] >= -LEAST * self.total and values.sum() <= (1 + LEAST) * self.total):  # of NaN, too
            raise ValueError("the expected scatter is not positive semidefinite")
        P, D, R = svd((TV + self.prior * V) / weight, full_matrices=False, check_finite=False)
        noise = max((self.total + d * self.prior) / weight - float(D.sum()), (d - q) * self.prior / weight) / (d - q)
        sizes = np.sqrt((D - noise).clip(min=ABOVE * noise))
        likelihood = sums.likelihood - self.prior * self._distance() / 2
        self._anderson.add(_point(self.mean, (P * sizes) @ R @ self._turn, noise), likelihood)
        self.model, self._turn = _factors(self._anderson.point, d, q)

    def _distance(self) -> float:
        """Twice minus the prior's log density, worth one row."""
        others, noise, L = len(self.model.basis) - self.model.variances.size, self.model.noise, self.model.variances
        return float((np.log(L) + 1 / L).sum()) + others * (math.log(noise) + 1 / noise)


def _point(mean: Array, block: Array, noise: float) -> Array:
    return np.concatenate([mean, block.ravel(), [math.log(noise)]])


def _factors(point: Array, d: int, q: int) -> tuple[Factors, Array]:
    noise = math.exp(point[-1])
    basis, sizes, turn = svd(point[d:-1].reshape(d, q), full_matrices=False, check_finite=False)
    return Factors(point[:d], basis, noise + (sizes**2).clip(min=ABOVE * noise), noise), turn


def _allowed(point: Array) -> bool:
    return bool(np.isfinite(point).all() and abs(point[-1]) < -math.log(2 * FLOOR))
