"""Progress of a run for somebody who waits: a line for each round that names what is awaited.

The lines are records of the logger `fedpca_flwr.progress`. Whoever shows the lines adds a handler: the ServerApp prints
each line, `fedpca_flwr.simulations.progress` shows the latest while a run from Python takes long.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

LOGGER = logging.getLogger("fedpca_flwr.progress")
LOGGER.setLevel(logging.INFO)


def log_progress(text: str, *values: object) -> None:
    """Log a line about what is awaited; the line holds nothing but what the server knows.

    Parameters
    ----------
    text : str
        Format of the line, as `logging` accepts it.
    *values : object
        Values for the format.
    """
    LOGGER.info(text, *values)


@contextmanager
def route_to(handler: logging.Handler) -> Iterator[None]:
    """Send the lines of `log_progress` to a single handler inside a with statement.

    Without that, a library that calls `logging.info` would print each line a second time.

    Parameters
    ----------
    handler : logging.Handler
        The handler.

    Yields
    ------
    None
        While the handler receives the lines.
    """
    LOGGER.addHandler(handler)
    before, LOGGER.propagate = LOGGER.propagate, False
    try:
        yield
    finally:
        LOGGER.removeHandler(handler)
        LOGGER.propagate = before


@contextmanager
def limit_flower_log(level: int) -> Iterator[None]:
    """Suppress Flower's log below a level inside a with statement: some twenty lines about its start and end.

    Parameters
    ----------
    level : int
        Level of `logging`.

    Yields
    ------
    None
        While the level holds.
    """
    logger = logging.getLogger("flwr")
    before = logger.level
    logger.setLevel(level)
    try:
        yield
    finally:
        logger.setLevel(before)
