"""VFedPCA: parties with different columns average the leading left singular vectors of their own (Cheung et al. 2022).

For comparison: `vertical` is exact, and with ``solver="merge"`` nearer for fewer bytes. ``variant="faithful"`` is the
authors' program, which centres rows instead of columns, adds vectors of arbitrary sign, and never forgets the vectors
of earlier periods.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field as Limits

from fedpca_flwr.config.run_config import Count
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.columns import local_product, power_iteration
from fedpca_flwr.protocol.card import MethodCard
from fedpca_flwr.questions.merging import BEYOND_MOMENTS, SHOWS, MergeOptions, MergeStrategy, merge_phases


class VFedPCAOptions(MergeOptions):
    """Options of VFedPCA."""

    local_iterations: Annotated[Count, Limits(examples=[1, 10])] = 10
    """L, of the power method in each period."""
    warm_start: Literal["random", "previous"] = "random"
    """What the power method starts from: chance, or the merged vector (algorithm 3)."""

    @property
    def from_merged(self) -> bool:
        return self.warm_start == "previous"

    def local(self, X: Array, start: Array) -> tuple[float, Array]:
        """By the power method on its own matrix."""
        return power_iteration(local_product(X, faithful=self.faithful), start, self.local_iterations)


CARD = MethodCard(
    name="vfedpca",
    title="VFedPCA",
    exact=False,
    result="4 to 65 degrees from exact; for comparison",
    rounds="2 + k `periods`; with `graph` 3 + k `periods`",
    upload="n + 1 in each period",
    server_sees="each party's leading scores",
    shows=SHOWS,
    options=VFedPCAOptions,
    phases=merge_phases,
    reference="Cheung et al. 2022, algorithms 2 to 5",
    examples=({}, {"graph": "ring"}),
    split="columns",
    exposes="scores",
    beyond_moments=BEYOND_MOMENTS,
)


class VFedPCA(MergeStrategy):
    """VFedPCA."""

    card = CARD
