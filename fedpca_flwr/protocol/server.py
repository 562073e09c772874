"""The server that runs a strategy to its end."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

from flwr.server import History, Server, SimpleClientManager
from flwr.server.server import fit_clients

from fedpca_flwr.protocol.strategy import PCAStrategy


class PCAServer(Server):
    """Flower's `Server`, which stops when the strategy is done and talks to all parties at once.

    Parameters
    ----------
    strategy : PCAStrategy
    while_clients_work : callable, optional
        Gives a context manager that surrounds the parties' work, where they share this process.
    """

    def __init__(
        self,
        strategy: PCAStrategy,
        while_clients_work: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        super().__init__(client_manager=SimpleClientManager(), strategy=strategy)
        self.strategy: PCAStrategy = strategy
        self.while_clients_work = while_clients_work

    def fit(self, num_rounds: int, timeout: float | None) -> tuple[History, float]:
        started = time.monotonic()
        strategy, manager = self.strategy, self.client_manager()
        self.parameters = strategy.initialize_parameters(client_manager=manager)
        for server_round in itertools.count(1):  # the strategy's own program says when it is over
            fits = strategy.configure_fit(server_round=server_round, parameters=self.parameters, client_manager=manager)
            with self.while_clients_work():
                answers = fit_clients(fits, self.max_workers or len(fits), timeout, server_round)
            strategy.aggregate_fit(server_round, *answers)
            if strategy.done:
                break
        return History(), time.monotonic() - started
