"""The steps from a party's table, as read from its data, to its table in a run, in their order."""

from collections.abc import Callable
from typing import NamedTuple

from fedpca_flwr.config.node_config import NodeConfig
from fedpca_flwr.config.run_config import RunConfig
from fedpca_flwr.data.table import Table
from fedpca_flwr.genetics.relatives import mark_relatives as people_apart
from fedpca_flwr.site.readers.columns import order_features
from fedpca_flwr.site.weights import separate_weights as weights_apart


class TableStep(NamedTuple):
    """Function that changes a party's table, applied if its node-config or run-config key is set."""

    apply: Callable[[Table, NodeConfig, RunConfig], Table]  # returns the changed table
    node_key: str = ""  # empty: none
    run_key: str = ""  # empty: none


TABLE_STEPS = (
    TableStep(weights_apart, node_key="weights", run_key="weights"),
    TableStep(people_apart, node_key="apart"),
    TableStep(order_features, run_key="features"),
)


def apply_steps(table: Table, node: NodeConfig, config: RunConfig) -> Table:
    """Apply all steps whose keys are set to the table: separate weights, mark people, order features."""
    for step in TABLE_STEPS:
        if (step.node_key and getattr(node, step.node_key)) or (step.run_key and getattr(config, step.run_key)):
            table = step.apply(table, node, config)
    return table
