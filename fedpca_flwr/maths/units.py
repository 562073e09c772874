r"""Features that one party has in another unit than the others, by the means and deviations of each party.

Another unit multiplies a feature's mean and its standard deviation by the same factor, and leaves their ratio. Honest
differences between parties hardly do: another kind of patients shifts the mean by some deviations and leaves the
deviation near what it was; counts of another size m have deviations as sqrt(m); a feature that is zero in most rows has
a mean below its deviation, and both change by unlike factors with how often it is not zero. So a party is told of only
where, against most others, mean and deviation differ by the same factor up to `ALIKE`, by `FACTOR` at least, while none
is in between, of a feature whose mean is at least its deviation. Pounds for kilograms (2.2) do not show, nor degrees
Fahrenheit, nor features about zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedpca_flwr.maths.arrays import Array

FACTOR = 5.0
"""The least factor of a unit: children weigh a quarter of what adults do."""

ALIKE = 2.0
"""Up to this factor, ratios of mean and deviation are the same, and so are the means and deviations of two parties."""

LEAST_MEAN = 1.0
"""Standard deviations: below it a mean is a matter of how often a feature is zero, or of its sign."""

FEWEST = 10
"""Rows of a party: mean and deviation of fewer say little."""


class OtherUnit(NamedTuple):
    """A feature (its number) that a party (its number) has in another unit: its mean there, and that of the others."""

    party: int
    feature: int
    mean: float
    others: float


def other_units(rows: Array, means: Array, deviations: Array) -> Sequence[OtherUnit]:
    """What any party seems to have in another unit, by party and feature.

    Of two parties none is the odd one: only the second is named.

    Parameters
    ----------
    rows : ndarray of shape (K,)
    means, deviations : ndarray of shape (K, d)
    """
    enough = np.flatnonzero(rows >= FEWEST)
    with np.errstate(all="ignore"):
        usable = (deviations > 0) & (np.abs(means) >= LEAST_MEAN * deviations)
        logs = np.where(usable, np.log(np.stack([np.abs(means), deviations])), np.nan)
    found: list[OtherUnit] = []
    for party in enough[-1:] if len(enough) == 2 else enough:
        others = enough[enough != party]
        if others.size:
            unlike = _elsewhere(logs, np.sign(means), int(party), others)
            for feature in np.flatnonzero(unlike.any(axis=0)):
                usual = float(np.median(means[others[unlike[:, feature]], feature]))
                found.append(OtherUnit(int(party), int(feature), float(means[party, feature]), usual))
    return found


def _elsewhere(logs: Array, signs: Array, party: int, others: NDArray[np.intp]) -> NDArray[np.bool_]:
    """Which others (K - 1, d) have a feature in a unit that most have and this party has not; False without such ones.

    Each other is near this party or far from it: what differs by degrees is no unit.
    """
    mean, deviation = np.abs(apart := logs[:, others] - logs[:, None, party])
    far = (np.minimum(mean, deviation) >= np.log(FACTOR)) & (np.abs(apart[0] - apart[1]) <= np.log(ALIKE))
    near = np.maximum(mean, deviation) <= np.log(ALIKE)
    settled = (far | near | np.isnan(mean)) & (signs[others] == signs[party])
    told: NDArray[np.bool_] = far & settled.all(axis=0) & (far.mean(axis=0) > 0.5)
    return told
