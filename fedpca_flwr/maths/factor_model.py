r"""What is expected of rows with missing values, where few factors are behind them: the E-step for wide rows.

The model is a Gaussian with mean m whose covariance has q directions V (d, q) with variances L, and the variance s in
all others (probabilistic PCA): ``x = m + W e + noise`` with ``W = V (L - s)^1/2``. For a row whose observed deviations
are x_o, with the rows W_o and W_u of W for what is observed and missing::

    A = (I + W_o' W_o / s)^-1,    E[x_u] = W_u A W_o' x_o / s,    cov[x_u] = s I + W_u A W_u'

so no d x d matrix is formed. Of the expected products the sums have those with V: d q values.

Source: Tipping and Bishop 1999, Journal of the Royal Statistical Society B 61; Ilin and Raiko 2010, Journal of Machine
Learning Research 11.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.incomplete import filled


class Factors(NamedTuple):
    """A Gaussian whose covariance has few directions.

    Attributes
    ----------
    mean : ndarray of shape (d,)
    basis : ndarray of shape (d, q)
        V: orthonormal columns.
    variances : ndarray of shape (q,)
        L, each larger than the noise.
    noise : float
        s, the variance in all other directions.
    """

    mean: Array
    basis: Array
    variances: Array
    noise: float

    @property
    def loadings(self) -> Array:
        """W, (d, q)."""
        loadings: Array = self.basis * np.sqrt(self.variances - self.noise)
        return loadings


class FactorSums(NamedTuple):
    """Sums over rows.

    Attributes
    ----------
    first : ndarray of shape (d,)
        Of the expected deviations from the model's mean.
    product : ndarray of shape (d, q)
        Of their expected products, times the basis.
    square : float
        Of their expected squares.
    likelihood : float
        Of the logarithm of the density of what is observed, but for a constant.
    """

    first: Array
    product: Array
    square: float
    likelihood: float


def factor_sums(rows: Iterable[Array], model: Factors) -> FactorSums:
    """The E-step over chunks of rows (n, d), NaN where a value is missing."""
    V, W, s = model.basis, model.loadings, model.noise
    d, q = V.shape
    first, product, square, likelihood = np.zeros(d), np.zeros((d, q)), 0.0, 0.0
    unseen, unsure = np.zeros(d), np.zeros((d, q * (q + 1) // 2))
    for chunk in rows:
        deviations = chunk - model.mean
        missing = np.isnan(deviations)
        known = np.where(missing, 0.0, deviations)
        A, logarithms, factors = _posterior(known, missing, W, s)
        expected = np.where(missing, factors @ W.T, known)
        first += expected.sum(axis=0)
        product += expected.T @ (expected @ V)
        square += float(np.vdot(expected, expected))
        weights = missing.astype(np.float64)
        unseen += weights.sum(axis=0)
        unsure += weights.T @ A
        observed = known.size - float(weights.sum())
        distance = (float(np.vdot(known, known)) - float(np.vdot(known @ W, factors))) / s
        likelihood -= (observed * float(np.log(s)) + float(logarithms.sum()) + distance) / 2
    # per feature, W's row times the sum of A; times W' it is the variance of what is missing beyond the noise
    spread = np.einsum("jp,jpq->jq", W, _full(unsure, q))
    product += spread * (model.variances / np.sqrt(model.variances - s))
    return FactorSums(first, product, square + s * float(unseen.sum()) + float(np.vdot(spread, W)), likelihood)


def filled_by_factors(centred: Array, factors: Array) -> Array:
    """Rows (n, d) less their mean, NaN where a value is missing, filled by what is expected of them.

    Parameters
    ----------
    centred : ndarray of shape (n, d)
    factors : ndarray of shape (q + 1, d)
        W' and, in the last row, the variance of each feature's noise, above 0; in the unit of the rows.
    """
    unit = np.sqrt(factors[-1])
    W, missing = (factors[:-1] / unit).T, np.isnan(centred)
    known = np.where(missing, 0.0, centred / unit)
    _, _, found = _posterior(known, missing, W, 1.0)
    return np.where(missing, (found @ W.T) * unit, centred)


def filled_by(centred: Array, covariance: Array | None, factors: Array | None) -> Array:
    """Rows as `incomplete.filled` by a covariance, or as `filled_by_factors`; as they are where there is neither."""
    if factors is not None:
        return filled_by_factors(centred, factors)
    return centred if covariance is None else filled(centred, covariance)


def _posterior(known: Array, missing: NDArray[np.bool_], W: Array, s: float) -> tuple[Array, Array, Array]:
    """Of each row the triangle of A (n, q (q + 1) / 2), the logarithm of det A^-1 (n,), the expected factors (n, q)."""
    q = W.shape[1]
    i, j = np.triu_indices(q)
    grams = _full((~missing).astype(np.float64) @ (W[:, i] * W[:, j]), q) / s + np.eye(q)
    A: Array = np.asarray(np.linalg.inv(grams), dtype=np.float64)
    logarithms: Array = np.asarray(np.linalg.slogdet(grams)[1], dtype=np.float64)
    factors = np.einsum("nij,nj->ni", A, known @ W) / s
    return A[:, i, j], logarithms, factors


def _full(triangles: Array, q: int) -> Array:
    """Symmetric matrices (n, q, q) from their upper triangles (n, q (q + 1) / 2)."""
    i, j = np.triu_indices(q)
    whole = np.empty((len(triangles), q, q))
    whole[:, i, j] = whole[:, j, i] = triangles
    return whole
