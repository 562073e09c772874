"""Server that runs a strategy to its end, and polls for replies more often than Flower does."""

import itertools
import math
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, as_completed, wait
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from threading import Event, Lock, Thread

from flwr.app import ConfigRecord, Error, Message
from flwr.common import Code, FitIns, FitRes
from flwr.common.constant import ErrorCode
from flwr.server import History, Server, SimpleClientManager
from flwr.server.client_proxy import ClientProxy
from flwr.serverapp import Grid
from typing_extensions import override

from fedpca_flwr.protocol.client import PENDING_KEY
from fedpca_flwr.protocol.quorum import Results, ask_in_threads
from fedpca_flwr.protocol.replies import NodeFailure
from fedpca_flwr.protocol.strategy import PCAStrategy
from fedpca_flwr.state.files import utc_time

FIRST_POLL_SECONDS = 0.1

POLL_FRACTION = 0.1
"""Share of the waiting time by which the server may notice a reply late."""

FIRST_REPEAT_SECONDS = 300.0
"""Seconds without a reply until a message is sent again, or a quarter of the round if that is less; they double."""

LOST_CODES = {ErrorCode.MESSAGE_UNAVAILABLE, ErrorCode.REPLY_MESSAGE_UNAVAILABLE, ErrorCode.NODE_UNAVAILABLE}
"""A SuperLink's errors in the place of a reply that may still come to the same question, once its node is back."""

LOST_SECONDS = 2.0, 30.0
"""Seconds after which a message is sent again that a SuperLink has given up: at first, and at most; they double."""

MAX_ABSENCE_SECONDS = 120.0
"""Seconds for which a node is offline until a run with `survivors` continues without it."""

RETRY_SECONDS = 30.0
"""Seconds for which the grid's connection may fail, each time that it is asked, before the run ends."""

FINAL_ERRORS = ("RunNotRunningException",)
"""Flower's errors after which another attempt is useless."""

FIRST_REMINDER_SECONDS = 30.0
"""Seconds of a round after which a line names the parties that have not answered. The time to the next line doubles."""


@contextmanager
def watch_grid(grid: Grid, *, drops_absent: bool) -> Iterator[list[Exception]]:
    """Collect exceptions of a grid, of no party, in a with statement; Flower's grids poll by `ReplyPoller`."""
    replaced = vars(grid).get("send_and_receive")
    is_flowers = replaced is None and type(grid).send_and_receive.__module__.startswith("flwr.")
    poller = ReplyPoller(grid, MAX_ABSENCE_SECONDS if drops_absent else math.inf)
    send_and_receive = poller.send_and_receive if is_flowers else grid.send_and_receive
    errors: list[Exception] = []

    @contextmanager
    def collect() -> Iterator[None]:
        """Append an exception to `errors` before it is raised further."""
        try:
            yield
        except Exception as error:
            errors.append(error)
            raise

    def receive(replies: Iterable[Message]) -> Iterator[Message]:
        """Yield replies; the grid may raise while a reply is awaited."""
        with collect():
            yield from replies

    def watched(messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Send messages now, and return the replies as they come."""
        with collect():
            return receive(send_and_receive(messages, timeout=timeout))

    grid.send_and_receive = watched  # type: ignore[method-assign]  # of this grid only
    try:
        yield errors
    finally:
        del grid.send_and_receive
        if replaced is not None:
            grid.send_and_receive = replaced  # type: ignore[method-assign]


@dataclass
class PendingReply:
    """Message without a reply so far; times are on the monotonic clock, in seconds."""

    message: Message
    ids: list[str]  # ids of the message, which is sent once more each time that the reply may have been lost
    since: float  # time of the first sending
    until: float  # time of the deadline
    again: float  # time at which the message is sent again
    pause: float  # seconds from that time to the next one
    lost: Message | None = None  # the SuperLink's error in the place of a reply; of the first, if nothing came since
    absent_since: float = math.inf  # time since which the SuperLink knows the node as offline
    reply: Future[Message | None] = field(default_factory=Future)  # its result is None once the deadline has passed

    def lose(self, error: Message) -> None:
        """Keep a SuperLink's error, with the time and as the node's reply, and let the message be sent again soon."""
        self.ids.remove(error.metadata.reply_to_message_id)
        if self.lost is None:
            reason = f"{error.error.reason} since {utc_time()[11:19]} UTC"
            self.lost = Message(Error(error.error.code, reason), reply_to=self.message)
            self.pause = LOST_SECONDS[0]
        self.pause = min(self.pause, LOST_SECONDS[1])
        self.again = time.monotonic() + self.pause


class ReplyPoller:
    """Poller for the replies of one Flower grid, which asks for all pending messages at once.

    Flower's grid polls for each message separately, every three seconds, longer than most rounds take. Here the pause
    grows with the time waited. A message whose reply does not come is sent again from time to time, unless other
    replies still come: a SuperNode does not repeat a reply that the SuperLink could not store, and a party answers the
    same question with the same bytes. A message that a SuperLink gives up (`LOST_CODES`) is sent again soon, and at the
    deadline, or once the node has been offline for `max_absence` seconds, this error, as the node's, is the reply.
    """

    def __init__(self, grid: Grid, max_absence: float = math.inf) -> None:
        self._grid, self._max_absence, self._lock = grid, max_absence, Lock()
        self._pending: list[PendingReply] = []
        self._polling = False
        self._failing_since: float | None = None

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Send messages now, and return an iterator of the replies on arrival, or that raises a lasting error.

        Replies that come later than `timeout` seconds are left out; None sets no limit.
        """
        since, messages = time.monotonic(), list(messages)
        until = math.inf if timeout is None else since + timeout
        ids = self._grid.push_messages(messages)
        pause = min(FIRST_REPEAT_SECONDS, (until - since) / 4)
        pairs = zip(messages, ids, strict=True)
        sent = [PendingReply(message, [id_], since, until, since + pause, pause) for message, id_ in pairs]
        self._deliver(sent)
        with self._lock:
            self._pending += [entry for entry in sent if not entry.reply.done()]
            starts_polling, self._polling = bool(self._pending) and not self._polling, bool(self._pending)
        if starts_polling:
            Thread(target=self._poll, daemon=True).start()
        return _in_order_of_arrival([entry.reply for entry in sent])

    def _poll(self) -> None:
        """Ask the grid for replies until none is pending; a lasting or final error becomes the outcome of all."""
        while True:
            with self._lock:
                self._pending = pending = [entry for entry in self._pending if not entry.reply.done()]
                self._polling = bool(pending)
            if not pending:
                return
            waited = time.monotonic() - max(entry.since for entry in pending)
            time.sleep(max(FIRST_POLL_SECONDS, POLL_FRACTION * waited))
            try:
                came = self._deliver(pending)
                self._send_again([entry for entry in pending if entry.lost or not came])
                self._failing_since = None
            except Exception as error:  # an error of the connection, which may pass
                now = time.monotonic()
                self._failing_since = now if self._failing_since is None else self._failing_since
                if now - self._failing_since >= RETRY_SECONDS or type(error).__name__ in FINAL_ERRORS:
                    for entry in pending:
                        if not entry.reply.done():
                            entry.reply.set_exception(error)

    def _deliver(self, pending: list[PendingReply]) -> bool:
        """Pass on the replies that have arrived, and None after a message's deadline; return whether a reply came."""
        entries = {id_: entry for entry in pending for id_ in entry.ids}
        came = False
        for reply in self._grid.pull_messages(list(entries)):
            entry = entries[reply.metadata.reply_to_message_id]
            if reply.has_error() and reply.error.code in LOST_CODES:
                entry.lose(reply)
            elif not (entry.reply.done() or _is_pending(reply)):
                entry.reply.set_result(reply)
                came = True
        now = time.monotonic()
        online = set(self._grid.get_node_ids()) if any(entry.lost for entry in pending) else set()
        for entry in pending:
            is_absent = entry.lost is not None and entry.message.metadata.dst_node_id not in online
            entry.absent_since = min(entry.absent_since, now) if is_absent else math.inf
            if not entry.reply.done() and now >= min(entry.until, entry.absent_since + self._max_absence):
                entry.reply.set_result(entry.lost)
        return came

    def _send_again(self, pending: list[PendingReply]) -> None:
        """Send the messages again whose replies may have been lost, each after twice the time before."""
        now = time.monotonic()
        for entry in pending:
            if not entry.reply.done() and now >= entry.again:
                entry.again, entry.pause = now + entry.pause, 2 * entry.pause
                message, metadata = entry.message, entry.message.metadata
                ttl = max(1.0, min(entry.until - now, metadata.ttl))
                place = metadata.dst_node_id, metadata.message_type
                again = Message(message.content, *place, group_id=metadata.group_id, ttl=ttl)
                entry.ids += self._grid.push_messages([again])


def _is_pending(reply: Message) -> bool:
    """Return whether a party says that the site is still computing its answer to the same question."""
    party = reply.content.get("party") if reply.has_content() else None  # no view of the records: `fit_result`
    return isinstance(party, ConfigRecord) and PENDING_KEY in party


def _in_order_of_arrival(pending: list[Future[Message | None]]) -> Iterator[Message]:
    """Yield the replies on arrival, without late replies; raise the error that a pending reply has."""
    completed = as_completed(pending)
    del pending  # so that no reply is held once it is yielded
    for future in completed:
        reply = future.result()
        del future
        if reply is not None:
            yield reply
        del reply  # before the next one is awaited


@contextmanager
def remind(log_awaited: Callable[[], None]) -> Iterator[None]:
    """Call `log_awaited` at growing intervals during a with statement, to log which parties have not replied."""
    over = Event()

    def wait_and_log() -> None:
        patience = FIRST_REMINDER_SECONDS
        while not over.wait(patience):
            log_awaited()
            patience *= 2

    Thread(target=wait_and_log, daemon=True).start()
    try:
        yield
    finally:
        over.set()


class PCAServer(Server):
    """Flower's `Server`, which runs rounds until the strategy is done; a context `while_clients_work` is entered."""

    def __init__(
        self, strategy: PCAStrategy, while_clients_work: Callable[[], AbstractContextManager[object]] = nullcontext
    ) -> None:
        super().__init__(client_manager=SimpleClientManager(), strategy=strategy)
        self.strategy: PCAStrategy = strategy
        self.while_clients_work = while_clients_work

    @override
    def fit(self, num_rounds: int, timeout: float | None) -> tuple[History, float]:
        """Run rounds until the strategy has ended, for any `num_rounds`; return an empty history, and seconds."""
        started = time.monotonic()
        strategy, manager = self.strategy, self.client_manager()
        self.parameters = strategy.initialize_parameters(client_manager=manager)
        with ThreadPoolExecutor(self.max_workers) as self.pool:  # for all rounds: threads cost time
            strategy.quorum.ask_properties = partial(ask_in_threads, pool=self.pool)
            for server_round in itertools.count(1):  # until the strategy's program has ended
                fits = strategy.configure_fit(server_round, self.parameters, manager)
                with self.while_clients_work():
                    answers = self._collect_answers(fits, timeout, server_round)
                strategy.aggregate_fit(server_round, *answers)
                if strategy.done:
                    break
        return History(), time.monotonic() - started

    def _collect_answers(
        self, fits: list[tuple[ClientProxy, FitIns]], timeout: float | None, group: int
    ) -> tuple[Results, list[NodeFailure]]:
        """Send a round's questions to all clients in parallel; return their results and failures, in their order."""
        receive_lock = Lock()

        def ask(client: ClientProxy, question: FitIns) -> tuple[ClientProxy, FitRes]:
            """Send a question to a client, and hand a valid reply to the strategy on arrival."""
            reply = client.fit(question, timeout=timeout, group_id=group)
            if reply.status.code == Code.OK:
                with receive_lock:  # in this thread: it must not ask the next party before the reply is consumed
                    self.strategy.receive(client, reply)
            return client, reply

        results, failures = Results(), list[NodeFailure]()
        pending = {self.pool.submit(ask, *fit): fit[0] for fit in fits}
        patience = FIRST_REMINDER_SECONDS
        while wait(pending, patience).not_done:
            self.strategy.log_awaited_parties([client for future, client in pending.items() if not future.done()])
            patience *= 2
        for future, client in pending.items():
            failure = future.exception()
            if failure is None and (result := future.result())[1].status.code == Code.OK:
                results.append(result)
            else:
                failures.append(NodeFailure(client.cid, failure or RuntimeError()))
        return results, failures
