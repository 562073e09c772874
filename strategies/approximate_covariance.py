"""AP-COV: the plain weighted average of the parties' covariances, one round.

The scatter between the parties' means is left out::

    C = sum (n_k / N) C_k       instead of      C + sum (n_k / N) (m_k - m)(m_k - m)^T

so the result is wrong by as much as the parties' means differ. The payload is that of P-COV, so P-COV costs the same
and is exact: this method stays for the comparison. Where the server holds the means, it measures how far off it is.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace
from typing import Any

from fedpca_flwr.errors import DataError
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.eigen import principal_angles
from fedpca_flwr.maths.moments import Moments
from fedpca_flwr.model.solution import Solution, solve
from fedpca_flwr.protocol.card import MethodCard, ScaledOptions, Shown
from fedpca_flwr.protocol.question import Ask
from fedpca_flwr.questions.rows import moments_phases, pooled_moments, projection_phase
from fedpca_flwr.questions.rows_run import RowsStrategy

CARD = MethodCard(
    name="ap-cov",
    title="Averaged covariance",
    exact=False,
    result="without the variance between parties; for comparison",
    rounds="1",
    upload="d(d+1)/2 + d + 1",
    server_sees="each party's covariance",
    shows=Shown(
        "number of rows, mean, covariance matrix, count and squared error of the last round",
        "the pooled components, mean and scales",
    ),
    shows_summed=Shown(
        "number of rows, mean, variances, scatter without that between means, squared error",
        "mean, variances and number of rows of all; the pooled components",
    ),
    pools_moments=True,
    options=ScaledOptions,
    phases=lambda config, options: {
        **moments_phases(config, within=options.center),
        **projection_phase(about="centre"),
    },
    reference="this project: P-COV without the scatter between the means, as covariances are often averaged",
)

NOTE = "averaged covariances leave out the variance between parties; p-cov costs the same and is exact"


class ApproximateCovariance(RowsStrategy):
    """AP-COV; ``measured`` holds the share of variance it leaves out, and where it can be had its angle to exact."""

    card = CARD
    options: ScaledOptions

    def aggregate(self) -> Generator[Ask, Any, Solution]:
        # averaged raw second moments leave nothing out
        found = yield from pooled_moments(self, within=self.options.center)
        averaged, diagonal, pooled = found.moments, found.diagonal, found.whole
        solution = replace(self._solved(averaged, diagonal), evidence=found.evidence)
        _require_some_within(solution)
        measured = {"between_parties_variance_share": _left_out(diagonal - averaged.diagonal(), solution)}
        if pooled is not None:
            exact = self._solved(pooled, diagonal).pairs.vectors
            k = min(exact.shape[1], solution.pairs.vectors.shape[1])
            angles = principal_angles(solution.pairs.vectors[:, :k], exact[:, :k])
            measured["angle_to_exact_max_degrees"] = float(angles.max())
            measured["angle_to_exact_mean_degrees"] = float(angles.mean())
        return solution.extended(notes=[NOTE], measured=measured)

    def _solved(self, moments: Moments, diagonal: Array) -> Solution:
        return solve(moments, diagonal, **self.options.model_dump())


def _require_some_within(solution: Solution) -> None:
    """Refuse an average of covariances that are all zero.

    Raises
    ------
    DataError
    """
    if solution.pairs.values[0] <= 0:
        raise DataError(
            "the rows of each party are identical (it may have one row only): averaged covariances hold no variance; "
            "take 'p-cov', which costs the same and keeps the variance between parties"
        )


def _left_out(diagonal: Array, solution: Solution) -> float:
    """What share of the variance, in the units of the solution, a scatter with this ``diagonal`` (d,) has."""
    weights = 1.0 if solution.scale is None else solution.scale**-2
    return max(0.0, float((diagonal * weights).sum()) / solution.total)
