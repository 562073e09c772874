"""Replies are found soon after they came, the link is not asked all the time, and lost replies are asked for again."""

import itertools
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from threading import Thread
from types import SimpleNamespace
from typing import Any

import pytest

from fedpca_flwr.protocol import server
from tests.harness import Clock


class Link:
    """Messages are numbers of seconds after which their replies are there, once they were sent as often as needed."""

    def __init__(self, clock):
        self.clock, self.looks, self.sent = clock, 0, []
        self.lost: Counter[float] = Counter()
        """By message, how many of its replies are lost."""

    def push_messages(self, messages):
        ids = [f"{message.seconds} {next(NUMBERS)}" for message in messages]
        self.sent += [message.seconds for message in messages]
        return ids

    def pull_messages(self, ids):
        self.looks += 1
        replies = []
        for name in ids:
            seconds = float(name.split()[0])
            if seconds <= self.clock.now and self.sent.count(seconds) > self.lost[seconds]:
                metadata = SimpleNamespace(reply_to_message_id=name, seconds=seconds)
                replies.append(SimpleNamespace(metadata=metadata, has_content=lambda: False))
        return replies


NUMBERS = itertools.count()


class Timed:
    """Message with a reply after some seconds, which can be made again as Flower's can."""

    def __init__(self, content, *_, **__):
        self.seconds = self.content = content
        self.metadata = SimpleNamespace(ttl=3600.0, dst_node_id=1, message_type="train", group_id="1")


@pytest.fixture
def link(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(server, "time", clock)
    monkeypatch.setattr(server, "Message", Timed)
    return Link(clock)


def arrival_times(link, messages, poller=None, **options):
    """Return the arrival time of each reply, which also names the message that the reply answers."""
    replies: Any = (poller or server.ReplyPoller(link)).send_and_receive(map(Timed, messages), **options)
    return sorted(reply.metadata.seconds for reply in replies)


def test_nobody_sleeps_while_all_replies_wait(link, monkeypatch):
    monkeypatch.setattr(link.clock, "sleep", lambda seconds: pytest.fail(f"slept for {seconds} s"))
    assert len(arrival_times(link, range(-49, 1))) == 50
    assert link.looks == 1


@pytest.mark.parametrize("seconds", [0.05, 2.0, 600.0])
def test_a_reply_is_found_within_a_tenth_of_its_time(seconds, link):
    assert arrival_times(link, [seconds]) == [seconds]
    assert link.clock.now <= max(1.1 * seconds, seconds + 0.1) + 1e-9
    assert link.looks < 100


def test_one_thread_looks_for_what_all_wait_for(link, monkeypatch):
    """A thread a party, as Flower's server has: looks of each would be thousands for a SuperLink."""
    started, sleep, poller = [], link.clock.sleep, server.ReplyPoller(link)

    def asleep_until_all_wait(seconds):
        while link.looks <= 50 and len(poller._pending) < 50:
            time.sleep(0.001)
        sleep(seconds)

    monkeypatch.setattr(link.clock, "sleep", asleep_until_all_wait)
    monkeypatch.setattr(server, "Thread", lambda **options: started.append(options) or Thread(**options))
    with ThreadPoolExecutor(50) as pool:
        futures = [pool.submit(arrival_times, link, [5.0 + party], poller) for party in range(50)]
    assert [future.result() for future in futures] == [[5.0 + party] for party in range(50)]
    assert len(started) == 1
    assert link.looks < 50 + 100


def broken(link, since, error=ConnectionError, until=1e9):
    """Let the link raise an error for some time."""
    honest = link.pull_messages

    def pull(ids):
        if since <= link.clock.now < until:
            raise error
        return honest(ids)

    link.pull_messages = pull


def test_what_the_link_raises_is_raised_for_all_who_wait(link):
    broken(link, 2)
    poller = server.ReplyPoller(link)
    with ThreadPoolExecutor(2) as pool:
        soon, late = (pool.submit(arrival_times, link, [delay], poller) for delay in (1.0, 9.0))
    assert soon.result() == [1.0]
    with pytest.raises(ConnectionError):
        late.result()


def test_replies_before_the_timeout_are_returned(link):
    assert arrival_times(link, [0.0, 5.0, 1.0]) == [0.0, 1.0, 5.0]
    assert arrival_times(link, [6.0, 1e9], timeout=3.0) == [6.0]


@pytest.mark.parametrize("lost", [1, 2])
def test_a_message_whose_reply_is_lost_is_sent_again(lost, link):
    link.lost[5.0] = lost
    assert arrival_times(link, [5.0, 1.0]) == [1.0, 5.0]
    assert link.sent == [5.0, 1.0] + [5.0] * lost
    assert link.clock.now < 400 * 2**lost


def test_a_lost_reply_is_asked_for_within_the_rounds_time(link):
    link.lost[5.0] = 1
    assert arrival_times(link, [5.0], timeout=60.0) == [5.0]
    assert 15 <= link.clock.now < 60


def test_a_slow_reply_is_not_asked_for_often(link):
    assert arrival_times(link, [3600.0]) == [3600.0]
    assert len(link.sent) <= 7


def test_a_link_that_fails_for_a_while_ends_nothing(link):
    broken(link, 2, until=20)
    assert arrival_times(link, [5.0]) == [5.0]


def test_a_run_that_was_stopped_ends_at_once(link):
    class RunNotRunningException(Exception):  # noqa: N818 - the name that Flower has
        pass

    broken(link, 1, RunNotRunningException)
    with pytest.raises(RunNotRunningException):
        arrival_times(link, [5.0])
    assert link.clock.now < 3
