"""The column of a site's data with the weights of its rows, and the weights that a site refuses.

A site names this column itself: if runs could choose, each choice would reveal other sums over the same rows. No row
may have a larger share of all weights than each of ``min-rows`` rows of the same weight.
"""

import numpy as np

from fedpca_flwr.config.node_config import NodeConfig
from fedpca_flwr.config.run_config import RunConfig
from fedpca_flwr.data.table import Table, labels_text
from fedpca_flwr.errors import DataError, DisclosureError, value_text
from fedpca_flwr.maths.rows import select_columns, to_array
from fedpca_flwr.site.readers.columns import column_positions
from fedpca_flwr.site.rules import policy


def separate_weights(table: Table, node: NodeConfig, config: RunConfig) -> Table:
    """Return the table without its column of weights, which are used if the run has weights.

    Raise ConfigError for no such column, DisclosureError if the site has not named it or a row has too large a share,
    and DataError if a weight is missing, infinite or negative, all are 0, or no feature is left.
    """
    if node.data and config.weights and config.weights != node.weights:
        raise DisclosureError(
            f"the run's 'weights' is {value_text(config.weights)}, but this site's node-config does not name this "
            "column of weights: set its own 'weights' to the same column, or run without 'weights'"
        )
    name = node.weights or config.weights
    d = table.rows.shape[1]
    position = column_positions(name, list(table.names), d, "weights")[0]
    feature_columns = np.delete(np.arange(d), position)
    if not feature_columns.size:
        raise DataError("the data have no column besides their weights, expected at least one feature")
    names = tuple(table.names[other] for other in feature_columns) if table.names else ()
    rows, missing = select_columns(table.rows, feature_columns), table.missing[feature_columns]
    features = table._replace(rows=rows, missing=missing, names=names)
    if not config.weights:
        return features
    weights = to_array(select_columns(table.rows, [position]))[:, 0].astype(np.float64)
    column_text = f"column '{name}'"
    wrong = np.flatnonzero(~(np.isfinite(weights) & (weights >= 0)))
    if wrong.size:
        raise DataError(
            f"{wrong.size} rows have a weight that is missing or negative, expected numbers from 0: correct these "
            "weights, or give the weight 0 to rows that should not count",
            local=f"{column_text}, rows (from 0): {labels_text(wrong.tolist())}",
        )
    if not weights.any():
        raise DataError("all weights of this site's rows are 0, expected some weights above 0", local=column_text)
    policy.permit_rows(node, len(weights), weights)
    return features._replace(weights=weights)
