"""Factor analysis: correlations explained by few factors, each feature with a noise of its own."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.linalg import cho_factor, cho_solve

from fedpca_flwr.analyses.blocks import require_count, require_varying, rows_of
from fedpca_flwr.analyses.kinds import of_moments
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.eigen import fix_signs
from fedpca_flwr.maths.factor_analysis import factor_analysis as greatest_likelihood
from fedpca_flwr.second_moments import SecondMoments


@dataclass(frozen=True, eq=False)
class FactorModel:
    """A fitted factor analysis.

    Attributes
    ----------
    components : ndarray of shape (k, d)
        Loadings in the units of the features; the largest absolute one of each factor is positive.
    noise_variance : ndarray of shape (d,)
        Of each feature, what the factors do not explain.
    mean : ndarray of shape (d,)
    log_likelihood : float
        Of a row, on average.
    proper : bool
        False where a feature is left without noise (a Heywood case): fewer factors would do.
    features : tuple of str
    """

    components: Array
    noise_variance: Array
    mean: Array
    log_likelihood: float
    proper: bool
    features: tuple[str, ...]

    @property
    def communalities(self) -> Array:
        """Of each feature, the share of its variance that the factors explain, shape (d,)."""
        common = np.sum(self.components**2, axis=0)
        shares: Array = common / (common + self.noise_variance)
        return shares

    def transform(self, X: ArrayLike) -> Array:
        """Expected factors (n, k) of rows ``X`` (n, d).

        Raises
        ------
        DataError
        """
        centred = rows_of(X, self.features, self.mean.size) - self.mean
        weighted = self.components / self.noise_variance
        precision = np.eye(len(self.components)) + weighted @ self.components.T
        scores: Array = cho_solve(cho_factor(precision), weighted @ centred.T).T
        return scores


@of_moments
def factor_analysis(moments: SecondMoments, k: int = 2) -> FactorModel:
    """The k factors of greatest likelihood (`fedpca_flwr.maths.factor_analysis`).

    Raises
    ------
    ConfigError, DataError
    """
    require_count("k", k, min(moments.n_samples, moments.n_features) - 1)
    require_varying(moments, np.arange(moments.n_features))
    found = greatest_likelihood(moments.scatter / moments.n_samples, k)
    return FactorModel(
        components=fix_signs(found.loadings).T,
        noise_variance=found.noise,
        mean=moments.mean,
        log_likelihood=found.log_likelihood,
        proper=found.proper,
        features=moments.features,
    )
