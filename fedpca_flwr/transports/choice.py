"""Choice of a run's transport by its run-config. Only the transport that a run asks for is imported."""

from collections.abc import Callable

from fedpca_flwr.config.entries import Entries, load_entry
from fedpca_flwr.config.run_config import RunConfig
from fedpca_flwr.protocol.card import MethodCard, PCAOptions
from fedpca_flwr.protocol.client import Site
from fedpca_flwr.protocol.transport import PartyTransport, ServerTransport

SERVERS: Entries[Callable[..., ServerTransport]] = Entries(
    {
        "clear": "fedpca_flwr.transports.clear:ClearServer",
        "masked": "fedpca_flwr.transports.masked:MaskedServer",
        "surviving": "fedpca_flwr.transports.surviving:SurvivingServer",
        "blind": "fedpca_flwr.blind.transport:BlindServer",
    }
)
"""Server's sides of the transports by name."""

PARTIES: Entries[Callable[..., PartyTransport]] = Entries(
    {
        "clear": "fedpca_flwr.transports.clear:ClearParty",
        "masked": "fedpca_flwr.transports.masked:MaskedParty",
        "surviving": "fedpca_flwr.transports.surviving:SurvivingParty",
        "blind": "fedpca_flwr.blind.transport:BlindParty",
    }
)
"""Parties' sides of the transports by name."""


def server_transport(config: RunConfig) -> ServerTransport:
    """Return the server's side of the transport that the run-config selects: clear, masked, blind or surviving."""
    kind = SERVERS[_name(config)]
    return kind(config.survivors) if config.transport == "surviving" and not config.blind else kind()


def party_transport(site: Site, card: MethodCard, options: PCAOptions) -> PartyTransport:
    """Return the party's side of the transport that the run-config selects, with the site's identity and rules.

    Raise ConfigError if the site's keys cannot be read.
    """
    name = _name(site.config)
    if name == "clear":
        return PARTIES[name]()
    policy = load_entry("fedpca_flwr.transports.encoding:SumPolicy").of(site, site.configuration(card, options))
    return PARTIES[name](policy)


def _name(config: RunConfig) -> str:
    """Return the name of the transport that the run-config selects."""
    return "blind" if config.blind and config.transport != "clear" else config.transport
