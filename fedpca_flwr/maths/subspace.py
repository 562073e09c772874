"""Distances between subspaces, accurate down to rounding."""

from __future__ import annotations

import numpy as np
from scipy.linalg import subspace_angles

from fedpca_flwr.maths.arrays import Array


def principal_angles(a: Array, b: Array) -> Array:
    """Principal angles between the column spaces of ``a`` (d, k) and ``b`` (d, m), in degrees, largest first.

    Notes
    -----
    Björck and Golub (1973) with sines for small angles, as `scipy.linalg.subspace_angles` has it. The arccosine of
    the singular values of ``a.T @ b`` cannot see below 1e-6 degrees.
    """
    angles: Array = np.degrees(subspace_angles(a, b))
    return angles


def projector_distance(a: Array, b: Array) -> float:
    """Spectral norm of the difference of the two orthogonal projectors: the sine of the largest principal angle."""
    return float(np.sin(np.radians(principal_angles(a, b).max())))
