"""The salt of ids: a file of random bytes that the sites share and the server does not know.

Identities do not replace it: digests can be compared only where all sites make them alike. A site that hands it to the
server gives away digests of ids that it has itself, since all sites have the same rows.
"""

from __future__ import annotations

import secrets
from pathlib import Path

from fedpca_flwr.errors import ConfigError
from fedpca_flwr.files import write_new

SHORTEST_SECRET = 16
"""Bytes."""


def make_ids_secret(path: Path) -> None:
    """Write a new secret to a file that only its owner may read.

    Raises
    ------
    ConfigError
        Where the file is there already or cannot be written.
    """
    write_new(path, secrets.token_bytes(32))


def ids_secret(path: str) -> bytes:
    """The bytes of a site's ``ids-secret`` file; none for an empty path.

    Raises
    ------
    ConfigError
    """
    if not path:
        return b""
    try:
        secret = Path(path).expanduser().read_bytes()
    except OSError as error:
        raise ConfigError(
            "node-config: the file of 'ids-secret' cannot be read",
            local=f"{path}: {error.strerror}",
        ) from None
    if len(secret) < SHORTEST_SECRET:
        raise ConfigError(
            f"node-config: the file of 'ids-secret' holds {len(secret)} bytes, expected at least "
            f"{SHORTEST_SECRET}; make one with 'python -m fedpca_flwr site ids-secret'"
        )
    return secret
