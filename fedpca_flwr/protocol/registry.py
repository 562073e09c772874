"""A method: its strategy and its client; and methods by name, each imported when it is first asked for."""

from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import NamedTuple

from fedpca_flwr.errors import ConfigError
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
            self._found[name] = self._own(name) if name in self._homes else _loaded(self._others[name])
        return self._found[name]

    def __contains__(self, name: object) -> bool:
        return name in self._homes or name in self._others

    def __iter__(self) -> Iterator[str]:
        return iter([*self._homes, *self._others])

    def __len__(self) -> int:
        return len(self._homes) + len(self._others)

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
        strategy.card = self._composed(strategy.card)
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
