"""The ClientApp of `flwr run`: one party, in a simulation or on its own SuperNode."""

from flwr.app import Context, Message
from flwr.client import Client
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import ClientAppCallable

from fedpca_flwr.flower import one_blas_thread
from fedpca_flwr.site import audit
from fedpca_flwr.site.outlived import end_with_node
from fedpca_flwr.site.site import show_log
from fedpca_flwr.strategies import FACTORY


def client_fn(context: Context) -> Client:
    if "data" in context.node_config:  # a site, and no party of a simulation
        show_log()
        end_with_node()
    return FACTORY.client(context).to_client()


def metrics_of_site(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """Bring a site's numbers up to date after each message, where its node-config names a file for them."""
    reply = call_next(message, context)
    if context.node_config.get("metrics"):
        audit.write_metrics(context.node_config)
    return reply


app = ClientApp(client_fn, mods=[one_blas_thread, metrics_of_site])
