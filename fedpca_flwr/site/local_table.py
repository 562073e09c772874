"""A party's own rows: its file, or in a simulation its part of the run's data set."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedpca_flwr import data
from fedpca_flwr.config import RunConfig
from fedpca_flwr.database_url import is_url
from fedpca_flwr.maths.blocks import whole
from fedpca_flwr.node_config import NodeConfig
from fedpca_flwr.partition import split, split_columns
from fedpca_flwr.site.alignment import digests, read_ids
from fedpca_flwr.site.ids_secret import ids_secret
from fedpca_flwr.site.query import read_query
from fedpca_flwr.site.readers import read
from fedpca_flwr.table import Table, check


def local_table(node: NodeConfig, config: RunConfig) -> Table:
    """The rows of one party, checked.

    Parameters
    ----------
    node : NodeConfig
        With ``data`` the file or database it names; else partition ``partition_id`` of ``num_partitions``.
    config : RunConfig
        Which data set, partitioned how.
    """
    if node.data:
        table, ids = _own(node)
        table = table._replace(split=node.split)
        return _in_order_of_ids(table, ids, node, config) if node.ids else table
    source = data.load(config.dataset, config.data_root)
    if config.partition == "columns":
        rows = source.all_rows()
        own = split_columns(rows.shape[1], node.num_partitions, config.columns, source.names)[node.partition_id]
        return check(rows[:, own])._replace(split="columns")
    parts = split(
        source.labels,
        node.num_partitions,
        kind=config.partition,
        seed=config.seed,
        alpha=config.alpha,
        shards_per_party=config.shards_per_client,
    )
    return check(source.rows(parts[node.partition_id]))._replace(split="rows")


def _own(node: NodeConfig) -> tuple[Table, list[str]]:
    """What the node-config names, and the ids where it names a column of them."""
    if is_url(node.data):
        return read_query(node.data, node.query, node.label, node.ids)
    written = _written(node.data)  # before it is read: what is written meanwhile then shows with the next question
    table = read(node.data, node.label, node.ids, node.layer, node.variants, ambiguous=node.ambiguous == "keep")
    table = table._replace(digest=written)
    return table, read_ids(node.data, node.ids, len(table.rows), node.label) if node.ids else []


def _written(path: str) -> str:
    """Which file it is, and when it was written last; empty where there is none, as its reader says."""
    try:
        known = Path(path).expanduser().stat()
    except OSError:
        return ""
    return f"{known.st_ino} {known.st_size} {known.st_mtime_ns}"


def _in_order_of_ids(table: Table, ids: list[str], node: NodeConfig, config: RunConfig) -> Table:
    """The rows in the order of the salted digests of their ids, which is the same for all parties."""
    salt = ids_secret(node.ids_secret) or f"fedpca-flwr {config.seed}".encode()
    found = digests(ids, salt)
    order = np.argsort(found)
    return table._replace(rows=whole(table.rows)[order], ids=found[order], places=np.argsort(order))
