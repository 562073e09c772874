"""The steps from a party's data as they were read to its rows in a run, in their order."""

from collections.abc import Callable
from typing import NamedTuple

from fedpca_flwr.config.node_config import NodeConfig
from fedpca_flwr.config.run_config import RunConfig
from fedpca_flwr.data.table import Table
from fedpca_flwr.site.columns import in_order
from fedpca_flwr.site.relatives import apart as people_apart
from fedpca_flwr.site.weights import apart as weights_apart


class Step(NamedTuple):
    """One step, which keys of the site's node-config or of the run-config name."""

    change: Callable[[Table, NodeConfig, RunConfig], Table]
    node: str = ""
    run: str = ""


STEPS = (
    Step(weights_apart, node="weights", run="weights"),
    Step(people_apart, node="apart"),
    Step(in_order, run="features"),
)


def prepared(table: Table, node: NodeConfig, config: RunConfig) -> Table:
    """Return the table after the steps that the site and the run name."""
    for step in STEPS:
        if (step.node and getattr(node, step.node)) or (step.run and getattr(config, step.run)):
            table = step.change(table, node, config)
    return table
