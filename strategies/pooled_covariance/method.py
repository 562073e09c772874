"""P-COV: the PCA of all rows together, exactly, in one round.

Every party k sends its count n_k, mean m_k and centred scatter S_k. The server adds the scatter between the means::

    S = sum S_k + sum n_k (m_k - m)(m_k - m)^T,    S / N = covariance of the pooled rows

and takes its leading eigenvectors. Exact up to rounding for any partition of the rows, however unequal or shifted.

Upload per party: d (d + 1) / 2 + d + 1 values, in one round. The server sees each party's covariance; with secure
aggregation sums only, in more rounds (docs/secure-aggregation.md has the bytes of each). What a party is asked, in
clear, masked and with survivors, is `fedpca_flwr.statistics.rows.moments_phases`; what it answers is in `rows_client`.
The last round may have more than the projection (`fedpca_flwr.statistics.last_round`).
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace
from typing import Any

from fedpca_flwr.model import PCAModel
from fedpca_flwr.protocol.card import MethodCard, ScaledOptions, Shown
from fedpca_flwr.protocol.payload import Fields
from fedpca_flwr.protocol.phase import Ask, Total
from fedpca_flwr.solution import Solution, check_components, solve
from fedpca_flwr.statistics.adjusting import Adjusted, adjusted_moments
from fedpca_flwr.statistics.last_round import conclude, more_asked
from fedpca_flwr.statistics.rows import pooled_moments
from fedpca_flwr.statistics.rows_strategy import RowsStrategy

from .script import PooledOptions, phases

CARD = MethodCard(
    name="p-cov",
    title="Pooled covariance",
    exact=True,
    rounds="1",
    upload="d(d+1)/2 + d + 1",
    server_sees="each party's covariance",
    shows=Shown(
        "number of rows, mean, covariance matrix, count and squared error of the last round",
        "the pooled components, mean and scales",
    ),
    shows_summed=Shown(
        "number of rows, mean, variances, scatter, squared error",
        "mean, variances and number of rows of all; the pooled components",
    ),
    pools_moments=True,
    options=PooledOptions,
    phases=phases,
    reference="Chan, Golub and LeVeque 1983, Algorithms for computing the sample variance (how moments pool)",
    examples=({}, {"harmonise": "variances"}, {"genotypes": True}),
)


class PooledCovariance(RowsStrategy):
    """P-COV.

    Attributes
    ----------
    adjusted : Adjusted or None
        What the run has taken out of the rows, if its options say so.
    """

    card = CARD
    options: PooledOptions
    adjusted: Adjusted | None = None

    def aggregate(self) -> Generator[Ask, Any, Solution]:
        options = self.options.model_dump(include=set(ScaledOptions.model_fields))
        if not self.options.adjusts:
            moments, diagonal = yield from pooled_moments(self)
            return solve(moments, diagonal, **options)
        moments, self.adjusted = yield from adjusted_moments(self)
        adjustment = self.adjusted.adjustment
        check_components(self.options.n_components, moments.count, moments.n_features - adjustment.places.size)
        solution = solve(moments, moments.diagonal(), **options)
        solution.pairs.vectors[moments.diagonal() == 0] = 0.0  # where nothing is left, rounding is no loading
        return replace(solution, adjustment=adjustment).extended(notes=self.adjusted.notes)

    def loadings(self, model: PCAModel, solution: Solution) -> Fields:
        told = {} if self.adjusted is None else self.adjusted.told
        return {**super().loadings(model, solution), **told, **more_asked(model, self.options)}

    def conclude(self, model: PCAModel, fit: Total) -> None:
        conclude(model, fit, self.options)
