"""Replies are found soon after they came, and the link is not asked all the time."""

import time
from concurrent.futures import ThreadPoolExecutor
from threading import Thread
from types import SimpleNamespace
from typing import Any

import pytest

from fedpca_flwr.protocol import server
from fedpca_flwr.protocol.server import poll_promptly
from tests.harness import Clock


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(server, "time", clock)
    return clock


class Link:
    """Messages are their own ids, and the seconds after which their replies are there."""

    def __init__(self, clock):
        self.clock, self.looks = clock, 0

    def push_messages(self, messages):
        return list(messages)

    def pull_messages(self, ids):
        self.looks += 1
        return [SimpleNamespace(metadata=SimpleNamespace(reply_to_message_id=i)) for i in ids if i <= self.clock.now]


def times(replies) -> list[Any]:
    """When each came, which stands for what it replies to."""
    return [reply.metadata.reply_to_message_id for reply in replies]


def test_nobody_sleeps_while_all_replies_wait(clock, monkeypatch):
    monkeypatch.setattr(clock, "sleep", lambda seconds: pytest.fail(f"slept for {seconds} s"))
    link = Link(clock)
    assert len(poll_promptly(link).send_and_receive(range(-49, 1))) == 50
    assert link.looks == 1


@pytest.mark.parametrize("seconds", [0.05, 2.0, 600.0])
def test_a_reply_is_found_within_a_tenth_of_its_time(seconds, clock):
    link = Link(clock)
    assert len(poll_promptly(link).send_and_receive([seconds])) == 1
    assert clock.now <= max(1.1 * seconds, seconds + 0.1) + 1e-9
    assert link.looks < 100


def test_one_thread_looks_for_what_all_wait_for(clock, monkeypatch):
    """A thread a party, as Flower's server has: looks of each would be thousands for a SuperLink."""
    link, started, sleep = Link(clock), [], clock.sleep
    lookout = server.Lookout(link)

    def asleep_until_all_wait(seconds):
        while link.looks <= 50 and len(lookout._awaited) < 50:
            time.sleep(0.001)
        sleep(seconds)

    monkeypatch.setattr(clock, "sleep", asleep_until_all_wait)
    monkeypatch.setattr(server, "Thread", lambda **told: started.append(told) or Thread(**told))
    with ThreadPoolExecutor(50) as pool:
        asked = [pool.submit(lookout.send_and_receive, [5.0 + party]) for party in range(50)]
        assert [times(one.result()) for one in asked] == [[5.0 + party] for party in range(50)]
    assert len(started) == 1
    assert link.looks < 50 + 100


def test_what_the_link_raises_is_raised_for_all_who_wait(clock):
    link = Link(clock)
    grid = poll_promptly(link)
    honest = link.pull_messages
    link.pull_messages = lambda ids: honest(ids) if clock.now < 2 else fail()
    with ThreadPoolExecutor(2) as pool:
        asked = [pool.submit(grid.send_and_receive, [one]) for one in (1.0, 9.0)]
    assert times(asked[0].result()) == [1.0]
    with pytest.raises(ConnectionError):
        asked[1].result()


def fail():
    raise ConnectionError


def test_all_replies_are_waited_for_or_those_before_the_timeout_returned(clock):
    found = poll_promptly(Link(clock)).send_and_receive([0.0, 5.0, 1.0])
    assert sorted(times(found)) == [0.0, 1.0, 5.0]
    found = poll_promptly(Link(clock)).send_and_receive([1.0, 1e9], timeout=3.0)
    assert times(found) == [1.0]
