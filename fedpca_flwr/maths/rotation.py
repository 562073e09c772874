"""Rotations of loadings that make each feature load on few of them: varimax (Kaiser 1958), promax (Hendrickson and
White 1964).

With Kaiser's normalisation each feature's loadings are scaled to length 1 for the search, so that features of which the
components hold little count as much as others; that is the default of R's ``varimax`` and ``factanal``.
"""

from __future__ import annotations

import numpy as np
from scipy.linalg import lstsq, svd

from fedpca_flwr.maths.arrays import Array

STEPS, TOLERANCE = 10000, 1e-14
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
        if strengths.sum() <= before * (1 + TOLERANCE):
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
