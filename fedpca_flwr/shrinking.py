"""What a model says of scores of new rows where features are many (`fedpca_flwr.maths.shrinkage`)."""

from __future__ import annotations

import numpy as np

from fedpca_flwr.fitted import FittedPCA
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.shrinkage import shrinkage

TOLD = 0.95
"""A note tells of scores that lie nearer the centre than this share of where they belong."""


def factors(model: FittedPCA) -> Array:
    """By what `transform` multiplies scores of new rows (k,): NaN for components that do not stand out of noise."""
    assert model.components_ is not None
    varying = int(model.components_.any(axis=0).sum())
    first, share = float(model.explained_variance_[0]), float(model.explained_variance_ratio_[0])
    if np.isnan(share):
        return np.full(model.n_components_, np.nan)
    total = first / share if share > 0 else 0.0
    return shrinkage(model.explained_variance_, total, model.n_samples_, varying)


def notes(model: FittedPCA) -> list[str]:
    """A note where rows are fewer than features, and new rows' scores are much too small."""
    found = factors(model)
    found = found[~np.isnan(found)]
    if model.n_samples_ > model.n_features_in_ or not found.size or found.min() >= TOLD:
        return []
    return [
        f"scores of new rows lie at {found.min():.2f} to {found.max():.2f} of where those of these rows do "
        "(shrinkage_), if what is left out is noise of one level (correlated variants: prune first); "
        "analyses.projected(model, X) corrects them"
    ]
