"""Values and changes of JSON that somebody else wrote."""

import copy
from collections.abc import Iterator
from typing import Any

JSON_VALUES = [
    *(None, True, -1, 0, 0.5, -5, 1e308, -1e308, 10**30, 2**63, 10**400, "x", "", "9" * 1000, "\x1b[2J<img src=x>"),
    *("\ud800", "a\x00b", "a\n\n# Verdict\n\n\u202e"),
    *([], {}, [[1]], [None] * 3, {"a": {"b": []}}, float("nan"), float("inf")),
]


def paths_in(value: Any, path: tuple = ()) -> Iterator[tuple]:
    """Yield the path of each value inside, through keys of objects and places of lists."""
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield (*path, key)
        yield from paths_in(inner, (*path, key))


def replaced(value: Any, times: int) -> Iterator[tuple[tuple, Any, Any]]:
    """Yield, for each path, copies with so many of the values of `JSON_VALUES` in its place: path, value, and copy."""
    for place, path in enumerate(paths_in(value)):
        for turn in range(times):
            hostile = JSON_VALUES[(place + turn * len(JSON_VALUES) // times) % len(JSON_VALUES)]
            whole = inner = copy.deepcopy(value)
            for key in path[:-1]:
                inner = inner[key]
            inner[path[-1]] = hostile
            yield path, hostile, whole
