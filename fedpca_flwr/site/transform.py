"""The function of single rows that a run applies before its PCA, and that a site allows in its own node-config."""

from fedpca_flwr.config.node_config import NodeConfig
from fedpca_flwr.config.run_config import RunConfig
from fedpca_flwr.data.table import Table
from fedpca_flwr.data.transforms import transform_table
from fedpca_flwr.errors import DisclosureError


def transform_rows(table: Table, node: NodeConfig, config: RunConfig) -> Table:
    """Return the table after the run's `transform`; raise DisclosureError unless it is the site's own.

    Moments of several functions of the same rows tell more than those of one. A caller's rows have no node-config.
    """
    if (node.data or node.transform) and node.transform != config.transform:
        run, own = (f"'{key}'" if key else "not set" for key in (config.transform, node.transform))
        raise DisclosureError(
            f"the run's 'transform' is {run}, but this site's is {own} (node-config 'transform'): give both the same, "
            "because a server that chooses functions of the same rows learns more than one PCA needs"
        )
    return transform_table(table, config.transform)
