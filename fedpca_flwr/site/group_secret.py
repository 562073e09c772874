"""What the sites of a group share and the server does not know: a file of random bytes."""

from __future__ import annotations

from pathlib import Path

from fedpca_flwr.errors import ConfigError

SHORTEST_SECRET = 16
"""Bytes."""


def shared_secret(path: str) -> bytes:
    """The bytes of a site's ``group-secret`` file; none for an empty path.

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
            "node-config: the file of 'group-secret' cannot be read; see this site's own log",
            local=f"{path}: {error.strerror}",
        ) from None
    if len(secret) < SHORTEST_SECRET:
        raise ConfigError(
            f"node-config: the file of 'group-secret' holds {len(secret)} bytes, expected at least "
            f"{SHORTEST_SECRET}; make one with 'openssl rand 32'"
        )
    return secret
