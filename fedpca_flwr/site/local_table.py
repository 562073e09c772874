"""A party's own rows, from its file or database, or in a simulation from the run's data set; and their order by ids.

Where all parties hold columns of the same rows, a column of ids puts the rows into one order: the order of the ids'
digests, which are all that other parties see. This is NOT private set intersection. A digest hides an id from whoever
does not know the salt: the sites' ``ids-secret``, a file of random bytes that the sites share and the server does not
know. Without the file the salt is a text that everybody knows, and whoever can guess ids (names, numbers of few digits)
finds them. Every site also learns that all others have exactly its own rows. A site that hands the salt to the server
gives away digests of ids that it has itself.
"""

import hashlib
import hmac
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedpca_flwr.config.node_config import FILE_KEYS, NodeConfig, database_kind, is_url
from fedpca_flwr.config.run_config import RunConfig
from fedpca_flwr.data import datasets, partition
from fedpca_flwr.data.categories import append_indicators, level_notes
from fedpca_flwr.data.table import Table, check_rows
from fedpca_flwr.errors import ConfigError, DataError
from fedpca_flwr.maths.rows import to_array
from fedpca_flwr.protocol.site_log import site_logger
from fedpca_flwr.site import held_rows
from fedpca_flwr.site.readers.file_format import DATABASE_READERS
from fedpca_flwr.site.readers.files import (
    RowsHook,
    holds_texts,
    keep_nothing,
    read,
    read_ids,
    read_texts,
)
from fedpca_flwr.site.rules import policy
from fedpca_flwr.state.files import unreadable_error

MIN_SECRET_BYTES = 16


def read_ids_secret(path: str) -> bytes:
    """Read the file by which sites salt their ids (b"" without a path); raise ConfigError if unreadable or short."""
    if not path:
        return b""
    try:
        secret = Path(path).expanduser().read_bytes()
    except OSError as error:
        raise unreadable_error("ids-secret", path, error) from None
    if len(secret) < MIN_SECRET_BYTES:
        raise ConfigError(
            f"node-config: the file of 'ids-secret' holds {len(secret)} bytes, expected at least "
            f"{MIN_SECRET_BYTES}; make one with 'python -m fedpca_flwr site ids-secret'"
        )
    return secret


IdDigests = NDArray[np.uint64]


def id_digests(ids: Sequence[str], salt: bytes) -> IdDigests:
    """Return the first 64 bits of each id's HMAC-SHA-256 under the salt; raise DataError at empty or equal ids."""
    empty, duplicates = sum(not row_id for row_id in ids), len(ids) - len(set(ids))
    if empty:
        raise DataError(f"the id column has {empty} empty cells: every row needs an id")
    if duplicates:
        raise DataError(f"the id column has {duplicates} ids that occur before: every row needs one of its own")
    raw = b"".join(hmac.digest(salt, row_id.encode(), hashlib.sha256)[:8] for row_id in ids)
    return np.frombuffer(raw, "<u8").astype(np.uint64)


def local_table(node: NodeConfig, config: RunConfig) -> Table:
    """Load and check a party's table: the site's own data, or its partition of a simulation's data set.

    In a site's own process the rows of a file are read once (`fedpca_flwr.site.held_rows`). Rows of a database are read
    each time, and so are rows with indicators of the run's levels. Raise ConfigError or DataError if the data cannot be
    read, and DisclosureError if a rule of the site refuses the run's levels.
    """
    if node.data:
        store = held_rows.resident
        if store is None or is_url(node.data) or config.levels:
            return _site_table(node, config, keep_nothing)
        keys = {"data", "label", "ids", "categories", "ids_secret", "layer", "variants", "ambiguous", "split"}
        settings = node.model_dump(include=keys.union(FILE_KEYS))
        key = json.dumps([settings, config.seed, _file_stamp(node.data)], sort_keys=True)
        table = store.load(key)
        if table is None:
            copy = store.copy(key)
            table = _site_table(node, config, keep_nothing if node.ids else copy.record)
            copy.finish(table)
        return table
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


def _site_table(node: NodeConfig, config: RunConfig, keep: RowsHook) -> Table:
    """Read a site's table; with ids, in the order of their salted digests, which is the same for all parties.

    Raise ConfigError or DataError for data, ids or a secret that cannot be read, and DisclosureError for levels.
    """
    table, ids = _read_site_table(node, config, keep)
    table = table._replace(split=node.split)
    if not node.ids:
        return table
    row_digests = id_digests(ids, read_ids_secret(node.ids_secret) or f"fedpca-flwr {config.seed}".encode())
    order = np.argsort(row_digests)
    return table._replace(rows=to_array(table.rows)[order], ids=row_digests[order], row_positions=np.argsort(order))


def _read_site_table(node: NodeConfig, config: RunConfig, keep: RowsHook) -> tuple[Table, list[str]]:
    """Read a site's file, with its notes logged, or database; return table and texts of the ids (empty without).

    The run's levels are appended to a file's rows, which ``keep`` receives first. Raise errors as `_site_table`.
    """
    if is_url(node.data):
        return DATABASE_READERS[database_kind(node.data)](node.data, node.query, node.label, node.ids)
    stamp = _file_stamp(node.data)  # before it is read: what is written meanwhile then shows with the next question
    levels = config.levels_by_column if holds_texts(node.data) else {}
    policy.permit_categories(node, levels)
    keys = {"ids": node.ids, "texts": node.category_names, **node.file_keys}
    settings: dict[str, Any] = {"layer": node.layer, "variants": node.variants, "ambiguous": node.ambiguous == "keep"}
    table = read(node.data, node.label, keep=keep, **settings, **keys)
    for note in table.notes:
        site_logger.info(note)
    if levels:
        cells = {column: read_texts(node.data, column, len(table.rows), node.label, **keys) for column in levels}
        table = append_indicators(table, cells, levels, node.min_rows, node.round_rows)
        for note in level_notes({"this site": table}, levels):
            site_logger.warning("%s", note)
    table = table._replace(digest=stamp)
    return table, read_ids(node.data, node.ids, len(table.rows), node.label, **keys) if node.ids else []


def _file_stamp(path: str) -> str:
    """Return inode, size and time of change of a file as text, to notice changes; empty if missing."""
    try:
        status = Path(path).expanduser().stat()
    except OSError:
        return ""
    return f"{status.st_ino} {status.st_size} {status.st_mtime_ns}"
