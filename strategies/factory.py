"""Factory of both halves of a run from its configuration: the strategy of the server, and the client of a party."""

import difflib
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from numpy.typing import ArrayLike

from fedpca_flwr.config.entries import load_entry
from fedpca_flwr.config.method_text import RUN_KEYS, method_option_keys, parse_run_options
from fedpca_flwr.config.node_config import FILE_KEYS, NodeConfig
from fedpca_flwr.config.run_config import RunConfig
from fedpca_flwr.data.categories import encoded
from fedpca_flwr.data.frames import as_rows, column_names
from fedpca_flwr.data.table import Table, check_rows
from fedpca_flwr.errors import ConfigError, FedPCAError, TravelError
from fedpca_flwr.protocol.card import MethodCard
from fedpca_flwr.protocol.client import PCAClient, RefusingClient
from fedpca_flwr.protocol.journal import Context, SimulatedContext
from fedpca_flwr.protocol.registry import Registry, require_compatible
from fedpca_flwr.protocol.site_log import site_logger
from fedpca_flwr.protocol.strategy import PCAStrategy
from fedpca_flwr.site.site import LoadTable, Site, adapt
from fedpca_flwr.transports.choice import party_transport, server_transport
from fedpca_flwr.transports.recommendation import alternatives, transports_of

DEFAULTS = RunConfig()

PLAIN_KEYS = frozenset({"partition-id", "num-partitions", "name", "min-rows", "min-parties"})
"""Keys of a node-config that are no rule of a custodian: places, a name, and limits that every party has."""

READING_KEYS = {"data", "query", "label", "layer", "variants", *(key.replace("_", "-") for key in FILE_KEYS)}
"""Keys of a node-config by which a site reads its rows, and which mean nothing where an app loads the rows."""

SLIP_RATIO = 0.8
"""Similarity (`difflib`) above which a key of an app counts as a misspelt key of a site."""

APP_ROWS_PLACEHOLDER = "rows of the app"
"""Text in place of a file for a party whose rows an app has loaded."""


@dataclass(frozen=True)
class RunFactory:
    """Factory of both sides of a run by its run-config: the server's strategy and the parties' clients."""

    methods: Registry

    def strategy(self, run_config: Mapping[str, Any]) -> PCAStrategy:
        """Return the server's strategy for a run-config, ready for the run; raise ConfigError as `prepare` does."""
        kind = self.methods.parse_method(_method_text(run_config)).strategy
        strategy = kind.__new__(kind)
        self.prepare(strategy, run_config)
        return strategy

    def prepare(self, strategy: PCAStrategy, run_config: Mapping[str, Any]) -> None:
        """Give a new strategy its options and transport; raise ConfigError for keys or values that are not allowed."""
        text, card = _method_text(run_config), strategy.card
        self._refuse_options_as_keys(run_config, text, card)
        extra_options = {"n-components": run_config.get("n-components", DEFAULTS.n_components)}
        options = parse_run_options(run_config, text, card.options, extra_options)
        config = RunConfig.parse(run_config)
        require_compatible(config, card, options, self.methods)
        try:
            strategy.prepare(config, options, server_transport(config))
        except TravelError as error:
            suitable = [name for name, other in self.methods.items() if config.transport in transports_of(other)]
            raise ConfigError(f"{error}. Methods that do: {', '.join(suitable)}") from None
        strategy.alternatives = partial(alternatives, self.methods, card)

    def client(self, context: Context, load: LoadTable | None = None) -> PCAClient | RefusingClient:
        """Return a party's client for Flower's context, with rows from `load`, or of the site's own (`Custodian`).

        Nothing is raised, whatever the run-config holds: a configuration that is refused gives a client that refuses.
        """
        site = self._site(context, load)
        try:
            method = self.methods.parse_method(site.config.method)
            client = method.client(method.strategy.card, site, party_transport)
        except Exception as error:
            return RefusingClient(site.report(error))
        client.alternatives = partial(alternatives, self.methods, method.strategy.card)
        return client

    def client_of_rows(
        self, context: Context, rows: Callable[[], ArrayLike], run_config: Mapping[str, Any]
    ) -> PCAClient | RefusingClient:
        """Return a party's client in a user's own Flower app, which loads the rows (n, d) itself.

        The rows are a site's own data, with the rules for such data (a journal for secure sums, say), except in
        Flower's simulation. An error of `rows` is reported without its text. The node-config may have keys of the app's
        own; a key that equals or resembles a site's key is checked as such.
        """
        ray = sys.modules.get("ray")  # Flower simulates parties in actors of Ray; starting Ray makes no actor
        in_actor = ray is not None and ray.is_initialized() and ray.get_runtime_context().get_actor_id() is not None
        is_simulated = in_actor or isinstance(context, SimulatedContext)
        # "data" is no plain key, so an app is a custodian
        node_config: dict[str, Any] = {"data": "" if is_simulated else APP_ROWS_PLACEHOLDER}
        for key, value in context.node_config.items():
            if difflib.get_close_matches(str(key).replace("_", "-"), NodeConfig.keys(), n=1, cutoff=SLIP_RATIO):
                node_config[key] = value
        if not context.state and (idle := sorted(READING_KEYS & context.node_config.keys())):  # the first message
            consequence = "the app loads the rows by a function of its own, and nothing else reads these keys"
            site_logger.warning("run %s: node-config: %s: %s", context.run_id, ", ".join(idle), consequence)
        app_context = replace(context, run_config=dict(run_config), node_config=node_config)

        def load(node: NodeConfig, config: RunConfig) -> Table:
            data = rows()
            if config.levels:
                table = encoded(data, config.levels_by_column, "this site", node.min_rows, node.round_rows)
            else:
                table = check_rows(as_rows(data, "this site"), column_names(data))
            return adapt(table, node, config)

        return self.client(app_context, load)

    def refusing_client(self, context: Context, error: FedPCAError, *, is_noted: bool = True) -> RefusingClient:
        """Return a client that answers every question with the report of an error; `is_noted`: in the journal, too."""
        return RefusingClient(self._site(context).report(error, is_noted=is_noted))

    def _site(self, context: Context, load: LoadTable | None = None) -> Site:
        """Return a party's site: without rules only for a caller's rows with `PLAIN_KEYS` alone."""
        if load is None or not PLAIN_KEYS.issuperset(context.node_config):
            site: Site = load_entry("fedpca_flwr.site.custodian:Custodian")(context, load, self.methods)
            return site
        return Site(context, load, self.methods)

    def _refuse_options_as_keys(self, run_config: Mapping[str, Any], text: str, card: MethodCard) -> None:
        """Raise ConfigError for options of a method as keys of the run-config; keys that no method knows pass."""
        lines, words = [], []
        for key, value in run_config.items():
            if key in RUN_KEYS or value == "":
                continue
            takers = [
                name for name, other in self.methods.items() if key in method_option_keys(other.strategy.card.options)
            ]
            if takers:
                lines.append(f"run-config: '{key}' is no key of a run, but an option of {', '.join(takers)}")
                words += [f"{key}={value}"] if card.name in takers else []
        if lines:
            example = " ".join([text, *words]) if words else "sub-it block-size=10"
            raise ConfigError("\n".join([*lines, f"options stand in 'method', as in method='{example}'"]))


def _method_text(run_config: Mapping[str, Any]) -> str:
    """Return the run-config's `method` as a text, or the default method."""
    return str(run_config.get("method", DEFAULTS.method))
