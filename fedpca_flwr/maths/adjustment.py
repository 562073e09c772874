"""Regression on covariates, and features that a party has in another unit than its peers.

*Covariates.* With :math:`S` the scatter of d features of which q are covariates (z), the slopes of all features on the
covariates are :math:`B = S_{zz}^+ S_{zx}`. A centred row becomes :math:`x - B^T z`, and the scatter becomes
:math:`S_{xx} - S_{xz} S_{zz}^+ S_{zx}`. Covariates keep their columns and become zero, so that all arrays keep d
columns.

*Other units.* The means and deviations of all parties show which party has a feature in another unit. Another unit
multiplies the mean and the standard deviation of a feature by the same factor and leaves their ratio. Honest
differences between parties hardly do: another kind of patients shifts the mean by some deviations and leaves the
deviation near what it was; counts of another size m have deviations as sqrt(m); a feature that is zero in most rows has
a mean below its deviation, and both change by unlike factors with the number of zeros. So a party is named only if its
mean and deviation differ from those of most peers by the same factor up to `SIMILAR_RATIO`, and by `MIN_UNIT_RATIO` at
least, while no party is in between, and the mean is at least `MIN_MEAN_DEVIATIONS` deviations. The rule does not find
pounds for kilograms (2.2), degrees Fahrenheit, or features about zero.
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
# a covariate is called collinear where directions without variance have a larger share of it than this
NULL_DIRECTION_SHARE = 1e-6
MIN_UNIT_RATIO = 5.0  # the least factor that is taken for another unit: children weigh a quarter of what adults do
# up to this factor, ratios of mean and deviation are the same, and so are the means and deviations of two parties
SIMILAR_RATIO = 2.0
# in standard deviations: a smaller mean is a matter of how often a feature is zero, or of its sign
MIN_MEAN_DEVIATIONS = 1.0
MIN_PARTY_ROWS = 10  # mean and deviation of a party with fewer rows say little
MAX_UNIT_PEERS = 100  # with whose units a party's are compared: all pairs of 10,000 parties take minutes


@dataclass(frozen=True, eq=False)
class Adjustment:
    """A linear regression of d features on q covariates, which are some of the features."""

    covariate_columns: NDArray[np.int64]  # (q,)
    slopes: Array  # (q, d); zero for the covariates themselves

    def residuals(self, centred: Array) -> Array:
        """Return the residuals (n, d) of rows (n, d) about their mean; the covariates' columns become zero."""
        if not self.covariate_columns.size:
            return centred
        residual_rows: Array = centred - centred[:, self.covariate_columns] @ self.slopes
        residual_rows[:, self.covariate_columns] = 0.0
        return residual_rows

    def residual_scatter(self, S: Array, explained: NDArray[np.bool_] | None = None) -> Array:
        """Compute the scatter (d, d) of the residuals from the scatter S (d, d) of rows about their mean.

        Features of which the covariates leave only rounding become zero. `explained` (d,) marks these features where S
        is of a part of the rows; by default S itself shows them (`MIN_RESIDUAL_SHARE`).
        """
        if not self.covariate_columns.size:
            return S
        between = S[self.covariate_columns].T @ self.slopes
        S_zz = S[np.ix_(self.covariate_columns, self.covariate_columns)]
        residual = S - between - between.T + self.slopes.T @ S_zz @ self.slopes
        if explained is None:
            explained = np.diagonal(residual) <= MIN_RESIDUAL_SHARE * np.diagonal(S)
        explained[self.covariate_columns] = True
        residual[explained] = 0.0
        residual[:, explained] = 0.0
        return residual

    def residual_diagonal(self, diagonal: Array, covariates: Array) -> Array:
        """Compute the diagonal (d,) of the residuals' scatter from the scatter's diagonal and covariate rows (q, d)."""
        if not self.covariate_columns.size:
            return diagonal
        residual = diagonal - 2 * np.einsum("qj,qj->j", covariates, self.slopes)
        residual += np.einsum("qj,qj->j", covariates[:, self.covariate_columns] @ self.slopes, self.slopes)
        residual[self.covariate_columns] = 0.0
        return np.where(residual <= MIN_RESIDUAL_SHARE * diagonal, 0.0, residual)

    def equivalent_loadings(self, loadings: Array) -> Array:
        """Return loadings (k, d) that give, on centred rows, the scores of the given loadings on the residuals."""
        equivalent = loadings.copy()
        equivalent[:, self.covariate_columns] = -loadings @ self.slopes.T
        return equivalent

    def diagonal_error_bound(self, error_bound: Array) -> Array:
        """Bound the error (d,) of `residual_diagonal` from a bound (d,) on the error of the scatter's diagonal."""
        if not (self.covariate_columns.size and error_bound.any()):
            return error_bound
        root = np.sqrt(np.broadcast_to(error_bound, self.slopes.shape[1:]))
        bound: Array = (root + np.abs(self.slopes).T @ root[self.covariate_columns]) ** 2
        bound[self.covariate_columns] = 0.0
        return bound


def fit_adjustment(S: Array, covariate_columns: NDArray[np.int64]) -> tuple[Adjustment, NDArray[np.int64]]:
    """Fit the regression of all features on some covariates, given the scatter S (d, d) of rows about their mean.

    Return the regression, and the columns of collinear covariates: some combination of these does not vary. Covariates
    are divided by their deviations first, so that no covariate is taken for rounding because of its unit.
    """
    slopes = np.zeros((covariate_columns.size, len(S)))
    if not covariate_columns.size:
        return Adjustment(covariate_columns, slopes), covariate_columns
    S_zz = S[np.ix_(covariate_columns, covariate_columns)]
    unit = diagonal_roots(S_zz)
    inverse, null_basis = pseudo_inverse(S_zz / unit / unit[:, None])
    other_columns = np.setdiff1d(np.arange(len(S)), covariate_columns)
    slopes[:, other_columns] = (inverse / unit / unit[:, None]) @ S[np.ix_(covariate_columns, other_columns)]
    collinear = (np.abs(null_basis) > NULL_DIRECTION_SHARE).any(axis=1)
    return Adjustment(covariate_columns, slopes), covariate_columns[collinear]


def harmonising_unit(diagonal: Array, n: float, deviation: Array) -> Array:
    """Return divisors (d,) that give a party's features the standard deviations that they have within all parties.

    `diagonal` (d,) is that of the scatter of the party's n rows, and `deviation` (d,) holds the standard deviations of
    all rows within parties. The divisor is 1 for a feature that does not vary.
    """
    varies = (diagonal > 0) & (deviation > 0)
    return np.divide(np.sqrt(diagonal.clip(min=0.0) / n), deviation, out=np.ones_like(deviation), where=varies)


class UnitMismatch(NamedTuple):
    """A feature that a party has in another unit than its peers, by the numbers of the party and of the feature."""

    party: int
    feature: int
    mean: float  # of the feature at this party
    peer_mean: float  # median of the peers' means


def find_unit_mismatches(rows: Array, means: Array, deviations: Array) -> Sequence[UnitMismatch]:
    """Find features that a party seems to have in another unit (cm, not m) than most of its K - 1 peers.

    Parties with fewer than `MIN_PARTY_ROWS` rows are left out. If two parties remain, the second one is named. Of more
    than `MAX_UNIT_PEERS` peers, so many are compared, spread evenly over the parties' numbers.

    Shapes: rows (K,), means, deviations (K, d).
    """
    large_parties = np.flatnonzero(rows >= MIN_PARTY_ROWS)
    with np.errstate(all="ignore"):
        usable = (deviations > 0) & (np.abs(means) >= MIN_MEAN_DEVIATIONS * deviations)
        logs = np.where(usable, np.log(np.stack([np.abs(means), deviations])), np.nan)
    signs = np.sign(means)
    mismatches: list[UnitMismatch] = []
    for party in large_parties[-1:] if len(large_parties) == 2 else large_parties:
        peers = large_parties[large_parties != party]
        if peers.size > MAX_UNIT_PEERS:
            peers = peers[np.linspace(0, peers.size - 1, MAX_UNIT_PEERS).astype(np.intp)]
        if peers.size:
            differs = _peers_in_other_unit(logs, signs, int(party), peers)
            for feature in np.flatnonzero(differs.any(axis=0)):
                typical = float(np.median(means[peers[differs[:, feature]], feature]))
                mismatches.append(UnitMismatch(int(party), int(feature), float(means[party, feature]), typical))
    return mismatches


def _peers_in_other_unit(logs: Array, signs: Array, party: int, peers: NDArray[np.intp]) -> NDArray[np.bool_]:
    """Return which peers (K - 1, d) share a unit of the feature with most peers, while this party has another.

    Each peer must be near this party or distant from it: a ratio in between is no change of unit. `logs` (2, K, d) are
    the logarithms of mean and deviation, NaN for features that the rule does not use; `signs` (K, d) are the means'
    signs.
    """
    mean, deviation = np.abs(log_ratios := logs[:, peers] - logs[:, None, party])
    same_factor = np.abs(log_ratios[0] - log_ratios[1]) <= np.log(SIMILAR_RATIO)
    distant = (np.minimum(mean, deviation) >= np.log(MIN_UNIT_RATIO)) & same_factor
    near = np.maximum(mean, deviation) <= np.log(SIMILAR_RATIO)
    decided = (distant | near | np.isnan(mean)) & (signs[peers] == signs[party])
    return np.asarray(distant & decided.all(axis=0) & (distant.mean(axis=0) > 0.5))
