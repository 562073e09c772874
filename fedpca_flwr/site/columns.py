"""Columns of a site's file that the node-config names."""

from __future__ import annotations

from fedpca_flwr.errors import ConfigError

LeftOut = dict[str, str]
"""Columns that are no features, by the key of the node-config that names them."""


def column_position(name: str, names: list[str], width: int, key: str) -> int:
    """Where the column is that a key of the node-config names, by its name or its number from 0.

    Raises
    ------
    ConfigError
    """
    if name in names:
        return names.index(name)
    if name.isdecimal() and int(name) < width:
        return int(name)
    raise ConfigError(
        f"node-config: '{key}' names no column of the data (expected a column's name, or its number from 0)",
        local=f"{key} '{name}', columns {names or width}",
    )
