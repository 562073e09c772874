"""The loopback engine: the strategy, the clients and their bytes in this process, without Ray."""

from __future__ import annotations

import os
import secrets
import threading
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
from flwr.app import Context, RecordDict
from flwr.client import Client
from flwr.common import (
    DisconnectRes,
    EvaluateIns,
    EvaluateRes,
    FitIns,
    FitRes,
    GetParametersIns,
    GetParametersRes,
    GetPropertiesIns,
    GetPropertiesRes,
    ReconnectIns,
)
from flwr.server.client_proxy import ClientProxy
from threadpoolctl import ThreadpoolController

from fedpca_flwr.config import RunConfig
from fedpca_flwr.maths.blocks import Blocks, Rows
from fedpca_flwr.model import PCAModel
from fedpca_flwr.node_config import NodeConfig
from fedpca_flwr.protocol.server import PCAServer
from fedpca_flwr.table import Table, check
from strategies import build_client, build_strategy

Names = tuple[str, ...]

FILES = ("scores", "loadings")
"""Keys of a node-config that `simulations.run` takes as a list: a path for each party."""

WORTH_THREADS = 10**6
"""Values in all. With fewer, threads gain nothing; and CPython 3.11's parser, which reads the headers of NumPy's
messages, can fail in two threads when a garbage collection calls Python code (as Hypothesis makes it)."""


class LoopbackProxy(ClientProxy):
    """Hands a message to a client in this process; a new client for each message, as in a deployment.

    Parameters
    ----------
    cid : str
    make : callable
        Gives the client.
    context : Context, optional
        The party's: its node-config, and what Flower keeps for it.
    """

    def __init__(self, cid: str, make: Callable[[], Client], context: Context | None = None) -> None:
        super().__init__(cid)
        self.make = make
        self.context = context

    def fit(self, ins: FitIns, timeout: float | None, group_id: int | None) -> FitRes:
        reply: FitRes = _with_deadline(timeout, lambda: self.make().fit(ins))
        return reply

    def evaluate(self, ins: EvaluateIns, timeout: float | None, group_id: int | None) -> EvaluateRes:
        reply: EvaluateRes = _with_deadline(timeout, lambda: self.make().evaluate(ins))
        return reply

    def get_properties(self, ins: GetPropertiesIns, timeout: float | None, group_id: int | None) -> GetPropertiesRes:
        reply: GetPropertiesRes = _with_deadline(timeout, lambda: self.make().get_properties(ins))
        return reply

    def get_parameters(self, ins: GetParametersIns, timeout: float | None, group_id: int | None) -> GetParametersRes:
        reply: GetParametersRes = _with_deadline(timeout, lambda: self.make().get_parameters(ins))
        return reply

    def reconnect(self, ins: ReconnectIns, timeout: float | None, group_id: int | None) -> DisconnectRes:
        return DisconnectRes(reason="")


def on_loopback(
    run_config: dict[str, Any], parties: Sequence[Rows], site: dict[str, Any], names: Sequence[Names] = ()
) -> PCAModel:
    """Run in this process (see `simulations.run`); ``names`` are of each party's columns, empty where it has none."""
    server = assemble(run_config, parties, site, names)
    strategy = server.strategy
    server.fit(num_rounds=strategy.rounds, timeout=strategy.config.round_deadline)
    return strategy.result()


def assemble(
    run_config: dict[str, Any], parties: Sequence[Rows], site: dict[str, Any], names: Sequence[Names] = ()
) -> PCAServer:
    """A server whose clients wait in this process; with much data as many work at once as BLAS has threads."""
    blas = ThreadpoolController()  # once: it looks through all libraries of this process
    server = PCAServer(build_strategy(run_config), lambda: blas.limit(limits=1, user_api="blas"))
    threads = [pool["num_threads"] for pool in blas.info() if pool["user_api"] == "blas"]
    large = sum(WORTH_THREADS if isinstance(rows, Blocks) else np.size(rows) for rows in parties) >= WORTH_THREADS
    server.set_max_workers(max(threads, default=os.cpu_count() or 1) if large else 1)
    run_id = secrets.randbits(62)  # as Flower's: a privacy ledger tells runs apart by it
    for i, rows in enumerate(parties):
        node = {**own_site(site, i), "partition-id": i, "num-partitions": len(parties)}
        context = Context(run_id=run_id, node_id=i + 1, node_config=node, state=RecordDict(), run_config=run_config)
        server.client_manager().register(
            LoopbackProxy(str(i + 1), _client_builder(context, rows, tuple(*names[i : i + 1])), context)
        )
    return server


def own_site(site: dict[str, Any], party: int) -> dict[str, Any]:
    """The node-config of a party; of what is a list, its name and its own files, it has its entry."""
    lists = {key for key in ("name", *FILES) if isinstance(site.get(key), list)}
    return {key: value[party] if key in lists else value for key, value in site.items()}


def _client_builder(context: Context, rows: Rows, names: Names) -> Callable[[], Client]:
    @cache  # every message has a new client, but the rows are checked once
    def load(node: NodeConfig, config: RunConfig) -> Table:
        return check(rows, names)

    return lambda: build_client(context, load).to_client()


def _with_deadline(seconds: float | None, work: Callable[[], Any]) -> Any:
    """The result of ``work``, or its exception, or `TimeoutError`; a thread that is late is left behind."""
    outcome: list[tuple[Any, BaseException | None]] = []

    def target() -> None:
        try:
            outcome.append((work(), None))
        except BaseException as error:  # SystemExit too: a client that exits is a failure, not the end of the server
            outcome.append((None, error))

    thread = threading.Thread(target=target, daemon=True)
    thread.start()
    thread.join(seconds)
    if not outcome:
        raise TimeoutError(f"no reply within its deadline of {seconds:g} s")
    result, error = outcome[0]
    if error is not None:
        raise RuntimeError(f"client ended with {type(error).__name__}") from error
    return result
