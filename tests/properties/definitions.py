"""The numbers of a model by their definitions.

They are computed in 80-bit floats and by Jacobi's rotations: without LAPACK, and with nothing of the library.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Long = np.longdouble
Matrix = NDArray[Any]


def eigenpairs(matrix: Matrix) -> tuple[Matrix, Matrix]:
    """Return the eigenvalues (d,), descending, and vectors (d, d) of a symmetric matrix (Jacobi 1846)."""
    A, V = matrix.astype(Long), np.eye(len(matrix), dtype=Long)
    least, turned = np.finfo(Long).eps * np.trace(A) / 2**10, True
    while turned:
        turned = False
        for p in range(len(A) - 1):
            for q in range(p + 1, len(A)):
                if abs(A[p, q]) <= least:
                    continue
                turned = True
                slope = (A[q, q] - A[p, p]) / (2 * A[p, q])
                tangent = (1 if slope >= 0 else -1) / (abs(slope) + np.hypot(slope, Long(1)))
                cosine = 1 / np.hypot(tangent, Long(1))
                turn = np.array([[cosine, cosine * tangent], [-cosine * tangent, cosine]])
                A[:, [p, q]] = A[:, [p, q]] @ turn
                A[[p, q]] = turn.T @ A[[p, q]]
                V[:, [p, q]] = V[:, [p, q]] @ turn
                A[p, q] = A[q, p] = 0
    order = np.argsort(-np.diag(A))
    return np.diag(A)[order], V[:, order]


def centred(rows: Matrix, scale: Matrix | None = None) -> Matrix:
    """Return rows less their mean, over a scale."""
    found = rows.astype(Long) - rows.astype(Long).mean(axis=0)
    found -= found.mean(axis=0)
    return found if scale is None else found / scale


def degrees(one: Matrix, other: Matrix) -> float:
    """Return the largest angle between the spans of orthonormal columns: its sine is a norm."""
    left = one - other @ (other.T @ one)
    return float(np.degrees(np.arcsin(min(Long(1), np.sqrt(max(Long(0), eigenpairs(left.T @ left)[0][0]))))))


def spread_over(scatter: Matrix) -> float:
    """Return over how many directions a scatter (d, d) is spread: the squared trace over the sum of squares."""
    return float(np.trace(scatter) ** 2 / (scatter**2).sum())


def cut_rows(rows: Matrix, sizes: Sequence[int]) -> list[Matrix]:
    """Return parties of such sizes."""
    return np.split(rows, np.cumsum(sizes)[:-1])
