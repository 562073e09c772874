r"""The Stiefel manifold St(d, r): matrices U (d, r) with orthonormal columns. Every function takes stacks of matrices.

The tangent space at U holds the X with ``U'X + X'U = 0``. Steps are taken in it, and the polar retraction leads back to
the manifold (Ozkara et al. 2023, section II-A).
"""

import numpy as np

from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.eigen import polar_factor


def transpose(X: Array) -> Array:
    """Transpose each matrix of a stack: swap the last two axes."""
    return np.swapaxes(X, -1, -2)


def symmetric_part(M: Array) -> Array:
    """Compute the symmetric part ``(M + M') / 2`` of square matrices M (..., r, r)."""
    return (M + transpose(M)) / 2


def tangent_projection(U: Array, X: Array) -> Array:
    """Project X to the tangent space of the Stiefel manifold at U, both (..., d, r), orthogonally: X - U sym(U'X)."""
    return X - U @ symmetric_part(transpose(U) @ X)


def retract(U: Array, X: Array) -> Array:
    """Step from a point U of the Stiefel manifold along a tangent X, both (..., d, r): ``(U + X)(I + X'X)^(-1/2)``."""
    values, vectors = np.linalg.eigh(transpose(X) @ X)
    root: Array = (vectors / np.sqrt(1 + values)[..., None, :]) @ transpose(vectors)
    return (U + X) @ root


def align(U: Array, V: Array) -> Array:
    """Rotate U by an orthogonal Q from the right to the ``U Q`` nearest to V, both (..., d, r) (Procrustes)."""
    return U @ polar_factor(transpose(U) @ V)
