"""P-COV: the PCA of all rows together, exactly, in one round (note 000).

Every party k sends its count n_k, mean m_k and centred scatter S_k. The server adds the scatter between the means::

    S = sum S_k + sum n_k (m_k - m)(m_k - m)^T,    S / N = covariance of the pooled rows

and takes its leading eigenvectors. Exact up to rounding for any partition of the rows, however unequal or shifted.

Upload per party: ``8 (d (d + 1) / 2 + d + 1)`` bytes. The server sees each party's covariance.
"""

from __future__ import annotations

from fedpca_flwr.maths.moments import pool
from strategies.base import MethodCard
from strategies.moments import MOMENTS, CovarianceOptions, CovarianceStrategy, MomentsClient, moments_of

CARD = MethodCard(
    name="p-cov",
    title="Pooled covariance",
    exact=True,
    rounds=1,
    upload="d(d+1)/2 + d + 1",
    server_sees="each party's covariance",
    options=CovarianceOptions,
    payloads={"statistics": MOMENTS},
    reference="note 000, sections 3.2 and 4",
)


class PooledCovariance(CovarianceStrategy):
    card = CARD

    def aggregate_fit(self, server_round, results, failures):
        replies = self.collect(server_round, results, failures)
        moments = pool(moments_of(reply) for reply in replies)
        return self.finish(self.solve(moments, moments.diagonal()))


class PooledCovarianceClient(MomentsClient):
    """Sends the moments of its rows."""
