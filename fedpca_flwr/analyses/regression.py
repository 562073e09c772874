"""Regression of some features on others: least squares, ridge, on principal components, partial least squares."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from fedpca_flwr.analyses.blocks import blocks, require_count, require_varying, rows_of
from fedpca_flwr.analyses.kinds import of_moments
from fedpca_flwr.errors import ConfigError, DataError, value_text
from fedpca_flwr.maths import regression
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.second_moments import Features, SecondMoments


@dataclass(frozen=True, eq=False)
class Regression:
    """A fitted linear regression.

    Attributes
    ----------
    coefficients : ndarray of shape (p, r)
        In units of response per unit of feature.
    intercepts : ndarray of shape (r,)
    explained_share : ndarray of shape (r,)
        R squared on the rows of the fit.
    features, responses : tuple of str
        Names; empty where the moments have none.
    """

    coefficients: Array
    intercepts: Array
    explained_share: Array
    features: tuple[str, ...]
    responses: tuple[str, ...]

    def predict(self, X: ArrayLike) -> Array:
        """Responses (n, r) of rows ``X`` (n, p), whose columns are the features of the fit.

        Raises
        ------
        DataError
        """
        return rows_of(X, self.features, len(self.coefficients)) @ self.coefficients + self.intercepts


@of_moments
def least_squares(moments: SecondMoments, responses: Features, features: Features | None = None) -> Regression:
    """Ordinary least squares, of least norm where features are collinear.

    Parameters
    ----------
    moments : SecondMoments
    responses : sequence of str or int
        Features that are explained.
    features : sequence of str or int, optional
        By which; without, by all others.

    Raises
    ------
    ConfigError, DataError
    """
    return _fitted(moments, responses, features, regression.least_squares)


@of_moments
def ridge(
    moments: SecondMoments, responses: Features, features: Features | None = None, *, alpha: float = 1.0
) -> Regression:
    """Ridge regression, as `sklearn.linear_model.Ridge` with the same ``alpha`` > 0; else as `least_squares`."""
    if not (isinstance(alpha, int | float) and 0 < alpha < np.inf):
        raise ConfigError(
            f"'alpha' is {value_text(alpha)}, expected a number above 0; without a penalty take least_squares"
        )
    return _fitted(moments, responses, features, lambda S_xx, S_xy: regression.ridge(S_xx, S_xy, alpha))


@of_moments
def principal_component_regression(
    moments: SecondMoments, responses: Features, features: Features | None = None, *, k: int = 2, scale: bool = False
) -> Regression:
    """Regression on the first k principal components; ``scale`` as in a PCA, all else as `least_squares`."""
    return _fitted(moments, responses, features, lambda S_xx, S_xy: regression.on_components(S_xx, S_xy, k), [k], scale)


@of_moments
def partial_least_squares(
    moments: SecondMoments, responses: Features, features: Features | None = None, *, k: int = 2, scale: bool = True
) -> Regression:
    """Partial least squares with k latent variables, as `sklearn.cross_decomposition.PLSRegression`; ``scale`` divides
    features and responses by their deviations; else as `least_squares`."""
    return _fitted(
        moments, responses, features, lambda S_xx, S_xy: regression.partial_least_squares(S_xx, S_xy, k), [k], scale
    )


def _fitted(
    moments: SecondMoments,
    responses: Features,
    features: Features | None,
    slopes_of: Callable[[Array, Array], Array],
    directions: Sequence[int] = (),
    scale: bool = False,
) -> Regression:
    """A regression whose slopes come of the blocks of the scatter, for which the features must have ``directions``."""
    there = blocks(moments, responses, features)
    require_varying(moments, there.y)
    unit_x = unit_y = np.ones(1)
    if scale:
        spread = np.where(moments.is_constant, 1.0, np.sqrt(moments.moments.diagonal().clip(min=0.0)))
        unit_x, unit_y = spread[there.x], spread[there.y]
    S_xx, S_xy = there.S_xx / unit_x / unit_x[:, None], there.S_xy / unit_x[:, None] / unit_y
    for k in directions:
        _require_directions(k, min(moments.n_samples - 1, len(there.x)), S_xx)
    slopes = slopes_of(S_xx, S_xy) / unit_x[:, None] * unit_y
    return Regression(
        coefficients=slopes,
        intercepts=there.mean_y - there.mean_x @ slopes,
        explained_share=regression.explained_share(there.S_xx, there.S_xy, np.diagonal(there.S_yy), slopes),
        features=moments.names(there.x),
        responses=moments.names(there.y),
    )


def _require_directions(k: int, most: int, S_xx: Array) -> None:
    """Refuse more than the features have.

    Raises
    ------
    ConfigError, DataError
    """
    require_count("k", k, most)
    left = regression.directions(S_xx)
    if left < k:
        raise DataError(f"'k' is {k}, but only {left} directions of the features vary by more than rounding")
