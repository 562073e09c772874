"""The order of a site's rows by ids, where all parties hold columns of the same rows.

The rows take the order of the ids' digests, which are all that other parties see. This is NOT private set intersection.
A digest hides an id only from whoever does not know the salt: the sites' ``ids-secret``, random bytes unknown to the
server. Without the file everybody knows the salt, and finds ids that can be guessed. Every site also learns that all
others have exactly its own rows.
"""

import hashlib
import hmac
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedpca_flwr.config.node_config import NodeConfig
from fedpca_flwr.config.run_config import RunConfig
from fedpca_flwr.data.table import Table
from fedpca_flwr.errors import ConfigError, DataError
from fedpca_flwr.maths.rows import to_array
from fedpca_flwr.site.readers.files import read_ids
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
            f"{MIN_SECRET_BYTES}; make one with 'fedpca site ids-secret'"
        )
    return secret


def id_digests(ids: Sequence[str], salt: bytes) -> NDArray[np.uint64]:
    """Return the first 64 bits of each id's HMAC-SHA-256 under the salt; raise DataError at empty or equal ids."""
    empty, duplicates = sum(not row_id for row_id in ids), len(ids) - len(set(ids))
    if empty:
        raise DataError(f"the id column has {empty} empty cells: every row needs an id")
    if duplicates:
        raise DataError(f"the id column has {duplicates} ids that occur before: every row needs one of its own")
    raw = b"".join(hmac.digest(salt, row_id.encode(), hashlib.sha256)[:8] for row_id in ids)
    return np.frombuffer(raw, "<u8").astype(np.uint64)


def align_file(table: Table, node: NodeConfig, config: RunConfig) -> Table:
    """Return the table of a file in the order of its column of ids (`align`)."""
    keys = {"ids": node.ids, "texts": node.category_names, **node.file_keys}
    return align(table, read_ids(node.data, node.ids, len(table.rows), node.label, **keys), node, config)


def align(table: Table, ids: Sequence[str], node: NodeConfig, config: RunConfig) -> Table:
    """Return the table in the order of the ids' salted digests, which is the same for all parties."""
    row_digests = id_digests(ids, read_ids_secret(node.ids_secret) or f"fedpca-flwr {config.seed}".encode())
    order = np.argsort(row_digests)
    return table._replace(rows=to_array(table.rows)[order], ids=row_digests[order], row_positions=np.argsort(order))
