r"""Factor analysis by maximum likelihood, from a covariance matrix.

The model is :math:`\Sigma = W W^T + \Psi` with k columns of loadings and a diagonal of noise. Given :math:`\Psi` the
best loadings follow from the eigenpairs of :math:`\Psi^{-1/2} S \Psi^{-1/2}`, and what is left is a function of
:math:`\log \Psi` alone, with gradient :math:`(\Sigma_{ii} - S_{ii}) / \Psi_{ii}` (Joreskog 1967), which a quasi-Newton
method minimises. Steps of EM (Rubin and Thayer 1982) end at the same maximum, thousands of them later.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.linalg import eigh

from fedpca_flwr.maths.arrays import Array

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
