"""Registry of methods, each imported on first use, and rules for which keys of a run go with which methods."""

import difflib
import itertools
import re
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from importlib.metadata import EntryPoint, entry_points
from typing import Any, NamedTuple

from fedpca_flwr.config.entries import load_entry
from fedpca_flwr.config.method_text import make_run_config, split_method_text
from fedpca_flwr.config.run_config import MAX_KEY_CHARACTERS, RunConfig
from fedpca_flwr.errors import ConfigError, removal_text, value_text
from fedpca_flwr.protocol.card import MethodCard, PCAOptions
from fedpca_flwr.protocol.client import PCAClient
from fedpca_flwr.protocol.strategy import PCAStrategy

ENTRY_POINT_GROUP = "fedpca_flwr.methods"
"""Group of entry points in which other packages name their methods."""


class Method(NamedTuple):
    """Pair of classes of a method: its server's half (strategy) and its party's half (client)."""

    strategy: type[PCAStrategy]
    client: type[PCAClient]


class Registry(Mapping[str, Method]):
    """Mapping from names to methods, whose modules are imported on first use.

    `locations` has ``"module:class"`` of each strategy in `package`, by name. The class attribute ``party`` is the
    method's client; ``registry`` is set for methods with successors. `compose` adds to a card the stages that fit. An
    installed package adds a method, and replaces none, by an entry point `ENTRY_POINT_GROUP` that gives a `Method`.
    """

    def __init__(
        self,
        package: str,
        locations: Mapping[str, str],
        compose: Callable[[MethodCard], MethodCard] = lambda card: card,
    ) -> None:
        self._compose = compose
        self._package = package
        self._locations = locations
        self._loaded_methods: dict[str, Method] = {}
        self._classes: dict[str, type[PCAStrategy]] = {}  # of this process, as their authors wrote them

    def __getitem__(self, name: str) -> Method:
        """Import the method with this name at its first use, and return it; raise KeyError for an unknown name."""
        if name in self._loaded_methods:
            return self._loaded_methods[name]
        if name in self._locations:
            strategy = load_entry(f"{self._package}.{self._locations[name]}")
            if strategy.card.successors:
                strategy.registry = strategy.party.registry = self
            method = Method(strategy, strategy.party)
        else:
            method = _load_entry_point(self._external[name])
        method.strategy.card = self._compose(method.strategy.card)
        self._loaded_methods[name] = method
        return method

    def __contains__(self, name: object) -> bool:
        return name in self._locations or name in self._external or name in self._classes

    def __iter__(self) -> Iterator[str]:
        return iter([*self._locations, *self._external, *self._classes])

    def __len__(self) -> int:
        return len(self._locations) + len(self._external) + len(self._classes)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(map(repr, self))})"

    def name_of(self, method: Any) -> Any:
        """Return the name of a strategy's class, which becomes a method of this process; any other value unchanged.

        A class replaces an earlier one of its name, as when a cell of a notebook is run again. Raise ConfigError for a
        class that is no strategy, lacks a card or `aggregate`, or has a name that is wrong or an installed method's.
        """
        if not isinstance(method, type):
            return method
        card = _require_method(method)
        if card.name in self._locations or card.name in self._external:
            if self[card.name].strategy is method:
                return card.name
            raise ConfigError(
                f"the card of the class {method.__name__} has the name '{card.name}', which another method already "
                "has; give the card another name"
            )
        if self._classes.get(card.name) is not method:
            own_card = {"card": self._compose(card), "__module__": method.__module__, "__doc__": method.__doc__}
            strategy: Any = type(method.__name__, (method,), own_card)  # the author's class keeps the author's card
            self._classes[card.name] = method
            self._loaded_methods[card.name] = Method(strategy, strategy.party)
        return card.name

    def class_of(self, name: str) -> type[PCAStrategy] | None:
        """Return the class, as its author wrote it, that `name_of` added for a method; None for an installed method."""
        return self._classes.get(name)

    def parse_method(self, text: str, source: str = "run-config") -> Method:
        """Return the method of a text such as "sub-it block-size=10", in any case; ConfigError names the nearest."""
        name = split_method_text(text, source)[0]
        spelling = name.lower().replace("_", "-")
        if method := self._loaded_methods.get(spelling):
            return method
        if spelling in self:
            return self[spelling]
        if removal := removal_text(spelling):
            raise ConfigError(f"run-config: 'method' is {value_text(name)}, {removal}")
        plain = name.lower() == "pca"  # whose nearest name is that of an approximate method
        near = ["p-cov"] if plain else difflib.get_close_matches(name[:MAX_KEY_CHARACTERS], self, n=1)
        hint = f"did you mean '{near[0]}'?" if near else ""
        raise ConfigError(
            f"run-config: 'method' is {value_text(name)}, expected one of: {', '.join(self)}. {hint}".rstrip()
        )

    def run_config(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return a run-config from keys of the run and options of a method; raise ConfigError for any fault in them."""
        card = self.parse_method(values["method"]).strategy.card
        return make_run_config(card.name, card.options, values)

    def run_keys(self) -> set[str]:
        """Return all keys of a run-config, and the options of all methods, in kebab-case; all methods are imported."""
        options = (method.strategy.card.options.keys() for method in self.values())
        return {*RunConfig.keys(), *itertools.chain.from_iterable(options)}

    def strategy_by_class(self, name: str) -> type[PCAStrategy] | None:
        """Return this project's strategy whose class has this name, or None."""
        names = [method for method, location in self._locations.items() if location.endswith(f":{name}")]
        return self[names[0]].strategy if names else None

    @cached_property
    def _external(self) -> dict[str, EntryPoint]:
        """Entry points of methods that other installed packages provide, by name."""
        points = entry_points(group=ENTRY_POINT_GROUP)
        return {point.name: point for point in points if point.name not in self._locations}


NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")


def _require_method(kind: type) -> MethodCard:
    """Return the card of a strategy's class; raise ConfigError, with what is missing, for a class that is no method."""
    expected = "expected a class derived from fedpca_flwr.questions.method.Strategy, with a card and 'aggregate'"
    if not issubclass(kind, PCAStrategy):
        raise ConfigError(f"the class {kind.__name__} is not a method, {expected}")
    card = getattr(kind, "card", None)
    if not isinstance(card, MethodCard):
        raise ConfigError(f"the class {kind.__name__} has no 'card', {expected}: card = method.MethodCard(...)")
    if missing := sorted(getattr(kind, "__abstractmethods__", ())):
        raise ConfigError(f"the class {kind.__name__} lacks {', '.join(map(repr, missing))}, {expected}")
    if not NAME.fullmatch(card.name) or len(card.name) > MAX_KEY_CHARACTERS:
        raise ConfigError(
            f"the card of the class {kind.__name__} has the name {value_text(card.name)}, expected at most "
            f"{MAX_KEY_CHARACTERS} small letters, digits and '-': my-method"
        )
    return card


def _load_entry_point(point: EntryPoint) -> Method:
    """Load another package's method; raise ConfigError for an object that is no `Method` or has another name."""
    method = point.load()
    if not isinstance(method, Method) or method.strategy.card.name != point.name:
        raise ConfigError(
            f"the entry point '{point.name}' of the group '{ENTRY_POINT_GROUP}' is {point.value}, expected a "
            f"fedpca_flwr.protocol.registry.Method whose card has the name '{point.name}'; ask the authors of "
            f"{point.dist.name if point.dist else 'its package'}"
        )
    return method


def require_compatible(config: RunConfig, card: MethodCard, options: PCAOptions, methods: Mapping[str, Method]) -> None:
    """Raise ConfigError, at server and sites, for keys of the run-config that the method or its options do not take."""
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
    remaining = config.levels_by_column.keys() - set(options.covariates)
    if config.levels and not (options.centred and (options.scaled or not remaining)):
        raise ConfigError(
            "run-config: 'levels' is set, so the run must divide indicators by the roots of their proportions: set "
            "scale=true and center=true, or adjust for the columns ('adjust-for')"
        )
    if config.transform:
        _require_transformable(config, card, options)
    if config.max_share:
        _require_visible_shares(config, card, methods)


def _require_transformable(config: RunConfig, card: MethodCard, options: PCAOptions) -> None:
    """Raise ConfigError for a `transform` of columns or methods whose numbers have another meaning afterwards."""
    conflicts = {
        "'levels', whose indicators stay 0 and 1": config.levels,
        f"'{card.name}', which adds moments of runs with and without it": card.open_membership,
    }
    if config.transform == "clr":
        conflicts["'adjust-for', whose covariates are no parts of the row"] = options.covariates
        conflicts[f"'{card.name}', whose sites have some columns of each row only"] = card.split == "columns"
    if faults := [text for text, is_set in conflicts.items() if is_set]:
        raise ConfigError(
            f"run-config: 'transform' is {value_text(config.transform)}, which does not go with {'; '.join(faults)}: "
            "leave out one or the other"
        )


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
