r"""Linear regression from moments: with scatters :math:`S_{xx}` (p, p) and :math:`S_{xy}` (p, r) about the means, the
slopes of a ridge are :math:`(S_{xx} + \alpha I)^{-1} S_{xy}`; no row is needed.

References: Hoerl and Kennard 1970 (ridge); Jolliffe 1982 (principal components); Wold, Sjostrom and
Eriksson 2001 (PLS).

Canonical correlations from moments: the singular values of
:math:`S_{xx}^{-1/2} S_{xy} S_{yy}^{-1/2}` (Hotelling 1936).

Linear discriminant analysis from moments of features and of columns that are 1 for the rows of a class, else 0.

The mean of such a column is the class's share, and its scatter with the features the class's sum::

    n_c = n m_c,    mu_c = m + S_xc / n_c,    S_w = S_xx - sum_c S_xc S_xc^T / n_c

Reference: Hastie, Tibshirani and Friedman 2009, section 4.3, with the maximum likelihood estimate of the
covariance (divisor n); solved as scikit-learn's ``solver="svd"``.

Factor analysis by maximum likelihood, from a covariance matrix.

The model is :math:`\Sigma = W W^T + \Psi` with k columns of loadings and a diagonal of noise. Given :math:`\Psi` the
best loadings follow from the eigenpairs of :math:`\Psi^{-1/2} S \Psi^{-1/2}`, and what is left is a function of
:math:`\log \Psi` alone, with gradient :math:`(\Sigma_{ii} - S_{ii}) / \Psi_{ii}` (Joreskog 1967), which a quasi-Newton
method minimises. Steps of EM (Rubin and Thayer 1982) end at the same maximum, thousands of them later.

Rotations of loadings that make each feature load on few of them: varimax (Kaiser 1958), promax (Hendrickson and
White 1964).

With Kaiser's normalisation each feature's loadings are scaled to length 1 for the search, so that features of which the
components hold little count as much as others; that is the default of R's ``varimax`` and ``factanal``.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.linalg import cho_factor, cho_solve, eigh, eigvalsh, lstsq, pinv, svd

from fedpca_flwr.maths.arrays import Array

NEGLIGIBLE = 1e-12
"""Directions whose share of the largest variance is smaller are rounding: nothing is regressed on them."""


def least_squares(S_xx: Array, S_xy: Array) -> Array:
    """Slopes (p, r) of least norm; features in any unit, collinear ones too."""
    unit = _deviations(S_xx)
    inverse, _ = pseudo_inverse(S_xx / unit / unit[:, None])
    return (inverse @ (S_xy / unit[:, None])) / unit[:, None]


def pseudo_inverse(S: Array) -> tuple[Array, Array]:
    """Of a symmetric positive semidefinite matrix (p, p); and a basis (p, m) of the directions that it drops."""
    values, vectors = eigh(S)
    kept = values > NEGLIGIBLE * len(S) * max(values[-1], 0.0)
    basis = vectors[:, kept]
    return (basis / values[kept]) @ basis.T, vectors[:, ~kept]


def directions(S: Array) -> int:
    """How many directions of a scatter (p, p) vary by more than rounding."""
    values = eigvalsh(S)
    return int((values > NEGLIGIBLE * len(S) * max(values[-1], 0.0)).sum())


def ridge(S_xx: Array, S_xy: Array, alpha: float) -> Array:
    """Slopes (p, r) with a penalty ``alpha`` > 0 on their squares."""
    factor = cho_factor(S_xx + alpha * np.eye(len(S_xx)), lower=True)
    slopes: Array = cho_solve(factor, S_xy)
    return slopes


def on_components(S_xx: Array, S_xy: Array, k: int) -> Array:
    """Slopes (p, r) of a regression on the first k principal components, at most `directions`."""
    values, vectors = eigh(S_xx, subset_by_index=(len(S_xx) - k, len(S_xx) - 1))
    slopes: Array = vectors @ ((vectors.T @ S_xy) / values[:, None])
    return slopes


def partial_least_squares(S_xx: Array, S_xy: Array, k: int) -> Array:
    """Slopes (p, r) of partial least squares with k latent variables (NIPALS; several responses: PLS2).

    At most `directions`; fewer where nothing is left to explain.
    """
    weights, loadings, responses = [], [], []
    rounding = NEGLIGIBLE * float(np.linalg.norm(S_xy))
    for nth in range(k):
        if nth and np.linalg.norm(S_xy) <= rounding:
            break
        w = svd(S_xy, full_matrices=False)[0][:, 0]
        through = S_xx @ w
        squared = float(w @ through)
        weights.append(w)
        loadings.append(through / squared)
        responses.append(S_xy.T @ w / squared)
        S_xx = S_xx - squared * np.outer(loadings[-1], loadings[-1])
        S_xy = S_xy - squared * np.outer(loadings[-1], responses[-1])
    W, P, Q = np.array(weights).T, np.array(loadings).T, np.array(responses).T
    slopes: Array = W @ pinv(P.T @ W) @ Q.T
    return slopes


def explained_share(S_xx: Array, S_xy: Array, S_yy: Array, slopes: Array) -> Array:
    """R squared of each response (r,), of which ``S_yy`` (r,) are the sums of squares."""
    left = S_yy - 2 * np.sum(slopes * S_xy, axis=0) + np.sum(slopes * (S_xx @ slopes), axis=0)
    shares: Array = 1 - left / S_yy
    return shares


def _deviations(S: Array) -> Array:
    unit = np.sqrt(np.diagonal(S).clip(min=0.0))
    return np.where(unit > 0, unit, 1.0)


def canonical_correlations(S_xx: Array, S_xy: Array, S_yy: Array, k: int) -> tuple[Array, Array, Array]:
    """Correlations (k,), descending, and the directions (p, k) and (q, k) whose scores have them, of sum of squares 1.

    Collinear features are allowed: directions without variance are left out, so there may be fewer than k.
    """
    left, right = _whitening(S_xx), _whitening(S_yy)
    u, correlations, vt = svd(left.T @ S_xy @ right, full_matrices=False)
    return correlations[:k].clip(max=1.0), left @ u[:, :k], right @ vt[:k].T


def _whitening(S: Array) -> Array:
    """A matrix (p, rank) that makes a scatter the identity; features may have any units."""
    unit = np.sqrt(np.diagonal(S))
    unit = np.where(unit > 0, unit, 1.0)
    values, vectors = eigh(S / unit / unit[:, None])
    kept = values > NEGLIGIBLE * len(S) * values[-1]
    whitening: Array = vectors[:, kept] / np.sqrt(values[kept]) / unit[:, None]
    return whitening


SMALLEST_SINGULAR_VALUE = 1e-4
"""Singular values below are no direction, as scikit-learn's ``tol``."""


class Discriminants(NamedTuple):
    """Decision values of rows are ``X @ slopes + intercepts``, one column for each of the c classes.

    ``directions`` (d, at most c - 1) span what tells the classes apart, the first one best.
    """

    slopes: Array
    intercepts: Array
    directions: Array


def discriminants(rows: int, mean: Array, S_xx: Array, S_xc: Array, shares: Array) -> Discriminants:
    """The linear discriminants of c classes.

    Parameters
    ----------
    rows : int
    mean : ndarray of shape (d,)
    S_xx : ndarray of shape (d, d)
    S_xc : ndarray of shape (d, c)
    shares : ndarray of shape (c,)
        Of the classes, all above 0: the priors.
    """
    classes = len(shares)
    deviations = S_xc / (rows * shares)  # of the classes' means from the mean of all
    within = S_xx - (deviations * (rows * shares)) @ deviations.T
    unit = _units(np.diagonal(within), np.diagonal(S_xx), rows)
    values, vectors = eigh(within / unit / unit[:, None] / rows)
    kept = np.sqrt(values.clip(min=0.0)) > SMALLEST_SINGULAR_VALUE
    sphere = vectors[:, kept] / unit[:, None] / np.sqrt(values[kept])
    between = (np.sqrt(rows * shares / max(1, classes - 1)) * deviations).T @ sphere
    _, strengths, directions = svd(between, full_matrices=False)
    directions = sphere @ directions[strengths > SMALLEST_SINGULAR_VALUE * strengths[0]].T
    scores = deviations.T @ directions
    slopes = directions @ scores.T
    intercepts = np.log(shares) - 0.5 * np.sum(scores**2, axis=1) - mean @ slopes
    return Discriminants(slopes, intercepts, directions)


def _units(within: Array, whole: Array, rows: int) -> Array:
    """The features' deviations within classes; 1 where there is none but rounding."""
    rounding = 4 * np.finfo(np.float64).eps * np.sqrt(rows) * whole
    return np.where(within <= rounding, 1.0, np.sqrt(within.clip(min=0.0) / rows))


LEAST_NOISE = 1e-9
"""Of a feature's variance: less noise is none (a Heywood case), and the likelihood has no maximum."""


class Factors(NamedTuple):
    """Loadings (d, k), noise variances (d,), the mean log likelihood of a row, and whether every feature has noise."""

    loadings: Array
    noise: Array
    log_likelihood: float
    proper: bool


def factor_analysis(covariance: Array, k: int) -> Factors:
    """The k factors of greatest likelihood.

    Parameters
    ----------
    covariance : ndarray of shape (d, d)
        Divisor n; every variance above 0.
    k : int
        1 <= k < d.
    """
    from scipy.optimize import minimize  # a tenth of a second to import, for this analysis alone

    unit = np.sqrt(np.diagonal(covariance))
    R = covariance / unit / unit[:, None]
    d, most = len(R), np.log(LEAST_NOISE)
    start = np.full(d, np.log(0.5))
    options = {"maxiter": 15000, "maxfun": 15000, "ftol": 1e-15, "gtol": 1e-9, "maxcor": 30}
    bounds = [(most, 0.0)] * d
    found = minimize(_deviance, start, (R, k), jac=True, method="L-BFGS-B", bounds=bounds, options=options)
    noise = np.exp(found.x)
    loadings = _loadings(noise, R, k)
    likelihood = -0.5 * (found.fun + d * np.log(2 * np.pi)) - float(np.log(unit).sum())
    return Factors(loadings * unit[:, None], noise * unit**2, likelihood, bool((noise > 2 * LEAST_NOISE).all()))


def _deviance(log_noise: Array, R: Array, k: int) -> tuple[float, Array]:
    """Minus twice the mean log likelihood but for a constant, with the best loadings, and its gradient."""
    noise = np.exp(log_noise)
    root = np.sqrt(noise)
    values, vectors = eigh(R / root / root[:, None])
    excess = np.maximum(values[-k:], 1.0)
    explained = np.sum(np.log(excess)) + np.sum(values[-k:] / excess)
    deviance = float(log_noise.sum() + explained + values[:-k].sum())
    fitted = noise * (np.sum(vectors[:, -k:] ** 2 * (excess - 1), axis=1) + 1)
    return deviance, (fitted - np.diagonal(R)) / noise


def _loadings(noise: Array, R: Array, k: int) -> Array:
    root = np.sqrt(noise)
    values, vectors = eigh(R / root / root[:, None], subset_by_index=(len(R) - k, len(R) - 1))
    loadings: Array = root[:, None] * vectors[:, ::-1] * np.sqrt((values[::-1] - 1).clip(min=0.0))
    return loadings


STEPS, SMALLEST_GAIN = 10000, 1e-14
POWER = 4
"""Of promax."""


def varimax(loadings: Array, *, kaiser: bool = True) -> Array:
    """The orthogonal matrix (k, k) by which the squares of loadings (d, k) vary most within the columns."""
    if kaiser:
        lengths = np.linalg.norm(loadings, axis=1)
        loadings = loadings[lengths > 0] / lengths[lengths > 0, None]
    rotation = np.eye(loadings.shape[1])
    before = 0.0
    for _ in range(STEPS):
        rotated = loadings @ rotation
        target = rotated**3 - rotated * np.mean(rotated**2, axis=0)
        u, strengths, vt = svd(loadings.T @ target)
        rotation = u @ vt
        if strengths.sum() <= before * (1 + SMALLEST_GAIN):
            break
        before = float(strengths.sum())
    return rotation


def promax(loadings: Array, *, kaiser: bool = True) -> Array:
    """A matrix (k, k) by which loadings (d, k) come near to the fourth powers of their varimax.

    Its columns are scaled so that the factors have variance 1; they may be correlated.
    """
    orthogonal = varimax(loadings, kaiser=kaiser)
    rotated = loadings @ orthogonal
    fitted, *_ = lstsq(rotated, rotated * np.abs(rotated) ** (POWER - 1))
    spread = np.diagonal(np.linalg.inv(fitted.T @ fitted))
    oblique: Array = orthogonal @ (fitted * np.sqrt(spread))
    return oblique
