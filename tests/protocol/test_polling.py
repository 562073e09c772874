"""Replies are found soon after they came, the link is not asked all the time, and lost replies are asked for again."""

import itertools
import logging.handlers
import queue
import re
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from threading import Thread
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from flwr.common.constant import SUPERLINK_NODE_ID, ErrorCode
from flwr.serverapp import Grid

from fedpca_flwr import FedPCA, LocalGrid, PCAModel
from fedpca_flwr.protocol import server
from fedpca_flwr.protocol.progress import LOGGER, limit_flower_log, route_to
from fedpca_flwr.protocol.replies import failure_reason
from fedpca_flwr.site_app import app
from fedpca_flwr.strategies import METHODS
from tests.harness import Clock, context_of, differences, finish, identities, proxy_of, server_of, sites_of

NUMBERS = itertools.count()
ROWS = [np.random.default_rng(i).normal(size=(40 + 10 * i, 4)) * [4, 3, 2, 1] for i in range(3)]
SECURE = {"secure_aggregation": True, "bound": 100.0}


class Link:
    """Messages are numbers of seconds after which their replies are there, once they were sent as often as needed."""

    send_and_receive = Grid.send_and_receive  # Flower's, in whose place a run polls

    def __init__(self, clock):
        self.clock, self.looks, self.sent, self.lives = clock, 0, [], []
        self.lost: Counter[float] = Counter()  # by message, how many of its replies are lost
        self.found: dict[float, float] = {}  # by message, when its reply was first found
        self.offline = range(0)  # seconds in which nodes are offline: a SuperLink gives their messages up, once
        self.get_node_ids = lambda: [] if self.offline.start <= self.clock.now < self.offline.stop else [1]

    def push_messages(self, messages):
        self.sent += [message.seconds for message in messages]
        self.lives += [message.metadata.ttl for message in messages]
        return [f"{message.seconds} {next(NUMBERS)}" for message in messages]

    def pull_messages(self, ids):
        self.looks += 1
        replies = []
        for name in ids:
            seconds = float(name.split()[0])
            if not self.get_node_ids():
                error = SimpleNamespace(code=ErrorCode.NODE_UNAVAILABLE, reason="Error: Node Unavailable")
                metadata = SimpleNamespace(reply_to_message_id=name, src_node_id=SUPERLINK_NODE_ID)
                replies.append(SimpleNamespace(metadata=metadata, has_error=lambda: True, error=error))
            elif seconds <= self.clock.now and self.sent.count(seconds) > self.lost[seconds]:
                self.found.setdefault(seconds, self.clock.now)
                metadata, no = SimpleNamespace(reply_to_message_id=name, seconds=seconds), lambda: False
                replies.append(SimpleNamespace(metadata=metadata, has_error=no, has_content=no))
        return replies


class Timed:
    """Message with a reply after some seconds, which can be made again as Flower's can."""

    def __init__(self, content, *_, ttl=3600.0, reply_to=None, **__):
        self.seconds = self.content = self.error = content
        self.reply_to = reply_to
        self.metadata = SimpleNamespace(ttl=ttl, dst_node_id=1, message_type="train", group_id="1")


@pytest.fixture
def link(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(server, "time", clock)
    monkeypatch.setattr(server, "Message", Timed)
    return Link(clock)


def arrival_times(link, messages, poller=None, **options):
    """Return the arrival time of each reply, which also names the message that the reply answers."""
    with nullcontext() if poller else server.watch_grid(link, drops_absent=False):
        replies: Any = (poller or link).send_and_receive(map(Timed, messages), **options)
        return sorted(reply.metadata.seconds for reply in replies)


@pytest.mark.parametrize("seconds", [0.05, 2.0, 600.0, 3600.0])
def test_a_reply_is_found_within_a_tenth_of_its_time(seconds, link):
    assert arrival_times(link, [seconds]) == [seconds]
    assert link.clock.now <= max(1.1 * seconds, seconds + 0.1) + 1e-9
    assert (link.looks < 100, len(link.sent) <= 7) == (True, True)


def test_an_old_message_makes_no_new_one_wait(link, monkeypatch):
    poller, sleep, later = server.ReplyPoller(link), link.clock.sleep, []

    def sleep_and_send_another(seconds):
        sleep(seconds)
        if link.clock.now > 1000 and not later:
            later.append((link.clock.now + 5.0, poller.send_and_receive([Timed(link.clock.now + 5.0)])))

    monkeypatch.setattr(link.clock, "sleep", sleep_and_send_another)
    assert arrival_times(link, [5000.0], poller) == [5000.0]
    assert link.found[later[0][0]] <= later[0][0] + 0.6


def test_one_thread_looks_for_what_all_wait_for(link, monkeypatch):
    """A thread a party, as Flower's server has: looks of each would be thousands for a SuperLink."""
    started, sleep, poller = [], link.clock.sleep, server.ReplyPoller(link)

    def asleep_until_all_wait(seconds):
        while link.looks <= 50 and len(link.sent) < 50:
            time.sleep(0.001)
        sleep(seconds)

    monkeypatch.setattr(link.clock, "sleep", asleep_until_all_wait)
    monkeypatch.setattr(server, "Thread", lambda **options: started.append(options) or Thread(**options))
    with ThreadPoolExecutor(50) as pool:
        futures = [pool.submit(arrival_times, link, [5.0 + party], poller) for party in range(50)]
    assert ([future.result() for future in futures], len(started)) == ([[5.0 + party] for party in range(50)], 1)
    assert link.looks < 50 + 100


def broken(link, since, error=ConnectionError, until=1e9):
    honest = link.pull_messages

    def pull(ids):
        if since <= link.clock.now < until:
            raise error
        return honest(ids)

    link.pull_messages = pull


def test_what_the_link_raises_is_raised_for_all_who_wait(link):
    """As an error of the grid, by which a run ends with the grid's name (fedpca_flwr/test_flower.py)."""
    broken(link, 2)
    poller = server.ReplyPoller(link)
    with ThreadPoolExecutor(2) as pool:
        soon, late = (pool.submit(arrival_times, link, [delay], poller) for delay in (1.0, 9.0))
    assert soon.result() == [1.0]
    with pytest.raises(ConnectionError):
        late.result()
    assert 2 + 30 <= link.clock.now < 2 + 36


def test_replies_before_the_timeout_are_returned(link):
    assert len(arrival_times(link, range(-49, 1))) == 50
    assert (link.looks, link.clock.now) == (1, 0)  # nobody sleeps while all replies wait
    assert arrival_times(link, [0.0, 5.0, 1.0]) == [0.0, 1.0, 5.0]
    begin = link.clock.now
    assert arrival_times(link, [6.0, 1e9], timeout=3.0) == [6.0]
    assert link.clock.now < begin + 3.5
    link.send_and_receive = own = lambda messages, timeout=None: [Mock(metadata=next(messages))]  # a user's
    assert (arrival_times(link, [7.0]), link.send_and_receive) == ([7.0], own)


@pytest.mark.parametrize("lost", [1, 2])
def test_a_message_whose_reply_is_lost_is_sent_again(lost, link):
    link.lost[5.0] = lost
    assert (arrival_times(link, [5.0, 1.0]), link.sent) == ([1.0, 5.0], [5.0, 1.0] + [5.0] * lost)
    assert link.clock.now < 1.25 * 300 * 2 ** (lost - 1)


@pytest.mark.parametrize(("timeout", "sent_again", "life"), [(60.0, 15, 45), (2.0, 0.5, 1.5), (1.2, 0.3, 1.0)])
def test_a_lost_reply_is_asked_for_within_the_rounds_time(timeout, sent_again, life, link):
    """The second message lives until the round's end, and for a second, Flower's least, at least."""
    link.lost[0.1] = 1
    assert arrival_times(link, [0.1], timeout=timeout) == [0.1]
    assert sent_again <= link.clock.now < 1.2 * sent_again + 0.4
    assert link.lives == [3600.0, pytest.approx(life, abs=0.1 * timeout)]


def test_a_node_that_is_offline_for_a_while_is_asked_again(link):
    """The fault: the SuperLink's error, which has its own id as sender, was taken for the node's reply."""
    link.offline = range(10, 70)
    assert arrival_times(link, [20.0, 5.0, 80.0], server.ReplyPoller(link, 65.0), timeout=200.0) == [5.0, 20.0, 80.0]
    assert link.clock.now < 70 + 30 + 12
    assert len(link.sent) < 3 + 2 * 8


@pytest.mark.parametrize(("max_absence", "seconds"), [(1e9, 100), (50.0, 60)])
def test_a_node_that_stays_away_is_offline_since(max_absence, seconds, link):
    link.offline = range(10, 10**9)
    messages = [Timed(20.0), Timed(5.0)]
    replies: Any = server.ReplyPoller(link, max_absence).send_and_receive(messages, timeout=100.0)
    reply, lost = sorted(replies, key=lambda one: hasattr(one, "reply_to"))
    assert reply.metadata.seconds == 5.0
    assert lost.reply_to is messages[0]
    assert failure_reason(RuntimeError(lost.error.reason)).startswith("its node is offline since ")
    assert "round-deadline" in failure_reason(TimeoutError("within its deadline"))
    assert "its own log" in failure_reason(RuntimeError())
    assert seconds <= link.clock.now < 1.12 * seconds


def test_nothing_is_sent_again_while_replies_come(link):
    """Thousands of simulated parties wait for their turn; each message sent again is one more to answer."""
    arrival_times(link, range(400), timeout=400.5)
    assert len(link.sent) == 400


def test_a_link_that_fails_for_a_while_ends_nothing(link):
    """Also twice, with some good seconds between. A run that was stopped ends at once."""
    broken(link, 2, until=20)
    broken(link, 24, until=45)
    assert arrival_times(link, [50.0]) == [50.0]
    stopped = type("RunNotRunningException", (Exception,), {})  # the name that Flower has
    broken(link, link.clock.now + 1, stopped)
    with pytest.raises(stopped):
        arrival_times(link, [60.0])
    assert link.clock.now < 50 * 1.1 + 3


def test_reminders_become_rarer(monkeypatch):
    wait, log_awaited = Mock(side_effect=[False] * 4 + [True]), Mock()
    monkeypatch.setattr(server, "Event", lambda: Mock(wait=wait))
    monkeypatch.setattr(server, "Thread", lambda target, daemon: Mock(start=target))
    with server.remind(log_awaited):
        assert [call.args for call in wait.call_args_list] == [(30,), (60,), (120,), (240,), (480,)]
    assert log_awaited.call_count == 4


def test_who_is_still_waited_for_is_named(monkeypatch, caplog):
    """By the name that the party has said; a party that has answered is not. No other log has a line."""
    monkeypatch.setattr(server, "FIRST_REMINDER_SECONDS", 0.01)
    running = server_of("p-cov", ROWS, n_components=2)
    context_of(running, 2).node_config["name"] = "south"
    flower, before = logging.getLogger("flwr"), logging.getLogger("flwr").level
    slow, records = proxy_of(running, 2), queue.SimpleQueue()
    answer, reminder = slow.fit, r"round 1 \(moments\): still waiting after .*s for client 2 \(south\)"

    def fit(ins, timeout, group_id):
        while ins.config["phase"] == "moments" and not re.fullmatch(reminder, records.get(timeout=30).getMessage()):
            pass
        return answer(ins, timeout, group_id)

    slow.fit = fit
    with route_to(logging.handlers.QueueHandler(records)), limit_flower_log(logging.CRITICAL):
        finish(running)
        assert flower.level == logging.CRITICAL
    assert (flower.level, LOGGER.handlers, LOGGER.propagate) == (before, [], True)
    assert LOGGER.name not in {record.name for record in caplog.records}


class LossyGrid(LocalGrid):
    """Grid of sites that loses the first replies, as a SuperLink whose database is locked."""

    def __init__(self, losses, *arguments):
        super().__init__(*arguments)
        self.losses, self.replies = losses, []  # every reply, lost or not

    def send_and_receive(self, messages, *, timeout=None):
        return server.ReplyPoller(self).send_and_receive(messages, timeout=timeout)

    def pull_messages(self, message_ids):
        replies = []
        for reply in super().pull_messages(message_ids):
            self.replies.append(reply)
            if self.losses and reply.metadata.message_type.startswith("train"):
                self.losses -= 1
            else:
                replies.append(reply)
        return replies


def grid_after(tmp_path, method, losses, **options) -> tuple[LossyGrid, PCAModel]:
    """Return the grid and the model of a run at three sites with files and journals."""
    policy = {"min-rows": 5, "may-show": "distribution"}
    policy |= {"epsilon-budget": 9.0} if method.startswith("dp-pca") else {}
    nodes = sites_of(tmp_path / f"{method} {losses}", ROWS, **policy)
    nodes = [node | keys for node, keys in zip(nodes, identities(3), strict=True)]
    keys = {"n_components": 2, "clients": 3, **options}
    values = {key.replace("_", "-"): value for key, value in keys.items()}
    grid = LossyGrid(losses, app, nodes, METHODS.run_config({**values, "method": method}))
    strategy = FedPCA(method, **keys)
    strategy.start(grid)
    assert not grid.losses
    return grid, strategy.model


@pytest.mark.parametrize(
    ("method", "options"),
    [
        *(("p-cov", way) for way in ({}, SECURE, SECURE | {"survivors": 3})),
        *((method, {}) for method in ("sub-it", "adaptive", "dp-pca epsilon=5.0")),
    ],
    ids=str,
)
def test_lost_replies_cost_time_and_no_bit(method, options, tmp_path, monkeypatch):
    """A second draw of noise for the same question would halve the variance of the noise, at no budget."""
    monkeypatch.setattr(server, "time", Clock())
    grid, lossy = grid_after(tmp_path, method, 4, **options)
    sent = [
        (reply.metadata.src_node_id, reply.metadata.group_id, *(array.data for array in arrays.values()))
        for reply in grid.replies
        if (arrays := reply.content.array_records.get("arrays"))
    ]
    assert len(sent) - 4 == len(set(sent)) == len({reply[:2] for reply in sent})
    assert method.startswith("dp-pca") or not differences(lossy, grid_after(tmp_path, method, 0, **options)[1])
