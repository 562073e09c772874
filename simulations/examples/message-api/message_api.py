"""The PCA of rows at three clients, as a strategy of Flower's Message API."""

import numpy as np
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from sklearn.datasets import load_digits

from fedpca_flwr import FedPCA, client_app

server = ServerApp()


@server.main()
def main(grid: Grid, context: Context) -> None:
    strategy = FedPCA("sub-it", n_components=5, clients=3)
    strategy.start(grid)
    print(strategy.model.save(f"model-{context.run_id}"), strategy.model.summary(), sep="\n")


def rows(context: Context) -> np.ndarray:
    return np.asarray(load_digits().data[int(context.node_config["partition-id"]) :: 3])


client = client_app(rows, "sub-it", n_components=5)
