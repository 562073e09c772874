r"""Canonical correlations from moments: the singular values of
:math:`S_{xx}^{-1/2} S_{xy} S_{yy}^{-1/2}` (Hotelling 1936)."""

from __future__ import annotations

import numpy as np
from scipy.linalg import eigh, svd

from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.regression import NEGLIGIBLE


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
