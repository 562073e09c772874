"""Replies as Flower hands them to `aggregate_fit`, made without a federation."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from flwr.client import Client
from flwr.common import Code, FitRes, Parameters, Scalar, Status, ndarrays_to_parameters
from flwr.server.client_proxy import ClientProxy

from fedpca_flwr.maths.moments import Moments
from fedpca_flwr.packages import strategies
from fedpca_flwr.protocol.strategy import PCAStrategy
from fedpca_flwr.questions.fields import MOMENTS

from ..loopback import LoopbackProxy, assemble


def message(moments: Moments) -> Parameters:
    """The payload of P-COV that a party with these moments sends."""
    empty = np.empty(0)
    fields = {"mean": moments.mean, "remainder": empty, "scatter": moments.scatter}
    return ndarrays_to_parameters(MOMENTS.to_arrays({"count": np.asarray(moments.count), **fields}))


def asking(parties: int, features: int, n_components: int) -> PCAStrategy:
    """P-COV's server half, which has asked so many parties and waits for their moments."""
    rows = [np.eye(2, features)] * parties  # what they hold is in the replies that are made
    run_config = strategies.run_config_of({"method": "p-cov", "n-components": n_components, "clients": parties})
    server = assemble(run_config, rows, {"min-rows": 1})
    server.strategy.configure_fit(1, Parameters([], ""), server.client_manager())
    return server.strategy


def results(
    messages: Sequence[Parameters], rows: Sequence[int], *, first: int = 0, parties: int = 0
) -> list[tuple[ClientProxy, FitRes]]:
    """One result a message, as if its party of so many rows had sent it.

    The parties are those from ``first`` on, of so many in all (0: there are no others).
    """

    def reply(i: int) -> FitRes:
        about: dict[str, Scalar] = {
            "partition-id": first + i,
            "num-partitions": parties or len(messages),
            "name": "",
            "columns": "",
            "simulated": True,
        }
        parameters = Parameters(list(messages[i].tensors), messages[i].tensor_type)
        return FitRes(Status(Code.OK, ""), parameters, rows[i], about)

    return [(LoopbackProxy(str(first + i + 1), Client), reply(i)) for i in range(len(messages))]
