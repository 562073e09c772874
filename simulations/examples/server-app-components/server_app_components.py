"""The PCA of rows at three clients: a strategy for Flower's ServerAppComponents, a client for a client_fn."""

from typing import Any

from flwr.app import Context
from flwr.client import Client
from flwr.clientapp import ClientApp
from flwr.server import ServerAppComponents, ServerConfig
from flwr.serverapp import ServerApp
from sklearn.datasets import load_digits

from fedpca_flwr import PooledCovariance


class Saved(PooledCovariance):
    file: str

    def aggregate_fit(self, *answers: Any) -> Any:
        result = super().aggregate_fit(*answers)
        if self.done:
            print(self.model.save(self.file), self.model.summary(), sep="\n")
        return result


def server_fn(context: Context) -> ServerAppComponents:
    strategy = Saved(n_components=5, clients=3)
    strategy.file = f"model-{context.run_id}"
    return ServerAppComponents(strategy=strategy, config=ServerConfig(num_rounds=strategy.rounds))


def client_fn(context: Context) -> Client:
    rows = load_digits().data[int(context.node_config["partition-id"]) :: 3]
    return PooledCovariance.client(context, rows, n_components=5).to_client()


server = ServerApp(server_fn=server_fn)
client = ClientApp(client_fn)
