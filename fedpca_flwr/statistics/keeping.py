"""What of the statistics outlives a run: the moments of all rows, where the run says so (``keep``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from fedpca_flwr.errors import ConfigError
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.moments import Moments
from fedpca_flwr.protocol.card import MomentsOptions, PCAOptions
from fedpca_flwr.protocol.messages import Reply
from fedpca_flwr.second_moments import SecondMoments

KEPT = "the moments of all rows were kept; they tell far more than this model (docs/statistics.md)"


def kept(
    options: PCAOptions, pooled: Moments, parties: Mapping[str, Moments], *, missed: Array | None = None
) -> SecondMoments | None:
    """What a run with these options keeps.

    Only a method whose options say so keeps anything: one that releases less than the moments has no such option.
    """
    if not isinstance(options, MomentsOptions) or options.keep == "nothing":
        return None
    own = parties if options.keep == "parties" else {}
    return SecondMoments(pooled, parties=own, missed=np.zeros(0) if missed is None else missed)


def party_names(replies: Sequence[Reply]) -> list[str]:
    """A name for each party that no other has."""
    names = [reply.member for reply in replies]
    return names if len(set(names)) == len(names) else [reply.sender for reply in replies]


def require_kept_sums(keep: str) -> None:
    """Refuse to keep each party's moments where the server has sums only.

    Raises
    ------
    ConfigError
    """
    if keep == "parties":
        raise ConfigError(
            "run-config: 'keep' is 'parties', but with secure-aggregation the server has the sum over all parties "
            "only; use keep=moments"
        )
