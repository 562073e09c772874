"""Rules for which keys of a run go with which methods and options.

Every site applies the rules too: a rule that only the server's half applied would protect no row.
"""

from collections.abc import Mapping

from fedpca_flwr.config.run_config import RunConfig
from fedpca_flwr.errors import ConfigError, value_text
from fedpca_flwr.protocol.card import MethodCard, PCAOptions
from fedpca_flwr.protocol.registry import Method


def require_compatible(config: RunConfig, card: MethodCard, options: PCAOptions, methods: Mapping[str, Method]) -> None:
    """Raise ConfigError for keys of the run-config that the method or its options do not support.

    Such keys are `features`, `minimum`, `weights`, `levels`, `blind` and `max-share`. Most errors list the methods that
    accept the key.
    """
    if config.features and card.split != "rows":
        raise ConfigError(
            f"run-config: 'features' names columns that all sites have, but with '{card.name}' each site has other "
            "columns: leave 'features' out"
        )
    if config.minimum and not card.pools_rows:
        raise ConfigError(
            f"run-config: 'minimum' is {config.minimum}, but '{card.name}' needs all parties; methods that do not "
            f"need all: {_methods_with('pools_rows', methods)}"
        )
    for key, field in {"weights": "weighted", "levels": "mixed", "blind": "rotatable"}.items():
        if getattr(config, key) and not getattr(card, field):
            value = value_text(getattr(config, key))
            text = f"run-config: '{key}' is {value}, but '{card.name}' does not take this key"
            if key in options.unavailable:
                raise ConfigError(f"{text}: {options.unavailable[key]}")
            raise ConfigError(f"{text}; methods that do: {_methods_with(field, methods)}")
    if config.levels and not (options.scaled and options.centred):
        raise ConfigError(
            "run-config: 'levels' is set, so the run must divide indicators by the roots of their proportions: set "
            "scale=true and center=true"
        )
    if config.max_share:
        _require_visible_shares(config, card, methods)


def _require_visible_shares(config: RunConfig, card: MethodCard, methods: Mapping[str, Method]) -> None:
    """Raise ConfigError for `max-share`, a limit on a party's part, if the server sees no single party's moments."""
    prefix = f"run-config: 'max-share' is {config.max_share:g}, but"
    if config.secure_aggregation:
        raise ConfigError(
            f"{prefix} secure-aggregation=true shows the server only sums over all parties, so it cannot see a "
            "party's share; set only one of the two"
        )
    if not card.pools_moments:
        raise ConfigError(
            f"{prefix} '{card.name}' does not add up the parties' moments; methods that do: "
            f"{_methods_with('pools_moments', methods)}"
        )


def _methods_with(field: str, methods: Mapping[str, Method]) -> str:
    """List the names of the methods for which a given attribute of the card is true."""
    return ", ".join(name for name, method in methods.items() if getattr(method.strategy.card, field))
