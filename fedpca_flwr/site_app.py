"""ClientApp of `flwr run`: a party, in a simulation or on its own SuperNode."""

from flwr.app import Context

from fedpca_flwr.flower import PCAClientApp
from fedpca_flwr.protocol.client import PCAClient, RefusingClient
from fedpca_flwr.site.metrics import metrics_of_site
from fedpca_flwr.site.outlived import end_with_node
from fedpca_flwr.site.site import show_log
from fedpca_flwr.strategies import FACTORY


def site_client(pca_context: Context, context: Context) -> PCAClient | RefusingClient:
    """Make the client of a party; a site also shows its log, and ends with its node.

    Parameters
    ----------
    pca_context : Context
        Context with the state of the PCA.
    context : Context
        Flower's context of the node.

    Returns
    -------
    PCAClient or RefusingClient
    """
    if "data" in context.node_config:  # a site, and no party of a simulation
        show_log()
        end_with_node()
    return FACTORY.client(pca_context)


app = PCAClientApp(
    site_client,
    mods=[
        metrics_of_site,
    ],
)
