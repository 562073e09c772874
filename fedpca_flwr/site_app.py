"""The ClientApp of `flwr run`: one party, in a simulation or on its own SuperNode."""

from __future__ import annotations

from flwr.app import Context
from flwr.client import Client
from flwr.clientapp import ClientApp

from fedpca_flwr.flower import one_blas_thread
from fedpca_flwr.packages import strategies
from fedpca_flwr.site.site import show_log


def client_fn(context: Context) -> Client:
    if "data" in context.node_config:  # a site, and no party of a simulation
        show_log()
    return strategies.build_client(context).to_client()


app = ClientApp(client_fn, mods=[one_blas_thread])
