"""Choice of a run's transport by its configuration."""

from fedpca_flwr.blind.transport import BlindParty, BlindServer
from fedpca_flwr.config.run_config import RunConfig
from fedpca_flwr.protocol.card import MethodCard, PCAOptions
from fedpca_flwr.protocol.transport import PartyTransport, ServerTransport
from fedpca_flwr.site.node.identity import load_identity
from fedpca_flwr.site.site import Site
from fedpca_flwr.transports.clear import ClearParty, ClearServer
from fedpca_flwr.transports.encoding import SumPolicy
from fedpca_flwr.transports.masked import MaskedParty, MaskedServer
from fedpca_flwr.transports.signed import Signer
from fedpca_flwr.transports.surviving import SurvivingParty, SurvivingServer


def server_transport(config: RunConfig) -> ServerTransport:
    """Return the server's side of the transport that the run-config selects: clear, masked, blind or surviving."""
    if config.transport == "clear":
        return ClearServer()
    if config.blind:
        return BlindServer()
    return MaskedServer() if config.transport == "masked" else SurvivingServer(config.survivors)


def party_transport(site: Site, card: MethodCard, options: PCAOptions) -> PartyTransport:
    """Return the party's side of the transport that the run-config selects, with the site's identity and rules.

    Raise ConfigError if the site's keys cannot be read.
    """
    node, config = site.node, site.config
    if config.transport == "clear":
        return ClearParty()
    group = SumPolicy(
        parties=node.num_partitions,
        min_parties=node.min_parties,
        signer=Signer(load_identity(node), site.run_id, site.configuration(card, options)),
        survivors=config.survivors,
    )
    if config.blind:
        return BlindParty(group)
    return MaskedParty(group) if config.transport == "masked" else SurvivingParty(group)
