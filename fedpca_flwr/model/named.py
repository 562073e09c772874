"""Notes on features that a party seems to have in another unit than the others.

A model of features that have names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

import numpy as np

from fedpca_flwr.model.model import PCAModel

NAMED = 3
"""Features of a party at most that a note names."""


def unit_notes(found: Sequence[Mapping[str, Any]], names: Sequence[str]) -> list[str]:
    """One note for each party.

    Parameters
    ----------
    found : sequence of mappings
        By party, ``party``, ``feature`` (its number, from 0), ``mean`` there and ``mean_elsewhere``: entries of
        ``model.log["other_units"]``.
    names : sequence of str
        Of the features; empty where they are not known.
    """
    return [_note(party, list(units), names) for party, units in groupby(found, key=lambda unit: unit["party"])]


def renamed(log: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """A model's log, with these notes by the features' names."""
    found = log.get("other_units", [])
    new = dict(zip(unit_notes(found, ()), unit_notes(found, names), strict=True))
    return {**log, "notes": [new.get(note, note) for note in log.get("notes", [])]}


def _note(party: str, found: Sequence[Mapping[str, Any]], names: Sequence[str]) -> str:
    shown = ", ".join(
        f"{names[unit['feature']] if names else 'feature ' + str(unit['feature'] + 1)} (mean {unit['mean']:.4g} there, "
        f"{unit['mean_elsewhere']:.4g} elsewhere)"
        for unit in found[:NAMED]
    )
    more = f", and {len(found) - NAMED} more features" if len(found) > NAMED else ""
    return (
        f"{party} seems to have features in another unit than the others: {shown}{more}. The deviation differs by the "
        "same factor as the mean. Ask that site: if so, this model is of no use, scaled or not"
    )


def named(model: PCAModel, names: Sequence[str]) -> PCAModel:
    """The model, and the moments that it kept, with the names (d,) of its features, if these are known."""
    if not names:
        return model
    moments = model.moments_ and replace(model.moments_, features=tuple(names))
    return replace(
        model, feature_names_in_=np.array(names, dtype=object), moments_=moments, log=renamed(model.log, names)
    )
