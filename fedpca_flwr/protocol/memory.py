"""Check of this machine's memory against the sizes of a run's replies, before anything is computed."""

import os
from collections.abc import Callable
from functools import cache
from pathlib import Path

from fedpca_flwr.errors import ConfigError
from fedpca_flwr.protocol.question import Public, Questions, answer_cost, min_sizes

SITE_FACTOR = 3.5
"""Bytes of a site's process a byte of its largest array; the benchmark `peaks` measures 3.1 in clear, 2.5 masked."""

SERVER_FACTOR = 3.0
"""Bytes of the server's process a byte of a reply, besides replies that it holds: 2.9 in clear, 2.8 masked."""

MAX_HELD_REPLIES = 9
"""Replies in clear whose memory the server's sums need at most: a running sum and the sums of random groups."""

CONTAINER_LIMIT_FILE = Path("/sys/fs/cgroup/memory.max")
"""File of Linux with the memory limit of a container."""


@cache
def available_memory() -> int | None:
    """Return the bytes of memory of this machine or container, cached; None if the system does not say (Windows)."""
    limits = []
    if hasattr(os, "sysconf"):
        limits.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    if CONTAINER_LIMIT_FILE.is_file() and (text := CONTAINER_LIMIT_FILE.read_text(encoding="utf-8").strip()).isdigit():
        limits.append(int(text))
    return min(limits, default=None)


Alternatives = Callable[[Public, int, int], str]
"""Function of the public parameters, a party's rows and a number of bytes: the end of an error, with other methods."""


def no_alternatives(public: Public, rows: int, max_bytes: int) -> str:
    """Return an empty text in place of a list of methods with smaller replies."""
    return ""


def site_memory(largest: int) -> int:
    """Estimate the bytes of a site's process from those of the largest array of its answers (`max_reply_cost`)."""
    return int(SITE_FACTOR * largest)


def server_memory(script: Questions, public: Public) -> tuple[int, float]:
    """Return the estimated bytes of the server's process, and these as a multiple of the reply that takes most.

    Replies in clear are held, or their sums if these take less (`MAX_HELD_REPLIES`); masked ones are added at once.
    """
    nbytes, largest_factor = 0, 1.0
    for question in script.values():
        if not question.optional:
            reply_bytes, _ = answer_cost(question, min_sizes(question, public, 1))
            replies = min(public.parties, MAX_HELD_REPLIES) if question.plain_reply is None else 2
            factor = SERVER_FACTOR + replies
            if factor * reply_bytes > nbytes:
                nbytes, largest_factor = int(factor * reply_bytes), factor
    return nbytes, largest_factor


def require_party_memory(method: str, largest: int, alternatives: Callable[[int], str]) -> None:
    """Raise ConfigError if this party's memory, which only its own log says, is less than the answers may need."""
    available, nbytes = available_memory(), site_memory(largest)
    if available is not None and nbytes > available:
        raise ConfigError(
            f"run-config: 'method' is '{method}', which needs about {nbytes:,} bytes of memory at this site, more "
            f"than the site has{alternatives(int(available / SITE_FACTOR))}",
            local=f"{available:,} bytes",
        )


def require_server_memory(method: str, script: Questions, public: Public, alternatives: Alternatives) -> None:
    """Raise ConfigError, with methods of smaller replies, if the server's memory is less than the replies may need."""
    available, (nbytes, factor) = available_memory(), server_memory(script, public)
    if available is not None and nbytes > available:
        raise ConfigError(
            f"run-config: 'method' is '{method}', whose replies of {public.features:,} features need about {nbytes:,} "
            f"bytes of memory at the server, {factor:g} times a reply; the server has {available:,}"
            f"{alternatives(public, public.features + 1, int(available / factor))}"
        )
