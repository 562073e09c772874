"""A Flower app that does nothing: as many rounds as it is told, and messages of as many bytes.

Of Flower alone, and `poll_promptly`, so that it costs what the engine costs.
"""

import json
import time
from typing import Any

from flwr import app, client, clientapp, serverapp
from flwr.common import Code, FitIns, FitRes, Parameters, Scalar, Status
from flwr.server import Server, ServerConfig, SimpleClientManager, client_proxy, compat
from flwr.server.client_manager import ClientManager
from flwr.server.strategy import FedAvg

from fedpca_flwr.protocol.server import poll_promptly

Sizes = list[list[list[int]]]
"""Of every round, the bytes up and those down, by party."""

TOOK = "seconds in rounds: "
"""What stands before the result in a log."""


class Empty(FedAvg):
    """Sends so many bytes, and does nothing with those that come back.

    Its seconds are those from questions to the last reply, over all rounds but the first, which starts the workers.
    """

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.sizes = sizes
        self.seconds = 0.0
        self._since = 0.0

    def initialize_parameters(self, client_manager: ClientManager) -> Parameters:
        return Parameters([], "bytes")

    def configure_fit(
        self, server_round: int, parameters: Parameters, client_manager: ClientManager
    ) -> list[tuple[client_proxy.ClientProxy, FitIns]]:
        up, down = self.sizes[server_round - 1]
        client_manager.wait_for(len(up), 600)
        asked = [FitIns(Parameters([bytes(own)], "bytes"), {"bytes": back}) for own, back in zip(down, up, strict=True)]
        self._since = time.monotonic()
        return list(zip(client_manager.all().values(), asked, strict=True))

    def aggregate_fit(self, server_round: int, results: Any, failures: Any) -> tuple[None, dict[str, Scalar]]:
        if server_round > 1:
            self.seconds += time.monotonic() - self._since
        if failures:
            raise RuntimeError(f"{len(failures)} parties of the empty run failed: {failures[0]}")
        return None, {}

    def configure_evaluate(self, server_round: int, parameters: Parameters, client_manager: ClientManager) -> list[Any]:
        return []


class EmptyClient(client.Client):
    """Replies so many bytes as it is told."""

    def fit(self, ins: FitIns) -> FitRes:
        return FitRes(Status(Code.OK, ""), Parameters([bytes(int(ins.config["bytes"]))], "bytes"), 1, {})


def serve(grid: serverapp.Grid, sizes: Sizes) -> float:
    """Run on a grid; seconds in rounds. All parties are asked at once, as by our own server."""
    strategy = Empty(sizes)
    server = Server(client_manager=SimpleClientManager(), strategy=strategy)
    server.set_max_workers(len(sizes[0][0]))
    compat.start_grid(grid=poll_promptly(grid), server=server, config=ServerConfig(len(sizes)))
    return strategy.seconds


client_app = clientapp.ClientApp(lambda context: EmptyClient())

server_app = serverapp.ServerApp()


@server_app.main()
def _main(grid: serverapp.Grid, context: app.Context) -> None:
    print(f"{TOOK}{serve(grid, json.loads(str(context.run_config['sizes'])))}", flush=True)
