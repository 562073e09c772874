"""Registry of methods: the strategy and the client of each, imported on first use."""

import difflib
import itertools
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any, NamedTuple

from fedpca_flwr.config.method_text import make_run_config, split_method_text
from fedpca_flwr.config.run_config import MAX_KEY_CHARACTERS, RunConfig
from fedpca_flwr.errors import ConfigError, value_text
from fedpca_flwr.protocol.card import MethodCard
from fedpca_flwr.protocol.client import PCAClient
from fedpca_flwr.protocol.strategy import PCAStrategy

ENTRY_POINT_GROUP = "fedpca_flwr.methods"
"""Of entry points: methods of other packages."""


class Method(NamedTuple):
    """Pair of classes of a method: its server's half (strategy) and its party's half (client).

    Parameters
    ----------
    strategy : type of PCAStrategy
        Half of the server.
    client : type of PCAClient
        Half of a party.
    """

    strategy: type[PCAStrategy]
    client: type[PCAClient]


class Registry(Mapping[str, Method]):
    """Mapping from names to methods, whose modules are imported on first use.

    Parameters
    ----------
    package : str
        Package of the modules.
    locations : mapping of str to str
        Place of each strategy by the method's name: ``"module:class"``. The class attribute ``party`` is the method's
        client. Classes of a method with successors find these in their attribute ``registry``: methods import none.
    compose : callable
        Function of a method's own card that returns the card with the stages that fit.

    Notes
    -----
    A package that is installed beside this one adds a method by an entry point of the group `ENTRY_POINT_GROUP`. The
    name of the entry point is the method's name, and the entry point gives a `Method`. No method of this project is
    replaced.
    """

    def __init__(
        self,
        package: str,
        locations: Mapping[str, str],
        compose: Callable[[MethodCard], MethodCard] = lambda card: card,
    ) -> None:
        """Store the modules of the methods by name, and a function that adapts each card."""
        self._compose = compose
        self._package = package
        self._locations = locations
        self._loaded_methods: dict[str, Method] = {}

    def __getitem__(self, name: str) -> Method:
        """Import the method with this name at its first use, and return the method."""
        if name in self._loaded_methods:
            return self._loaded_methods[name]
        if name in self._locations:
            module, _, class_name = self._locations[name].partition(":")
            strategy = getattr(import_module(f"{self._package}.{module}"), class_name)
            if strategy.card.successors:
                strategy.registry = strategy.party.registry = self
            method = Method(strategy, strategy.party)
        else:
            method = _load_entry_point(self._external[name])
        method.strategy.card = self._compose(method.strategy.card)
        self._loaded_methods[name] = method
        return method

    def __contains__(self, name: object) -> bool:
        """Return whether a method of this name exists, in this project or in another package."""
        return name in self._locations or name in self._external

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names of all methods."""
        return iter([*self._locations, *self._external])

    def __len__(self) -> int:
        """Return the number of methods."""
        return len(self._locations) + len(self._external)

    def lookup(self, name: str) -> Method:
        """Return the method with a name, or raise an error that suggests the nearest name.

        Parameters
        ----------
        name : str
            Name of the method; capitals and underscores do not matter.

        Returns
        -------
        Method
            The method.

        Raises
        ------
        ConfigError
            If there is no such method; the error lists all names and suggests the nearest.
        """
        spelling = name.lower().replace("_", "-")
        if spelling in self:
            return self[spelling]
        plain = name.lower() == "pca"  # whose nearest name is that of an approximate method
        near = ["p-cov"] if plain else difflib.get_close_matches(name[:MAX_KEY_CHARACTERS], self, n=1)
        hint = f"did you mean '{near[0]}'?" if near else ""
        raise ConfigError(
            f"run-config: 'method' is {value_text(name)}, expected one of: {', '.join(self)}. {hint}".rstrip()
        )

    def parse_method(self, text: str, source: str = "run-config") -> Method:
        """Return the method that a text such as "sub-it block-size=10" names, without its options.

        Parameters
        ----------
        text : str
            For example ``"sub-it block-size=10"``.
        source : str
            Name of the configuration in errors.

        Returns
        -------
        Method
            The method.
        """
        return self.lookup(split_method_text(text, source)[0])

    def run_config(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return a run-config from a mapping that holds keys of the run and options of the method.

        Parameters
        ----------
        values : mapping of str to object
            Keys and options in kebab-case, with ``method``.

        Returns
        -------
        dict
            The run-config.

        Raises
        ------
        ConfigError
            For an unknown method, a key that is neither, an option given twice, and an option that is not allowed.
        """
        card = self.parse_method(values["method"]).strategy.card
        return make_run_config(card.name, card.options, values)

    def run_keys(self) -> set[str]:
        """Return all keys of a run-config, and the options of all methods, which are imported.

        Returns
        -------
        set of str
        """
        options = (method.strategy.card.options.keys() for method in self.values())
        return {*RunConfig.keys(), *itertools.chain.from_iterable(options)}

    def strategy_by_class(self, name: str) -> type[PCAStrategy] | None:
        """Return the strategy whose class has this name, or None.

        Parameters
        ----------
        name : str
            Name of the class.

        Returns
        -------
        type of PCAStrategy or None
            The class; None if no method's strategy has this name.
        """
        names = [method for method, location in self._locations.items() if location.endswith(f":{name}")]
        return self[names[0]].strategy if names else None

    @cached_property
    def _external(self) -> dict[str, EntryPoint]:
        """Entry points of methods that other installed packages provide, by name."""
        return {
            point.name: point for point in entry_points(group=ENTRY_POINT_GROUP) if point.name not in self._locations
        }


def _load_entry_point(point: EntryPoint) -> Method:
    """Load a method of another package; refuse an object that is no `Method` or has another name."""
    method = point.load()
    if not isinstance(method, Method) or method.strategy.card.name != point.name:
        raise ConfigError(
            f"the entry point '{point.name}' of the group '{ENTRY_POINT_GROUP}' is {point.value}, expected a "
            f"fedpca_flwr.protocol.registry.Method whose card has the name '{point.name}'; ask the authors of "
            f"{point.dist.name if point.dist else 'its package'}"
        )
    return method
