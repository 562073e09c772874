"""Who waits for a run is told how far it is, and nobody else."""

import io
import logging.handlers
import queue
import re
import threading

import numpy as np
import pytest
from rich.console import Console

from fedpca_flwr import run
from fedpca_flwr.protocol.progress import route_to
from fedpca_flwr.simulations import progress
from tests.families import cut, rows
from tests.harness import finish, proxy_of, server_of

PARTIES = cut(rows(60), 40, 20)


class Terminal(io.StringIO):
    """Standard error of a terminal, which notes when something is written."""

    def __init__(self):
        super().__init__()
        self.written = threading.Event()

    def isatty(self):
        return True

    def write(self, text):
        if text.strip():
            self.written.set()
        return super().write(text)

    def lines(self):
        return [line for line in re.split(r"(?:\x1b\[[?\d]+\w|[\r\n])+", self.getvalue()) if line]

    def left(self):
        text = re.sub(r"\x1b\[\?\d+\w", "", self.getvalue())
        text = re.sub(r"[^\n]*\n\r?\x1b\[1A\x1b\[2K", "", text)  # the line above
        return re.sub(r"[^\n]*\x1b\[2K", "", text)


@pytest.fixture
def terminal(monkeypatch):
    """Return the terminal of runs, to which each takes long."""
    terminal = Terminal()
    monkeypatch.setattr(progress, "FIRST_SHOW_SECONDS", 0.0)
    monkeypatch.setattr(progress, "Console", lambda **_: Console(file=terminal))
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "200")
    return terminal


def told(method, **options):
    records = queue.SimpleQueue()
    with route_to(logging.handlers.QueueHandler(records)):
        run(method, PARTIES, n_components=2, **options)
    return [records.get().getMessage() for _ in range(records.qsize())]


def test_each_round_has_a_line_with_sizes_that_are_known():
    d = rows(60).shape[1]
    first, last = told("p-cov")
    size = 3 * 128 + 8 + 8 * d + 8 * d * (d + 1) // 2
    assert first.startswith("round 1 of at most 2 (moments): waiting for 2 parties, each sends at most ")
    assert abs(int(first.split()[-2].replace(",", "")) - size) <= 2 * 128 + 16 * d
    assert last.startswith("round 2 of at most 2 (project): waiting for 2 parties")
    # That of a code is known when it is made, that of masked words before.
    (coded,) = [line for line in told("compressed") if "(encoded)" in line]
    secure = told("p-cov", secure_aggregation=True, bound=100.0, min_parties=2)
    (masked,) = [line for line in secure if "(moments)" in line]
    assert ("bytes" in coded, "each sends at most" in masked) == (False, True)


@pytest.mark.parametrize("method", ["sub-it", "qr-pca", "adaptive", "personalised iterations=3"])
def test_numbers_of_rounds_go_up_to_at_most_the_last(method):
    lines = told(method)
    numbers = np.array([re.findall(r"\d+", line.split(" (")[0]) for line in lines], dtype=int)
    np.testing.assert_array_equal(numbers[:, 0], np.arange(len(lines)) + 1)
    assert (numbers[:, 0] <= numbers[:, 1]).all()


@pytest.mark.engine
def test_a_long_run_shows_its_latest_line(terminal):
    server = server_of("p-cov", PARTIES, n_components=2)
    slow = proxy_of(server, 1)
    answer = slow.fit

    def fit(ins, timeout, group_id):
        terminal.written.clear()
        assert terminal.written.wait(60)
        return answer(ins, timeout, group_id)

    slow.fit = fit
    with progress.show_progress("p-cov"):
        finish(server)
    assert terminal.left() == ""
    assert any(line.startswith("p-cov, ") and "(moments): waiting for 2 parties" in line for line in terminal.lines())


def test_the_line_of_a_failed_run_was_no_longer_than_the_terminal(terminal, monkeypatch):
    monkeypatch.setenv("COLUMNS", "20")

    def fail():
        with progress.show_progress("[bold]" + "x" * 50):
            assert terminal.written.wait(60)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert {line[:19] for line in terminal.lines()} == {"[bold]" + "x" * 13}
    assert max(map(len, terminal.lines())) <= 20
    assert terminal.left() == ""


def test_a_bar_names_the_item_at_work(terminal):
    for _ in progress.with_progress_bar(["north", "south"], lambda item: f"{item} at work"):
        terminal.written.clear()
        assert terminal.written.wait(60)
    assert any("north at work" in line for line in terminal.lines())
    assert terminal.left() == ""


def test_a_short_run_shows_nothing_nor_any_run_in_a_file(terminal, monkeypatch):
    """Not even where a variable declares it a terminal, as that of a job's log."""
    monkeypatch.setattr(progress, "FIRST_SHOW_SECONDS", 1e6)
    run("p-cov", PARTIES, n_components=2)
    monkeypatch.setattr(progress, "FIRST_SHOW_SECONDS", 0.0)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setattr(terminal, "isatty", lambda: False)
    with progress.show_progress("p-cov"):
        run("p-cov", PARTIES, n_components=2)
    assert (list(progress.with_progress_bar([1, 2], str)), terminal.getvalue()) == ([1, 2], "")
    monkeypatch.setattr(progress, "Console", lambda **_: pytest.fail("looked for a terminal"))
    run("p-cov", PARTIES, n_components=2, progress=False)
