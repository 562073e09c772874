"""Canonical correlations of two groups of features."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from fedpca_flwr.analyses.blocks import blocks, require_count, rows_of
from fedpca_flwr.analyses.kinds import of_moments
from fedpca_flwr.errors import DataError
from fedpca_flwr.maths import canonical
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.second_moments import Features, SecondMoments


@dataclass(frozen=True, eq=False)
class CanonicalCorrelations:
    """Attributes
    ----------
    correlations : ndarray of shape (k,)
        Descending.
    x_directions, y_directions : ndarray of shape (p, k), (q, k)
        Their scores have variance 1 (divisor n - 1); the largest absolute entry of each of ``x`` is positive.
    x_mean, y_mean : ndarray of shape (p,), (q,)
    x_features, y_features : tuple of str
        Names; empty where the moments have none.
    """

    correlations: Array
    x_directions: Array
    y_directions: Array
    x_mean: Array
    y_mean: Array
    x_features: tuple[str, ...]
    y_features: tuple[str, ...]

    def transform(self, X: ArrayLike, Y: ArrayLike) -> tuple[Array, Array]:
        """Scores (n, k) of rows ``X`` (n, p) and ``Y`` (n, q).

        Raises
        ------
        DataError
        """
        x = rows_of(X, self.x_features, self.x_mean.size) - self.x_mean
        y = rows_of(Y, self.y_features, self.y_mean.size, "Y") - self.y_mean
        return x @ self.x_directions, y @ self.y_directions


@of_moments
def canonical_correlations(
    moments: SecondMoments, x: Features, y: Features | None = None, *, k: int = 2
) -> CanonicalCorrelations:
    """The first k canonical correlations of features ``x`` and ``y``; without ``y`` all others.

    Raises
    ------
    ConfigError, DataError
    """
    others = np.setdiff1d(np.arange(moments.n_features), moments.places(x))
    found = blocks(moments, others.tolist() if y is None else y, x)
    most = min(moments.n_samples - 1, len(found.x), len(found.y))
    require_count("k", k, most)
    values, left, right = canonical.canonical_correlations(found.S_xx, found.S_xy, found.S_yy, k)
    if values.size < k:
        raise DataError(f"'k' is {k}, but collinear features leave {values.size} correlations; ask for as many")
    signs = np.sign(left[np.abs(left).argmax(axis=0), np.arange(k)])
    unit = np.sqrt(moments.n_samples - 1) * signs
    means = found.mean_x, found.mean_y
    return CanonicalCorrelations(
        values, left * unit, right * unit, *means, moments.names(found.x), moments.names(found.y)
    )
