"""ClientApp of `flwr run`: a party, in a simulation or on its own SuperNode."""

from flwr.app import Context
from flwr.client import Client
from flwr.clientapp import ClientApp

from fedpca_flwr.flower import one_blas_thread
from fedpca_flwr.site.metrics import metrics_of_site
from fedpca_flwr.site.outlived import end_with_node
from fedpca_flwr.site.site import show_log
from fedpca_flwr.strategies import FACTORY


def client_fn(context: Context) -> Client:
    """Make the client of a party; a real site also shows its log, and ends when its SuperNode ends.

    Parameters
    ----------
    context : Context

    Returns
    -------
    Client
    """
    if "data" in context.node_config:  # a site, and no party of a simulation
        show_log()
        end_with_node()
    return FACTORY.client(context).to_client()


app = ClientApp(
    client_fn,
    mods=[
        one_blas_thread,
        metrics_of_site,
    ],
)
