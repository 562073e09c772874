"""What a run of P-COV may ask: its options, and its phases."""

from __future__ import annotations

from fedpca_flwr.config import RunConfig
from fedpca_flwr.protocol.phase import Phases
from fedpca_flwr.statistics.adjusting import AdjustOptions, adjusted_phases, with_adjustment
from fedpca_flwr.statistics.genotypes import GenotypeOptions, genotype_phases
from fedpca_flwr.statistics.last_round import LastRoundOptions, with_more
from fedpca_flwr.statistics.rows import projection_phase


class PooledOptions(LastRoundOptions, AdjustOptions, GenotypeOptions):
    """Options of P-COV."""


def phases(config: RunConfig, options: PooledOptions) -> Phases:
    """The moments, and the last question."""
    return with_more(genotype_phases(config, options, _of_moments), options)


def _of_moments(config: RunConfig, options: PooledOptions) -> Phases:
    return with_adjustment(
        {**adjusted_phases(config, options), **projection_phase(config, about="" if options.genotypes else "centre")},
        options,
    )
