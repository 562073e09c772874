"""Rotations of loadings that make each feature load on few of them: varimax (Kaiser 1958), promax (Hendrickson and
White 1964)."""

from __future__ import annotations

import numpy as np
from scipy.linalg import lstsq, svd

from fedpca_flwr.maths.arrays import Array

STEPS, TOLERANCE = 10000, 1e-14
POWER = 4
"""Of promax."""


def varimax(loadings: Array) -> Array:
    """The orthogonal matrix (k, k) by which the squares of loadings (d, k) vary most within the columns."""
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


def promax(loadings: Array) -> Array:
    """A matrix (k, k) by which loadings (d, k) come near to the fourth powers of their varimax.

    Its columns are scaled so that the factors have variance 1; they may be correlated.
    """
    orthogonal = varimax(loadings)
    rotated = loadings @ orthogonal
    fitted, *_ = lstsq(rotated, rotated * np.abs(rotated) ** (POWER - 1))
    spread = np.diagonal(np.linalg.inv(fitted.T @ fitted))
    oblique: Array = orthogonal @ (fitted * np.sqrt(spread))
    return oblique
