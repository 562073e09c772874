"""Whether this machine has the memory for a run's replies: their phases say so before anything is computed."""

import os
from collections.abc import Callable
from functools import cache
from pathlib import Path

from fedpca_flwr.errors import ConfigError
from fedpca_flwr.protocol.question import Public, Questions

CONTAINER_LIMIT_FILE = Path("/sys/fs/cgroup/memory.max")
"""Where Linux says what a container may use."""


@cache
def available_memory() -> int | None:
    """Bytes of memory of this machine or container; None where nobody says (Windows)."""
    limits = []
    if hasattr(os, "sysconf"):
        limits.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    if CONTAINER_LIMIT_FILE.is_file() and (text := CONTAINER_LIMIT_FILE.read_text(encoding="utf-8").strip()).isdigit():
        limits.append(int(text))
    return min(limits, default=None)


Alternatives = Callable[[Public, int, int], str]
"""From what is public, a party's rows, and bytes of a reply: which methods send no more, as the end of an error."""


def no_alternatives(public: Public, rows: int, max_bytes: int) -> str:
    """Nothing, where no registry knows other methods."""
    return ""


def max_reply_cost(script: Questions, public: Public, rows: int) -> tuple[int, int]:
    """Bytes of the largest reply that a run is sure to ask for, at least, and of the memory that a party needs."""
    costs = [question.cost(question.min_sizes(public, rows)) for question in script.values() if not question.optional]
    return max([nbytes for nbytes, _ in costs], default=0), max([memory for _, memory in costs], default=0)


def require_party_memory(method: str, nbytes: int, alternatives: Callable[[int], str]) -> None:
    """Refuse what a party has not the memory for.

    Raises
    ------
    ConfigError
        Of this machine's memory only the site's own log tells.
    """
    available = available_memory()
    if available is not None and nbytes > available:
        raise ConfigError(
            f"run-config: 'method' is '{method}', which needs at least {nbytes:,} bytes of memory here, more than this "
            f"site has{alternatives(available)}",
            local=f"{available:,} bytes",
        )


def require_server_memory(method: str, script: Questions, public: Public, alternatives: Alternatives) -> None:
    """Refuse replies of which this machine cannot hold the sum and one more."""
    available, (nbytes, _) = available_memory(), max_reply_cost(script, public, 1)
    if available is not None and 2 * nbytes > available:
        raise ConfigError(
            f"run-config: 'method' is '{method}', whose replies have {nbytes:,} bytes of {public.features:,} features; "
            f"the server has {available:,} bytes of memory and needs at least {2 * nbytes:,}"
            f"{alternatives(public, public.features + 1, available // 2)}"
        )
