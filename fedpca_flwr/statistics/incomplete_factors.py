"""Rows with missing values, where few factors are behind them: sums of what the rows are expected to be.

As `fedpca_flwr.statistics.incomplete`, but for wide rows: nothing that is asked or replied has d^2 values. Rows are
less the mean of what was observed of each feature, in one unit for all, since the noise is alike in all: the root of
the mean variance, or with ``scale`` each feature's own deviation.

The limits of fixed point follow as there, the noise s in place of the least eigenvalue. For a direction V_b and the
expected values y of all rows (Cauchy and Schwarz)::

    |sum y_j (y'V_b)|^2 <= sum y_j^2  sum |y|^2
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import numpy as np

from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.factor_model import Factors, FactorSums
from fedpca_flwr.protocol.payload import Field, Fields, Payload
from fedpca_flwr.protocol.phase import Ask, Phase, Public, SumLimits
from fedpca_flwr.statistics.checked_sums import checked_sum
from fedpca_flwr.statistics.incomplete import EXPECTED_WORDS, MODEL, ObservedValues
from fedpca_flwr.statistics.rows_strategy import RowsStrategy

FACTORS = (
    *MODEL[:-1],
    Field("basis", ("d", "<=q"), kind="orthonormal columns"),
    Field("variances", ("<=q",), kind="positive"),
    Field("noise", (), kind="positive"),
)
"""A model of few factors, of rows in the unit that the spread gives."""


def unit_of(spread: Array, *, scale: bool) -> Array:
    """What features are divided by (d,): one number for all, or their standard deviations ``spread`` (d,)."""
    if scale:
        return np.where(spread > 0, spread, 1.0)
    size = float(np.sqrt(np.mean(spread**2)))
    return np.full(spread.size, size if size > 0 else 1.0)


def factor_phase(times: int, most: int) -> Phase:
    """The phase of `expected_products`."""
    return Phase(
        asked=Payload(FACTORS),
        reply=Payload(
            (
                Field("first", ("d",)),
                Field("product", ("d", "q")),
                Field("square", (), kind="size"),
                Field("likelihood", ()),
            )
        ),
        sizes=lambda public: {"q": min(most, public.features)},
        limits=_limits,
        words=EXPECTED_WORDS,
        times=times,
    )


def _limits(asked: Fields, public: Public) -> SumLimits:
    rows, mean, spread = int(asked["rows"]), asked["mean"], asked["spread"]
    variances, noise = asked["variances"], float(asked["noise"])
    with np.errstate(over="ignore"):
        own = spread / unit_of(spread, scale=public.options.scale)
        seen = 1.01 * rows * (own + np.abs(mean)) ** 2  # some for rounding, of the spread too
        along = noise + asked["basis"] ** 2 @ (variances - noise).clip(min=0.0)
        squares = seen + along * (seen.sum() / noise + rows)
        logarithms = mean.size * abs(np.log(noise)) + np.abs(np.log(variances / noise)).sum()
        return {
            "first": np.sqrt(rows * squares),
            "product": np.tile(np.sqrt(squares * squares.sum())[:, None], variances.size),
            "square": squares.sum(),
            "likelihood": np.asarray(rows * logarithms + seen.sum() / noise),
        }


def expected_products(
    run: RowsStrategy, observed: ObservedValues, model: Factors
) -> Generator[Ask, Any, tuple[FactorSums, Array]]:
    """The sums of all rows under a model, and a bound on what fixed point rounded off each feature's products (d,)."""
    total = yield from checked_sum(
        run,
        "products",
        {
            "rows": np.asarray(observed.rows),
            "centre": observed.centre,
            "spread": observed.spread,
            "mean": model.mean,
            "basis": model.basis,
            "variances": model.variances,
            "noise": np.asarray(model.noise),
        },
    )
    missed = total.missed.get("product", np.zeros_like(model.basis))
    sums = FactorSums(total["first"], total["product"], float(total["square"]), float(total["likelihood"]))
    return sums, np.linalg.norm(missed, axis=1)
