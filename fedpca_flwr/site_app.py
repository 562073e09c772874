"""ClientApp of `flwr run`: a party, in a simulation, on its own SuperNode or in a site's own process."""

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from typing_extensions import override

from fedpca_flwr.errors import ConfigError
from fedpca_flwr.flower import PCAClientApp
from fedpca_flwr.protocol import messages
from fedpca_flwr.protocol.client import PCAClient, RefusingClient
from fedpca_flwr.site.node.metrics import write_metrics
from fedpca_flwr.site.node.outlived import end_with_node
from fedpca_flwr.site.watch import send_journal_to_system_log, show_log
from fedpca_flwr.strategies import FACTORY


def site_client(pca_context: Context, context: Context) -> PCAClient | RefusingClient:
    """Return the client of a PCA with a context of its own; a site also shows its log, and ends with its node."""
    if "data" in context.node_config:  # a site, and no party of a simulation
        show_log()
        end_with_node()
    if context.node_config.get("syslog"):
        send_journal_to_system_log()
    return FACTORY.client(pca_context)


class SiteApp(PCAClientApp):
    """App of a site, which writes the site's numbers after each message, and answers all by a `refusal`, if any."""

    def __init__(self, refusal: ConfigError | None = None) -> None:
        super().__init__(site_client)
        self._refusal = refusal

    @override
    def __call__(self, message: Message, context: Context) -> Message:
        if self._refusal is None:
            reply = super().__call__(message, context)
        else:
            reply = messages.refusal_message(message, context, FACTORY.refusing_client(context, self._refusal))
        if context.node_config.get("metrics"):
            write_metrics(context.node_config)
        return reply


app = SiteApp()


def app_for(refusal: ConfigError | None) -> ClientApp:
    """Return the app, or, if there is a refusal, an app that answers every message by it."""
    return SiteApp(refusal) if refusal else app
