"""What components mean in terms of the features: loadings as correlations, rotated if wanted, and shares."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from fedpca_flwr.analyses.blocks import require_resolved
from fedpca_flwr.analyses.kinds import of_model, of_moments
from fedpca_flwr.analyses.pca import pca
from fedpca_flwr.errors import ConfigError, value_text
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.eigen import fix_signs
from fedpca_flwr.maths.rotation import promax, varimax
from fedpca_flwr.model import PCAModel
from fedpca_flwr.second_moments import SecondMoments

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
