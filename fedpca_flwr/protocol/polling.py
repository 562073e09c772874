"""Looking for replies more often than Flower does."""

from __future__ import annotations

import time
from collections.abc import Iterable

from flwr.app import Message
from flwr.serverapp import Grid

SOONEST = 0.1
"""Seconds."""

SHARE = 0.1
"""Of the time waited so far: a reply is found at most so much later than it came."""


def poll_promptly(grid: Grid) -> Grid:
    """The same grid, which no longer sleeps for three seconds between looks at a SuperLink for replies.

    Three seconds are longer than most rounds take. The time between looks grows with the time waited, so that many
    parties with hours of work do not keep the SuperLink busy.
    """

    def send_and_receive(messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        waiting = set(grid.push_messages(messages))
        started, found = time.monotonic(), []
        while True:
            replies = list(grid.pull_messages(waiting))
            found += replies
            waiting -= {reply.metadata.reply_to_message_id for reply in replies}
            waited = time.monotonic() - started
            if not waiting or (timeout is not None and waited >= timeout):
                return found
            time.sleep(max(SOONEST, SHARE * waited))

    grid.send_and_receive = send_and_receive  # type: ignore[method-assign]  # of this grid only
    return grid
