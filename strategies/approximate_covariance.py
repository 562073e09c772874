"""AP-COV: the plain weighted average of the parties' covariances, one round (note 001).

The scatter between the parties' means is left out::

    C = sum (n_k / N) C_k       instead of      C + sum (n_k / N) (m_k - m)(m_k - m)^T

so the result is wrong by as much as the parties' means differ. The payload is that of P-COV, so P-COV costs the same
and is exact: this method stays for the comparison. Since the server holds the means, it measures how far off it is.
"""

from __future__ import annotations

import numpy as np

from fedpca_flwr.maths.moments import Moments, pool, within
from fedpca_flwr.maths.subspace import principal_angles
from strategies.base import MethodCard, Solution
from strategies.moments import MOMENTS, CovarianceOptions, CovarianceStrategy, MomentsClient, moments_of

CARD = MethodCard(
    name="ap-cov",
    title="Averaged covariance",
    exact=False,
    summable=True,
    rounds=1,
    options=CovarianceOptions,
    payloads={"statistics": MOMENTS},
    reference="note 001, methods implemented",
)


class ApproximateCovariance(CovarianceStrategy):
    """AP-COV; ``measured`` holds its angle to the exact components and the share of variance it leaves out."""

    card = CARD

    def aggregate_fit(self, server_round, results, failures):
        parts = [moments_of(reply) for reply in self.collect(server_round, results, failures)]
        if not self.options.center:  # averaging raw second moments leaves nothing out
            parts = [part.about_zero() for part in parts]
        pooled, averaged = pool(parts), within(parts)
        exact = self.solve(pooled, pooled=pooled)
        solution = self.solve(averaged, pooled=pooled)
        k = min(len(exact.pairs.values), len(solution.pairs.values))
        angles = principal_angles(solution.pairs.vectors[:, :k], exact.pairs.vectors[:, :k])
        between = self._between(averaged, solution)
        return self.finish(
            solution,
            notes=["averaged covariances leave out the variance between parties; p-cov costs the same and is exact"],
            measured={
                "angle to exact": f"{angles.max():.2g} max, {angles.mean():.2g} mean (degrees, computed by the server)",
                "between parties": f"{between:.2%} of the variance, left out",
            },
        )

    def _between(self, averaged: Moments, solution: Solution) -> float:
        """The share of the variance, in the units of the solution, that lies between the parties."""
        weights = 1.0 if solution.scale is None else solution.scale**-2
        return max(0.0, 1 - float(np.sum(averaged.diagonal() * weights)) / solution.total)


class ApproximateCovarianceClient(MomentsClient):
    """Sends the moments of its rows."""
