"""The columns of a site's data: those that the node-config names, and the features in the order of the run."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from fedpca_flwr.data.frames import listed, match
from fedpca_flwr.data.table import Table
from fedpca_flwr.errors import ConfigError, DataError
from fedpca_flwr.maths.rows import Rows, of_columns

LeftOut = dict[str, str]  # columns that are no features, by the key of the node-config that names them


@contextmanager
def extra(name: str, needed: str) -> Iterator[None]:
    """Import what only one kind of data needs (``needed`` says so), from an extra of this project."""
    try:
        yield
    except ImportError:
        raise ConfigError(
            f"{needed}, which this Python does not have; pip install '.[{name}]' in the repository"
        ) from None


def column_position(name: str, names: list[str], width: int, key: str) -> int:
    """Where the column is that a key of the node-config names, by its name or its number from 0."""
    if name in names:
        return names.index(name)
    if name.isdecimal() and int(name) < width:
        return int(name)
    raise ConfigError(
        f"node-config: '{key}' names no column of the data (expected a column's name, or its number from 0)",
        local=f"{key} '{name}', columns {names or width}",
    )


def feature_positions(left_out: LeftOut, names: list[str], width: int) -> list[int]:
    """Where the features are among so many columns: all but those that are left out."""
    others = {column_position(name, names, width, key) for key, name in left_out.items()}
    return [position for position in range(width) if position not in others]


def in_order_of(features: Sequence[str], table: Table) -> Table:
    """The table with its columns in the order of the run's ``features``.

    It must have exactly these: a run that could choose among a site's columns could ask about the same rows in parts.
    An error tells how many it lacks, or has besides; which, stays in the site's own log.
    """
    own = [name.strip() for name in table.names]
    if own == list(features):
        return table
    if not own:
        raise DataError(
            "the run names its features (run-config 'features'), but the columns of this site's data have no names; "
            "give it a file with names, such as .csv with a header"
        )
    lacking, besides, order = match(own, features)
    if lacking or besides or len(own) > len(features):
        raise DataError(
            f"this site's data lack {len(lacking)} of the run's {len(features)} features (run-config 'features'), and "
            f"have {len(own) - len(features) + len(lacking)} columns besides: rename them, or leave out what the run "
            "does not name",
            local=f"lacking: {listed(lacking) or 'none'}; besides: {listed(besides) or 'none'}",
        )
    places = np.array(order)
    return table._replace(
        rows=of_columns(table.rows, places), missing=table.missing[places], names=tuple(features), order=places
    )


def in_own_order(table: Table, rows: Rows) -> Rows:
    """Rows of a table with their columns in the order of the file."""
    return rows if table.order is None else of_columns(rows, np.argsort(table.order))
