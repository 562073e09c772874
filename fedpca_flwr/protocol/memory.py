"""Check of this machine's memory against the sizes of a run's replies, before anything is computed."""

import os
from collections.abc import Callable
from functools import cache
from pathlib import Path

from fedpca_flwr.errors import ConfigError
from fedpca_flwr.protocol.question import Public, Questions, answer_cost, min_sizes

SITE_FACTOR = 3.5
"""Bytes of a site's process for each byte of its largest reply, or of the largest array behind it, beyond libraries.

``python -m fedpca_flwr.simulations.benchmarks peaks`` measures 3.1 in clear and 2.5 with masks (P-COV, 3,000 features).
"""

SERVER_FACTOR = 3.0
"""Bytes of the server's process for each byte of a reply, besides the replies that it holds, and beyond libraries.

Measured in the same way with three parties: 2.9 in clear, where the server holds all replies, and 2.8 with masks, where
it holds the sum and a reply.
"""

MAX_HELD_REPLIES = 9
"""Number of replies in clear whose memory the server's sums need at most: a running sum and the sums of random
groups."""

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
"""Function of the public parameters, a party's number of rows, and a number of bytes, that returns the end of an error:
methods with smaller replies."""


def no_alternatives(public: Public, rows: int, max_bytes: int) -> str:
    """Return an empty text in place of a list of methods with smaller replies."""
    return ""


def site_memory(largest: int) -> int:
    """Estimate the bytes of a site's process from those of the largest array of its answers (`max_reply_cost`)."""
    return int(SITE_FACTOR * largest)


def server_memory(script: Questions, public: Public) -> tuple[int, float]:
    """Return the estimated bytes of the server's process, and these as a multiple of the reply that takes most.

    Replies in clear are held, unless they are so many that their sums take less (`MAX_HELD_REPLIES`). Masked replies
    are added up as they come.
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
    """Raise ConfigError if this party's memory is known, and less than the answers are estimated to need.

    `alternatives` returns the end of the error: methods whose arrays have at most so many bytes. The size of this
    machine's memory stays in the site's own log.
    """
    available, nbytes = available_memory(), site_memory(largest)
    if available is not None and nbytes > available:
        raise ConfigError(
            f"run-config: 'method' is '{method}', which needs about {nbytes:,} bytes of memory at this site, more "
            f"than the site has{alternatives(int(available / SITE_FACTOR))}",
            local=f"{available:,} bytes",
        )


def require_server_memory(method: str, script: Questions, public: Public, alternatives: Alternatives) -> None:
    """Raise ConfigError if the server's memory is known, and less than the replies are estimated to need.

    `alternatives` returns the end of the error: methods with smaller replies.
    """
    available, (nbytes, factor) = available_memory(), server_memory(script, public)
    if available is not None and nbytes > available:
        raise ConfigError(
            f"run-config: 'method' is '{method}', whose replies of {public.features:,} features need about {nbytes:,} "
            f"bytes of memory at the server, {factor:g} times a reply; the server has {available:,}"
            f"{alternatives(public, public.features + 1, int(available / factor))}"
        )
