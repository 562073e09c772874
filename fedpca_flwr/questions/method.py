"""All names that a method for data split by rows needs: ``from fedpca_flwr.questions import method``.

A `MethodCard` says what the method is, its `Options` what a run may choose. Its `Questions` are what a run may ask: a
`Question` has the `Payload` of `Field` of the request and of the reply, the answer of a party (`Client`), and the
limits of the sum. Its `Strategy` is a `Program` of `Round` and `SumRound`, which receives replies or a `Total`, and
ends with a `Solution`. The last question is `projection_questions`.
"""

from fedpca_flwr.config.run_config import Count, RunConfig
from fedpca_flwr.errors import ConfigError, ContractError, DataError
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.model.model import PCAModel
from fedpca_flwr.model.solution import Solution, require_variance, solve
from fedpca_flwr.protocol.admission import Reply
from fedpca_flwr.protocol.card import (
    CentreOptions,
    Disclosure,
    MethodCard,
    MomentsOptions,
    PCAOptions,
    ScaledOptions,
    ScaleOptions,
)
from fedpca_flwr.protocol.card import CountOptions as Options
from fedpca_flwr.protocol.payload import Field, Fields, Payload
from fedpca_flwr.protocol.question import (
    SERVER,
    Program,
    Public,
    Question,
    Questions,
    Round,
    SumLimits,
    SumRound,
    Total,
    by_transport,
)
from fedpca_flwr.protocol.transport import ServerTransport
from fedpca_flwr.questions.fields import HEAD, head_fields, read_head
from fedpca_flwr.questions.pooling import Evidence, Fitting
from fedpca_flwr.questions.projection import Projection
from fedpca_flwr.questions.row_limits import FIRST_WORDS, moments_limits, reach, sum_limits
from fedpca_flwr.questions.rows import moments_questions, pooled_moments, projection_questions, staged_moments
from fedpca_flwr.questions.rows_run import Party
from fedpca_flwr.questions.rows_run import RowsClient as Client
from fedpca_flwr.questions.rows_run import RowsStrategy as Strategy

__all__ = [
    "FIRST_WORDS",
    "HEAD",
    "SERVER",
    "Array",
    "CentreOptions",
    "Client",
    "ConfigError",
    "ContractError",
    "Count",
    "DataError",
    "Disclosure",
    "Evidence",
    "Field",
    "Fields",
    "Fitting",
    "MethodCard",
    "MomentsOptions",
    "Options",
    "PCAModel",
    "PCAOptions",
    "Party",
    "Payload",
    "Program",
    "Projection",
    "Public",
    "Question",
    "Questions",
    "Reply",
    "Round",
    "RunConfig",
    "ScaleOptions",
    "ScaledOptions",
    "ServerTransport",
    "Solution",
    "Strategy",
    "SumLimits",
    "SumRound",
    "Total",
    "by_transport",
    "head_fields",
    "moments_limits",
    "moments_questions",
    "pooled_moments",
    "projection_questions",
    "reach",
    "read_head",
    "require_variance",
    "solve",
    "staged_moments",
    "sum_limits",
]
