"""What somebody who waits for a run is told: a line for each round, with what is awaited.

The lines are records of the logger `fedpca_flwr.progress`. Whoever shows them adds a handler: the ServerApp prints
each, `fedpca_flwr.simulations.progress` shows the latest while a run from Python takes long.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

LOGGER = logging.getLogger("fedpca_flwr.progress")
LOGGER.setLevel(logging.INFO)


def log_progress(text: str, *values: object) -> None:
    """A line about what is awaited, as `logging` takes it: it holds nothing but what the server knows."""
    LOGGER.info(text, *values)


@contextmanager
def route_to(handler: logging.Handler) -> Iterator[None]:
    """Hand the lines to ``handler`` alone: a library that calls `logging.info` would else print each a second time."""
    LOGGER.addHandler(handler)
    before, LOGGER.propagate = LOGGER.propagate, False
    try:
        yield
    finally:
        LOGGER.removeHandler(handler)
        LOGGER.propagate = before


@contextmanager
def limit_flower_log(level: int) -> Iterator[None]:
    """Without what Flower logs below ``level``: some twenty lines about its own start and end."""
    logger = logging.getLogger("flwr")
    before = logger.level
    logger.setLevel(level)
    try:
        yield
    finally:
        logger.setLevel(before)
