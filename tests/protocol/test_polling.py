"""Replies are found soon after they came, and the link is not asked all the time."""

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


def test_all_replies_are_waited_for_or_those_before_the_timeout_returned(clock):
    found = poll_promptly(Link(clock)).send_and_receive([0.0, 5.0, 1.0])
    assert times(found) == [0.0, 1.0, 5.0]
    found = poll_promptly(Link(clock)).send_and_receive([1.0, 1e9], timeout=3.0)
    assert times(found) == [1.0]
