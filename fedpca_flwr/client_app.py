"""The ClientApp: one party, in a simulation or on its own SuperNode."""

from __future__ import annotations

from functools import cache

from flwr.app import Context, Message
from flwr.client import Client
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import ClientAppCallable
from threadpoolctl import ThreadpoolController

from fedpca_flwr.packages import strategies


def client_fn(context: Context) -> Client:
    return strategies.build_client(context).to_client()


def one_blas_thread(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """Compute with one BLAS thread: the order of BLAS's sums, and so the last bits, depend on their number."""
    with _libraries().limit(limits=1, user_api="blas"):
        return call_next(message, context)


@cache
def _libraries() -> ThreadpoolController:
    """Looked for once a process, which takes a millisecond: NumPy's BLAS and SciPy's are imported with the methods."""
    return ThreadpoolController()


app = ClientApp(client_fn, mods=[one_blas_thread])
