"""Notes of a run for the reader of its model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedpca_flwr.data.table import labels_text
from fedpca_flwr.model.fitted import FittedPCA

MAX_NOTE_FEATURES = 3  # that a note names, of each party
SHRINKAGE_NOTE_LIMIT = 0.95  # a note tells of scores that are smaller than this share of their true size


def unit_notes(entries: Sequence[Mapping[str, Any]], names: Sequence[str]) -> list[str]:
    """Write a note for each party with features whose means suggest another unit of measurement."""
    notes = []
    for party, group in groupby(entries, key=lambda unit: unit["party"]):
        units = list(group)
        shown = ", ".join(
            f"{names[unit['feature']] if names else 'feature ' + str(unit['feature'] + 1)} "
            f"(mean {unit['mean']:.4g} there, {unit['mean_elsewhere']:.4g} elsewhere)"
            for unit in units[:MAX_NOTE_FEATURES]
        )
        overflow = f", and {len(units) - MAX_NOTE_FEATURES} more features" if len(units) > MAX_NOTE_FEATURES else ""
        notes.append(
            f"{party} seems to have features in another unit than the others: {shown}{overflow}. The deviation "
            "differs by the same factor as the mean. Ask this site. If the unit is another one, this model is "
            "useless, scaled or not"
        )
    return notes


def undivided_notes(undivided: NDArray[np.intp], names: Sequence[str]) -> list[str]:
    """Write a note on the features that a scaled run did not divide, by index; none if it divided all."""
    if not undivided.size:
        return []
    shown = labels_text([names[i] if len(names) else f"feature {i + 1}" for i in undivided.tolist()])
    return [
        f"scale=True left undivided: {shown}. They are constant, or so far from zero that their variance may be "
        "rounding. If one of them varies, subtract the same number near its mean from it at all sites"
    ]


def name_notes(log: Mapping[str, Any], undivided: NDArray[np.intp], names: Sequence[str]) -> dict[str, Any]:
    """Return a model's log whose notes on features call the features by their names instead of numbers."""
    old, new = (
        [*unit_notes(log.get("other_units", []), labels), *undivided_notes(undivided, labels)] for labels in ((), names)
    )
    text = dict(zip(old, new, strict=True))
    return {**log, "notes": [text.get(note, note) for note in log.get("notes", [])]}


def shrinkage_notes(model: FittedPCA) -> list[str]:
    """Return a note if rows are no more than features and new scores too small, else []; ContractError if blind."""
    shrinkage = model.shrinkage_ if model.n_samples_ <= model.n_features_in_ else np.zeros(0)
    shrinkage = shrinkage[~np.isnan(shrinkage)]
    if not shrinkage.size or shrinkage.min() >= SHRINKAGE_NOTE_LIMIT:
        return []
    return [
        f"scores of new rows are {shrinkage.min():.2f} to {shrinkage.max():.2f} times as large as those of the rows "
        "of this run (shrinkage_), if the variance outside the components is noise of equal size in all features "
        "(prune correlated variants first); analyses.projected(model, X) corrects the scores"
    ]
