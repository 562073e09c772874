"""The loopback engine: the strategy, the clients and their bytes in this process, without Ray."""

import os
import secrets
import threading
import weakref
from collections.abc import Callable, Sequence
from functools import cache, partial
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

import numpy as np
from flwr import client, common
from flwr.app import Context, RecordDict
from flwr.server.client_proxy import ClientProxy
from numpy.typing import NDArray
from typing_extensions import override

from fedpca_flwr.config.node_config import NodeConfig
from fedpca_flwr.config.run_config import RunConfig
from fedpca_flwr.data.table import Table, check_rows
from fedpca_flwr.maths.rows import Blocks, Rows
from fedpca_flwr.model.model import PCAModel
from fedpca_flwr.protocol.server import PCAServer
from fedpca_flwr.protocol.strategy import numerical_libraries
from fedpca_flwr.simulations.parties import Parties
from fedpca_flwr.site.site import adapt
from fedpca_flwr.strategies import FACTORY

Result = TypeVar("Result")

FILES = ("scores", "loadings")  # keys of a node-config that `fedpca_flwr.run` takes as a list: a path for each party
# Values in all. With fewer, threads gain nothing; and CPython 3.11's parser, which reads the headers of NumPy's
# messages, can fail in two threads when a garbage collection calls Python code (as Hypothesis makes it).
WORTH_THREADS = 10**6


class LoopbackProxy(ClientProxy):
    """Flower client proxy that hands each message to a new client (`make`) in this process, as in a deployment."""

    def __init__(self, cid: str, make: Callable[[], client.Client], context: Context | None = None) -> None:
        super().__init__(cid)
        self.make = make
        self.context = context

    @override
    def fit(self, ins: common.FitIns, timeout: float | None, group_id: int | None) -> common.FitRes:
        """Let a new client answer; raise TimeoutError, or RuntimeError for any exception of the client."""
        return _with_deadline(timeout, lambda: self.make().fit(ins))

    @override
    def evaluate(self, ins: common.EvaluateIns, timeout: float | None, group_id: int | None) -> common.EvaluateRes:
        return _with_deadline(timeout, lambda: self.make().evaluate(ins))

    @override
    def get_properties(
        self, ins: common.GetPropertiesIns, timeout: float | None, group_id: int | None
    ) -> common.GetPropertiesRes:
        return _with_deadline(timeout, lambda: self.make().get_properties(ins))

    @override
    def get_parameters(
        self, ins: common.GetParametersIns, timeout: float | None, group_id: int | None
    ) -> common.GetParametersRes:
        return _with_deadline(timeout, lambda: self.make().get_parameters(ins))

    @override
    def reconnect(self, ins: common.ReconnectIns, timeout: float | None, group_id: int | None) -> common.DisconnectRes:
        """Return an empty reason, since there is no connection."""
        return common.DisconnectRes(reason="")


def on_loopback(run_config: dict[str, Any], parties: Parties, site: dict[str, Any]) -> PCAModel:
    """Run a method in this process; ``site`` has keys of every site's node-config, some of them as lists by party."""
    server = assemble(run_config, parties.tables, site, parties.names, parties.places)
    strategy = server.strategy
    server.fit(num_rounds=strategy.rounds, timeout=strategy.config.round_deadline)
    return strategy.model


def assemble(
    run_config: dict[str, Any],
    parties: Sequence[Rows | Table],
    site: dict[str, Any],
    names: Sequence[tuple[str, ...]] = (),
    places: Sequence[NDArray[np.int64] | None] = (),
) -> PCAServer:
    """Make a server, and register a client in this process for each party; `PCAServer.fit` runs the method.

    With `WORTH_THREADS` values as many clients work at once as BLAS has threads. ``site`` is as of `on_loopback`,
    ``names`` and ``places`` are as of `Parties`.
    """
    libraries = numerical_libraries()
    server = PCAServer(FACTORY.strategy(run_config), partial(libraries.limit, limits=1, user_api="blas"))
    server.set_max_workers(1)
    all_rows = [party.rows if isinstance(party, Table) else party for party in parties]
    if sum(WORTH_THREADS if isinstance(rows, Blocks) else np.size(rows) for rows in all_rows) >= WORTH_THREADS:
        threads = [pool["num_threads"] for pool in libraries.info() if pool["user_api"] == "blas"]
        server.set_max_workers(max(threads, default=os.cpu_count() or 1))
    run_id = secrets.randbits(62)  # as Flower's: a privacy ledger tells runs apart by it
    for i, rows in enumerate(parties):
        node = {**site_of_party(site, i), "partition-id": i, "num-partitions": len(parties)}
        context = Context(run_id=run_id, node_id=i + 1, node_config=node, state=RecordDict(), run_config=run_config)
        make = _client_builder(context, rows, tuple(*names[i : i + 1]), places[i] if places else None)
        server.client_manager().register(LoopbackProxy(str(i + 1), make, context))
    return server


def site_of_party(site: dict[str, Any], party: int) -> dict[str, Any]:
    """Return a party's node-config: its entry of each value of `FILES`, ``name`` and ``model`` that is a list."""
    node = dict(site)
    for key in ("name", "model", *FILES):
        if isinstance(site.get(key), list):
            node[key] = site[key][party]
    return node


def _client_builder(
    context: Context, rows: Rows | Table, names: tuple[str, ...], places: NDArray[np.int64] | None
) -> Callable[[], client.Client]:
    """Return a function that makes a new client of a party, whose table in the run is made once."""

    @cache  # every message has a new client
    def load(node: NodeConfig, config: RunConfig) -> Table:
        table = rows if isinstance(rows, Table) else check_rows(rows, names)
        return adapt(table._replace(row_positions=places), node, config)

    return lambda: FACTORY.client(context, load).to_client()


class _Worker:
    """Daemon thread that runs a single function after another; a thread that misses a deadline is abandoned."""

    def __init__(self) -> None:
        """Start the thread, which ends when this object is no longer used."""
        self.works: SimpleQueue[Callable[[], Any] | None] = SimpleQueue()
        self.results: SimpleQueue[tuple[Any, BaseException | None]] = SimpleQueue()
        threading.Thread(target=_serve, args=(self.works, self.results), daemon=True).start()
        weakref.finalize(self, self.works.put, None)


def _serve(works: SimpleQueue[Callable[[], Any] | None], done: SimpleQueue[tuple[Any, BaseException | None]]) -> None:
    """Run the functions from a queue until None comes, and put each result and exception into the queue ``done``."""
    while (work := works.get()) is not None:
        try:
            done.put((work(), None))
        except BaseException as error:  # SystemExit too: a client that exits is a failure, not the end of the server
            done.put((None, error))
        del work  # and what it holds


# the worker of each thread that waits for parties: a thread for every message would cost as much as a small answer
_THREAD_WORKER = threading.local()


def _with_deadline(seconds: float | None, work: Callable[[], Result]) -> Result:
    """Run a function within ``seconds`` and return its result; raise TimeoutError, or RuntimeError for an exception."""
    worker = vars(_THREAD_WORKER).setdefault("worker", None) or _Worker()
    _THREAD_WORKER.worker = worker
    result: Result
    worker.works.put(work)
    try:
        result, error = worker.results.get(timeout=seconds)
    except Empty:
        del _THREAD_WORKER.worker
        raise TimeoutError(f"no reply within its deadline of {seconds:g} s") from None
    if error is not None:
        raise RuntimeError(f"client ended with {type(error).__name__}") from error
    return result
