"""Numbers about the runs at a site, from its journal (`fedpca_flwr.protocol.metrics`)."""

from collections.abc import Mapping
from typing import Any

from fedpca_flwr.config.node_config import NodeConfig
from fedpca_flwr.maths.privacy import compose_multipliers, gaussian_epsilon
from fedpca_flwr.protocol.metrics import Record, write_records
from fedpca_flwr.protocol.site_log import site_logger
from fedpca_flwr.site.rules.accounts import Release
from fedpca_flwr.site.rules.audit import audit


def write_metrics(node_config: Mapping[str, Any]) -> None:
    """Write a site's metrics files (runs, bytes, epsilon spent) from its journal; only log a fault."""
    try:
        node = NodeConfig.parse(node_config, source="node-config")
        journal = audit(node.journal)
        multipliers = [Release.parse(event.about).multiplier for event in journal.events if event.kind == Release.kind]
        epsilon = gaussian_epsilon(compose_multipliers(multipliers), node.delta_budget)
        records = [
            Record(
                **{key: run[key] for key in ("run", "about", "status")},
                time=run["last"],
                refused=run["ended"] or run["refused"],
                rounds=run["questions"],
                upload_bytes={f"client {run['party']}": run["bytes"]},
                epsilon=epsilon,
            )
            for run in journal.runs()
        ]
        write_records(node.metrics, node.name or f"client {node.partition_id}", records)
    except Exception as error:
        site_logger.warning("this site's numbers were not written: %s: %s", type(error).__name__, error)
