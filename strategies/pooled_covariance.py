"""P-COV: the PCA of all rows together, exactly, in one round.

Every party k sends its count n_k, mean m_k and centred scatter S_k. The server adds the scatter between the means::

    S = sum S_k + sum n_k (m_k - m)(m_k - m)^T,    S / N = covariance of the pooled rows

and takes its leading eigenvectors. Exact up to rounding for any partition of the rows, however unequal or shifted.

Upload per party: d (d + 1) / 2 + d + 1 values, in one round. The server sees each party's covariance; with secure
aggregation sums only, in more rounds (docs/secure-aggregation.md has the bytes of each). What a party is asked, in
clear, masked and with survivors, is `fedpca_flwr.statistics.rows.moments_phases`; what it answers is in `rows_client`.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from fedpca_flwr.config import RunConfig
from fedpca_flwr.protocol.card import MethodCard, MomentsOptions
from fedpca_flwr.protocol.phase import Ask, Phases
from fedpca_flwr.solution import Solution, solve
from fedpca_flwr.statistics.genotypes import GenotypeOptions, genotype_phases
from fedpca_flwr.statistics.rows import moments_phases, pooled_moments, projection_phase
from fedpca_flwr.statistics.rows_client import RowsClient
from fedpca_flwr.statistics.rows_strategy import RowsStrategy


class PooledOptions(MomentsOptions, GenotypeOptions):
    """Options of P-COV."""


def phases(config: RunConfig, options: PooledOptions) -> Phases:
    """The moments, in the way that the transport asks for."""
    return {**moments_phases(config, keep=options.keep), **projection_phase(config)}


CARD = MethodCard(
    name="p-cov",
    title="Pooled covariance",
    exact=True,
    rounds="1",
    upload="d(d+1)/2 + d + 1",
    server_sees="each party's covariance",
    pools_moments=True,
    options=PooledOptions,
    phases=lambda config, options: genotype_phases(config, options, phases),
    reference="Chan, Golub and LeVeque 1983, Algorithms for computing the sample variance (how moments pool)",
    examples=({}, {"genotypes": True}),
)


class PooledCovariance(RowsStrategy):
    """P-COV."""

    card = CARD
    options: PooledOptions

    def aggregate(self) -> Generator[Ask, Any, Solution]:
        moments, diagonal = yield from pooled_moments(self)
        return solve(moments, diagonal, **self.options.model_dump(exclude={"keep", "genotypes"}))


class PooledCovarianceClient(RowsClient):
    """Sends the moments of its rows."""
