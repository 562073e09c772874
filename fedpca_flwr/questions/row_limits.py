"""The sums that secure aggregation shows the server, and the public limits that their fixed point comes from.

Means of parties do not add up, so the pooled mean m comes first, from counts and plain sums, and all that follows is
taken about m. The second sum gives the variances, T_jj = sum (x_j - m_j)^2 over all rows. They bound everything that
comes later (Cauchy and Schwarz)::

    |T_ij| <= s_i s_j,    |(T V)_ib| <= s_i sum_j s_j |V_jb|,    s_j^2 = T_jj

for the sum and for the sum of the parties' absolute values, so that each entry has its own resolution, 2^-62 of its
limit, whatever the units of the features. Only the first two sums need `bound`. They travel in four words a value, so
it may be 10^20 times the data's deviation, at no loss.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import blas

from fedpca_flwr.config.run_config import RunConfig
from fedpca_flwr.errors import ConfigError, ContractError, DataError
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.moments import Head, packed_size, two_sum
from fedpca_flwr.maths.rows import count_of
from fedpca_flwr.maths.secure import Layout
from fedpca_flwr.model.solution import ALL_ROWS
from fedpca_flwr.protocol.client import PCAClient
from fedpca_flwr.protocol.question import SumLimits, by_transport

ROWS = 2**40
"""Rows that all parties together may have."""

FIRST_WORDS = 4
"""For each value of the first two sums."""

UNCENTRED_WORDS = 3
"""For each value of an uncentred sum: steps of 2^-154 of its limit."""


class Pooled(NamedTuple):
    """What the first two sums tell."""

    rows: int | float  # N, of all parties, or the sum of their weights
    centre: Array  # m, the pooled mean up to rounding: what later sums are taken about
    remainder: Array  # what that rounding lost
    diagonal: Array  # of the scatter about the mean
    spread: Array  # s, a little enlarged, by rounding too: the roots of the scatter's diagonal about m
    missed: Array = np.zeros(1)  # bound on what fixed point rounded off the diagonal
    cautions: Sequence[str] = ()  # what a reader must know of it

    @property
    def head(self) -> Head:
        return Head(self.rows, *two_sum(self.centre, self.remainder))


UNSEEN = 1e-9
"""Share of a variance that fixed point may cost before it counts as not seen."""


def require_bound(config: RunConfig) -> None:
    """Refuse by a `ConfigError` a run of sums in fixed point whose `bound` is missing."""
    if config.bound < by_transport(config, clear=0.0, masked=1e-100):
        raise ConfigError(
            f"run-config: 'secure-aggregation' is true, but 'bound' is {config.bound:g}, expected 1e-100 to 1e100: set "
            "it so that no value of the data is larger in size; a generous bound costs nothing"
        )


def permit_fixed_point(party: PCAClient) -> None:
    """Refuse, before anything is answered, what sums in fixed point have no room for or this site does not allow."""
    if not party.in_fixed_point:
        return
    if party.site.config.bound:
        require_bound(party.site.config)
        party.site.permit_bound(party.card.split)
    require_few_rows(count_of(party.data), party.site.node.num_partitions)


def require_few_rows(rows: float, parties: int) -> None:
    """Refuse more rows of one of ``parties`` than a sum of rows has room for."""
    if rows > ROWS // parties:
        raise DataError(f"this site has more rows than its part of {ROWS:,}, the most in a secure sum")


def require_resolved(bound: float, missed: Array, diagonal: Array, or_else: str = "", *, which: str = ALL_ROWS) -> None:
    """Refuse a bound so far above the data that fixed point, whose steps it sets, misses their variance.

    ``missed`` (d,) is what rounding may have cost of the scatter's diagonal (d,) of rows, which are ``which``; the
    text ends with what ``or_else`` would help.
    """
    if missed.sum() > UNSEEN * diagonal.sum():
        raise ConfigError(
            f"run-config: 'bound' is {bound:g}, and next to it {which} have no variance: they are "
            f"identical, or the bound must be nearer to the largest size of a value{or_else}"
        )


def require_scalable(bound: float, missed: Array, diagonal: Array, rows: float) -> None:
    """Refuse a bound beside which features vary too little to be scaled; the parameters as `require_resolved`.

    What cannot be told from a constant feature may pass for one where its deviation is nothing beside that of scaled
    features, and below 1e-15 of the largest.
    """
    varying, matters = diagonal > missed, missed > min(1e-12 * rows, 1e-30 * float(diagonal.max(initial=0.0)))
    few = int(((missed > UNSEEN * diagonal) & (varying | matters)).sum())
    if few:
        raise ConfigError(
            f"run-config: 'bound' is {bound:g}, and next to it {few} features have too little variance to be scaled: "
            "lower 'bound' to the largest size of a value, change the unit of these features, or leave out those that "
            "are constant"
        )


def rows_in(count: NDArray[Any], parties: int, *, weighted: bool = False) -> int | float:
    """The rows that the parties of an opened sum have, or the sum of their weights; or a `ContractError`: nobody can
    check a single share."""
    rows, least = (float(count), np.finfo(np.float64).tiny) if weighted else (int(count), parties)
    if not least <= rows <= ROWS:
        raise ContractError(
            f"the {parties} parties together say that they have {rows} rows, expected {least} to {ROWS:,}: the share "
            "of one of them is false, or was altered on its way"
        )
    return rows


def sum_limits(bound: float, d: int) -> SumLimits:
    """Count, and sum of x (d,), of rows whose values are at most ``bound`` in size."""
    return {"count": np.array(float(ROWS)), "sum": np.full(d, ROWS * bound)}


def deviation_limits(bound: float, rows: float, d: int) -> SumLimits:
    """Sums of x - m and of its squares, (d,) each."""
    return {"shift": np.full(d, 2 * bound * rows), "diagonal": np.full(d, 4 * bound**2 * rows)}


def scatter_limits(spread: Array) -> SumLimits:
    """A packed scatter (d (d + 1) / 2,)."""
    d = spread.size
    return {"scatter": blas.dspr(d, 1.0, spread, np.zeros(packed_size(d)), lower=1)}


def product_limits(spread: Array, V: Array) -> SumLimits:
    """A scatter times the block ``V`` (d, b)."""
    return {"product": np.outer(spread, spread @ np.abs(V))}


def projection_limits(rows: float, total: float) -> SumLimits:
    """Count, and the squared error that the projection of rows leaves: at most their scatter, and some rounding."""
    return {"count": np.array(float(rows)), "squared": np.array(2 * total)}


def uncentred_limits(bound: float, d: int, *, within: bool) -> SumLimits:
    """Count, sum and packed second moments of rows whose values are at most ``bound`` in size.

    ``within``: the packed sum is about the parties' own means, and ``squares`` (d,) about zero.
    """
    limits = {
        "count": np.array(float(ROWS)),
        "sum": np.full(d, ROWS * bound),
        "scatter": np.full(packed_size(d), ROWS * bound**2),
    }
    return {**limits, "squares": np.full(d, ROWS * bound**2)} if within else limits


def pooled_of(bound: float, rows: float, centre: Array, shift: Array, diagonal: Array) -> Pooled:
    """The pooled moments but for the scatter, from ``shift`` and ``diagonal``, the sums of `deviation_limits`."""
    remainder = shift / rows
    resolution = Layout({}, words=FIRST_WORDS).resolution
    unresolved = deviation_limits(bound, rows, shift.size)["diagonal"] * resolution * 2**18  # more parties than can be
    spread = np.sqrt(diagonal.clip(min=0.0) * (1 + 2.0**-20) + unresolved)
    return Pooled(rows, centre, remainder, (diagonal - rows * remainder**2).clip(min=0.0), spread)
