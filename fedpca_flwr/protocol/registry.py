"""A method: its strategy and its client; and methods by name, each imported when it is first asked for."""

import difflib
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any, NamedTuple

from fedpca_flwr.config.method_text import run_config_of, words_of
from fedpca_flwr.config.run_config import LONGEST_KEY
from fedpca_flwr.errors import ConfigError, value_text
from fedpca_flwr.protocol.card import MethodCard
from fedpca_flwr.protocol.client import PCAClient
from fedpca_flwr.protocol.strategy import PCAStrategy

GROUP = "fedpca_flwr.methods"
"""Of entry points: methods of other packages."""


class Method(NamedTuple):
    """A method's two halves. How answers travel is no part of it (`fedpca_flwr.transports`)."""

    strategy: type[PCAStrategy]
    client: type[PCAClient]


class Registry(Mapping[str, Method]):
    """Methods by name. Names cost nothing; a run imports the one method that it uses.

    Parameters
    ----------
    package : str
        In which the modules are.
    homes : mapping of str to str
        By name, where the strategy is: ``"module:class"``. Its attribute ``party`` is the method's client. Those of a
        method that goes on as others find these in their attribute ``others``: methods import none.
    composed : callable
        Makes of a method's own card that with the stages which fit it.

    Notes
    -----
    A package that is installed beside this one adds a method by an entry point of the group `GROUP`: its name is the
    method's, and it gives a `Method`. No method of this project is replaced.
    """

    def __init__(
        self, package: str, homes: Mapping[str, str], composed: Callable[[MethodCard], MethodCard] = lambda card: card
    ) -> None:
        self._composed = composed
        self._package = package
        self._homes = homes
        self._found: dict[str, Method] = {}

    def __getitem__(self, name: str) -> Method:
        if name not in self._found:
            made = self._own(name) if name in self._homes else _loaded(self._others[name])
            made.strategy.card = self._composed(made.strategy.card)
            self._found[name] = made
        return self._found[name]

    def __contains__(self, name: object) -> bool:
        return name in self._homes or name in self._others

    def __iter__(self) -> Iterator[str]:
        return iter([*self._homes, *self._others])

    def __len__(self) -> int:
        return len(self._homes) + len(self._others)

    def named(self, name: str) -> Method:
        """Return the method of that name; a `ConfigError` has the names there are."""
        if name in self:
            return self[name]
        plain = name.lower() == "pca"  # whose nearest name is that of an approximate method
        near = ["p-cov"] if plain else difflib.get_close_matches(name[:LONGEST_KEY], self, n=1)
        hint = f"did you mean '{near[0]}'?" if near else ""
        raise ConfigError(
            f"run-config: 'method' is {value_text(name)}, expected one of: {', '.join(self)}. {hint}".rstrip()
        )

    def of_text(self, text: str, source: str = "run-config") -> Method:
        """Return the method of a text that may have its options too (`fedpca_flwr.config.method_text`)."""
        return self.named(words_of(text, source)[0])

    def run_config(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the run-config of keys of the run and options of its method side by side, as in Python.

        Raises
        ------
        ConfigError
            For an unknown method, a key that is neither, an option given twice, and an option that is not allowed.
        """
        card = self.of_text(values["method"]).strategy.card
        return run_config_of(card.name, card.options, values)

    def strategy_named(self, name: str) -> type[PCAStrategy] | None:
        """The strategy of this project whose class has this name, for a Flower app of one's own."""
        found = [method for method, home in self._homes.items() if home.endswith(f":{name}")]
        return self[found[0]].strategy if found else None

    @cached_property
    def _others(self) -> dict[str, EntryPoint]:
        """Those of other packages."""
        return {point.name: point for point in entry_points(group=GROUP) if point.name not in self._homes}

    def _own(self, name: str) -> Method:
        module, _, of_class = self._homes[name].partition(":")
        strategy = getattr(import_module(f"{self._package}.{module}"), of_class)
        if strategy.card.goes_on_as:
            strategy.others = strategy.party.others = self
        return Method(strategy, strategy.party)


def _loaded(point: EntryPoint) -> Method:
    """A method of another package; a `ConfigError` where its entry point gives something else."""
    made = point.load()
    if not isinstance(made, Method) or made.strategy.card.name != point.name:
        raise ConfigError(
            f"the entry point '{point.name}' of the group '{GROUP}' is {point.value}, expected a "
            f"fedpca_flwr.protocol.registry.Method whose card has the name '{point.name}'; ask the authors of "
            f"{point.dist.name if point.dist else 'its package'}"
        )
    return made
