"""The parties' moments in clear: added as they come, and kept only where more than their sum is needed.

The server keeps what each party sent where the run is to keep it (``keep='parties'``), or has a limit to what one may
hold of a component (``max-share``). Without either it keeps them for the parties' influence (`influences`) while that
takes little memory, and says in the model where it does not.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import numpy as np

from fedpca_flwr.errors import ContractError
from fedpca_flwr.maths.definite import RandomGroups
from fedpca_flwr.maths.moments import packed_size
from fedpca_flwr.maths.pooling import MomentsSum
from fedpca_flwr.protocol.arriving import as_they_come
from fedpca_flwr.protocol.payload import Fields
from fedpca_flwr.protocol.phase import Ask
from fedpca_flwr.statistics.influences import AddedContributions
from fedpca_flwr.statistics.moment_fields import moments_in
from fedpca_flwr.statistics.rows_strategy import RowsStrategy

FOR_INFLUENCE = 2**30
"""Bytes of all parties' scatters together that are kept for nothing but their influence."""


def keeps_each(run: RowsStrategy) -> bool:
    """Whether the server keeps each party's moments until the run has its model."""
    asked = run.config.max_share > 0 or getattr(run.options, "keep", "nothing") == "parties"
    return asked or _nbytes(run) <= FOR_INFLUENCE


def added_moments(run: RowsStrategy) -> Generator[Ask, Any, MomentsSum]:
    """The sum of all parties' moments, of which none is kept."""
    added = MomentsSum(run.public.features)
    groups = RandomGroups(run.public.parties, np.random.default_rng())

    def take(fields: Fields, sender: str) -> None:
        part = moments_in(fields)
        try:
            added.add(part)
        except ValueError as error:
            raise ContractError(f"{sender}: field 'scatter': {error}") from None
        groups.add(sender, part)

    replies = yield from as_they_come(Ask("moments"), take)
    run.contributions = AddedContributions(groups)
    run.cautions = [
        *run.cautions,
        f"no influence of single parties is told: what all {len(replies)} sent has {_nbytes(run):,} bytes, and was "
        "added as it came; with 'max-share' it is kept, and told",
    ]
    return added


def _nbytes(run: RowsStrategy) -> int:
    return 8 * packed_size(run.public.features) * run.public.parties
