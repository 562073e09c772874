"""What components mean in terms of the features: loadings as correlations, rotated if wanted, and shares.

The PCA of kept moments.

Factor analysis: correlations explained by few factors, each feature with a noise of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.linalg import cho_factor, cho_solve

from fedpca_flwr.analyses.inputs import of_model, of_moments, require_count, require_resolved, require_varying, rows_of
from fedpca_flwr.data.table import names_digest
from fedpca_flwr.errors import ConfigError, value_text
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.eigen import fix_signs
from fedpca_flwr.maths.multivariate import factor_analysis as greatest_likelihood
from fedpca_flwr.maths.multivariate import promax, varimax
from fedpca_flwr.model.model import PCAModel
from fedpca_flwr.model.second_moments import SecondMoments


@of_moments
def pca(
    moments: SecondMoments, n_components: int | float | str = 10, *, center: bool = True, scale: bool = False
) -> PCAModel:
    """The model that a run of p-cov over the same rows makes; parameters as in `fedpca_flwr.model.solution.solve`.

    Raises
    ------
    ConfigError, DataError
    """
    parties = moments.parties.items()
    about = {
        "method": "second moments",
        "columns": names_digest(moments.features),
        "parties": [{"party": i, "name": key, "rows": own.count} for i, (key, own) in enumerate(parties)],
    }
    options: dict[str, Any] = {"n_components": n_components, "center": center, "scale": scale}
    return PCAModel.of_moments(moments.moments, about, missed=moments.missed, **options).named(moments.features)


ROTATIONS = ("none", "varimax", "promax")


@dataclass(frozen=True, eq=False)
class Reading:
    """Attributes
    ----------
    correlations : ndarray of shape (k, d)
        Of each component's scores with each feature; with promax the pattern of a regression on correlated scores. A
        constant feature has none: 0. The largest absolute one of each component is positive; rotated ones are ordered
        by the sum of their squares.
    communalities : ndarray of shape (d,)
        Share of each feature's variance that the k components hold, which no rotation changes.
    contributions : ndarray of shape (k, d)
        Share of each feature in the sum of a component's squared correlations.
    between : ndarray of shape (k, k)
        Correlations of the (rotated) scores with each other: the identity, but with promax.
    features : tuple of str
    """

    correlations: Array
    communalities: Array
    contributions: Array
    between: Array
    features: tuple[str, ...]


@of_moments
def read(
    moments: SecondMoments, k: int, *, scale: bool = False, rotation: str = "none", kaiser: bool = True
) -> Reading:
    """The first k components in terms of the features.

    Parameters
    ----------
    moments : SecondMoments
    k : int
    scale : bool
        As for a PCA.
    rotation : {"none", "varimax", "promax"}
    kaiser : bool
        Whether a rotation is found for loadings that are scaled to length 1 for each feature, as R does by default.

    Raises
    ------
    ConfigError, ContractError, DataError
        For a component without variance, as for what cannot be.
    """
    if rotation not in ROTATIONS:
        raise ConfigError(f"'rotation' is {value_text(rotation)}, expected one of: {', '.join(ROTATIONS)}")
    model = pca(moments, k, scale=scale)
    require_resolved(model.explained_variance_)
    components, _ = model.loadings()
    used = moments.scaled() if scale else moments
    spread = np.where(moments.is_constant, np.inf, np.sqrt(np.diagonal(used.covariance).clip(min=0.0)))
    loadings = (components * np.sqrt(model.explained_variance_)[:, None] / spread).T
    communalities = np.sum(loadings**2, axis=1)
    rotate = {"none": None, "varimax": varimax, "promax": promax}[rotation]
    turn = np.eye(len(components)) if rotate is None else rotate(loadings, kaiser=kaiser)
    rotated = loadings @ turn
    order = np.arange(len(turn)) if rotation == "none" else np.argsort(-np.sum(rotated**2, axis=0), kind="stable")
    ordered = rotated[:, order]
    signs = np.sign(np.sum(fix_signs(ordered) * ordered, axis=0))
    turn = turn[:, order] * signs
    inverse = np.linalg.inv(turn)
    return Reading(
        correlations=(ordered * signs).T,
        communalities=communalities,
        contributions=(ordered**2 / np.sum(ordered**2, axis=0)).T,
        between=inverse @ inverse.T,
        features=moments.features,
    )


@of_model
def projected(model: PCAModel, X: ArrayLike) -> Array:
    """Scores (n, k) of new rows ``X`` (n, d), over the model's `shrinkage_` where features are many.

    A component that does not stand out of the noise has NaN. Rows that were in the PCA take ``model.transform``.

    Raises
    ------
    DataError
    """
    scores: Array = model.transform(X) / model.shrinkage_
    return scores


@of_model
def whitened(model: PCAModel, X: ArrayLike) -> Array:
    """Scores (n, k) of rows ``X`` (n, d) with variance 1 in each component, as ``PCA(whiten=True)``.

    Raises
    ------
    ContractError
        Where a component has no variance.
    DataError
    """
    require_resolved(model.explained_variance_)
    return model.transform(X) / np.sqrt(model.explained_variance_)


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
    """The k factors of greatest likelihood (`fedpca_flwr.maths.multivariate`).

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
