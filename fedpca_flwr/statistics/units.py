"""Features that a party has in another unit, where the server sees each party's means and deviations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.moments import Head
from fedpca_flwr.maths.units import other_units

UNSEEN = (
    "only sums were shown: nobody can see a site that has a feature in another unit than the others, and scaling does "
    "not mend it. Each site can compare the means and deviations of its own features with the model's 'mean_' and "
    "'scale_': with another unit somewhere they differ by several times (docs/results.md)"
)
"""What a run that scales says where the server has no site's means."""


def units_of(parties: Mapping[str, tuple[Head, Array]]) -> list[dict[str, Any]]:
    """Entries of ``model.log["other_units"]``.

    Parameters
    ----------
    parties : mapping of str to (Head, ndarray of shape (d,))
        By how texts name them: count and mean, and the diagonal of the scatter about the party's own mean.
    """
    names = list(parties)
    rows = np.array([head.n for head, _ in parties.values()], dtype=np.float64)
    means = np.stack([head.mean for head, _ in parties.values()])
    deviations = np.sqrt(np.stack([diagonal for _, diagonal in parties.values()]).clip(min=0.0) / rows[:, None])
    return [
        {"party": names[unit.party], "feature": unit.feature, "mean": unit.mean, "mean_elsewhere": unit.others}
        for unit in other_units(rows, means, deviations)
    ]
