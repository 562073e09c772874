r"""Relations between features: canonical correlations, linear discriminant analysis, and linear regression.

*Canonical correlations* of features x and y, with the scatters :math:`S_{xx}`, :math:`S_{xy}` and :math:`S_{yy}`, are
the singular values of :math:`S_{xx}^{-1/2} S_{xy} S_{yy}^{-1/2}` (Hotelling 1936).

*Linear discriminant analysis* takes classes as columns of the rows: 1 in the rows of a class, else 0. The mean of such
a column is the share of the class, and its scatter :math:`S_{xc}` with the features gives the mean of the class::

    n_c = n m_c,    mu_c = m + S_xc / n_c,    S_w = S_xx - sum_c S_xc S_xc^T / n_c

(Hastie, Tibshirani and Friedman 2009, section 4.3, solved as scikit-learn's ``solver="svd"``.)

*Regression*: the slopes of a ridge are :math:`(S_{xx} + \alpha I)^{-1} S_{xy}`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import cho_factor, cho_solve, eigh, pinv, svd

from fedpca_flwr.analyses import inputs
from fedpca_flwr.errors import ConfigError, DataError, value_text
from fedpca_flwr.maths import eigen
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.model.second_moments import Features, SecondMoments
from fedpca_flwr.model.tables import DisplayTable, display_as, feature_rows, largest_features

# singular values below this are no direction that tells classes apart, as scikit-learn's ``tol``
MIN_SINGULAR_VALUE = 1e-4


def _canonical_table(result: CanonicalCorrelations) -> DisplayTable:
    """Return the display of canonical correlations with the largest entries of each pair of directions."""
    names = result.x_features, result.y_features
    directions = zip(result.correlations, result.x_directions.T, result.y_directions.T, strict=True)
    rows = [
        [i + 1, r, largest_features(x, names[0]), largest_features(y, names[1])]
        for i, (r, x, y) in enumerate(directions)
    ]
    return DisplayTable("CanonicalCorrelations", ["pair", "correlation", "first group", "second group"], rows)


@display_as(_canonical_table)
@dataclass(frozen=True, eq=False)
class CanonicalCorrelations:
    """Canonical correlations of two groups of features, with directions and means of both groups.

    Parameters
    ----------
    correlations : ndarray of shape (k,)
        Descending.
    x_directions, y_directions : ndarray of shape (p, k), (q, k)
        Directions. The scores on them have variance 1 (divisor n - 1), and the largest absolute entry of each direction
        of ``x`` is positive.
    x_mean, y_mean : ndarray of shape (p,), (q,)
    x_features, y_features : tuple of str
        Names of the features; empty if the moments have none.
    """

    correlations: Array
    x_directions: Array
    y_directions: Array
    x_mean: Array
    y_mean: Array
    x_features: tuple[str, ...]
    y_features: tuple[str, ...]

    def transform(self, X: ArrayLike, Y: ArrayLike) -> tuple[Array, Array]:
        """Compute the scores of rows on the directions of both groups.

        Parameters
        ----------
        X, Y : array-like of shape (n, p), (n, q)
            Rows with the features of the first group, and the same rows with those of the second.

        Returns
        -------
        x_scores, y_scores : ndarray of shape (n, k)
        """
        x = inputs.finite_rows(X, self.x_features, self.x_mean.size) - self.x_mean
        y = inputs.finite_rows(Y, self.y_features, self.y_mean.size, "Y") - self.y_mean
        return x @ self.x_directions, y @ self.y_directions


@inputs.takes_moments
def canonical_correlations(
    moments: SecondMoments, x: Features, y: Features | None = None, *, k: int = 2
) -> CanonicalCorrelations:
    """Compute the first k canonical correlations of two groups of features (Hotelling 1936).

    Parameters
    ----------
    moments : SecondMoments
    x : sequence of str or int
        Features of the first group.
    y : sequence of str or int, optional
        Features of the second group; by default all other features.
    k : int, default 2
        Number of correlations.

    Returns
    -------
    CanonicalCorrelations

    Raises
    ------
    ConfigError
        If features are unknown or in both groups, or k is too large.
    DataError
        If collinear features leave fewer than k correlations.
    """
    other_columns = np.setdiff1d(np.arange(moments.n_features), moments.places(x))
    parts = inputs.scatter_blocks(moments, other_columns.tolist() if y is None else y, x)
    maximum = min(moments.n_samples - 1, len(parts.x), len(parts.y))
    inputs.require_count("k", k, maximum)
    whiten_x, whiten_y = eigen.whitening_matrix(parts.S_xx), eigen.whitening_matrix(parts.S_yy)
    u, values, vt = svd(whiten_x.T @ parts.S_xy @ whiten_y, full_matrices=False)
    values, x_directions, y_directions = values[:k].clip(max=1.0), whiten_x @ u[:, :k], whiten_y @ vt[:k].T
    if values.size < k:
        raise DataError(f"'k' is {k}, but collinear features leave {values.size} correlations; ask for as many")
    unit = np.sqrt(moments.n_samples - 1) * eigen.column_signs(x_directions)
    directions, names = (x_directions * unit, y_directions * unit), (moments.names(parts.x), moments.names(parts.y))
    return CanonicalCorrelations(values, *directions, parts.mean_x, parts.mean_y, *names)


def _discriminant_table(result: Discriminant) -> DisplayTable:
    """Return the display of each class: its rows, and its largest slopes."""
    names = result.classes or range(result.counts.size)
    slopes = (largest_features(slope, result.features) for slope in result.slopes.T)
    rows = list(zip(names, result.counts.tolist(), slopes, strict=True))
    return DisplayTable(f"Discriminant: {len(rows)} classes", ["class", "rows", "largest slopes"], rows)


@display_as(_discriminant_table)
@dataclass(frozen=True, eq=False)
class Discriminant:
    """Fitted linear discriminant analysis of c classes.

    Parameters
    ----------
    slopes, intercepts : ndarray of shape (p, c), (c,)
    directions : ndarray of shape (p, at most c - 1)
        Directions that separate the classes, the best first.
    mean : ndarray of shape (p,)
    counts : ndarray of int of shape (c,)
        Number of rows of each class.
    features, classes : tuple of str
        Names; empty if the moments have none.
    """

    slopes: Array
    intercepts: Array
    directions: Array
    mean: Array
    counts: NDArray[np.int64]
    features: tuple[str, ...]
    classes: tuple[str, ...]

    def decision(self, X: ArrayLike) -> Array:
        """Compute the log posterior of each class, up to a constant of each row.

        Parameters
        ----------
        X : array-like of shape (n, p)

        Returns
        -------
        ndarray of shape (n, c)
        """
        return inputs.finite_rows(X, self.features, len(self.slopes)) @ self.slopes + self.intercepts

    def predict(self, X: ArrayLike) -> NDArray[np.intp]:
        """Predict the class of each row.

        Parameters
        ----------
        X : array-like of shape (n, p)

        Returns
        -------
        ndarray of int of shape (n,)
            Position of the class in the list that the fit was given.
        """
        return np.asarray(self.decision(X).argmax(axis=1))

    def transform(self, X: ArrayLike) -> Array:
        """Project rows on the discriminant directions.

        Parameters
        ----------
        X : array-like of shape (n, p)

        Returns
        -------
        ndarray of shape (n, at most c - 1)
        """
        return (inputs.finite_rows(X, self.features, len(self.slopes)) - self.mean) @ self.directions


@inputs.takes_moments
def discriminant(moments: SecondMoments, classes: Features, features: Features | None = None) -> Discriminant:
    """Fit a linear discriminant analysis. The prior probability of a class is its share of the rows.

    The result is that of scikit-learn from 1.9 on (divisor n).

    Parameters
    ----------
    moments : SecondMoments
        Moments of rows with a column for each class, which is 1 in rows of the class and 0 in others. Each row is in
        one class.
    classes : sequence of str or int
        Columns of the classes.
    features : sequence of str or int, optional
        Features that separate the classes; by default all other features.

    Returns
    -------
    Discriminant

    Raises
    ------
    ConfigError
        If features are unknown, or on both sides.
    DataError
        If the columns of the classes are not such indicators, or the rows are no more than the classes.
    """
    parts = inputs.scatter_blocks(moments, classes, features)
    n = moments.n_samples
    counts = np.rint(n * parts.mean_y).astype(np.int64)
    shares = counts / n
    expected = n * (np.diag(shares) - np.outer(shares, shares))  # scatter of indicators of classes
    fault = max(np.abs(n * parts.mean_y - counts).max(), np.abs(parts.S_yy - expected).max())
    if fault > 1e-6 * n or counts.sum() != n or counts.min() < 1 or n <= len(counts):
        fault = "are not each 1 in some rows and 0 in the others, every row in one class; code them so at every site"
        raise DataError(f"the columns of the classes {fault}")
    names = moments.names(parts.x), moments.names(parts.y)
    return Discriminant(*_solve_discriminant(parts, shares, n), parts.mean_x, counts, *names)


def _solve_discriminant(parts: inputs.ScatterBlocks, shares: Array, n: int) -> tuple[Array, Array, Array]:
    """Return an LDA's slopes (p, c), intercepts (c,) and directions (p, up to c - 1), for ``shares`` (c,) of n rows."""
    deviations = parts.S_xy / (n * shares)  # of the classes' means from the mean of all
    within = parts.S_xx - (deviations * (n * shares)) @ deviations.T
    rounding = 4 * np.finfo(np.float64).eps * np.sqrt(n) * np.diagonal(parts.S_xx)
    within_diagonal = np.diagonal(within)
    unit = np.where(within_diagonal <= rounding, 1.0, np.sqrt(within_diagonal.clip(min=0.0) / n))
    values, vectors = eigh(within / unit / unit[:, None] / n)
    selected = np.sqrt(values.clip(min=0.0)) > MIN_SINGULAR_VALUE
    sphere = vectors[:, selected] / unit[:, None] / np.sqrt(values[selected])
    between = (np.sqrt(n * shares / max(1, len(shares) - 1)) * deviations).T @ sphere
    _, strengths, directions = svd(between, full_matrices=False)
    directions = sphere @ directions[strengths > MIN_SINGULAR_VALUE * strengths[0]].T
    scores = deviations.T @ directions
    slopes = directions @ scores.T
    intercepts = np.log(shares) - 0.5 * np.sum(scores**2, axis=1) - parts.mean_x @ slopes
    return slopes, intercepts, directions


def _regression_table(result: Regression) -> DisplayTable:
    """Return the display of a regression: R squared, intercepts and slopes."""
    names = result.responses or [f"response {j}" for j in range(result.intercepts.size)]
    header_rows = ["R squared", *result.explained_share], ["(intercept)", *result.intercepts]
    weight = np.abs(result.coefficients).max(axis=1)
    slopes = feature_rows(result.features, *result.coefficients.T, weight=weight)
    return DisplayTable("Regression: coefficients", ["feature", *names], [*header_rows, *slopes])


@display_as(_regression_table)
@dataclass(frozen=True, eq=False)
class Regression:
    """Fitted linear regression.

    Parameters
    ----------
    coefficients : ndarray of shape (p, r)
        Coefficients, in units of response per unit of feature.
    intercepts : ndarray of shape (r,)
    explained_share : ndarray of shape (r,)
        R squared for the rows of the fit.
    features, responses : tuple of str
        Names; empty if the moments have none.
    """

    coefficients: Array
    intercepts: Array
    explained_share: Array
    features: tuple[str, ...]
    responses: tuple[str, ...]

    def predict(self, X: ArrayLike) -> Array:
        """Predict the responses of rows.

        Parameters
        ----------
        X : array-like of shape (n, p)

        Returns
        -------
        ndarray of shape (n, r)
        """
        return inputs.finite_rows(X, self.features, len(self.coefficients)) @ self.coefficients + self.intercepts


@inputs.takes_moments
def least_squares(moments: SecondMoments, responses: Features, features: Features | None = None) -> Regression:
    """Fit ordinary least squares, of least norm if features are collinear.

    Parameters
    ----------
    moments : SecondMoments
    responses : sequence of str or int
        Features that the regression explains.
    features : sequence of str or int, optional
        Features that explain the responses; by default all other features.

    Returns
    -------
    Regression

    Raises
    ------
    ConfigError, DataError
        If features are unknown, or on both sides; if a response is constant.
    """

    def slopes(S_xx: Array, S_xy: Array) -> Array:
        unit = eigen.diagonal_roots(S_xx)
        inverse, _ = eigen.pseudo_inverse(S_xx / unit / unit[:, None])
        return (inverse @ (S_xy / unit[:, None])) / unit[:, None]

    return _fit_regression(moments, responses, features, slopes)


@inputs.takes_moments
def ridge(
    moments: SecondMoments, responses: Features, features: Features | None = None, *, alpha: float = 1.0
) -> Regression:
    """Fit a ridge regression, as `sklearn.linear_model.Ridge` does (Hoerl and Kennard 1970).

    Parameters
    ----------
    moments, responses, features
        As of `least_squares`.
    alpha : float, default 1.0
        Penalty, above 0.

    Returns
    -------
    Regression

    Raises
    ------
    ConfigError, DataError
        As `least_squares`, and if ``alpha`` is not above 0.
    """
    if not (isinstance(alpha, int | float) and 0 < alpha < np.inf):
        expected = "expected a number above 0; without a penalty take least_squares"
        raise ConfigError(f"'alpha' is {value_text(alpha)}, {expected}")

    def slopes(S_xx: Array, S_xy: Array) -> Array:
        factor = cho_factor(S_xx + alpha * np.eye(len(S_xx)), lower=True)
        return np.asarray(cho_solve(factor, S_xy))

    return _fit_regression(moments, responses, features, slopes)


@inputs.takes_moments
def principal_component_regression(
    moments: SecondMoments,
    responses: Features,
    features: Features | None = None,
    *,
    k: int = 2,
    scale: bool | None = None,
) -> Regression:
    """Fit a regression on the first k principal components of the features (Jolliffe 1982).

    Parameters
    ----------
    moments, responses, features
        As of `least_squares`.
    k : int, default 2
        Number of components.
    scale : bool, optional
        Divide features and responses by their deviations; by default as in the run.

    Returns
    -------
    Regression

    Raises
    ------
    ConfigError, DataError
        As `least_squares`, and if there are too many components.
    """

    def slopes(S_xx: Array, S_xy: Array) -> Array:
        values, vectors = eigh(S_xx, subset_by_index=(len(S_xx) - k, len(S_xx) - 1))
        return np.asarray(vectors @ ((vectors.T @ S_xy) / values[:, None]))

    return _fit_regression(moments, responses, features, slopes, [k], moments.preparation.divides(scale))


@inputs.takes_moments
def partial_least_squares(
    moments: SecondMoments, responses: Features, features: Features | None = None, *, k: int = 2, scale: bool = True
) -> Regression:
    """Fit partial least squares with k latent variables, as `sklearn.cross_decomposition.PLSRegression` does.

    Wold, Sjostrom and Eriksson 2001.

    Parameters
    ----------
    moments, responses, features
        As of `least_squares`.
    k : int, default 2
        Number of latent variables.
    scale : bool, default True
        Divide features and responses by their deviations.

    Returns
    -------
    Regression

    Raises
    ------
    ConfigError, DataError
        As `least_squares`, and if there are too many latent variables.
    """
    return _fit_regression(
        moments, responses, features, lambda S_xx, S_xy: _latent_variable_slopes(S_xx, S_xy, k), [k], scale
    )


def _latent_variable_slopes(S_xx: Array, S_xy: Array, k: int) -> Array:
    """Return slopes (p, r) on k latent variables (NIPALS, PLS2), or on fewer that explain everything."""
    weights, loadings, responses = [], [], []
    rounding = eigen.COLLINEAR_SHARE * float(np.linalg.norm(S_xy))
    for nth in range(k):
        if nth and np.linalg.norm(S_xy) <= rounding:
            break
        w = svd(S_xy, full_matrices=False)[0][:, 0]
        through = S_xx @ w
        squared = float(w @ through)
        weights.append(w)
        loadings.append(through / squared)
        responses.append(S_xy.T @ w / squared)
        S_xx = S_xx - squared * np.outer(loadings[-1], loadings[-1])
        S_xy = S_xy - squared * np.outer(loadings[-1], responses[-1])
    W, P, Q = np.array(weights).T, np.array(loadings).T, np.array(responses).T
    return np.asarray(W @ pinv(P.T @ W) @ Q.T)


def _fit_regression(
    moments: SecondMoments,
    responses: Features,
    features: Features | None,
    slopes_of: Callable[[Array, Array], Array],
    directions: Sequence[int] = (),
    scale: bool = False,
) -> Regression:
    """Fit a regression with slopes ``slopes_of(S_xx, S_xy)``; ``scale`` divides all features by their deviations first.

    Raise ConfigError or DataError unless rows and features are as many, and vary in as many, as each of ``directions``.
    """
    parts = inputs.scatter_blocks(moments, responses, features)
    inputs.require_varying(moments, parts.y)
    unit_x = unit_y = np.ones(1)
    if scale:
        spread = np.where(moments.is_constant, 1.0, np.sqrt(moments.moments.diagonal().clip(min=0.0)))
        unit_x, unit_y = spread[parts.x], spread[parts.y]
    S_xx, S_xy = parts.S_xx / unit_x / unit_x[:, None], parts.S_xy / unit_x[:, None] / unit_y
    for k in directions:
        inputs.require_count("k", k, min(moments.n_samples - 1, len(parts.x)))
        if (varying := eigen.count_varying_directions(S_xx)) < k:
            raise DataError(f"'k' is {k}, but only {varying} directions of the features vary by more than rounding")
    slopes = slopes_of(S_xx, S_xy) / unit_x[:, None] * unit_y
    S_yy = np.diagonal(parts.S_yy)
    unexplained = S_yy - 2 * np.sum(slopes * parts.S_xy, axis=0) + np.sum(slopes * (parts.S_xx @ slopes), axis=0)
    intercepts, names = parts.mean_y - parts.mean_x @ slopes, (moments.names(parts.x), moments.names(parts.y))
    return Regression(slopes, intercepts, 1 - unexplained / S_yy, *names)
