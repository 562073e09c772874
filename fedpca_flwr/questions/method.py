"""All names that a method for data split by rows needs: ``from fedpca_flwr.questions import method``.

A `MethodCard` says what the method is, its `Options` what a run may choose. Its `Questions` are what a run may ask: a
`Question` has the `Payload` of `Field` of the request and of the reply, the answer of a party (`Client`), and the
limits of the sum. Its `Strategy` is a `Program` of `Round` and `SumRound`, which receives replies or a `Total`, and
ends with a `Solution` of `Eigenpairs`. The last question is `projection_questions`. docs/own-method.md has an example.
"""

from fedpca_flwr.config.run_config import Count as Count
from fedpca_flwr.config.run_config import RunConfig as RunConfig
from fedpca_flwr.errors import ConfigError as ConfigError
from fedpca_flwr.errors import ContractError as ContractError
from fedpca_flwr.errors import DataError as DataError
from fedpca_flwr.maths.arrays import Array as Array
from fedpca_flwr.maths.eigen import Eigenpairs as Eigenpairs
from fedpca_flwr.maths.eigen import fix_signs as fix_signs
from fedpca_flwr.maths.eigen import leading_eigenpairs as leading_eigenpairs
from fedpca_flwr.maths.factors import stack_factors as stack_factors
from fedpca_flwr.model.model import PCAModel as PCAModel
from fedpca_flwr.model.solution import Solution as Solution
from fedpca_flwr.model.solution import require_variance as require_variance
from fedpca_flwr.model.solution import solve as solve
from fedpca_flwr.protocol.admission import Reply as Reply
from fedpca_flwr.protocol.card import CentreOptions as CentreOptions
from fedpca_flwr.protocol.card import CountOptions
from fedpca_flwr.protocol.card import Disclosure as Disclosure
from fedpca_flwr.protocol.card import MethodCard as MethodCard
from fedpca_flwr.protocol.card import MomentsOptions as MomentsOptions
from fedpca_flwr.protocol.card import PCAOptions as PCAOptions
from fedpca_flwr.protocol.card import ScaledOptions as ScaledOptions
from fedpca_flwr.protocol.card import ScaleOptions as ScaleOptions
from fedpca_flwr.protocol.payload import Field as Field
from fedpca_flwr.protocol.payload import Fields as Fields
from fedpca_flwr.protocol.payload import Payload as Payload
from fedpca_flwr.protocol.question import SERVER as SERVER
from fedpca_flwr.protocol.question import Program as Program
from fedpca_flwr.protocol.question import Public as Public
from fedpca_flwr.protocol.question import Question as Question
from fedpca_flwr.protocol.question import Questions as Questions
from fedpca_flwr.protocol.question import Round as Round
from fedpca_flwr.protocol.question import SumLimits as SumLimits
from fedpca_flwr.protocol.question import SumRound as SumRound
from fedpca_flwr.protocol.question import Total as Total
from fedpca_flwr.protocol.question import by_transport as by_transport
from fedpca_flwr.protocol.replies import stream_replies as stream_replies
from fedpca_flwr.protocol.transport import ServerTransport as ServerTransport
from fedpca_flwr.questions.fields import HEAD as HEAD
from fedpca_flwr.questions.fields import head_fields as head_fields
from fedpca_flwr.questions.fields import read_factor as read_factor
from fedpca_flwr.questions.fields import read_head as read_head
from fedpca_flwr.questions.fields import truncated_questions as truncated_questions
from fedpca_flwr.questions.influence import Contributions as Contributions
from fedpca_flwr.questions.pooling import Evidence as Evidence
from fedpca_flwr.questions.pooling import Fitting as Fitting
from fedpca_flwr.questions.row_limits import FIRST_WORDS as FIRST_WORDS
from fedpca_flwr.questions.row_limits import moments_limits as moments_limits
from fedpca_flwr.questions.row_limits import reach as reach
from fedpca_flwr.questions.row_limits import sum_limits as sum_limits
from fedpca_flwr.questions.rows import moments_questions as moments_questions
from fedpca_flwr.questions.rows import pooled_moments as pooled_moments
from fedpca_flwr.questions.rows import projection_questions as projection_questions
from fedpca_flwr.questions.rows import staged_moments as staged_moments
from fedpca_flwr.questions.rows_client import Party as Party
from fedpca_flwr.questions.rows_client import Projection as Projection
from fedpca_flwr.questions.rows_client import RowsClient
from fedpca_flwr.questions.rows_run import RowsStrategy

Options = CountOptions
Client = RowsClient
Strategy = RowsStrategy
