"""Sparse components: at most so many loadings as the user says, and how far from the best they can be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedpca_flwr.analyses import inputs
from fedpca_flwr.analyses.sparse_pca import deflate, sparse_component
from fedpca_flwr.errors import ConfigError
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.model.second_moments import SecondMoments
from fedpca_flwr.model.tables import DisplayTable, Share, component_labels, display_as, largest_features


def _sparse_table(result: SparseComponents) -> DisplayTable:
    """Return the display of sparse components: what each explains, the gap to its bound, and its loadings."""
    labels, rows = component_labels(len(result.components)), []
    for j, loadings in enumerate(result.components):
        entries = largest_features(loadings, result.features, int(np.count_nonzero(loadings)))
        shares = Share(result.explained_shares[j]), Share(result.gaps[j])
        rows.append([labels[j], *shares, "proven" if result.exact[j] else "not proven", entries])
    title = f"SparseComponents: {result.explained_shares.sum():.2%} of the variance of {result.unit}, in their order"
    return DisplayTable(title, ["component", "explains", "gap to bound", "best", "loadings"], rows)


@display_as(_sparse_table)
@dataclass(frozen=True, eq=False)
class SparseComponents:
    """Sparse components: each has few loadings, and adds as much variance to the earlier components as it can.

    Parameters
    ----------
    components : ndarray of shape (k, d)
        Components of length 1 with few nonzero loadings, of which the largest in size is positive. The components need
        not be orthogonal, and their scores may be correlated.
    adjusted_variances : ndarray of shape (k,)
        Variance (divisor n - 1) of the scores on each component that the scores on the earlier components do not
        explain (Zou, Hastie and Tibshirani 2006).
    bounds : ndarray of shape (k,)
        Upper bound on the variance that any component with s loadings can add to the earlier components: the leading
        eigenvalue or, if smaller, the largest sum, in a row of the covariance, of the variance and the s - 1 largest
        other absolute entries. It is for the stored moments, which a secure sum rounds (``error_bound``).
    exact : ndarray of bool of shape (k,)
        True if no component with the same number of loadings adds more variance, even if the bound is larger.
    total_variance : float
        Variance of all features together.
    mean, scale : ndarray of shape (d,)
        Mean, which is subtracted from rows, and scale, which then divides them.
    features : tuple of str
        Names of the features; empty if the moments have none.
    unit : str
        Unit in which the features were taken.
    """

    components: Array
    adjusted_variances: Array
    bounds: Array
    exact: NDArray[np.bool_]
    total_variance: float
    mean: Array
    scale: Array
    features: tuple[str, ...]
    unit: str = "features"

    @property
    def explained_shares(self) -> Array:
        """Share of the total variance that each component adds to the earlier ones, shape (k,)."""
        return self.adjusted_variances / self.total_variance

    @property
    def gaps(self) -> Array:
        """Share of its bound by which each component may fall short of the best one, shape (k,)."""
        return 1 - self.adjusted_variances / self.bounds

    def transform(self, X: ArrayLike) -> Array:
        """Compute the scores of rows.

        Parameters
        ----------
        X : array-like of shape (n, d)

        Returns
        -------
        ndarray of shape (n, k)
        """
        rows = inputs.finite_rows(X, self.features, self.mean.size) - self.mean
        return np.asarray(rows / self.scale @ self.components.T)


@inputs.takes_moments
def sparse_components(
    moments: SecondMoments, k: int | None, loadings: int | Sequence[int], *, scale: bool | None = None
) -> SparseComponents:
    """Compute k components with a limited number of loadings each; exactly if there are at most 30 features.

    Parameters
    ----------
    moments : SecondMoments or PCAModel
    k : int or None
        Number of components; None as in the run.
    loadings : int or sequence of int
        Largest number of loadings of each component, or one number for all components.
    scale : bool, optional
        Divide each feature by its standard deviation; by default as in the run.

    Returns
    -------
    SparseComponents

    Raises
    ------
    ConfigError, ContractError
        If the number of components or of loadings is not allowed; if fewer components hold all variance.
    """
    d, n = moments.n_features, moments.n_samples
    k = inputs.component_count(moments, k, min(d, n - 1))
    counts = list(loadings) if isinstance(loadings, Sequence | np.ndarray) else [loadings] * k
    if len(counts) != k:
        raise ConfigError(f"'loadings' has {len(counts)} numbers for {k} components, expected one for all, or {k}")
    for count in counts:
        inputs.require_count("loadings", count, d)
    covariance = inputs.in_unit(moments, scale).covariance
    total, components = float(np.trace(covariance)), []
    for count in counts:
        components.append(sparse_component(covariance, count))
        inputs.require_resolved(np.array([component.variance for component in components]))
        covariance = deflate(covariance, components[-1].loadings)
    vectors, variances, bounds, exact = map(np.array, zip(*components, strict=True))
    unit = moments.deviation if moments.preparation.must_divide(scale) else np.ones(d)
    text = moments.preparation.unit(scale)
    return SparseComponents(vectors, variances, bounds, exact, total, moments.mean, unit, moments.features, text)
