"""The latest line about a run that takes longer than a second: in a terminal, or below a notebook's cell."""

import logging
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from typing_extensions import override

from fedpca_flwr.protocol.progress import route_to

Item = TypeVar("Item")

FIRST_SHOW_SECONDS, REFRESH_SECONDS = 1.0, 0.5
"""Seconds of a run in which nothing is shown, and after which the time in a line is brought up to date."""

Screen = Callable[[str], None]
"""Puts a line in the place of the one before; an empty one leaves nothing."""


def terminal(line: str) -> None:
    """Show a line in the terminal (standard error), in place of the line before."""
    width = shutil.get_terminal_size().columns - 1
    sys.stderr.write(f"\r\x1b[K{line[:width]}")
    sys.stderr.flush()


def cell() -> Screen:
    """Return a function that shows a line below the running notebook cell, in place of the line before."""
    handles: list[Any] = []

    def show(line: str) -> None:
        """Show a line below the cell, in place of the line before."""
        from IPython.display import display

        content = {"text/plain": line}
        if handles:
            handles[0].update(content, raw=True)
        else:
            handles.append(display(content, raw=True, display_id=True))  # type: ignore[no-untyped-call]

    return show


def screen() -> Screen | None:
    """Return the function that shows progress lines in a notebook or terminal; None without either."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    if shell is not None and hasattr(shell, "kernel"):
        return cell()
    return terminal if sys.stderr is not None and sys.stderr.isatty() else None


class LatestLine(logging.Handler):
    """Logging handler that shows a run's name, seconds and latest record on a line, kept up to date.

    The first line is shown after `FIRST_SHOW_SECONDS`.

    Parameters
    ----------
    show : Screen
        The screen.
    name : str
        Name of the run.
    """

    def __init__(self, show: Screen, name: str) -> None:
        """Start the clock and the thread that shows the line."""
        super().__init__()
        self._show, self._name = show, name
        self._line = "starting"
        self._since = time.monotonic()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    @override
    def emit(self, record: logging.LogRecord) -> None:
        """Keep the record's message as the latest line."""
        self._line = record.getMessage()

    @override
    def close(self) -> None:
        """Stop the thread, and remove the line."""
        self._over.set()
        self._thread.join()
        super().close()

    def _watch(self) -> None:
        """Show the line again every half second until the handler is closed, then remove the line."""
        is_shown, wait = False, FIRST_SHOW_SECONDS
        while not self._over.wait(wait):
            self._show(f"{self._name}, {time.monotonic() - self._since:.0f} s: {self._line}")
            is_shown, wait = True, REFRESH_SECONDS
        if is_shown:
            self._show("")


def with_progress_bar(items: Sequence[Item], name: Callable[[Item], str]) -> Iterator[Item]:
    """Yield items, with a bar on standard error that names the item at work."""
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True)) as bar:
        task = bar.add_task("", total=len(items))
        for item in items:
            bar.update(task, description=name(item))
            yield item
            bar.advance(task)
        bar.update(task, description="done")


@contextmanager
def show_progress(name: str) -> Iterator[None]:
    """Show a run's latest log line inside a with statement, if there is a terminal or a notebook."""
    show = screen()
    if show is None:
        yield
        return
    handler = LatestLine(show, name)
    try:
        with route_to(handler):
            yield
    finally:
        handler.close()
