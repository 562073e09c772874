"""A party's own rows, from its file or database or in a simulation from the run's data set; and their order by ids.

Where all parties hold columns of the same rows, a column of ids puts these in one order: that of their digests, which
are all that others see. This is NOT private set intersection. A digest hides an id from whoever does not know the
salt: the sites' ``ids-secret``, a file of random bytes that they share and the server does not know. Without one the
salt is a text that everybody knows, and whoever can guess ids (names, numbers of few digits) finds them. Every site
also learns that all others have exactly its own rows.

Identities do not replace the salt: digests can be compared only where all sites make them alike. A site that hands it
to the server gives away digests of ids that it has itself, since all sites have the same rows.
"""

import hashlib
import hmac
import json
import logging
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedpca_flwr.config.node_config import FILE_KEYS, NodeConfig, is_url, kind_of
from fedpca_flwr.config.run_config import RunConfig
from fedpca_flwr.data import datasets, partition
from fedpca_flwr.data.categories import joined, level_notes
from fedpca_flwr.data.table import Table, check
from fedpca_flwr.errors import ConfigError, DataError
from fedpca_flwr.maths.rows import whole
from fedpca_flwr.site import kept_rows, policy
from fedpca_flwr.site.readers import DATABASES, Keep, as_they_are, holds_texts, read, read_ids, read_texts
from fedpca_flwr.state.files import unreadable

SHORTEST_SECRET = 16  # bytes
logger = logging.getLogger("fedpca_flwr.client")


def ids_secret(path: str) -> bytes:
    """The bytes of a site's ``ids-secret`` file; none for an empty path."""
    if not path:
        return b""
    try:
        secret = Path(path).expanduser().read_bytes()
    except OSError as error:
        raise unreadable("ids-secret", path, error) from None
    if len(secret) < SHORTEST_SECRET:
        raise ConfigError(
            f"node-config: the file of 'ids-secret' holds {len(secret)} bytes, expected at least "
            f"{SHORTEST_SECRET}; make one with 'python -m fedpca_flwr site ids-secret'"
        )
    return secret


Digests = NDArray[np.uint64]


def digests(ids: Sequence[str], salt: bytes) -> Digests:
    """The first 64 bits of HMAC-SHA-256 of each id (n,), none of which may be empty or occur twice."""
    empty, doubled = sum(not own for own in ids), len(ids) - len(set(ids))
    if empty:
        raise DataError(f"the id column has {empty} empty cells: every row needs an id")
    if doubled:
        raise DataError(f"the id column has {doubled} ids that occur before: every row needs one of its own")
    raw = b"".join(hmac.digest(salt, own.encode(), hashlib.sha256)[:8] for own in ids)
    return np.frombuffer(raw, "<u8").astype(np.uint64)


def difference(own: Digests, others: Digests) -> tuple[int, int]:
    """How many of ``others`` are missing in ``own``, and how many there are too many."""
    return int(np.setdiff1d(others, own).size), int(np.setdiff1d(own, others).size)


def of_run(node: NodeConfig, config: RunConfig, folder: Path) -> Table:
    """`local_table`, which keeps the rows of a file in this folder, and takes them from there where they are kept.

    Rows of a database are asked for anew each time: they are not written onto a disk that their owner has not chosen.
    Rows with indicators of the run's levels are made anew, too.
    """
    if not node.data or is_url(node.data) or config.levels:
        return local_table(node, config)
    read_with = node.model_dump(
        include={
            "data",
            "label",
            "ids",
            "categories",
            "ids_secret",
            "layer",
            "variants",
            "ambiguous",
            "split",
            *FILE_KEYS,
        }
    )
    what = json.dumps([read_with, config.seed, _written(node.data)], sort_keys=True)
    found = kept_rows.read(folder, what)
    if found is None:
        with kept_rows.writing(folder, what) as copy:
            found = local_table(node, config, as_they_are if node.ids else copy.of)
            copy.finish(found)
    return found


def local_table(node: NodeConfig, config: RunConfig, keep: Keep = as_they_are) -> Table:
    """The rows of one party, checked: those that its ``data`` name, else its part of the run's data set."""
    if node.data:
        table, ids = _own(node, config, keep)
        table = table._replace(split=node.split)
        if not node.ids:
            return table
        # in the order of the salted digests of the ids, which is the same for all parties
        found = digests(ids, ids_secret(node.ids_secret) or f"fedpca-flwr {config.seed}".encode())
        order = np.argsort(found)
        return table._replace(rows=whole(table.rows)[order], ids=found[order], places=np.argsort(order))
    source = datasets.load(config.dataset, config.data_root)
    if config.partition == "columns":
        rows = source.all_rows()
        parts = partition.split_columns(rows.shape[1], node.num_partitions, config.columns, source.names)
        return check(rows[:, parts[node.partition_id]])._replace(split="columns")
    parts = partition.split(
        source.labels,
        node.num_partitions,
        kind=config.partition,
        seed=config.seed,
        alpha=config.alpha,
        shards_per_party=config.shards_per_client,
    )
    return check(source.rows(parts[node.partition_id]))._replace(split="rows")


def _own(node: NodeConfig, config: RunConfig, keep: Keep) -> tuple[Table, list[str]]:
    """What the node-config names, and the ids where it names a column of them."""
    if is_url(node.data):
        return DATABASES[kind_of(node.data)](node.data, node.query, node.label, node.ids)
    written = _written(node.data)  # before it is read: what is written meanwhile then shows with the next question
    ambiguous = node.ambiguous == "keep"
    levels = config.levels_by_column if holds_texts(node.data) else {}
    policy.permit_categories(node, levels)
    keys = {"ids": node.ids, "texts": node.category_names, **node.file_keys}
    table = read(
        node.data, node.label, layer=node.layer, variants=node.variants, ambiguous=ambiguous, keep=keep, **keys
    )
    for note in table.notes:
        logger.info(note)
    if levels:
        cells = {column: read_texts(node.data, column, len(table.rows), node.label, **keys) for column in levels}
        table = joined(table, cells, levels, node.min_rows, node.round_rows)
        for note in level_notes({"this site": table}, levels):
            logger.warning("%s", note)
    table = table._replace(digest=written)
    return table, read_ids(node.data, node.ids, len(table.rows), node.label, **keys) if node.ids else []


def _written(path: str) -> str:
    """Which file it is, and when it was written last; empty where there is none, as its reader says."""
    try:
        known = Path(path).expanduser().stat()
    except OSError:
        return ""
    return f"{known.st_ino} {known.st_size} {known.st_mtime_ns}"
