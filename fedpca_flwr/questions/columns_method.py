"""All names that a method for data split by columns needs: ``from fedpca_flwr.questions import columns_method``."""

# ruff: noqa: F401 (methods import these names from here)
# mypy: implicit-reexport

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
from fedpca_flwr.questions.columns_run import (
    ColumnsClient,
    ColumnsOptions,
    ColumnsRun,
    ColumnsStrategy,
    Fitting,
    ScoresSolution,
)

Client = ColumnsClient
Options = ColumnsOptions
Run = ColumnsRun
Strategy = ColumnsStrategy
Solution = ScoresSolution
