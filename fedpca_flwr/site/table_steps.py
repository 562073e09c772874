"""The steps from a party's data as they were read to its rows in a run, in their order."""

from collections.abc import Callable
from typing import NamedTuple

from fedpca_flwr.config.node_config import NodeConfig
from fedpca_flwr.config.run_config import RunConfig
from fedpca_flwr.data.table import Table
from fedpca_flwr.site.columns import order_features
from fedpca_flwr.site.relatives import mark_relatives as people_apart
from fedpca_flwr.site.weights import separate_weights as weights_apart


class TableStep(NamedTuple):
    """One step, which keys of the site's node-config or of the run-config name."""

    apply: Callable[[Table, NodeConfig, RunConfig], Table]
    node_key: str = ""
    run_key: str = ""


TABLE_STEPS = (
    TableStep(weights_apart, node_key="weights", run_key="weights"),
    TableStep(people_apart, node_key="apart"),
    TableStep(order_features, run_key="features"),
)


def apply_steps(table: Table, node: NodeConfig, config: RunConfig) -> Table:
    """Return the table after the steps that the site and the run name."""
    for step in TABLE_STEPS:
        if (step.node_key and getattr(node, step.node_key)) or (step.run_key and getattr(config, step.run_key)):
            table = step.apply(table, node, config)
    return table
