"""Processes that are killed while they write to a store, at the moments that a test names."""

import os
import signal
import sqlite3
import warnings
from collections.abc import Callable
from typing import Any

STEPS = 100
"""Of SQLite's machine, from one moment to the next."""


def dies(after: int, work: Callable[..., Any], *args: Any) -> bool:
    """Whether ``work``, in a process of its own, is killed after so many steps of SQLite's; else it has ended well."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # that threads do not come along, which do nothing here
        child = os.fork()
    if child:
        status = os.waitpid(child, 0)[1]
        assert status in (0, signal.SIGKILL)
        return status == signal.SIGKILL
    left, connect = after, sqlite3.connect

    def step() -> None:
        nonlocal left
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def watched(*args: Any, **kwargs: Any) -> sqlite3.Connection:
        database = connect(*args, **kwargs)
        database.set_progress_handler(step, 1)
        return database

    try:
        sqlite3.connect = watched  # type: ignore[assignment]
        work(*args)
        os._exit(0)
    finally:
        os._exit(1)
