"""Progress for whoever waits at a terminal or a notebook: a line about a long run, and a bar over several runs."""

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any, TypeVar

from rich.console import Console
from rich.progress import Progress, ProgressColumn, TaskID, TextColumn
from typing_extensions import override

from fedpca_flwr.protocol.progress import route_to

Item = TypeVar("Item")

FIRST_SHOW_SECONDS = 1.0  # seconds of a run in which nothing is shown
LATEST_LINE = "{task.fields[name]}, {task.elapsed:.0f} s: {task.description}"


def _progress_on(console: Console, *columns: ProgressColumn) -> Progress:
    """Return a display that vanishes at its end, disabled for a file and for a notebook without ipywidgets."""
    at_terminal = console.is_interactive and console.file.isatty()  # variables may declare a file a terminal
    watched = bool(find_spec("ipywidgets")) if console.is_jupyter else at_terminal
    unchanged: Any = {"redirect_stdout": False, "redirect_stderr": False}  # what a run prints goes where it went
    return Progress(*columns, console=console, transient=True, disable=not watched, **unchanged)


class _LatestRecord(logging.Handler):
    """Logging handler that describes a task of a display by the latest record."""

    def __init__(self, progress: Progress, task: TaskID) -> None:
        super().__init__()
        self._progress, self._task = progress, task

    @override
    def emit(self, record: logging.LogRecord) -> None:
        self._progress.update(self._task, description=record.getMessage())


def with_progress_bar(items: Sequence[Item], name: Callable[[Item], str]) -> Iterator[Item]:
    """Yield items, with a bar on standard error that names the item at work, if anybody looks."""
    with _progress_on(Console(stderr=True)) as bar:
        task = bar.add_task("", total=len(items))
        for item in items:
            bar.update(task, description=name(item))
            yield item
            bar.advance(task)


@contextmanager
def show_progress(name: str) -> Iterator[None]:
    """Show a run's name, seconds and latest log line inside a with statement after `FIRST_SHOW_SECONDS`, if watched."""
    progress = _progress_on(Console(stderr=True), TextColumn(LATEST_LINE, markup=False))
    if progress.disable:
        yield
        return
    handler = _LatestRecord(progress, progress.add_task("starting", total=None, name=name))
    start = threading.Timer(FIRST_SHOW_SECONDS, progress.start)
    start.daemon = True
    start.start()
    try:
        with route_to(handler):
            yield
    finally:
        start.cancel()
        start.join()
        progress.stop()
