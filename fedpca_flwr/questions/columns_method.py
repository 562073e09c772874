"""All names that a method for data split by columns needs, like `fedpca_flwr.questions.method` for rows.

``from fedpca_flwr.questions import columns_method as method``. The statistics of such data are in
`fedpca_flwr.questions.columns`.
"""

from fedpca_flwr.config.run_config import Count, RunConfig
from fedpca_flwr.errors import ConfigError, ContractError, DataError
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.model.model import PCAModel
from fedpca_flwr.protocol.admission import Reply
from fedpca_flwr.protocol.card import CountOptions, Disclosure, MethodCard
from fedpca_flwr.protocol.payload import Field, Fields, Payload
from fedpca_flwr.protocol.question import (
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
from fedpca_flwr.questions.columns_run import ColumnsClient as Client
from fedpca_flwr.questions.columns_run import ColumnsOptions as Options
from fedpca_flwr.questions.columns_run import ColumnsRun as Run
from fedpca_flwr.questions.columns_run import ColumnsStrategy as Strategy
from fedpca_flwr.questions.columns_run import Fitting, KernelOptions
from fedpca_flwr.questions.columns_run import ScoresSolution as Solution

__all__ = [
    "Array",
    "Client",
    "ConfigError",
    "ContractError",
    "Count",
    "CountOptions",
    "DataError",
    "Disclosure",
    "Field",
    "Fields",
    "Fitting",
    "KernelOptions",
    "MethodCard",
    "Options",
    "PCAModel",
    "Payload",
    "Program",
    "Public",
    "Question",
    "Questions",
    "Reply",
    "Round",
    "Run",
    "RunConfig",
    "Solution",
    "Strategy",
    "SumLimits",
    "SumRound",
    "Total",
    "by_transport",
]
