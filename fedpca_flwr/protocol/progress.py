"""Progress of a run: log lines for each round that name the parties without an answer, shown by others' handlers."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

LOGGER = logging.getLogger("fedpca_flwr.progress")
LOGGER.setLevel(logging.INFO)


def log_progress(text: str, *values: object) -> None:
    """Log a %-format text with values, on the progress of the run and with information of the server only."""
    LOGGER.info(text, *values)


@contextmanager
def route_to(handler: logging.Handler) -> Iterator[None]:
    """Send the lines of `log_progress` to this handler alone inside a with statement: `logging.info` adds another."""
    LOGGER.addHandler(handler)
    before, LOGGER.propagate = LOGGER.propagate, False
    try:
        yield
    finally:
        LOGGER.removeHandler(handler)
        LOGGER.propagate = before


@contextmanager
def limit_flower_log(level: int) -> Iterator[None]:
    """Raise the level of Flower's logger inside a with statement, to hide its start and end messages."""
    logger = logging.getLogger("flwr")
    before = logger.level
    logger.setLevel(level)
    try:
        yield
    finally:
        logger.setLevel(before)
