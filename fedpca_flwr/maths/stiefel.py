r"""The Stiefel manifold St(d, r): matrices U (d, r) with orthonormal columns. Every function takes stacks of them.

The tangent space at U holds the X with ``U'X + X'U = 0``. Steps are taken in it, and the polar retraction leads back to
the manifold (Ozkara et al. 2023, section II-A).
"""

import numpy as np

from fedpca_flwr.maths.arrays import Array


def transpose(X: Array) -> Array:
    """The matrices (..., a, b) of a stack, transposed: (..., b, a)."""
    return np.swapaxes(X, -1, -2)


def symmetric_part(M: Array) -> Array:
    """The symmetric part of square matrices (..., r, r)."""
    return (M + transpose(M)) / 2


def tangent_projection(U: Array, X: Array) -> Array:
    """The orthogonal projection of ``X`` (..., d, r) to the tangent space at ``U`` (..., d, r)."""
    return X - U @ symmetric_part(transpose(U) @ X)


def retract(U: Array, X: Array) -> Array:
    """The polar retraction ``(U + X)(I + X'X)^(-1/2)`` of a tangent ``X`` at ``U``, both (..., d, r).

    Right for a tangent X only: project first (`tangent`).
    """
    values, vectors = np.linalg.eigh(transpose(X) @ X)
    root: Array = (vectors / np.sqrt(1 + values)[..., None, :]) @ transpose(vectors)
    return (U + X) @ root


def polar_factor(M: Array) -> Array:
    """The nearest point of the manifold to ``M`` (..., d, r) of full rank."""
    left_vectors, _, right_vectors = np.linalg.svd(M, full_matrices=False)
    nearest: Array = left_vectors @ right_vectors
    return nearest


def align(U: Array, V: Array) -> Array:
    """``U Q`` (..., d, r) with the rotation Q that brings it nearest to ``V`` (Procrustes)."""
    return U @ polar_factor(transpose(U) @ V)
