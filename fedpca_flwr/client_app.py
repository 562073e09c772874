"""The ClientApp: one party, in a simulation or on its own SuperNode."""

from __future__ import annotations

from flwr.app import Context, Message
from flwr.client import Client
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import ClientAppCallable
from threadpoolctl import threadpool_limits

from strategies import build_client


def client_fn(context: Context) -> Client:
    return build_client(context).to_client()


def one_blas_thread(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """Compute with one BLAS thread: the order of BLAS's sums, and so the last bits, depend on their number."""
    with threadpool_limits(1, user_api="blas"):
        return call_next(message, context)


app = ClientApp(client_fn, mods=[one_blas_thread])
