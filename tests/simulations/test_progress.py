"""Who waits for a run is told how far it is, and nobody else."""

import io
import logging
import sys
import threading

import pytest

from fedpca_flwr import run
from fedpca_flwr.protocol import server as protocol_server
from fedpca_flwr.protocol.progress import route_to
from fedpca_flwr.simulations import progress
from tests.families import cut, rows
from tests.harness import context_of, finish, proxy_of, server_of

PARTIES = cut(rows(60), 40, 20)


class Lines(logging.Handler):
    """Holds the lines that were logged or shown, and notes when one ends as a test awaits."""

    def __init__(self, awaited=""):
        super().__init__()
        self.all, self.awaited, self.seen = [], awaited, threading.Event()

    def show(self, line):
        self.all.append(line)
        if line.endswith(self.awaited):
            self.seen.set()

    def emit(self, record):
        self.show(record.getMessage())


@pytest.fixture
def board(monkeypatch):
    """Return the screen of runs, to which each takes long."""
    board = Lines()
    monkeypatch.setattr(progress, "FIRST_SHOW_SECONDS", 0.0)
    monkeypatch.setattr(progress, "screen", lambda: board.show)
    return board


def told(method, **options):
    lines = Lines()
    with route_to(lines):
        run(method, PARTIES, n_components=2, **options)
    return lines.all


def test_each_round_has_a_line_with_sizes_that_are_known():
    d = rows(60).shape[1]
    first, last = told("p-cov")
    size = 3 * 128 + 8 + 8 * d + 8 * d * (d + 1) // 2
    assert first.startswith("round 1 of at most 2 (moments): waiting for 2 parties, each sends at most ")
    assert abs(int(first.split()[-2].replace(",", "")) - size) <= 2 * 128 + 16 * d
    assert last.startswith("round 2 of at most 2 (project): waiting for 2 parties")
    # That of a code is known when it is made, that of masked words before.
    (coded,) = [line for line in told("compressed") if "(encoded)" in line]
    assert "bytes" not in coded
    secure = told("p-cov", secure_aggregation=True, bound=100.0, min_parties=2)
    (masked,) = [line for line in secure if "(moments)" in line]
    assert "each sends at most" in masked


@pytest.mark.parametrize("method", ["sub-it", "qr-pca", "adaptive", "personalised iterations=3"])
def test_numbers_of_rounds_go_up_to_at_most_the_last(method):
    lines = told(method)
    numbers = [[int(word) for word in line.split(" (")[0].split() if word.isdigit()] for line in lines]
    assert [number for number, _ in numbers] == list(range(1, len(lines) + 1))
    assert all(number <= most for number, most in numbers)


def test_who_is_still_waited_for_is_named(monkeypatch):
    """By the name that the party has said; a party that has answered is not."""
    monkeypatch.setattr(protocol_server, "FIRST_REMINDER_SECONDS", 0.01)
    server = server_of("p-cov", cut(rows(60), 20, 20, 20), n_components=2)
    context_of(server, 2).node_config["name"] = "south"
    slow, lines = proxy_of(server, 2), Lines("s for client 2 (south)")
    answer = slow.fit
    slow.fit = lambda ins, timeout, group_id: answer(ins, timeout, group_id) if lines.seen.wait(30) else None
    with route_to(lines):
        finish(server)
    assert any(line.startswith("round 1 (moments): still waiting after ") for line in lines.all)


@pytest.mark.engine
def test_a_long_run_shows_its_latest_line(board):
    server = server_of("p-cov", PARTIES, n_components=2)
    slow = proxy_of(server, 1)
    answer = slow.fit

    def fit(ins, timeout, group_id):
        board.seen.clear()
        assert board.seen.wait(60)
        return answer(ins, timeout, group_id)

    slow.fit = fit
    with progress.show_progress("p-cov"):
        finish(server)
    assert board.all[-1] == ""
    assert any("p-cov, " in line and "(moments): waiting for 2 parties" in line for line in board.all)


def test_the_line_goes_away_also_when_the_run_fails(board):
    def fail():
        with progress.show_progress("p-cov"):
            assert board.seen.wait(60)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert board.all[-1] == ""


def test_a_short_run_shows_nothing(board, monkeypatch):
    monkeypatch.setattr(progress, "FIRST_SHOW_SECONDS", 1e6)
    run("p-cov", PARTIES, n_components=2)
    assert not board.all
    monkeypatch.setattr(progress, "screen", lambda: pytest.fail("looked for a screen"))
    run("p-cov", PARTIES, n_components=2, progress=False)


def test_a_line_is_for_a_terminal_and_never_longer_than_it(monkeypatch):
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    assert progress.screen() is None
    written = io.StringIO()
    monkeypatch.setattr(sys, "stderr", written)
    monkeypatch.setenv("COLUMNS", "20")
    progress.terminal("x" * 50)
    assert written.getvalue() == "\r\x1b[K" + "x" * 19
