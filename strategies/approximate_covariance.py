"""AP-COV: the plain weighted average of the parties' covariances, one round (note 001).

The scatter between the parties' means is left out::

    C = sum (n_k / N) C_k       instead of      C + sum (n_k / N) (m_k - m)(m_k - m)^T

so the result is wrong by as much as the parties' means differ. The payload is that of P-COV, so P-COV costs the same
and is exact: this method stays for the comparison. Since the server holds the means, it measures how far off it is.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedpca_flwr.errors import DataError
from fedpca_flwr.maths.moments import pool, within
from fedpca_flwr.maths.subspace import principal_angles
from strategies.base import MethodCard, Solution
from strategies.moments import MOMENTS, CovarianceOptions, CovarianceStrategy, MomentsClient, moments_of

CARD = MethodCard(
    name="ap-cov",
    title="Averaged covariance",
    exact=False,
    result="without the variance between parties; for comparison",
    rounds=1,
    upload="d(d+1)/2 + d + 1",
    server_sees="each party's covariance",
    options=CovarianceOptions,
    payloads={"statistics": MOMENTS},
    reference="note 001, methods implemented",
)

NOTE = "averaged covariances leave out the variance between parties; p-cov costs the same and is exact"


class ApproximateCovariance(CovarianceStrategy):
    """AP-COV; ``measured`` holds its angle to the exact components and the share of variance it leaves out."""

    card = CARD

    def aggregate_fit(self, server_round, results, failures):
        parts = [moments_of(reply) for reply in self.collect(server_round, results, failures)]
        pooled = pool(parts)
        diagonal = pooled.diagonal()
        averaged = within(parts) if self.options.center else pooled  # averaged raw second moments leave nothing out
        exact, solution = self.solve(pooled, diagonal), self.solve(averaged, diagonal)
        require_some_within(solution)
        k = min(len(exact.pairs.values), len(solution.pairs.values))
        angles = principal_angles(solution.pairs.vectors[:, :k], exact.pairs.vectors[:, :k])
        return self.finish(
            solution,
            notes=[NOTE],
            measured={
                "angle to exact": f"{angles.max():.2g} max, {angles.mean():.2g} mean (degrees, computed by the server)",
                "between parties": left_out(diagonal - averaged.diagonal(), solution),
            },
        )


class ApproximateCovarianceClient(MomentsClient):
    """Sends the moments of its rows."""


def require_some_within(solution: Solution) -> None:
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


def left_out(diagonal: NDArray, solution: Solution) -> str:
    """What share of the variance, in the units of the solution, a scatter with this ``diagonal`` (d,) has."""
    weights = 1.0 if solution.scale is None else solution.scale**-2
    return f"{max(0.0, float(np.sum(diagonal * weights)) / solution.total):.2%} of the variance, left out"
