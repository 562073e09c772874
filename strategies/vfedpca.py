"""VFedPCA: parties with different columns average the leading left singular vectors of their own (Cheung et al. 2022).

For comparison: `vertical` is exact, and with ``solver="merge"`` nearer for fewer bytes. ``variant="faithful"`` is the
authors' program, which centres rows instead of columns and adds vectors of arbitrary sign.
"""

from typing import Annotated, Literal

from pydantic import Field as Limits

from fedpca_flwr.maths import columns as algebra
from fedpca_flwr.questions import columns_method as method
from fedpca_flwr.questions import merging


class VFedPCAOptions(merging.MergeOptions):
    """Options of VFedPCA."""

    local_iterations: Annotated[method.Count, Limits(examples=[1, 10])] = 10
    """L, of the power method in each period."""
    warm_start: Literal["random", "previous"] = "random"
    """What the power method starts from: chance, or the merged vector (algorithm 3)."""

    @property
    def starts_from_merged(self) -> bool:
        return self.warm_start == "previous"

    def local_direction(self, X: method.Array, start: method.Array) -> tuple[float, method.Array]:
        """By the power method on its own matrix."""
        return algebra.power_iteration(algebra.local_product(X, faithful=self.faithful), start, self.local_iterations)


CARD = method.MethodCard(
    name="vfedpca",
    title="VFedPCA",
    exact=False,
    result="4 to 65 degrees from exact; for comparison",
    rounds="2 + k `periods`; with `graph` 3 + k `periods`",
    upload="n + 1 in each period",
    server_sees="each party's leading scores",
    disclosure=merging.MERGE_DISCLOSURE,
    options=VFedPCAOptions,
    script=merging.merge_questions,
    reference="Cheung et al. 2022, algorithms 2 to 5",
    examples=({}, {"graph": "ring"}),
    split="columns",
    exposes="scores",
    beyond_moments=merging.BEYOND_MOMENTS,
)


class VFedPCA(merging.MergeStrategy):
    """VFedPCA."""

    card = CARD
