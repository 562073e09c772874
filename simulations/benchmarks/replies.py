"""Replies as Flower hands them to `aggregate_fit`, made without a federation."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from flwr.client import Client
from flwr.common import Code, FitRes, Parameters, Scalar, Status, ndarrays_to_parameters
from flwr.server.client_proxy import ClientProxy

from fedpca_flwr.maths.moments import Moments
from fedpca_flwr.statistics.heads import MOMENTS
from simulations.loopback import LoopbackProxy


def message(moments: Moments) -> Parameters:
    """The payload of P-COV that a party with these moments sends."""
    empty = np.empty(0)
    fields = {"mean": moments.mean, "remainder": empty, "scatter": moments.scatter}
    return ndarrays_to_parameters(MOMENTS.to_arrays({"count": np.asarray(moments.count), **fields}))


def results(messages: Sequence[Parameters], rows: Sequence[int]) -> list[tuple[ClientProxy, FitRes]]:
    """One result a message, as if its party of so many rows had sent it."""

    def reply(i: int) -> FitRes:
        about: dict[str, Scalar] = {
            "partition-id": i,
            "num-partitions": len(messages),
            "name": "",
            "columns": "",
            "simulated": True,
        }
        parameters = Parameters(list(messages[i].tensors), messages[i].tensor_type)
        return FitRes(Status(Code.OK, ""), parameters, rows[i], about)

    return [(LoopbackProxy(str(i), Client), reply(i)) for i in range(len(messages))]
