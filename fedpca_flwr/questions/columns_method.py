"""All names that a method for data split by columns needs, like `fedpca_flwr.questions.method` for rows.

``from fedpca_flwr.questions import columns_method as method``. The statistics of such data are in
`fedpca_flwr.questions.columns`.
"""

from fedpca_flwr.config.run_config import Count as Count
from fedpca_flwr.config.run_config import RunConfig as RunConfig
from fedpca_flwr.errors import ConfigError as ConfigError
from fedpca_flwr.errors import ContractError as ContractError
from fedpca_flwr.errors import DataError as DataError
from fedpca_flwr.maths.arrays import Array as Array
from fedpca_flwr.model.model import PCAModel as PCAModel
from fedpca_flwr.protocol.admission import Reply as Reply
from fedpca_flwr.protocol.card import CountOptions as CountOptions
from fedpca_flwr.protocol.card import Disclosure as Disclosure
from fedpca_flwr.protocol.card import MethodCard as MethodCard
from fedpca_flwr.protocol.payload import Field as Field
from fedpca_flwr.protocol.payload import Fields as Fields
from fedpca_flwr.protocol.payload import Payload as Payload
from fedpca_flwr.protocol.question import Program as Program
from fedpca_flwr.protocol.question import Public as Public
from fedpca_flwr.protocol.question import Question as Question
from fedpca_flwr.protocol.question import Questions as Questions
from fedpca_flwr.protocol.question import Round as Round
from fedpca_flwr.protocol.question import SumLimits as SumLimits
from fedpca_flwr.protocol.question import SumRound as SumRound
from fedpca_flwr.protocol.question import Total as Total
from fedpca_flwr.protocol.question import by_transport as by_transport
from fedpca_flwr.questions.columns_run import ColumnsClient, ColumnsOptions, ColumnsRun, ColumnsStrategy, ScoresSolution
from fedpca_flwr.questions.columns_run import Fitting as Fitting

Client = ColumnsClient
Options = ColumnsOptions
Run = ColumnsRun
Strategy = ColumnsStrategy
Solution = ScoresSolution
