"""The steps from a party's table, as read from its data, to its table in a run, in their order."""

from typing import NamedTuple

from fedpca_flwr.config.entries import load_entry
from fedpca_flwr.config.node_config import NodeConfig
from fedpca_flwr.config.run_config import RunConfig
from fedpca_flwr.data.table import Table


class TableStep(NamedTuple):
    """Path of a function from a party's table, node-config and run-config to a table, and the keys that ask for it."""

    path: str
    node_key: str = ""  # empty: none
    run_key: str = ""  # empty: none


TABLE_STEPS = (
    TableStep("fedpca_flwr.site.weights:separate_weights", node_key="weights", run_key="weights"),
    TableStep("fedpca_flwr.genetics.relatives:mark_relatives", node_key="apart"),
    TableStep("fedpca_flwr.site.readers.columns:order_features", run_key="features"),
)


def apply_steps(table: Table, node: NodeConfig, config: RunConfig) -> Table:
    """Apply all steps whose keys are set to the table: separate weights, mark people, order features."""
    for step in TABLE_STEPS:
        if (step.node_key and getattr(node, step.node_key)) or (step.run_key and getattr(config, step.run_key)):
            table = load_entry(step.path)(table, node, config)
    return table
