"""The latest line about a run that takes longer than a second: in a terminal, or below a notebook's cell."""

import logging
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from fedpca_flwr.protocol.progress import route_to

Item = TypeVar("Item")

PATIENCE, AGAIN = 1.0, 0.5
"""Seconds of a run in which nothing is shown, and after which the time in a line is brought up to date."""

Screen = Callable[[str], None]
"""Puts a line in the place of the one before; an empty one leaves nothing."""


def terminal(line: str) -> None:
    """The line of standard error in which the cursor is."""
    width = shutil.get_terminal_size().columns - 1
    sys.stderr.write(f"\r\x1b[K{line[:width]}")
    sys.stderr.flush()


def cell() -> Screen:
    """An output of the cell that runs, which there is from the first line on."""
    handles: list[Any] = []

    def show(line: str) -> None:
        from IPython.display import display

        shown = {"text/plain": line}
        if handles:
            handles[0].update(shown, raw=True)
        else:
            handles.append(display(shown, raw=True, display_id=True))  # type: ignore[no-untyped-call]

    return show


def screen() -> Screen | None:
    """Where somebody looks; None where nobody does: in a script whose output goes to a file, say."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    if shell is not None and hasattr(shell, "kernel"):
        return cell()
    return terminal if sys.stderr is not None and sys.stderr.isatty() else None


class LatestLine(logging.Handler):
    """Shows ``name`` and the latest record on a screen, with the seconds since the start, once they are many."""

    def __init__(self, show: Screen, name: str) -> None:
        super().__init__()
        self._show, self._name = show, name
        self._line = "starting"
        self._since = time.monotonic()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        self._line = record.getMessage()

    def close(self) -> None:
        self._over.set()
        self._thread.join()
        super().close()

    def _watch(self) -> None:
        shown, wait = False, PATIENCE
        while not self._over.wait(wait):
            self._show(f"{self._name}, {time.monotonic() - self._since:.0f} s: {self._line}")
            shown, wait = True, AGAIN
        if shown:
            self._show("")


def with_a_bar(items: Sequence[Item], name: Callable[[Item], str]) -> Iterator[Item]:
    """The items, one after the other, with a bar on standard error that names the one at work."""
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
def shown(name: str) -> Iterator[None]:
    """Show how far a run is, where somebody looks."""
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
