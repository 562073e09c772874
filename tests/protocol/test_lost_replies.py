"""A site answers a question that comes again with the same bytes, as its reply may have been lost on the way."""

import numpy as np
import pytest

from fedpca_flwr import FedPCA, FedPCAError, LocalGrid, PCAModel, client_app
from fedpca_flwr.protocol import server
from fedpca_flwr.site_app import app
from fedpca_flwr.strategies import METHODS
from tests.harness import Clock, differences, identities, sites_of
from tests.refusals import refused

ROWS = [np.random.default_rng(i).normal(size=(40 + 10 * i, 4)) * [4, 3, 2, 1] for i in range(3)]
SECURE = {"secure_aggregation": True, "bound": 100.0}


class LossyGrid(LocalGrid):
    """Grid of sites that loses the first replies, as a SuperLink whose database is locked."""

    losses: int

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.replies = []
        """Every reply, lost or not."""

    def send_and_receive(self, messages, *, timeout=None):
        return server.ReplyPoller(self).send_and_receive(messages, timeout=timeout)

    def pull_messages(self, message_ids):
        replies = []
        for reply in super().pull_messages(message_ids):
            self.replies.append(reply)
            if self.losses and reply.metadata.message_type.startswith("train"):
                self.losses -= 1
            else:
                replies.append(reply)
        return replies


def grid_after(tmp_path, method, losses, **options) -> tuple[LossyGrid, PCAModel]:
    """Return the grid and the model of a run at three sites with files and journals."""
    policy = {"min-rows": 5, "may-show": "distribution"}
    policy |= {"epsilon-budget": 9.0} if method.startswith("dp-pca") else {}
    nodes = sites_of(tmp_path / f"{method} {losses}", ROWS, **policy)
    nodes = [node | keys for node, keys in zip(nodes, identities(3), strict=True)]
    keys = {"n_components": 2, "clients": 3, **options}
    strategy = FedPCA(method, **keys)
    values = {key.replace("_", "-"): value for key, value in keys.items()}
    grid = LossyGrid(app, nodes, METHODS.run_config({**values, "method": method}))
    grid.losses = losses
    strategy.start(grid)
    assert not grid.losses
    return grid, strategy.model


@pytest.mark.parametrize(
    ("method", "options"),
    [("p-cov", {}), ("p-cov", SECURE), ("p-cov", SECURE | {"survivors": 3}), ("sub-it", {}), ("adaptive", {})],
    ids=str,
)
def test_lost_replies_cost_time_and_no_bit(method, options, tmp_path, monkeypatch):
    monkeypatch.setattr(server, "time", Clock())
    (_, lossy), (_, whole) = (grid_after(tmp_path, method, losses, **options) for losses in (4, 0))
    assert not differences(lossy, whole)


def test_noise_is_drawn_once(tmp_path, monkeypatch):
    """A second draw for the same question would halve the variance of the noise, at no budget."""
    monkeypatch.setattr(server, "time", Clock())
    grid, _ = grid_after(tmp_path, "dp-pca epsilon=5.0", 3)
    noisy = [
        (reply.metadata.src_node_id, reply.metadata.group_id, *(array.data for array in arrays.values()))
        for reply in grid.replies
        if "count" not in (arrays := reply.content.array_records.get("arrays", {})) and arrays
    ]
    assert len(noisy) - 3 == len(set(noisy)) == len({reply[:2] for reply in noisy})


def test_a_grid_that_fails_while_replies_are_awaited_is_named(monkeypatch):
    """The fault: the connection's own error came through, and nothing said whose it was."""
    monkeypatch.setattr(server, "time", Clock())
    grid = LossyGrid(client_app(lambda context: ROWS[context.node_config["partition-id"]], n_components=2), 3)
    grid.losses, pull = 0, grid.pull_messages

    def fail_in_a_round(ids):
        if any(reply.metadata.message_type.startswith("train") for reply in grid.replies):
            raise ConnectionError("no such host")
        grid.losses = 3
        return pull(ids)

    grid.pull_messages = fail_in_a_round
    with refused(FedPCAError, "ConnectionError", "no such host"):
        FedPCA("p-cov", n_components=2, clients=3).start(grid)
