"""EM for probabilistic PCA of wide rows with missing values: a Gaussian whose covariance has few factors.

The model has the mean m, q directions V (d, q) with variances L, and the variance s in all other directions:
``x = m + W e + noise`` with ``W = V (L - s)^1/2``.

*At a party* (`factor_sums`). For a row with observed deviations x_o, and with the rows W_o and W_u of W for the
observed and the missing features::

    A = (I + W_o' W_o / s)^-1,    E[x_u] = W_u A W_o' x_o / s,    cov[x_u] = s I + W_u A W_u'

so no d x d matrix is formed. Of the expected products the sums have those with V: d q values.

*At the server* (`FactorEM`). From the sums ``a`` of the expected deviations from m, and ``B``, their expected products
times V, the next model is one step of subspace iteration, on the expected scatter about the new mean and the prior::

    m' = m + a / n,    T V = B - a a'V / n,    (T V + prior V) / (n + prior) = P D R',    V' = P, L' = D

s' is the mean of the expected variance without D. At rest, the likelihood and the prior together are at a maximum
(Tipping and Bishop 1999, appendix A); ``prior I`` is worth so many rows of independent features of equal variance, as
in `fedpca_flwr.strategies.em.gaussian_em`. Without missing values it is subspace iteration on the scatter.

The iteration runs on the block ``P (D - s)^1/2 R'``, whose map does not depend on how P and R are turned, with the mean
and log s beside, and is accelerated (`fedpca_flwr.maths.anderson`).

Source: Tipping and Bishop 1999, Journal of the Royal Statistical Society B 61; Ilin and Raiko 2010, Journal of Machine
Learning Research 11.
"""

import math
from typing import NamedTuple

import numpy as np
from scipy.linalg import eigh, svd

from fedpca_flwr.maths.anderson import Anderson
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.incomplete_rows import MIN_EIGENVALUE, factor_posterior, selected_grams, symmetric_matrices
from fedpca_flwr.strategies.em.gap_groups import GappedRows, Groups

MIN_VARIANCE_EXCESS = 2.0**-20  # the variance along a factor is larger than the noise by this share of it, at least
NEGATIVE_TOLERANCE = 1e-6  # rounding may leave an eigenvalue of a scatter below zero by this share of the variance


class FactorGaussian(NamedTuple):
    """A Gaussian whose covariance is that of q factors plus noise of equal variance in all directions."""

    mean: Array  # m (d,)
    basis: Array  # V (d, q), orthonormal columns
    variances: Array  # L (q,) along V, each larger than the noise
    noise: float  # variance s in all other directions

    @property
    def loadings(self) -> Array:
        """Loadings W (d, q) of the factors."""
        return self.basis * np.sqrt(self.variances - self.noise)


class FactorSums(NamedTuple):
    """Expected sums over rows with missing values, as a step of expectation-maximisation needs."""

    first: Array  # (d,), sum of the expected deviations from the model's mean
    product: Array  # (d, q), sum of their expected products, times the basis
    square: float  # sum of their expected squares
    likelihood: float  # sum of the log densities of observed values, but for a constant


def factor_sums(rows: GappedRows, model: FactorGaussian, centre: Array, unit: Array) -> FactorSums:
    """Compute the E-step: the expected sums of rows with missing values under a model of few factors.

    The model is of the rows less ``centre`` (d,), divided by ``unit`` (d,).
    """
    V, W, s = model.basis, model.loadings, model.noise
    d, q = V.shape
    first, product, square, likelihood = np.zeros(d), np.zeros((d, q)), 0.0, 0.0
    missing_counts, uncertainty = np.zeros(d), np.zeros((d, q * (q + 1) // 2))
    offset = (rows.reference - centre) / unit - model.mean
    for groups in rows.groups():
        missing, roots = groups.missing, np.sqrt(groups.counts)[:, None]
        deviations = np.where(missing, 0.0, groups.means / unit + offset)
        A, logarithms, factors = factor_posterior(deviations, missing, W, s)
        deviations *= roots
        factors *= roots
        means = np.where(missing, factors @ W.T, deviations)
        first += (roots * means).sum(axis=0)
        product += means.T @ (means @ V)
        weights = missing * groups.counts[:, None]
        missing_counts += weights.sum(axis=0)
        uncertainty += weights.T @ A
        within = _within_group_sums(groups, A, model, unit)
        product += within.product
        square += float(np.vdot(means, means)) + within.square
        distance = float(np.vdot(deviations, deviations)) - float(np.vdot(deviations @ W, factors))
        observed = float(groups.counts.sum()) * d - float(weights.sum())
        likelihood -= (observed * float(np.log(s)) + float(groups.counts @ logarithms) + distance / s) / 2
        likelihood += within.likelihood
    # per feature, W's row times the sum of A; times W' it is the variance of what is missing beyond the noise
    spread = np.einsum("jp,jpq->jq", W, symmetric_matrices(uncertainty, q))
    product += spread * (model.variances / np.sqrt(model.variances - s))
    return FactorSums(first, product, square + s * float(missing_counts.sum()) + float(np.vdot(spread, W)), likelihood)


def _within_group_sums(groups: Groups, triangles: Array, model: FactorGaussian, unit: Array) -> FactorSums:
    """Return what the scatters within groups add to the sums, given the groups' posterior covariances (triangles).

    A filled row is x_o and W_u e, with ``e = N V_o'x_o``. So of the products of filled rows with V the rows o are ``R
    V_o Z``, and the rows u ``W_u N (V_o'R V_o) Z``, with ``Z = I + N' W_u'V_u``. The triangles are (g, q (q + 1) / 2).
    """
    V, W, sizes = model.basis, model.loadings, np.sqrt(model.variances - model.noise)
    (d, q), squares = V.shape, groups.squares() / unit / unit
    product, square, explained = np.zeros((d, q)), float(squares.sum()), 0.0
    for indices, products in groups.scatter_products(V / unit[:, None]):
        products /= unit
        inner, N = products @ V, symmetric_matrices(triangles[indices], q) * (sizes / model.noise)
        missing = groups.missing[indices].astype(np.float64)
        crossed = sizes[:, None] * selected_grams(missing, V)
        Z = np.eye(q) + N.transpose(0, 2, 1) @ crossed
        expected = N @ inner
        product += products.reshape(-1, d).T @ Z.reshape(-1, q)
        across = missing.T @ (expected @ Z).reshape(-1, q * q)
        product += np.einsum("jp,jpq->jq", W, across.reshape(d, q, q))
        square += float(np.vdot(crossed * sizes, expected @ N.transpose(0, 2, 1)))
        explained += float(np.einsum("gii,i->", expected, sizes))
    return FactorSums(np.zeros(d), product, square, (explained - float(squares.sum())) / (2 * model.noise))


def squared_error_by_factors(rows: GappedRows, factors: Array, mean: Array, scale: Array, components: Array) -> float:
    """Compute the sum of squares that components leave of rows whose missing values a factor model fills.

    Factors are those of `fill_by_factors`. Filled rows are centred and scaled before orthonormal components meet them.
    Shapes: factors (q + 1, d), mean, scale (d,), components (k, d).
    """
    unit, k, q = np.sqrt(factors[-1]), len(components), len(factors) - 1
    W, squared = (factors[:-1] / unit).T, 0.0
    lift = W * (unit / scale)[:, None]  # from factors to filled features
    block = np.hstack([components.T / scale[:, None], W / unit[:, None]])
    for groups in rows.groups():
        deviations = np.where(groups.missing, 0.0, groups.means + (rows.reference - mean))
        triangles, _, expected_factors = factor_posterior(deviations / unit, groups.missing, W, 1.0)
        means = np.where(groups.missing, expected_factors @ lift.T, deviations / scale)
        means *= np.sqrt(groups.counts)[:, None]
        scores = means @ components.T
        squared += float(np.vdot(means, means)) - float(np.vdot(scores, scores))
        squared += float((groups.squares() / scale / scale).sum())
        for indices, products in groups.scatter_products(block):
            inner, A = products @ block, symmetric_matrices(triangles[indices], q)
            missing = groups.missing[indices].astype(np.float64)
            crossed = np.einsum("gj,kj,jq->gkq", missing, components, lift, optimize=True)
            filling = np.concatenate([np.tile(np.eye(k), (indices.size, 1, 1)), crossed @ A], axis=2)  # to scores
            squared += float(np.vdot(selected_grams(missing, lift), A @ inner[:, k:, k:] @ A))
            squared -= float(np.vdot(filling, filling @ inner))
    return squared


class FactorEM:
    """An expectation-maximisation for a model of few factors, in the unit in which variances are 1 on average.

    It starts from a mean (d,) and a block (d, q < d) of full rank. `rows` is the number n of rows with any value, and
    `prior`, above 0, the number of rows that the prior is worth.
    """

    model: FactorGaussian  # the model whose sums the iteration needs next
    mean: Array  # m' (d,) of the last step
    vectors: Array  # (d, q), best approximations to eigenvectors of T in the span of the last V
    values: Array  # (q,), their eigenvalues, descending
    total: float  # trace of T

    def __init__(self, rows: int, mean: Array, block: Array, *, prior: float) -> None:
        self.rows = rows
        self.prior = max(prior, 4 * MIN_EIGENVALUE * rows)
        basis, _, turn = svd(block, full_matrices=False)
        self.model = FactorGaussian(mean, basis, np.full(basis.shape[1], 2.0), 1.0)
        self._turn = turn
        self._anderson = Anderson(_to_vector(mean, basis @ turn, 1.0), _is_valid)

    def add(self, sums: FactorSums) -> None:
        """Take the sums of all rows under the current `model`, and choose the next; ValueError if no rows have them."""
        V, n, weight = self.model.basis, self.rows, self.rows + self.prior
        d, q = V.shape
        self.mean = self.model.mean + sums.first / n
        TV = sums.product - np.outer(sums.first, sums.first @ V) / n
        self.total = sums.square - float(sums.first @ sums.first) / n
        values, rotation = eigh(V.T @ TV, check_finite=False)
        self.values, self.vectors = values[::-1], V @ rotation[:, ::-1]
        positive = values[0] >= -NEGATIVE_TOLERANCE * self.total
        if not (positive and values.sum() <= (1 + NEGATIVE_TOLERANCE) * self.total):  # of NaN, too
            raise ValueError("the expected scatter is not positive semidefinite")
        P, D, R = svd((TV + self.prior * V) / weight, full_matrices=False, check_finite=False)
        noise = max((self.total + d * self.prior) / weight - float(D.sum()), (d - q) * self.prior / weight) / (d - q)
        sizes = np.sqrt((D - noise).clip(min=MIN_VARIANCE_EXCESS * noise))
        L, before = self.model.variances, self.model.noise
        # minus twice the log density of a prior that is worth one row
        distance = float((np.log(L) + 1 / L).sum()) + (d - L.size) * (math.log(before) + 1 / before)
        likelihood = sums.likelihood - self.prior * distance / 2
        self._anderson.add(_to_vector(self.mean, (P * sizes) @ R @ self._turn, noise), likelihood)
        self.model, self._turn = _from_vector(self._anderson.point, d, q)


def _to_vector(mean: Array, block: Array, noise: float) -> Array:
    """Return mean, loadings and logarithm of the noise as a vector, which the acceleration combines."""
    return np.concatenate([mean, block.ravel(), [math.log(noise)]])


def _from_vector(point: Array, d: int, q: int) -> tuple[FactorGaussian, Array]:
    """Return the model of a vector of `_to_vector`, and the rotation that makes its loadings orthogonal."""
    noise = math.exp(point[-1])
    basis, sizes, turn = svd(point[d:-1].reshape(d, q), full_matrices=False, check_finite=False)
    return FactorGaussian(point[:d], basis, noise + (sizes**2).clip(min=MIN_VARIANCE_EXCESS * noise), noise), turn


def _is_valid(point: Array) -> bool:
    """Return whether a vector of `_to_vector` is finite and its noise variance is within float64's range."""
    return bool(np.isfinite(point).all() and abs(point[-1]) < -math.log(2 * MIN_EIGENVALUE))
