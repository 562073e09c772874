"""A party's table: its own file or database, or its part of a data set, and the steps from there to a run's rows."""

import hashlib
import json
from pathlib import Path
from typing import Any

from fedpca_flwr.config.entries import load_entry
from fedpca_flwr.config.node_config import FILE_KEYS, NodeConfig, database_kind, is_url
from fedpca_flwr.config.run_config import RunConfig
from fedpca_flwr.data.table import Table, check_rows
from fedpca_flwr.protocol.site_log import site_logger
from fedpca_flwr.site import held_rows
from fedpca_flwr.site.readers.file_format import DATABASE_READERS
from fedpca_flwr.site.readers.files import RowsHook, holds_texts, keep_nothing, read
from fedpca_flwr.site.rules import policy
from fedpca_flwr.site.site import adapt

FILE_STEPS = {"levels": "fedpca_flwr.site.levels:add_levels", "ids": "fedpca_flwr.site.alignment:align_file"}
"""Steps from a table as a site's file has it, before those of the run (`fedpca_flwr.site.site.RUN_STEPS`)."""


def local_table(node: NodeConfig, config: RunConfig) -> Table:
    """Return a party's table in a run: of the site's own data, or of its partition of a simulation's data set.

    In a site's own process the rows of a file are read once (`fedpca_flwr.site.held_rows`); rows of a database, and
    with indicators of levels, each time. Raise ConfigError, DataError or DisclosureError for faults of data or keys.
    """
    return adapt(_read_table(node, config), node, config)


def _read_table(node: NodeConfig, config: RunConfig) -> Table:
    """Read and check a party's table, before the steps of the run."""
    if node.data:
        store = held_rows.resident
        if store is None or is_url(node.data) or config.levels:
            return _own_table(node, config, keep_nothing)
        keys = {"data", "label", "ids", "categories", "ids_secret", "layer", "variants", "ambiguous", "split"}
        settings = node.model_dump(include=keys.union(FILE_KEYS))
        key = json.dumps([settings, config.seed, _file_stamp(node.data)], sort_keys=True)
        digest = hashlib.sha256(key.encode()).hexdigest()
        table = store.load(digest)
        if table is None:
            copy = store.copy(digest)
            table = _own_table(node, config, keep_nothing if node.ids else copy.record)
            copy.finish(table)
        return table
    from fedpca_flwr.data import datasets, partition  # no site with a table of its own needs them

    source = datasets.load(config.dataset, config.data_root)
    if config.partition == "columns":
        rows = source.all_rows()
        parts = partition.split_columns(rows.shape[1], node.num_partitions, config.columns, source.names)
        return check_rows(rows[:, parts[node.partition_id]])._replace(split="columns")
    parts = partition.split(
        source.labels,
        node.num_partitions,
        kind=config.partition,
        seed=config.seed,
        alpha=config.alpha,
        shards_per_party=config.shards_per_client,
    )
    return check_rows(source.rows(parts[node.partition_id]))._replace(split="rows")


def _own_table(node: NodeConfig, config: RunConfig, keep: RowsHook) -> Table:
    """Read a site's file or database, log what the table says of itself, and apply `FILE_STEPS` to a file."""
    if is_url(node.data):
        table, ids = DATABASE_READERS[database_kind(node.data)](node.data, node.query, node.label, node.ids)
        table = table._replace(split=node.split)
        return load_entry("fedpca_flwr.site.alignment:align")(table, ids, node, config) if node.ids else table
    keys = {**node.file_keys, "ids": node.ids, "texts": node.category_names}
    stamp = _file_stamp(node.data)  # before it is read: what is written meanwhile then shows with the next question
    if config.levels and holds_texts(node.data):
        policy.permit_categories(node, config.levels_by_column)
    settings: dict[str, Any] = {"layer": node.layer, "variants": node.variants, "ambiguous": node.ambiguous == "keep"}
    table = read(node.data, node.label, keep=keep, site=True, **settings, **keys)
    for note in table.notes:
        site_logger.info(note)
    return adapt(table._replace(digest=stamp, split=node.split), node, config, FILE_STEPS)


def file_digest(path: str, stamp: str) -> str:
    """Return the SHA-256 of a file's bytes; empty without a file, or if its stamp was not this one all the time."""
    if not stamp or _file_stamp(path) != stamp:
        return ""
    with open(Path(path).expanduser(), "rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    return digest if _file_stamp(path) == stamp else ""


def _file_stamp(path: str) -> str:
    """Return inode, size and time of change of a file, or of all in a folder, to notice changes; empty if missing."""
    file = Path(path).expanduser()
    try:
        stats = [part.stat() for part in (file, *sorted(file.rglob("*")))]
    except OSError:
        return ""
    return "; ".join(f"{status.st_ino} {status.st_size} {status.st_mtime_ns}" for status in stats)
