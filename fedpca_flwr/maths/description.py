"""Representations of objects that hold rows, or sums of rows: sizes, names and settings, and no number of an array.

A notebook prints the last value of a cell, a debugger prints arguments, and a log may quote an object.
"""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from numbers import Number
from os import PathLike
from typing import Any, TypeVar

import numpy as np

from fedpca_flwr.errors import value_text

Described = TypeVar("Described")
MAX_NAMES = 10  # names, or other members of a sequence, that a description lists


def describe(value: Any) -> str:
    """Describe a value in a few words, without a number of an array and without an address in memory."""
    if isinstance(value, np.ndarray) or hasattr(value, "tocsr"):
        return f"{' x '.join(map(str, value.shape)) or 'one'} {value.dtype}"
    if value is None or isinstance(value, str | PathLike | Number):
        return value_text(value)
    if isinstance(value, np.dtype):
        return str(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return f"{len(value):,} bytes"
    if isinstance(value, type):
        return value.__name__
    if getattr(type(value).__repr__, "__module__", "") == __name__:  # of `represent_by_shapes`
        return repr(value)
    if isinstance(value, Mapping):
        return f"{{{_list(list(value))}}}"
    if type(value) in (list, tuple):
        return f"[{_list(value)}]"
    return type(value).__name__


def represent_by_shapes(kind: type[Described]) -> type[Described]:
    """Let the instances of a data class, or of a class of named tuples, print descriptions of their fields.

    Functions, empty fields, and fields with a simple default value are left out.
    """
    defaults: dict[str, Any] = getattr(kind, "_field_defaults", {})
    if hasattr(kind, "__dataclass_fields__"):
        defaults = {field.name: field.default for field in fields(kind)}  # type: ignore[arg-type]
    names = getattr(kind, "_fields", tuple(defaults))

    def represent(instance: Any) -> str:
        values = {name: getattr(instance, name) for name in names}
        shown = {name: value for name, value in values.items() if not _is_silent(value, defaults.get(name))}
        return f"{type(instance).__name__}({', '.join(f'{name}: {describe(value)}' for name, value in shown.items())})"

    kind.__repr__ = represent  # type: ignore[method-assign]
    return kind


def _is_silent(value: Any, default: Any) -> bool:
    """Return whether a value says nothing: None, a function, something empty, or a default number or bool."""
    if value is None or (callable(value) and not isinstance(value, type)):
        return True
    if isinstance(value, str | bytes | tuple | list | Mapping):
        return len(value) == 0
    return isinstance(value, bool | int | float) and isinstance(default, bool | int | float) and value == default


def _list(members: Sequence[Any]) -> str:
    """Describe the first members of a sequence, and count all others."""
    overflow = f" and {len(members) - MAX_NAMES:,} more" if len(members) > MAX_NAMES else ""
    return ", ".join(map(describe, members[:MAX_NAMES])) + overflow
