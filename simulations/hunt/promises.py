"""What a model must hold of single features: their names, their sizes, their units."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from fedpca_flwr.model.model import PCAModel

from .draw import Draw, vertical
from .oracle import Long, Truth
from .refusals import Finding
from .running import framed, names_of

TINY = 1e-12
"""Of a column's largest value: a scale below makes rounding as large as what is there."""

UNLIKE = re.compile("sorted|shifted|heavy tails|one-hot|indicators|constant features|single rows")
"""Data whose parties may have means and deviations of unlike sizes, or a few rows that do."""


def feature_findings(draw: Draw, model: PCAModel, truth: Truth) -> Iterator[Finding]:
    """The findings about single features."""
    if vertical(draw.method):
        return
    yield from wrong_names(draw, model)
    yield from tiny_scales(draw, model, truth)
    yield from wrong_units(draw, model)


def wrong_names(draw: Draw, model: PCAModel) -> Iterator[Finding]:
    """Of data frames the model keeps the names, each once."""
    names, wanted = model.feature_names_in_, names_of(model.n_features_in_)
    if framed(draw) and (names is None or list(names) != wanted):
        yield "names", f"{None if names is None else list(names)} of data frames with {wanted}"


def tiny_scales(draw: Draw, model: PCAModel, truth: Truth) -> Iterator[Finding]:
    """No feature is divided by rounding: neither in the model, nor in what it makes of new rows."""
    if model.scale_ is None or model.mean_ is None or model.components_ is None or draw.card.differentially_private:
        return
    rows = draw.pooled.astype(Long)
    still, largest = (rows == rows[0]).all(axis=0), np.abs(rows).max(axis=0)
    deviation = np.sqrt(((rows - rows.mean(axis=0)) ** 2).mean(axis=0))
    told = (model.scale_ < TINY * largest) & (model.scale_ != 1) & (still | (deviation > 10 * TINY * largest))
    told |= ~(model.scale_ > 0)
    if told.any():
        yield "tiny scale", f"{model.scale_[told]} of features as large as {largest[told].astype(float)}"
    if truth.unsure or not draw.options.get("scale"):
        return
    moved = np.where(still, np.where(largest > 0, largest, 1) / 1000, 0)
    new = (rows[::-1] + moved).astype(np.float64)
    lengths = np.sqrt((((new.astype(Long) - truth.mean) / np.where(still, 1, deviation)) ** 2).sum(axis=1))
    scores = (new - model.mean_) / model.scale_ @ model.components_.T
    most = 100 * float(lengths.max() + 1)
    if not np.isfinite(scores).all() or np.abs(scores).max() > most:
        yield "new rows", f"scores up to {np.abs(scores).max():.3g} of rows {most / 100:.3g} long in the true scale"


def wrong_units(draw: Draw, model: PCAModel) -> Iterator[Finding]:
    """A feature in another unit is named; no other is, but where party and others are as unlike as if it were."""
    if draw.orders:
        return
    notes = [note for note in model.log["notes"] if "in another unit than the others:" in note]
    found = {(int(unit["party"].rpartition(" ")[2]), unit["feature"]) for unit in model.log.get("other_units", [])}
    if draw.unit is not None:
        place, feature = draw.unit
        place = 1 if len(draw.parties) == 2 else place  # of two none is the odd one
        text = f"{place} seems to have features in another unit than the others: feature {feature + 1} (mean"
        if found != {(place, feature)} or not any(note.partition(" ")[2].startswith(text) for note in notes):
            yield "units", f"told {sorted(found)} of {(place, feature)}: {notes}"
        return
    if bool(notes) != bool(found):
        yield "units", f"told {sorted(found)}, but noted {notes}"
    honest = not UNLIKE.search(draw.about) and not draw.hostile
    for place, feature in sorted(found):
        if honest or not _as_unlike(draw, place, feature):
            yield "units", f"party {place} is said to have feature {feature} in another unit, and has it not"


def _as_unlike(draw: Draw, place: int, feature: int) -> bool:
    """Whether mean and deviation are at least 4.9 times those of more than half of the others, or below as much."""
    columns = [np.asarray(party)[:, feature].astype(Long) for party in draw.parties]
    sizes = np.array([[abs(column.mean()), column.std()] for column in columns if len(column) >= 10], dtype=np.float64)
    own = np.array([abs(columns[place].mean()), columns[place].std()], dtype=np.float64)
    with np.errstate(all="ignore"):
        apart = np.log(sizes / own)
    far = (np.abs(apart).min(axis=1) > np.log(4.9)) & (np.abs(apart[:, 0] - apart[:, 1]) < np.log(2.1))
    return bool(far.sum() > (len(sizes) - 1) / 2 and len(columns[place]) >= 10)
