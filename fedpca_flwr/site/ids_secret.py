"""The salt of ids: a file of random bytes that the sites share and the server does not know.

Identities do not replace it: digests can be compared only where all sites make them alike. A site that hands it to the
server gives away digests of ids that it has itself, since all sites have the same rows.
"""

from __future__ import annotations

from pathlib import Path

from fedpca_flwr.errors import ConfigError

SHORTEST_SECRET = 16
"""Bytes."""


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
            "node-config: the file of 'ids-secret' cannot be read; see this site's own log",
            local=f"{path}: {error.strerror}",
        ) from None
    if len(secret) < SHORTEST_SECRET:
        raise ConfigError(
            f"node-config: the file of 'ids-secret' holds {len(secret)} bytes, expected at least "
            f"{SHORTEST_SECRET}; make one with 'openssl rand 32'"
        )
    return secret
