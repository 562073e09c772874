"""A method: its strategy and its client; and methods by name, each imported when it is first asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any, NamedTuple

from fedpca_flwr.protocol.client import PCAClient
from fedpca_flwr.protocol.strategy import PCAStrategy


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
    homes : mapping of str to tuple of str
        By name, where strategy and client are, each as ``"module:class"``. Those of a method that goes on as others
        find these in their attribute ``others``: methods import none.
    """

    def __init__(self, package: str, homes: Mapping[str, tuple[str, str]]) -> None:
        self._package = package
        self._homes = homes
        self._found: dict[str, Method] = {}

    def __getitem__(self, name: str) -> Method:
        if name not in self._found:
            strategy, client = map(self._imported, self._homes[name])
            if strategy.card.goes_on_as:
                strategy.others = client.others = self
            self._found[name] = Method(strategy, client)
        return self._found[name]

    def __contains__(self, name: object) -> bool:
        return name in self._homes

    def __iter__(self) -> Iterator[str]:
        return iter(self._homes)

    def __len__(self) -> int:
        return len(self._homes)

    def _imported(self, home: str) -> Any:
        module, _, name = home.partition(":")
        return getattr(import_module(f"{self._package}.{module}"), name)
