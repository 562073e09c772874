"""A party of `streaming`: it says the digest of its moments, and sends those that the server does not have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import numpy as np
from pydantic import Field as Limits

from fedpca_flwr.config import RunConfig
from fedpca_flwr.maths.products import head_and_diagonal
from fedpca_flwr.member_moments import digest
from fedpca_flwr.protocol.card import ScaledOptions
from fedpca_flwr.protocol.payload import Field, Fields, Payload
from fedpca_flwr.protocol.phase import Phase, Phases
from fedpca_flwr.statistics.moment_fields import HEAD, head_fields, moments_in
from fedpca_flwr.statistics.rows import moments_phases, projection_phase
from fedpca_flwr.statistics.rows_client import RowsClient


class StreamingOptions(ScaledOptions):
    """Options of the streaming method."""

    state: str = ""
    """Folder at the server that holds the federation; required."""
    leave: str = ""
    """Members to go on without, separated by commas."""
    append: Annotated[bool, Limits(examples=[])] = False
    """Whether the parties' rows are new ones, to be added to those that they brought before."""


COUNT, MEAN, REMAINDER = HEAD


def phases(config: RunConfig, options: StreamingOptions) -> Phases:
    """Who has what, and the moments that the server does not have; with masks who is there, and the sums of all."""
    if config.transport == "masked":
        return {
            "members": Phase(reply=Payload(()), in_clear=True),
            **moments_phases(config),
            **projection_phase(config),
        }
    return {
        "digest": Phase(reply=Payload((Field("digest", ("32",), "uint8"), COUNT, REMAINDER, MEAN))),
        "moments": Phase(
            asked=Payload((Field("wanted", (), "bool"),)),
            reply=Payload((*HEAD, Field("scatter", ("d(d+1)/2",), kind="scatter", optional=True))),
            optional=True,
        ),
        **projection_phase(config),
    }


class StreamingClient(RowsClient):
    """Says the digest of its moments, and sends those that the server does not have."""

    def statistics(self, phase: str, asked: Fields) -> Fields | Sequence[Fields]:
        own = {"members": self.members, "digest": self.digest}
        return own[phase](asked) if phase in own else super().statistics(phase, asked)

    def members(self, asked: Fields) -> Fields:
        """Nothing but who this party is, which every reply says."""
        return {}

    def digest(self, asked: Fields) -> Fields:
        """Count, mean and the digest of the moments, as the server will understand them."""
        fields = super().moments(asked)
        own = bytes.fromhex(digest(moments_in(fields)))
        return {**fields, "digest": np.frombuffer(own, np.uint8)}

    def moments(self, asked: Fields) -> Fields:
        """Count, mean, and where it is wanted the scatter."""
        if asked["wanted"]:
            return super().moments(asked)
        return {**head_fields(*head_and_diagonal(self.data)), "scatter": np.empty(0)}
