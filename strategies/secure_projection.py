"""The last round of a secure run, as a sum: of the parties' row counts and squared errors, under pairwise masks."""

from __future__ import annotations

from typing import Any

import numpy as np
from flwr.common import Parameters, ndarrays_to_parameters
from numpy.typing import NDArray

from fedpca_flwr.contract import Field, Payload
from fedpca_flwr.errors import ContractError
from strategies.base import PCAStrategy, Reply, Solution
from strategies.secure import opened_last
from strategies.secure_client import SERVER, SecureClient
from strategies.sums import of_projection

PROJECT = Payload(
    (
        Field("components", ("any", "d")),
        Field("mean", ("d",)),
        Field("scale", ("d",), optional=True),
        Field("limits", ("rows and total",)),
    )
)
"""What the server sends."""


class SecureProjection(PCAStrategy):
    """The server's half."""

    def __init__(self, config, options) -> None:
        super().__init__(config, options)
        self._limit = 0.0  # on the squared error

    def finish(self, solution: Solution, *, notes=(), measured=None):
        parameters, metrics = super().finish(solution, notes=notes, measured=measured)
        self._limit = solution.total
        limits = ndarrays_to_parameters([np.array([solution.rows, solution.total])])
        return Parameters(parameters.tensors + limits.tensors, parameters.tensor_type), metrics

    def projected(self, replies: list[Reply]) -> tuple[int, float] | None:
        model = self.model
        assert model is not None
        fields = opened_last(of_projection(model.n_samples_, self._limit), replies)
        rows = int(fields["count"])
        if rows != model.n_samples_:
            raise ContractError(
                f"all parties together project {rows} rows, but the model is of {model.n_samples_}; "
                "did a party's data change during the run?"
            )
        return rows, float(fields["squared"])


class SecureProjectionClient(SecureClient):
    """A party's half."""

    def projection(self, received: list[NDArray]) -> list[NDArray]:
        asked = PROJECT.named(received, SERVER)
        PROJECT.check(asked, SERVER, {"d": self.data.shape[1], "rows and total": 2})
        return received[:3]

    def verdict(self, squared: float, received: list[NDArray]) -> tuple[float, int, dict[str, Any]]:
        rows, total = received[3]
        fields = {"count": np.asarray(len(self.data)), "squared": np.asarray(squared)}
        masked = self.masked("project", received, fields, of_projection(int(rows), float(total)))
        loss, told, about = super().verdict(squared, received)
        return loss, told, {**about, "sealed": masked.astype("<u8").tobytes()}
