r"""Linear regression from moments: with scatters :math:`S_{xx}` (p, p) and :math:`S_{xy}` (p, r) about the means, the
slopes of a ridge are :math:`(S_{xx} + \alpha I)^{-1} S_{xy}`; no row is needed.

References: Hoerl and Kennard 1970 (ridge); Jolliffe 1982 (principal components); Wold, Sjostrom and
Eriksson 2001 (PLS).
"""

from __future__ import annotations

import numpy as np
from scipy.linalg import cho_factor, cho_solve, eigh, eigvalsh, pinv, svd

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
