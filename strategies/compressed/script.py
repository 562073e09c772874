"""What a run of the compressed method may ask: its options, and its phases."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field as Limits

from fedpca_flwr.config import RunConfig
from fedpca_flwr.protocol.card import CountOptions
from fedpca_flwr.protocol.payload import Field, Payload
from fedpca_flwr.protocol.phase import Phase, Phases
from fedpca_flwr.statistics.moment_fields import HEAD
from fedpca_flwr.statistics.rows import projection_phase

MOST_CORRECTIONS = 10


class CompressedOptions(CountOptions):
    """Options of the compressed method."""

    codec: Literal["quantise", "shared-step", "low-rank", "combined", "top-k", "sketch"] = "quantise"
    """How the scatter travels."""
    bits: Annotated[int, Limits(ge=4, le=32, examples=[4, 8, 16, 32])] = 16
    """For each value; of all codecs but ``shared-step``."""
    step: Annotated[float, Limits(gt=0, le=1, examples=[1e-7, 1e-5, 1e-2, 1.0])] = 1e-5
    """Of ``shared-step`` and ``combined``: in units of the mean variance of a feature."""
    rank: Annotated[int, Limits(ge=0, examples=[1, "k", "2k", 100])] = 0
    """Of ``low-rank``, ``combined`` and ``sketch``: how many vectors; 0: 2 n-components."""
    keep: Annotated[float, Limits(gt=0, le=1, examples=[0.01, 0.1, 1.0])] = 0.1
    """Of ``top-k``: which share of the entries."""
    corrections: Annotated[int, Limits(ge=0, le=MOST_CORRECTIONS, examples=[0, 1, 3])] = 0
    """Rounds in which the parties say what their approximation gets wrong about the leading components."""
    tolerance: Annotated[float, Limits(ge=0, le=90, examples=[1e-6, 1e-3, 1.0])] = 0.0
    """Certified largest angle to the exact components, in degrees, at which corrections end; 0: with the last of them.
    Without ``corrections``, there are at most ten."""

    def block(self, d: int) -> int:
        """Columns of the block of a correction."""
        return min(self.n_components + 10, d)

    @property
    def most_corrections(self) -> int:
        return self.corrections or (MOST_CORRECTIONS if self.tolerance else 0)

    @property
    def stepped(self) -> bool:
        return self.codec in {"shared-step", "combined"}


BITS = Field("bits", (), "int64", kind="count")
CODE = (Field("code", ("any",), "uint8"), Field("scales", ("any",), "float32"))
TRIANGLE = ("d(d+1)/2",)
TRACE = Field("trace", ("1",), kind="size")
ERRORS = Field("wrong", ("2",), kind="size")
"""Spectral norms of what a party's approximation gets wrong: everywhere, and on the block of the correction."""


def phases(config: RunConfig, options: CompressedOptions) -> Phases:
    """The scale of the step, the encoded scatters, the corrections."""
    step = Field("step", (), kind="size")
    scale = {"scale": Phase(reply=Payload((*HEAD, TRACE)))}
    encoded = {"encoded": Phase(asked=Payload((step,)), reply=Payload((*CODE, *HEAD, TRACE, ERRORS)), forms=TRIANGLE)}
    correction = {
        "correction": Phase(
            asked=Payload((*CODE, BITS)),
            reply=Payload((*CODE, ERRORS)),
            forms=TRIANGLE,
            times=options.most_corrections,
            optional=options.tolerance > 0,
        )
    }
    return {
        **(scale if options.stepped else {}),
        **encoded,
        **(correction if options.most_corrections else {}),
        **projection_phase(config),
    }
