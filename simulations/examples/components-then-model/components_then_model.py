"""A pipeline: the PCA of rows at three clients, then a classifier of their scores by Flower's FedAvg."""

from typing import Any

import numpy as np
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from sklearn.datasets import load_digits

from fedpca_flwr import FedPCA, client_app, client_loadings

OPTIONS: dict[str, Any] = {"n_components": 20, "secure_aggregation": True, "bound": 16.0}
server = ServerApp()


@server.main()
def main(grid: Grid, context: Context) -> None:
    pca = FedPCA("p-cov", clients=3, **OPTIONS)
    pca.start(grid)
    fedavg = FedAvg(fraction_evaluate=0.0, min_train_nodes=3, min_available_nodes=3)
    result = fedavg.start(grid, ArrayRecord([np.zeros((21, 10))]), num_rounds=15)
    print(
        pca.model.save(f"model-{context.run_id}"),
        f"accuracy {result.train_metrics_clientapp[15]['accuracy']:.3f}",
        sep="\n",
    )


def pixels(context: Context) -> np.ndarray:
    return np.asarray(load_digits().data[int(context.node_config["partition-id"]) :: 3])


client = client_app(pixels, "p-cov", **OPTIONS)


@client.train()
def train(message: Message, context: Context) -> Message:
    (weights,) = message.content.array_records["arrays"].to_numpy_ndarrays()
    scores = client_loadings(context).part_of_scores(pixels(context))
    classes = load_digits().target[int(context.node_config["partition-id"]) :: 3]
    inputs = np.c_[scores / 10, np.ones(len(scores))]
    accuracy = np.mean((inputs @ weights).argmax(axis=1) == classes)  # of the model as it came
    for _ in range(20):  # steps of softmax regression
        odds = np.exp(inputs @ weights)
        weights = weights - inputs.T @ (odds / odds.sum(axis=1, keepdims=True) - np.eye(10)[classes]) / len(inputs)
    metrics = MetricRecord({"num-examples": len(inputs), "accuracy": float(accuracy)})
    return Message(RecordDict({"arrays": ArrayRecord([weights]), "metrics": metrics}), reply_to=message)
