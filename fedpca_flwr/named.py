"""A model of features that have names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from fedpca_flwr.model import PCAModel
from fedpca_flwr.unit_notes import renamed


def named(model: PCAModel, names: Sequence[str]) -> PCAModel:
    """The model, and the moments that it kept, with the names (d,) of its features, if these are known."""
    if not names:
        return model
    moments = model.moments_ and replace(model.moments_, features=tuple(names))
    return replace(
        model, feature_names_in_=np.array(names, dtype=object), moments_=moments, log=renamed(model.log, names)
    )
