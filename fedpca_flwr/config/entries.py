"""Tables of text: names and where their objects are, each of which is imported when an option or a file asks for it."""

from collections import UserDict
from collections.abc import Mapping
from functools import cached_property
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any, TypeVar, cast

from typing_extensions import override

Entry = TypeVar("Entry")


def load_entry(path: str) -> Any:
    """Import the object at a path such as ``"fedpca_flwr.stages.adjust:Adjust"``."""
    module, _, name = path.partition(":")
    return getattr(import_module(module), name)


class Entries(UserDict[str, Entry]):
    """Mapping from names to objects, each of which is imported from its path (`load_entry`) at its first use.

    An installed package adds an object by an entry point of the ``group``, and replaces none of the ``paths``.
    """

    def __init__(self, paths: Mapping[str, str], group: str = "") -> None:
        """Store the paths by name, and the group of other packages' entry points; an empty group has none."""
        self._paths, self._group = paths, group

    @cached_property
    def data(self) -> dict[str, Any]:  # type: ignore[override]  # where the base stores the values
        """Objects by name, or their paths and entry points as long as nobody has asked for them."""
        points = entry_points(group=self._group) if self._group else ()
        return dict(self._paths) | {point.name: point for point in points if point.name not in self._paths}

    @override
    def __getitem__(self, name: str) -> Entry:
        value = self.data[name]
        if isinstance(value, str | EntryPoint):
            value = self.data[name] = load_entry(value) if isinstance(value, str) else value.load()
        return cast("Entry", value)
