"""Choice of a run's transport by its run-config. A transport with masks is imported only if a run asks for it."""

from fedpca_flwr.config.entries import load_entry
from fedpca_flwr.config.run_config import RunConfig
from fedpca_flwr.protocol.card import MethodCard, PCAOptions
from fedpca_flwr.protocol.client import Site
from fedpca_flwr.protocol.transport import PartyTransport, ServerTransport
from fedpca_flwr.transports.clear import ClearParty, ClearServer

SIDES = {
    "masked": "fedpca_flwr.transports.masked:Masked",
    "surviving": "fedpca_flwr.transports.surviving:Surviving",
    "blind": "fedpca_flwr.blind.transport:Blind",
}
"""Beginnings of the paths of both sides (``...Server`` and ``...Party``) of the transports with masks, by name."""


def server_transport(config: RunConfig) -> ServerTransport:
    """Return the server's side of the transport that the run-config selects: clear, masked, blind or surviving."""
    if config.transport == "clear":
        return ClearServer()
    name = "blind" if config.blind else config.transport
    survivors = (config.survivors,) if name == "surviving" else ()
    transport: ServerTransport = load_entry(f"{SIDES[name]}Server")(*survivors)
    return transport


def party_transport(site: Site, card: MethodCard, options: PCAOptions) -> PartyTransport:
    """Return the party's side of the run's transport, with the site's identity and rules; ConfigError for its keys."""
    if site.config.transport == "clear":
        return ClearParty()
    name = "blind" if site.config.blind else site.config.transport
    policy = load_entry("fedpca_flwr.transports.encoding:SumPolicy").of(site, site.configuration(card, options))
    transport: PartyTransport = load_entry(f"{SIDES[name]}Party")(policy)
    return transport
