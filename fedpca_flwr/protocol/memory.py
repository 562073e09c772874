"""Check of this machine's memory against the sizes of a run's replies, before anything is computed."""

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
    """Return the bytes of memory of this machine or container, or None if unknown.

    Returns
    -------
    int or None
        Number of bytes; None if the system does not say (Windows).
    """
    limits = []
    if hasattr(os, "sysconf"):
        limits.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    if CONTAINER_LIMIT_FILE.is_file() and (text := CONTAINER_LIMIT_FILE.read_text(encoding="utf-8").strip()).isdigit():
        limits.append(int(text))
    return min(limits, default=None)


Alternatives = Callable[[Public, int, int], str]
"""From what is public, a party's rows, and bytes of a reply: which methods send no more, as the end of an error."""


def no_alternatives(public: Public, rows: int, max_bytes: int) -> str:
    """Return an empty text in place of a list of methods with smaller replies.

    Parameters
    ----------
    public : Public
        Public parameters of the run.
    rows : int
        Number of rows of the party.
    max_bytes : int
        Largest number of bytes of a reply.

    Returns
    -------
    str
        The empty text.
    """
    return ""


def max_reply_cost(script: Questions, public: Public, rows: int) -> tuple[int, int]:
    """Return lower limits on the bytes of a run's largest reply, and on the necessary memory.

    Parameters
    ----------
    script : mapping of str to Question
        Questions of the run by name.
    public : Public
        Public parameters of the run.
    rows : int
        Number of rows of the party.

    Returns
    -------
    nbytes : int
        Bytes of the largest reply.
    memory : int
        Bytes of memory that a party needs to answer.
    """
    nbytes = memory = 0
    for question in script.values():
        if not question.optional:
            reply_bytes, answer_bytes = question.cost(question.min_sizes(public, rows))
            nbytes, memory = max(nbytes, reply_bytes), max(memory, answer_bytes)
    return nbytes, memory


def require_party_memory(method: str, nbytes: int, alternatives: Callable[[int], str]) -> None:
    """Refuse a method if a reply needs more bytes of memory than this party's machine has.

    Parameters
    ----------
    method : str
        Name of the method.
    nbytes : int
        Bytes of memory that the reply needs.
    alternatives : callable
        Function of a number of bytes that returns the end of an error: methods that need no more.

    Raises
    ------
    ConfigError
        If the memory is too small. The size of this machine's memory stays in the site's own log.
    """
    available = available_memory()
    if available is not None and nbytes > available:
        raise ConfigError(
            f"run-config: 'method' is '{method}', which needs at least {nbytes:,} bytes of memory here, more than this "
            f"site has{alternatives(available)}",
            local=f"{available:,} bytes",
        )


def require_server_memory(method: str, script: Questions, public: Public, alternatives: Alternatives) -> None:
    """Refuse a run if the server's memory cannot hold two replies: a sum, and the next reply.

    Parameters
    ----------
    method : str
        Name of the method.
    script : mapping of str to Question
        Questions of the run by name.
    public : Public
        Public parameters of the run.
    alternatives : Alternatives
        Function that returns the end of an error: methods that need less.

    Raises
    ------
    ConfigError
        If the memory is too small.
    """
    available, (nbytes, _) = available_memory(), max_reply_cost(script, public, 1)
    if available is not None and 2 * nbytes > available:
        raise ConfigError(
            f"run-config: 'method' is '{method}', whose replies have {nbytes:,} bytes of {public.features:,} features; "
            f"the server has {available:,} bytes of memory and needs at least {2 * nbytes:,}"
            f"{alternatives(public, public.features + 1, available // 2)}"
        )
