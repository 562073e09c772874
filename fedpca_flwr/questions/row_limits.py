"""Sums over rows that secure aggregation shows the server, and the public limits that fix their fixed-point format.

Limits are functions of `bound`, of `MAX_ROWS` and of the number of parties. The request enters only where every row
within `bound` provably stays below: with r_j the `reach`, the largest size of a value of feature j as the question
takes the rows (less a centre within `bound`, divided by a scale), no sum over at most `MAX_ROWS` rows is larger than ::

    |sum x_i| <= R r_i,    |sum x_i x_j| <= R r_i r_j,    |(sum x x^T v)_i| <= R r_i |r|    (|v| = 1, R = MAX_ROWS)

So whether a sum opens says nothing but that rows are within `bound`, which is public. Such limits are far above sums of
real rows, so values travel in more than one word; a generous `bound` costs digits only.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import blas

from fedpca_flwr.config.run_config import RunConfig
from fedpca_flwr.errors import ConfigError, ContractError, DataError
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.moments import Head, packed_size
from fedpca_flwr.maths.secure import Digits
from fedpca_flwr.model.solution import ALL_ROWS
from fedpca_flwr.protocol.client import PCAClient
from fedpca_flwr.protocol.payload import Fields
from fedpca_flwr.protocol.question import SERVER, Public, SumLimits, by_transport

MAX_ROWS = 2**32  # largest number of rows of all parties together, or sum of their weights
FIRST_WORDS = 4  # number of 64-bit words for each value of sums whose size is still unknown
WIDE_DIGITS: Digits = (1,) * FIRST_WORDS  # digits of a value in `FIRST_WORDS` whole words
MAX_TWO_WORD_VALUES = 2**15  # number of values up to which a second whole word costs less than a further question
MAX_SHORT_DIGIT_PARTIES = 2**10  # number of parties up to which a fifth of a word holds all their rounding
SPARE_BITS = 10  # of a scatter's limit, above all sums but those of rows that are very many and near the bound


class PooledCentre(NamedTuple):
    """Count, mean and variances of all rows: their moments without the part off the diagonal."""

    head: Head
    diagonal: Array  # (d,) of the scatter about the mean
    error_bound: Array = np.zeros(1)  # (d,) or (1,), on the diagonal's fixed-point rounding
    cautions: Sequence[str] = ()  # for the reader of the model

    @property
    def rows(self) -> int | float:
        """Number of rows of all parties, or sum of their weights."""
        return self.head.n

    @property
    def centre(self) -> Array:
        """Mean (d,), rounded to float64."""
        return self.head.mean

    @property
    def remainder(self) -> Array:
        """Rounding error of the mean (d,)."""
        return self.head.remainder

    @property
    def spread(self) -> Array:
        """Upper bounds (d,) on the roots of the scatter's diagonal."""
        return np.sqrt(self.diagonal * (1 + 2.0**-20) + self.error_bound)


MAX_DECADES = 120  # powers of ten by which values may differ from 1, so that squares of sums stay in float64
MAX_ROUNDING_SHARE = 2.0**-40  # of all variance, which rounding in fixed point may cost until finer digits are needed
MAX_UNRESOLVED_SHARE = 1e-9  # of a variance, which rounding in fixed point may cost until it counts as unresolved


def require_bound(config: RunConfig) -> None:
    """Raise ConfigError if a run with secure sums gives no `bound` of at least 1e-100, the largest size of a value."""
    if config.bound < by_transport(config, clear=0.0, masked=1e-100):
        raise ConfigError(
            f"run-config: 'secure-aggregation' is true, but 'bound' is {config.bound:g}, expected 1e-100 to 1e100: set "
            "it so that no value of the data is larger in size; a generous bound costs nothing"
        )


def permit_fixed_point(party: PCAClient) -> None:
    """Raise ConfigError or DataError for a `bound`, if any, below 1e-100, and for too many rows or beyond the bound."""
    if party.site.config.bound:
        require_bound(party.site.config)
        party.site.permit_bound(party.card.split)
    require_max_rows(party.selection.count, party.site.node.num_partitions)


def require_max_rows(rows: float, parties: int) -> None:
    """Raise DataError if a party has more than `MAX_ROWS` / ``parties`` rows (or sum of weights)."""
    if rows > MAX_ROWS // parties:
        raise DataError(f"this site has more rows than its part of {MAX_ROWS:,}, the most in a secure sum")


def require_resolved(
    bound: float, error_bound: Array, diagonal: Array, advice: str = "", *, subject: str = ALL_ROWS
) -> None:
    """Raise ConfigError if rounding (d,) in fixed point is more than `MAX_UNRESOLVED_SHARE` of the variance (d,)."""
    if error_bound.sum() > MAX_UNRESOLVED_SHARE * diagonal.sum():
        raise ConfigError(
            f"run-config: 'bound' is {bound:g}, and next to it {subject} have no variance: they are "
            f"identical, or the bound must be nearer to the largest size of a value{advice}"
        )


def require_scalable(bound: float, error_bound: Array, diagonal: Array, rows: float) -> None:
    """Raise ConfigError if fixed point does not resolve the variances of features to be scaled.

    A feature may pass for constant if its unresolved deviation is below 1e-6 and 1e-15 of the largest deviation.
    """
    varying, matters = diagonal > error_bound, error_bound > min(1e-12 * rows, 1e-30 * float(diagonal.max(initial=0.0)))
    require_max_unresolved(bound, int(((error_bound > MAX_UNRESOLVED_SHARE * diagonal) & (varying | matters)).sum()), 0)


def require_max_unresolved(bound: float, unresolved: int, maximum: int) -> None:
    """Raise ConfigError if fixed point leaves the variances of more than ``maximum`` features unresolved."""
    if unresolved > maximum:
        raise ConfigError(
            f"run-config: 'bound' is {bound:g}, and next to it {unresolved} features have too little variance to be "
            "scaled: lower 'bound' to the largest size of a value, change the unit of these features, or leave out "
            "those that are constant"
        )


def read_row_count(count: NDArray[Any], parties: int, *, weighted: bool = False) -> int | float:
    """Return the opened number of rows, or sum of weights if ``weighted``; ContractError for fewer than parties."""
    rows, minimum = (float(count), np.finfo(np.float64).tiny) if weighted else (int(count), parties)
    if not minimum <= rows <= MAX_ROWS:
        raise ContractError(
            f"the {parties} parties together say that they have {rows} rows, expected {minimum} to {MAX_ROWS:,}: the "
            "share of one of them is false, or was altered on its way"
        )
    return rows


def reach(request: Fields, public: Public) -> Array:
    """Return each feature's largest absolute value within `bound`, after the request's centring and scaling.

    Parameters
    ----------
    request : mapping of str to ndarray
        Fields of the question's request, of which ``centre`` or ``mean`` (d,) is subtracted, and ``scale`` divides.
    public : Public

    Returns
    -------
    ndarray of shape (d,)

    Raises
    ------
    ContractError
        If a centre is beyond `bound`, as no mean of rows is, or sums are outside the range of float64.
    """
    bound, sizes = public.config.bound, np.full(public.features, public.config.bound)
    for name in {"centre", "mean"} & request.keys():
        if np.abs(request[name]).max(initial=0.0) > bound * (1 + 2.0**-20):
            raise ContractError(f"{SERVER}: '{name}' is beyond the run's 'bound' = {bound:g}, as no mean of rows is")
        sizes = bound + np.abs(request[name])
    unit = request.get("scale", np.empty(0))
    if unit.size:
        sizes = sizes / unit
    with np.errstate(divide="ignore"):
        decades = np.abs(np.log10(sizes))
    if not (decades < MAX_DECADES).all():
        raise ContractError(f"{SERVER}: what it asked makes sums that are outside the range of float64")
    return sizes


def sum_limits(bound: float, d: int) -> SumLimits:
    """Return the limits of the row count, and of the sums of d features whose values are within the bound.

    Parameters
    ----------
    bound : float
        Largest size of a value.
    d : int
        Number of features.

    Returns
    -------
    mapping of str to ndarray
    """
    return {"count": np.array(float(MAX_ROWS)), "sum": np.full(d, MAX_ROWS * bound)}


def scatter_limits(spread: Array) -> SumLimits:
    """Return the Cauchy-Schwarz limits s_i s_j of a packed scatter's entries, with s (d,) the roots of its diagonal."""
    d = spread.size
    return {"scatter": blas.dspr(d, 1.0, spread, np.zeros(packed_size(d)), lower=1)}


def sums_limits(reach: Array) -> SumLimits:
    """Return the limits of the row count, and of each feature's sum and sum of squares, from its largest size (d,)."""
    return {"count": np.array(float(MAX_ROWS)), "sum": MAX_ROWS * reach, "squares": MAX_ROWS * reach**2}


def moments_limits(reach: Array) -> SumLimits:
    """Return the limits of row count, each feature's sum and sum of squares, and packed sums of products.

    Parameters
    ----------
    reach : ndarray of shape (d,)
        Largest size of a value of each feature.

    Returns
    -------
    mapping of str to ndarray
        ``count``, ``sum`` (d,), ``squares`` (d,) and ``scatter`` (d (d + 1) / 2,).
    """
    d = reach.size
    if (reach == reach[0]).all():  # a single number takes no room
        scatter: Array = np.broadcast_to(MAX_ROWS * reach[0] ** 2, packed_size(d))
    else:
        scatter = blas.dspr(d, float(MAX_ROWS), reach, np.zeros(packed_size(d)), lower=1)
    return {**sums_limits(reach), "scatter": scatter}


def product_limits(reach: Array, columns: int) -> SumLimits:
    """Return twice the limits of a scatter's ``product`` (d, columns) with orthonormal columns; ``reach`` has (d,)."""
    limit = 2 * MAX_ROWS * reach * np.linalg.norm(reach)
    return {"product": np.broadcast_to(limit[:, None], (reach.size, columns))}


def projection_limits(reach: Array) -> SumLimits:
    """Return the limits of ``count``, and twice that of ``squared``, the total squared error; ``reach`` has (d,)."""
    return {"count": np.array(float(MAX_ROWS)), "squared": np.array(2 * MAX_ROWS * float(reach @ reach))}
