r"""What is taken out of rows before a PCA: what covariates explain, and what differs between the units of parties.

*Covariates.* With :math:`S` the scatter of d features of which q are covariates (z), the slopes of all features on them
are :math:`B = S_{zz}^+ S_{zx}`. A centred row becomes :math:`x - B^T z`, and the scatter
:math:`S_{xx} - S_{xz} S_{zz}^+ S_{zx}`. Covariates stay where they are and become zero, so that all keeps d columns.

*Other units.* A party that has a feature in another unit than the others is found by the means and deviations of all
parties. Another unit multiplies the mean and the standard deviation of a feature by the same factor and leaves their
ratio. Honest differences between parties hardly do: another kind of patients shifts the mean by some deviations and
leaves the deviation near what it was; counts of another size m have deviations as sqrt(m); a feature that is zero in
most rows has a mean below its deviation, and both change by unlike factors with how often it is not zero. So a party is
named only where mean and deviation differ from those of most others by the same factor up to `SAME_FACTOR`, by
`LEAST_FACTOR` at least, while no party is in between, and the mean is at least `LEAST_MEAN` deviations. Pounds for
kilograms (2.2) do not show, nor degrees Fahrenheit, nor features about zero.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.eigen import pseudo_inverse, roots_of_diagonal

# where covariates leave no larger share of a feature's variance than this, what they leave is rounding
EXPLAINED = 1e-13
DROPPED = 1e-6  # a covariate is called collinear where directions without variance have a larger share of it than this
LEAST_FACTOR = 5.0  # the least factor that is taken for another unit: children weigh a quarter of what adults do
# up to this factor, ratios of mean and deviation are the same, and so are the means and deviations of two parties
SAME_FACTOR = 2.0
LEAST_MEAN = 1.0  # in standard deviations: a smaller mean is a matter of how often a feature is zero, or of its sign
FEWEST_ROWS = 10  # mean and deviation of a party with fewer rows say little


@dataclass(frozen=True, eq=False)
class Adjustment:
    """A linear regression of all features on covariates, and what it leaves."""

    places: NDArray[np.int64]  # (q,), where the covariates stand among the features
    slopes: Array  # (q, d), of each feature; zero for the covariates themselves

    def residuals(self, centred: Array) -> Array:
        """What is left of centred rows (n, d)."""
        if not self.places.size:
            return centred
        left: Array = centred - centred[:, self.places] @ self.slopes
        left[:, self.places] = 0.0
        return left

    def of_scatter(self, S: Array) -> Array:
        """The scatter (d, d) of what is left of rows whose scatter about their mean is ``S`` (d, d)."""
        if not self.places.size:
            return S
        between = S[self.places].T @ self.slopes
        left = S - between - between.T + self.slopes.T @ S[np.ix_(self.places, self.places)] @ self.slopes
        diagonal, before = np.einsum("jj->j", left), np.diagonal(S)
        nothing = diagonal <= EXPLAINED * before
        nothing[self.places] = True
        left[nothing] = 0.0
        left[:, nothing] = 0.0
        return left

    def of_diagonal(self, diagonal: Array, covariates: Array) -> Array:
        """The diagonal (d,) of `of_scatter`, from that of ``S`` and its rows of the ``covariates`` (q, d)."""
        if not self.places.size:
            return diagonal
        left = diagonal - 2 * np.einsum("qj,qj->j", covariates, self.slopes)
        left += np.einsum("qj,qj->j", covariates[:, self.places] @ self.slopes, self.slopes)
        left[self.places] = 0.0
        return np.where(left <= EXPLAINED * diagonal, 0.0, left)

    def directions(self, loadings: Array) -> Array:
        """Directions (k, d) on which centred rows have the scores that their residuals have on ``loadings`` (k, d)."""
        whole = loadings.copy()
        whole[:, self.places] = -loadings @ self.slopes.T
        return whole

    def missed(self, missed: Array) -> Array:
        """Bound (d,) on the rounding in the diagonal of `of_scatter`, from such a bound ``missed`` (d,) for ``S``."""
        if not (self.places.size and missed.any()):
            return missed
        root = np.sqrt(np.broadcast_to(missed, self.slopes.shape[1:]))
        left: Array = (root + np.abs(self.slopes).T @ root[self.places]) ** 2
        left[self.places] = 0.0
        return left


def fitted(S: Array, places: NDArray[np.int64]) -> tuple[Adjustment, NDArray[np.int64]]:
    """The adjustment for the covariates at ``places``, and the collinear ones: some combination of them does not vary.

    Covariates are divided by their deviations first, so that none is taken for rounding because of its unit.
    """
    slopes = np.zeros((places.size, len(S)))
    if not places.size:
        return Adjustment(places, slopes), places
    S_zz = S[np.ix_(places, places)]
    unit = roots_of_diagonal(S_zz)
    inverse, dropped = pseudo_inverse(S_zz / unit / unit[:, None])
    others = np.setdiff1d(np.arange(len(S)), places)
    slopes[:, others] = (inverse / unit / unit[:, None]) @ S[np.ix_(places, others)]
    return Adjustment(places, slopes), places[(np.abs(dropped) > DROPPED).any(axis=1)]


def harmonising_unit(diagonal: Array, n: float, deviation: Array) -> Array:
    """What a party divides its features by (d,), so that each has the ``deviation`` (d,) of all rows within parties.

    ``diagonal`` (d,) is that of the scatter of its n rows about their mean. Features that do not vary stay as they are.
    """
    varies = (diagonal > 0) & (deviation > 0)
    return np.divide(np.sqrt(diagonal.clip(min=0.0) / n), deviation, out=np.ones_like(deviation), where=varies)


class OtherUnit(NamedTuple):
    """A feature (its number) that a party (its number) has in another unit: its mean there, and that of the others."""

    party: int
    feature: int
    mean: float
    others: float


def other_units(rows: Array, means: Array, deviations: Array) -> Sequence[OtherUnit]:
    """Features that a party seems to have in another unit than most others, by party and feature.

    From each party's number of ``rows`` (K,), and the ``means`` and ``deviations`` (K, d) of its features. Of two
    parties neither is the odd one: then only the second is named.
    """
    enough = np.flatnonzero(rows >= FEWEST_ROWS)
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
    """Which others (K - 1, d) have a feature in a unit that most of them have, and this party has not.

    Each other is near this party or far from it: what differs by degrees is no unit.
    """
    mean, deviation = np.abs(apart := logs[:, others] - logs[:, None, party])
    far = (np.minimum(mean, deviation) >= np.log(LEAST_FACTOR)) & (np.abs(apart[0] - apart[1]) <= np.log(SAME_FACTOR))
    near = np.maximum(mean, deviation) <= np.log(SAME_FACTOR)
    settled = (far | near | np.isnan(mean)) & (signs[others] == signs[party])
    unlike: NDArray[np.bool_] = far & settled.all(axis=0) & (far.mean(axis=0) > 0.5)
    return unlike
