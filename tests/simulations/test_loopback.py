"""A party's work has a deadline, and one that misses it disturbs nobody."""

from __future__ import annotations

import sys
import threading

from simulations.loopback import _with_deadline
from tests.refusals import refused


def test_who_is_late_is_left_behind_and_its_answer_is_not_taken_for_that_of_the_next():
    go_on, finished = threading.Event(), threading.Event()

    def late():
        go_on.wait()
        finished.set()
        return "late"

    with refused(TimeoutError, "0.01"):
        _with_deadline(0.01, late)
    assert _with_deadline(60, lambda: "next") == "next"
    go_on.set()
    assert finished.wait(60)
    assert _with_deadline(60, lambda: "after") == "after"


def test_a_client_that_exits_is_a_failure_and_not_the_end():
    with refused(RuntimeError, "SystemExit"):
        _with_deadline(None, lambda: sys.exit(1))
    assert _with_deadline(None, lambda: 2) == 2


def test_one_thread_works_for_all_messages_and_ends_with_who_waits_for_it():
    seen = []

    def waiting():
        seen.extend(_with_deadline(60, threading.current_thread) for _ in range(5))

    waiter = threading.Thread(target=waiting)
    waiter.start()
    waiter.join(60)
    assert len(set(seen)) == 1
    seen[0].join(60)
    assert not seen[0].is_alive()
