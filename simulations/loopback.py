"""The loopback engine: the strategy, the clients and their bytes in this process, without Ray."""

import os
import secrets
import threading
import weakref
from collections.abc import Callable, Sequence
from functools import cache
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

import numpy as np
from flwr import client, common
from flwr.app import Context, RecordDict
from flwr.server.client_proxy import ClientProxy
from numpy.typing import NDArray

from fedpca_flwr.config.node_config import NodeConfig
from fedpca_flwr.config.run_config import RunConfig
from fedpca_flwr.data.table import Table, check_rows
from fedpca_flwr.maths.rows import Blocks, Rows
from fedpca_flwr.model.model import PCAModel
from fedpca_flwr.protocol.server import PCAServer, numerical_libraries
from fedpca_flwr.simulations.parties import Parties
from fedpca_flwr.strategies import FACTORY

Result = TypeVar("Result")

FILES = ("scores", "loadings")
"""Keys of a node-config that `fedpca_flwr.run` takes as a list: a path for each party."""

WORTH_THREADS = 10**6
"""Values in all. With fewer, threads gain nothing; and CPython 3.11's parser, which reads the headers of NumPy's
messages, can fail in two threads when a garbage collection calls Python code (as Hypothesis makes it)."""


class LoopbackProxy(ClientProxy):
    """Hands a message to a client in this process, which ``make`` gives: a new one each time, as in a deployment.

    The party's ``context`` has its node-config, and what Flower keeps for it.
    """

    def __init__(self, cid: str, make: Callable[[], client.Client], context: Context | None = None) -> None:
        super().__init__(cid)
        self.make = make
        self.context = context

    def fit(self, ins: common.FitIns, timeout: float | None, group_id: int | None) -> common.FitRes:
        return _with_deadline(timeout, lambda: self.make().fit(ins))

    def evaluate(self, ins: common.EvaluateIns, timeout: float | None, group_id: int | None) -> common.EvaluateRes:
        return _with_deadline(timeout, lambda: self.make().evaluate(ins))

    def get_properties(
        self, ins: common.GetPropertiesIns, timeout: float | None, group_id: int | None
    ) -> common.GetPropertiesRes:
        return _with_deadline(timeout, lambda: self.make().get_properties(ins))

    def get_parameters(
        self, ins: common.GetParametersIns, timeout: float | None, group_id: int | None
    ) -> common.GetParametersRes:
        return _with_deadline(timeout, lambda: self.make().get_parameters(ins))

    def reconnect(self, ins: common.ReconnectIns, timeout: float | None, group_id: int | None) -> common.DisconnectRes:
        return common.DisconnectRes(reason="")


def on_loopback(run_config: dict[str, Any], held: Parties, site: dict[str, Any]) -> PCAModel:
    """Run in this process (see `fedpca_flwr.run`)."""
    server = assemble(run_config, held.rows, site, held.names, held.places)
    strategy = server.strategy
    server.fit(num_rounds=strategy.rounds, timeout=strategy.config.round_deadline)
    return strategy.model


def assemble(
    run_config: dict[str, Any],
    parties: Sequence[Rows],
    site: dict[str, Any],
    names: Sequence[tuple[str, ...]] = (),
    places: Sequence[NDArray[np.int64] | None] = (),
) -> PCAServer:
    """A server whose clients wait in this process; with much data as many work at once as BLAS has threads.

    Names and places are as in `Parties`.
    """
    server = PCAServer(FACTORY.strategy(run_config), lambda: numerical_libraries().limit(limits=1, user_api="blas"))
    threads = [pool["num_threads"] for pool in numerical_libraries().info() if pool["user_api"] == "blas"]
    large = sum(WORTH_THREADS if isinstance(rows, Blocks) else np.size(rows) for rows in parties) >= WORTH_THREADS
    workers = max(threads, default=os.cpu_count() or 1) if large else 1
    server.set_max_workers(workers)
    server.strategy.quorum.max_concurrent = workers
    run_id = secrets.randbits(62)  # as Flower's: a privacy ledger tells runs apart by it
    for i, rows in enumerate(parties):
        node = {**own_site(site, i), "partition-id": i, "num-partitions": len(parties)}
        context = Context(run_id=run_id, node_id=i + 1, node_config=node, state=RecordDict(), run_config=run_config)
        table = rows, tuple(*names[i : i + 1]), places[i] if places else None
        server.client_manager().register(LoopbackProxy(str(i + 1), _client_builder(context, *table), context))
    return server


def own_site(site: dict[str, Any], party: int) -> dict[str, Any]:
    """The node-config of a party; of what is a list, its name and its own files, it has its entry."""
    lists = {key for key in ("name", *FILES) if isinstance(site.get(key), list)}
    return {key: value[party] if key in lists else value for key, value in site.items()}


def _client_builder(
    context: Context, rows: Rows, names: tuple[str, ...], places: NDArray[np.int64] | None
) -> Callable[[], client.Client]:
    @cache  # every message has a new client, but the rows are checked once
    def load(node: NodeConfig, config: RunConfig) -> Table:
        return check_rows(rows, names)._replace(row_positions=places)

    return lambda: FACTORY.client(context, load).to_client()


class _Worker:
    """A thread that does one piece of work after the other; one that is late is left behind."""

    def __init__(self) -> None:
        self._given: SimpleQueue[Callable[[], Any] | None] = SimpleQueue()
        self._done: SimpleQueue[tuple[Any, BaseException | None]] = SimpleQueue()
        threading.Thread(target=_serve, args=(self._given, self._done), daemon=True).start()
        weakref.finalize(self, self._given.put, None)

    def outcome(self, work: Callable[[], Any], seconds: float | None) -> tuple[Any, BaseException | None]:
        """What ``work`` returns, or raises; `Empty` where that takes longer."""
        self._given.put(work)
        return self._done.get(timeout=seconds)


def _serve(given: SimpleQueue[Callable[[], Any] | None], done: SimpleQueue[tuple[Any, BaseException | None]]) -> None:
    while (work := given.get()) is not None:
        try:
            done.put((work(), None))
        except BaseException as error:  # SystemExit too: a client that exits is a failure, not the end of the server
            done.put((None, error))
        del work  # and what it holds


_OWN = threading.local()
"""The worker of each thread that waits for parties: a thread for every message would cost as much as a small answer."""


def _with_deadline(seconds: float | None, work: Callable[[], Result]) -> Result:
    """The result of ``work``, or its exception, or `TimeoutError`."""
    worker = vars(_OWN).setdefault("worker", None) or _Worker()
    _OWN.worker = worker
    result: Result
    try:
        result, error = worker.outcome(work, seconds)
    except Empty:
        del _OWN.worker
        raise TimeoutError(f"no reply within its deadline of {seconds:g} s") from None
    if error is not None:
        raise RuntimeError(f"client ended with {type(error).__name__}") from error
    return result
