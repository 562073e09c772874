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
from fedpca_flwr.maths.eigen import diagonal_roots, pseudo_inverse

# where covariates leave no larger share of a feature's variance than this, what they leave is rounding
MIN_RESIDUAL_SHARE = 1e-13
NULL_DIRECTION_SHARE = (
    1e-6  # a covariate is called collinear where directions without variance have a larger share of it than this
)
MIN_UNIT_RATIO = 5.0  # the least factor that is taken for another unit: children weigh a quarter of what adults do
# up to this factor, ratios of mean and deviation are the same, and so are the means and deviations of two parties
SIMILAR_RATIO = 2.0
MIN_MEAN_DEVIATIONS = (
    1.0  # in standard deviations: a smaller mean is a matter of how often a feature is zero, or of its sign
)
MIN_PARTY_ROWS = 10  # mean and deviation of a party with fewer rows say little


@dataclass(frozen=True, eq=False)
class Adjustment:
    """A linear regression of all features on covariates, and what it leaves."""

    covariate_columns: NDArray[np.int64]  # (q,), where the covariates stand among the features
    slopes: Array  # (q, d), of each feature; zero for the covariates themselves

    def residuals(self, centred: Array) -> Array:
        """What is left of centred rows (n, d)."""
        if not self.covariate_columns.size:
            return centred
        residual_rows: Array = centred - centred[:, self.covariate_columns] @ self.slopes
        residual_rows[:, self.covariate_columns] = 0.0
        return residual_rows

    def residual_scatter(self, S: Array) -> Array:
        """The scatter (d, d) of what is left of rows whose scatter about their mean is ``S`` (d, d)."""
        if not self.covariate_columns.size:
            return S
        between = S[self.covariate_columns].T @ self.slopes
        residual = (
            S
            - between
            - between.T
            + self.slopes.T @ S[np.ix_(self.covariate_columns, self.covariate_columns)] @ self.slopes
        )
        diagonal, before = np.einsum("jj->j", residual), np.diagonal(S)
        explained = diagonal <= MIN_RESIDUAL_SHARE * before
        explained[self.covariate_columns] = True
        residual[explained] = 0.0
        residual[:, explained] = 0.0
        return residual

    def residual_diagonal(self, diagonal: Array, covariates: Array) -> Array:
        """The diagonal (d,) of `of_scatter`, from that of ``S`` and its rows of the ``covariates`` (q, d)."""
        if not self.covariate_columns.size:
            return diagonal
        residual = diagonal - 2 * np.einsum("qj,qj->j", covariates, self.slopes)
        residual += np.einsum("qj,qj->j", covariates[:, self.covariate_columns] @ self.slopes, self.slopes)
        residual[self.covariate_columns] = 0.0
        return np.where(residual <= MIN_RESIDUAL_SHARE * diagonal, 0.0, residual)

    def equivalent_loadings(self, loadings: Array) -> Array:
        """Directions (k, d) on which centred rows have the scores that their residuals have on ``loadings`` (k, d)."""
        equivalent = loadings.copy()
        equivalent[:, self.covariate_columns] = -loadings @ self.slopes.T
        return equivalent

    def diagonal_error_bound(self, error_bound: Array) -> Array:
        """Bound (d,) on the rounding in the diagonal of `of_scatter`, from such a bound ``missed`` (d,) for ``S``."""
        if not (self.covariate_columns.size and error_bound.any()):
            return error_bound
        root = np.sqrt(np.broadcast_to(error_bound, self.slopes.shape[1:]))
        bound: Array = (root + np.abs(self.slopes).T @ root[self.covariate_columns]) ** 2
        bound[self.covariate_columns] = 0.0
        return bound


def fit_adjustment(S: Array, covariate_columns: NDArray[np.int64]) -> tuple[Adjustment, NDArray[np.int64]]:
    """The adjustment for the covariates at ``places``, and the collinear ones: some combination of them does not vary.

    Covariates are divided by their deviations first, so that none is taken for rounding because of its unit.
    """
    slopes = np.zeros((covariate_columns.size, len(S)))
    if not covariate_columns.size:
        return Adjustment(covariate_columns, slopes), covariate_columns
    S_zz = S[np.ix_(covariate_columns, covariate_columns)]
    unit = diagonal_roots(S_zz)
    inverse, null_basis = pseudo_inverse(S_zz / unit / unit[:, None])
    other_columns = np.setdiff1d(np.arange(len(S)), covariate_columns)
    slopes[:, other_columns] = (inverse / unit / unit[:, None]) @ S[np.ix_(covariate_columns, other_columns)]
    return Adjustment(covariate_columns, slopes), covariate_columns[
        (np.abs(null_basis) > NULL_DIRECTION_SHARE).any(axis=1)
    ]


def harmonising_unit(diagonal: Array, n: float, deviation: Array) -> Array:
    """What a party divides its features by (d,), so that each has the ``deviation`` (d,) of all rows within parties.

    ``diagonal`` (d,) is that of the scatter of its n rows about their mean. Features that do not vary stay as they are.
    """
    varies = (diagonal > 0) & (deviation > 0)
    return np.divide(np.sqrt(diagonal.clip(min=0.0) / n), deviation, out=np.ones_like(deviation), where=varies)


class UnitMismatch(NamedTuple):
    """A feature (its number) that a party (its number) has in another unit: its mean there, and that of the others."""

    party: int
    feature: int
    mean: float
    peer_mean: float


def find_unit_mismatches(rows: Array, means: Array, deviations: Array) -> Sequence[UnitMismatch]:
    """Features that a party seems to have in another unit than most others, by party and feature.

    From each party's number of ``rows`` (K,), and the ``means`` and ``deviations`` (K, d) of its features. Of two
    parties neither is the odd one: then only the second is named.
    """
    large_parties = np.flatnonzero(rows >= MIN_PARTY_ROWS)
    with np.errstate(all="ignore"):
        usable = (deviations > 0) & (np.abs(means) >= MIN_MEAN_DEVIATIONS * deviations)
        logs = np.where(usable, np.log(np.stack([np.abs(means), deviations])), np.nan)
    mismatches: list[UnitMismatch] = []
    for party in large_parties[-1:] if len(large_parties) == 2 else large_parties:
        peers = large_parties[large_parties != party]
        if peers.size:
            differs = _peers_in_other_unit(logs, np.sign(means), int(party), peers)
            for feature in np.flatnonzero(differs.any(axis=0)):
                typical = float(np.median(means[peers[differs[:, feature]], feature]))
                mismatches.append(UnitMismatch(int(party), int(feature), float(means[party, feature]), typical))
    return mismatches


def _peers_in_other_unit(logs: Array, signs: Array, party: int, peers: NDArray[np.intp]) -> NDArray[np.bool_]:
    """Which others (K - 1, d) have a feature in a unit that most of them have, and this party has not.

    Each other is near this party or far from it: what differs by degrees is no unit.
    """
    mean, deviation = np.abs(log_ratios := logs[:, peers] - logs[:, None, party])
    distant = (np.minimum(mean, deviation) >= np.log(MIN_UNIT_RATIO)) & (
        np.abs(log_ratios[0] - log_ratios[1]) <= np.log(SIMILAR_RATIO)
    )
    near = np.maximum(mean, deviation) <= np.log(SIMILAR_RATIO)
    decided = (distant | near | np.isnan(mean)) & (signs[peers] == signs[party])
    unlike: NDArray[np.bool_] = distant & decided.all(axis=0) & (distant.mean(axis=0) > 0.5)
    return unlike
