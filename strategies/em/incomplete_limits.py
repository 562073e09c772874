"""Limits of the sums over rows with missing values, for fixed point and for single replies.

The limits of fixed point are public. A standardised value of feature j is at most r_j in size, since no value is larger
than `bound`. For n rows and a model with mean m and covariance S, whose least eigenvalue is at least `MIN_EIGENVALUE`,
the expected missing values are at most (Cauchy and Schwarz in the metric of S)::

    sum_i E[x_ij]^2 <= S_jj sum_i x_io' S_oo^-1 x_io <= S_jj n sum_j (r_j + |m_j|)^2 / MIN_EIGENVALUE

That is generous, so these sums travel in four words a value. Where the server sees each reply, it holds the reply
against the same limit with the party's n, and with 1 for r: standardised, the squares of the observed values of a
feature add up to n.

For a model of few factors the noise takes the place of the least eigenvalue. For a direction V_b and the expected
values y of all rows (Cauchy and Schwarz)::

    |sum y_j (y'V_b)|^2 <= sum y_j^2  sum |y|^2
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from fedpca_flwr.data.table import MAX_MAGNITUDE
from fedpca_flwr.maths import moments
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.incomplete_rows import MIN_EIGENVALUE
from fedpca_flwr.protocol.payload import Fields
from fedpca_flwr.protocol.question import Public, SumLimits
from fedpca_flwr.questions import row_limits

CENTRE_ROUNDING = 2.0**-48  # share of a centre by which rounding of sums may move it from the mean of observed values

LimitFunction = Callable[[Fields, Public], SumLimits]


def positive(spread: Array) -> Array:
    """Return the deviations (d,) with every zero replaced by 1, so that dividing by the result is safe."""
    return np.where(spread > 0, spread, 1.0)


def factor_unit(request: Fields, *, scale: bool) -> Array:
    """Return the unit (d,) that a factor model divides features by; the request is `ObservedValues.model_request`.

    With ``scale`` it is each feature's standard deviation, and 1 where rounding of the mean explains that, as in
    `fedpca_flwr.maths.moments.safe_deviation`. Otherwise all have the root of their mean variance.
    """
    spread, rows = request["spread"], int(request["rows"])
    if scale:
        return moments.safe_deviation(rows * spread**2, rows, request["centre"])
    size = float(np.sqrt(np.mean(spread**2)))
    return np.full(spread.size, size if size > 0 else 1.0)


def unbounded_limits(limits: LimitFunction) -> LimitFunction:
    """Return the limit function with `bound` replaced by the largest value of any table, for replies in clear."""

    def unbounded(request: Fields, public: Public) -> SumLimits:
        """Return the limits for rows whose values may be as large as in any table."""
        return limits(request, replace(public, config=public.config.model_copy(update={"bound": MAX_MAGNITUDE})))

    return unbounded


def observed_limits(public: Public, *, pairs: bool) -> SumLimits:
    """Return limits of ``count``, ``empty``, ``pairs`` (packed) or else ``values`` (d,), and ``sum`` (d,)."""
    d, max_rows = public.features, float(row_limits.MAX_ROWS)
    counts = {"pairs": np.full(moments.packed_size(d), max_rows)} if pairs else {"values": np.full(d, max_rows)}
    sums = np.full(d, max_rows * public.config.bound)
    return {"count": np.array(max_rows), "empty": np.array(max_rows), **counts, "sum": sums}


def deviation_limits(request: Fields, public: Public, rows: int) -> SumLimits:
    """Return limits (d,) of ``shift`` and ``diagonal``, sums of deviations and squares of ``rows`` rows."""
    size = public.config.bound + np.abs(request["centre"])
    return {"shift": size * rows, "diagonal": size**2 * rows}


def max_standardised(request: Fields, public: Public, unit: Array) -> Array:
    """Return the largest size (d,) of values within `bound`, less ``centre`` and over ``unit``; inf if too large."""
    with np.errstate(over="ignore", divide="ignore"):  # what is not finite is refused
        size: Array = (public.config.bound + np.abs(request["centre"])) / unit
    return size


def expected_limits(request: Fields, rows: int, size: Array | float) -> SumLimits:
    """Return limits of E-step sums under a Gaussian model: ``first`` (d,) and ``second``, packed products.

    The request has ``mean``, ``centre``, ``spread`` (d,) and the packed ``covariance``; ``rows`` is the largest number
    of rows, and ``size``, a number or (d,), the largest root mean square of a feature's values.
    """
    mean = request["mean"]
    with np.errstate(over="ignore"):
        max_deviation = np.abs(mean) + CENTRE_ROUNDING * np.abs(request["centre"]) / positive(request["spread"])
        observed = 1.01 * rows * (size + max_deviation) ** 2  # some for rounding, of the spread too
        variances = request["covariance"][moments.diagonal_positions(mean.size)]
        squares = observed + variances * (observed.sum() / MIN_EIGENVALUE + rows)
        sizes = np.sqrt(squares)
        return {"first": np.sqrt(rows) * sizes, "second": moments.pack(np.outer(sizes, sizes))}


def factor_limits(request: Fields, public: Public, *, shared: bool = False) -> SumLimits:
    """Return limits of E-step sums under a factor model: deviations, products, squares and log-likelihood.

    The request has the fields `FACTOR_MODEL`. With ``shared`` the limits are of a single party's reply, for the
    request's number of rows, and not of the sum.
    """
    unit = factor_unit(request, scale=public.options.scale)
    rows = int(request["rows"]) if shared else row_limits.MAX_ROWS
    size = request["spread"] / unit if shared else max_standardised(request, public, unit)
    mean, variances, noise = request["mean"], request["variances"], float(request["noise"])
    with np.errstate(over="ignore"):
        max_deviation = np.abs(mean) + CENTRE_ROUNDING * np.abs(request["centre"]) / unit
        observed = 1.01 * rows * (size + max_deviation) ** 2  # some for rounding, of the spread too
        along = noise + request["basis"] ** 2 @ (variances - noise).clip(min=0.0)
        squares = observed + along * (observed.sum() / noise + rows)
        logarithms = mean.size * abs(np.log(noise)) + np.abs(np.log(variances / noise)).sum()
        return {
            "first": np.sqrt(rows * squares),
            "product": np.tile(np.sqrt(squares * squares.sum())[:, None], variances.size),
            "square": squares.sum(),
            "likelihood": np.asarray(rows * logarithms + observed.sum() / noise),
        }
