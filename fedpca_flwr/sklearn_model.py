"""A model as scikit-learn's own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedpca_flwr.errors import ContractError
from fedpca_flwr.fitted import FittedPCA

if TYPE_CHECKING:
    from sklearn.decomposition import PCA
    from sklearn.frozen import FrozenEstimator
    from sklearn.pipeline import Pipeline


def frozen(model: FittedPCA) -> FrozenEstimator:
    """A transformer for pipelines that stays as it is when it is fitted, with ``set_output`` and all else that
    scikit-learn's have."""
    from sklearn.frozen import FrozenEstimator

    return FrozenEstimator(to_sklearn(model))


def get_feature_names_out(model: FittedPCA, input_features: ArrayLike | None = None) -> NDArray[Any]:
    """Names of the scores, as scikit-learn's PCA has them: ``pca0``, ``pca1``, ...; names of features are checked."""
    names: NDArray[Any] = to_sklearn(model).get_feature_names_out(input_features)
    return names


def to_sklearn(model: FittedPCA) -> PCA | Pipeline:
    """A fitted `sklearn.decomposition.PCA`; with ``scale_`` a pipeline of `StandardScaler` and that PCA."""
    # Here, for a party's sake: its SuperNode starts a process for every message, and this import takes seconds.
    from sklearn.decomposition import PCA
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    _, mean = model.loadings()
    if model.adjustment_ is not None:
        raise ContractError("scikit-learn's PCA takes no covariates out of rows: use the model's own transform")
    pca = PCA(n_components=model.n_components_)
    for name in ("components_", "explained_variance_", "explained_variance_ratio_", "singular_values_"):
        setattr(pca, name, getattr(model, name).copy())
    pca.mean_ = mean.copy() if model.scale_ is None else np.zeros_like(mean)
    pca.noise_variance_ = model.noise_variance_
    pca.n_samples_ = model.n_samples_
    pca.n_components_ = model.n_components_
    pca.n_features_in_ = model.n_features_in_
    scaler = StandardScaler()
    if model.feature_names_in_ is not None:
        first = pca if model.scale_ is None else scaler
        first.feature_names_in_ = model.feature_names_in_.copy()
    if model.scale_ is None:
        return pca
    scaler.mean_, scaler.scale_, scaler.var_ = mean.copy(), model.scale_.copy(), model.scale_**2
    scaler.n_samples_seen_, scaler.n_features_in_ = model.n_samples_, model.n_features_in_
    return make_pipeline(scaler, pca)
