"""A site's columns in the order of the run, by their names."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedpca_flwr.column_labels import listed
from fedpca_flwr.errors import DataError
from fedpca_flwr.maths.blocks import Rows, of_columns
from fedpca_flwr.table import Table


def in_order_of(features: Sequence[str], table: Table) -> Table:
    """The table with its columns in the order of the run's ``features``.

    It must have exactly these: a run that could choose among a site's columns could ask about the same rows in parts.

    Raises
    ------
    DataError
        How many it lacks, or has besides; which, stays in the site's own log.
    """
    own = [name.strip() for name in table.names]
    if own == list(features):
        return table
    if not own:
        raise DataError(
            "the run names its features (run-config 'features'), but the columns of this site's data have no names; "
            "give it a file with names, such as .csv with a header"
        )
    places = {name: place for place, name in enumerate(own)}
    lacking = [name for name in features if name not in places]
    besides = sorted(set(own) - set(features), key=own.index)
    if lacking or besides or len(own) > len(features):
        raise DataError(
            f"this site's data lack {len(lacking)} of the run's {len(features)} features (run-config 'features'), and "
            f"have {len(own) - len(features) + len(lacking)} columns besides: rename them, or leave out what the run "
            "does not name",
            local=f"lacking: {listed(lacking) or 'none'}; besides: {listed(besides) or 'none'}",
        )
    order = np.array([places[name] for name in features])
    return table._replace(
        rows=of_columns(table.rows, order), missing=table.missing[order], names=tuple(features), order=order
    )


def in_own_order(table: Table, rows: Rows) -> Rows:
    """Rows of a table with their columns in the order of the file."""
    return rows if table.order is None else of_columns(rows, np.argsort(table.order))
