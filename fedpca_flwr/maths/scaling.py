"""By what features and directions are divided, and which features are constant."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedpca_flwr.maths.arrays import Array


def safe_deviation(diagonal: Array, n: int, mean: Array) -> Array:
    """Standard deviation of each feature (divisor n, as in `sklearn.preprocessing.StandardScaler`).

    A constant feature gives 1, so that dividing by the result is always safe. Constant means: no more variance than
    the rounding of its own mean explains (scikit-learn's ``_is_constant_feature``).

    Parameters
    ----------
    diagonal : ndarray of shape (d,)
        Of the scatter of n rows about their mean.
    n : int
    mean : ndarray of shape (d,)
    """
    return np.where(constant_features(diagonal, n, mean), 1.0, np.sqrt(diagonal / n))


def constant_features(diagonal: Array, n: int | Array, mean: Array) -> NDArray[np.bool_]:
    """Which features are constant to `safe_deviation`, whose parameters these are; ``n`` may differ between them."""
    variance, eps = diagonal / n, np.finfo(np.float64).eps
    return variance <= n * eps * variance + (n * mean * eps) ** 2


def certainly_varying(diagonal: Array, mean: Array) -> int:
    """How many features are not constant for certain, by the diagonal (d,) of the scatter and their means (d,)."""
    # the least change of one value adds (eps mean)^2 / 8, a constant's mean in two floats (eps^2 mean)^2 for each row
    return int((diagonal > (np.finfo(np.float64).eps * mean) ** 2 / 16).sum())


def scaled_columns(V: Array) -> tuple[Array, NDArray[np.int32]]:
    """Columns of ``V`` (d, b) divided by powers of two, so that the largest size of an entry in each is between 1/2 and
    1, and the exponents (b,): a column of any size makes no row's product overflow or vanish, and no bit is lost."""
    exponents: NDArray[np.int32]
    _, exponents = np.frexp(np.abs(V).max(axis=0, initial=0.0))
    return np.ldexp(V, -exponents), exponents
