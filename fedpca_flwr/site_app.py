"""The ClientApp of `flwr run`: one party, in a simulation or on its own SuperNode."""

from __future__ import annotations

from flwr.app import Context
from flwr.client import Client
from flwr.clientapp import ClientApp

from fedpca_flwr.flower import one_blas_thread
from fedpca_flwr.packages import strategies


def client_fn(context: Context) -> Client:
    return strategies.build_client(context).to_client()


app = ClientApp(client_fn, mods=[one_blas_thread])
