"""The PCA of kept moments."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fedpca_flwr.analyses.kinds import of_moments
from fedpca_flwr.certainty import SCALED, certainty
from fedpca_flwr.model import PCAModel
from fedpca_flwr.second_moments import SecondMoments
from fedpca_flwr.solution import solve
from fedpca_flwr.table import names_digest


@of_moments
def pca(
    moments: SecondMoments, n_components: int | float | str = 10, *, center: bool = True, scale: bool = False
) -> PCAModel:
    """The model that a run of p-cov over the same rows makes; parameters as in `fedpca_flwr.solution.solve`.

    Raises
    ------
    ConfigError, DataError
    """
    whole = moments.moments
    found = solve(whole, whole.diagonal(), n_components=n_components, center=center, scale=scale)
    rounded = float(np.sum(moments.missed if found.scale is None else moments.missed / found.scale**2))
    pairs = replace(found.pairs, error=rounded, rank=None if rounded else found.pairs.rank)
    certain = certainty(pairs, exact=True, ways=[] if scale else [SCALED])
    parties = moments.parties.items()
    about = {
        "method": "second moments",
        "exact": certain.exact,
        "options": {"n-components": n_components, "center": center, "scale": scale},
        "columns": names_digest(moments.features),
        "parties": [{"party": i, "name": key, "rows": own.count} for i, (key, own) in enumerate(parties)],
        "rounds": [],
        "measured": {**found.measured, **({"fixed_point_variance_share": rounded / found.total} if rounded else {})},
        "notes": [*found.notes, *certain.notes],
    }
    model = PCAModel.of(replace(found, pairs=pairs), about)
    names = np.array(moments.features, dtype=object) if moments.features else None
    return replace(model, feature_names_in_=names)
