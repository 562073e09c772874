"""All names that a method for data split by rows needs: ``from fedpca_flwr.questions import method``.

A `MethodCard` says what the method is, its `Options` what a run may choose. Its `Questions` are what a run may ask: a
`Question` has the `Payload` of `Field` of the request and of the reply, the answer of a party (`Client`), and the
limits of the sum. Its `Strategy` is a `Program` of `Round` and `SumRound`, which receives replies or a `Total`, and
ends with a `Solution`. docs/own-method.md has an example.
"""

# ruff: noqa: F401 (methods import these names from here)
# mypy: implicit-reexport

from fedpca_flwr.config.run_config import Count, RunConfig
from fedpca_flwr.errors import ConfigError, ContractError, DataError, DisclosureError
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.eigen import Eigenpairs, fix_signs, leading_eigenpairs
from fedpca_flwr.maths.factors import stack_factors
from fedpca_flwr.model.model import PCAModel
from fedpca_flwr.model.solution import Certainty, Solution, require_variance, solve
from fedpca_flwr.protocol.admission import Reply
from fedpca_flwr.protocol.card import (
    CentreOptions,
    CountOptions,
    Disclosure,
    MethodCard,
    MomentsOptions,
    PCAOptions,
    ScaledOptions,
    ScaleOptions,
    Size,
    VariantOptions,
    WeightOptions,
)
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
from fedpca_flwr.questions.pooling import (
    HEAD,
    Evidence,
    Fitting,
    head_fields,
    read_factor,
    read_head,
    read_moments,
    truncated_questions,
)
from fedpca_flwr.questions.row_limits import FIRST_WORDS, moments_limits, reach, sum_limits
from fedpca_flwr.questions.rows import moments_questions, pooled_moments, projection_questions
from fedpca_flwr.questions.rows_client import Party, Projection, RowsClient
from fedpca_flwr.questions.rows_run import RowsStrategy

Options = CountOptions
Client = RowsClient
Strategy = RowsStrategy
