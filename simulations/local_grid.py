"""`LocalGrid`: a Flower grid whose nodes are in this process, for tests and notebooks."""

import secrets
import uuid
from collections.abc import Iterable, Mapping, Sequence
from threading import Lock
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.constant import ErrorCode
from flwr.serverapp import ServerApp
from flwr.supercore.run import Run
from typing_extensions import override

from fedpca_flwr.errors import ConfigError
from fedpca_flwr.protocol.journal import SimulatedContext
from fedpca_flwr.protocol.messages import OwnGrid


class LocalGrid(OwnGrid):
    """Grid that passes every message to a ClientApp in this process, so an app runs without Ray or a SuperLink.

    The grid works with any strategy of Flower's Message API and any ClientApp. A node keeps its state from message to
    message, as a SuperNode does.

    Parameters
    ----------
    app : ClientApp
        ClientApp of all nodes.
    nodes : int or sequence of mappings
        Number of simulated nodes; or the node-configs of sites, to which all rules of real sites apply. The grid adds
        ``partition-id`` and ``num-partitions`` to a node-config without them.
    run_config : mapping, optional
        Run-config of the app.

    Examples
    --------
    >>> import numpy as np
    >>> from fedpca_flwr import FedPCA, LocalGrid, client_app
    >>> rows = np.random.default_rng(0).normal(size=(90, 4))
    >>> app = client_app(lambda context: rows[context.node_config["partition-id"] :: 3], "p-cov", n_components=2)
    >>> FedPCA("p-cov", n_components=2, clients=3).start(LocalGrid(app, 3)).arrays["components"].shape
    (2, 4)
    """

    def __init__(
        self, app: ClientApp, nodes: int | Sequence[Mapping[str, Any]], run_config: Mapping[str, Any] | None = None
    ) -> None:
        node_configs: list[Mapping[str, Any]] = [{}] * nodes if isinstance(nodes, int) else list(nodes)
        kind = SimulatedContext if isinstance(nodes, int) else Context
        if not node_configs:
            raise ConfigError(f"nodes is {nodes!r}: a grid needs at least one node")
        self.app = app
        self.run_config = dict(run_config or {})
        super().__init__(Run.create_empty(secrets.randbits(62)))
        self._replies: dict[str, Message] = {}
        self._lock = Lock()  # nodes answer in turn, whatever thread asks
        self.contexts: dict[int, Context] = {}
        for number, own in enumerate(node_configs):
            node_config = {"partition-id": number, "num-partitions": len(node_configs), **own}
            self.contexts[number + 1] = kind(self._run.run_id, number + 1, node_config, RecordDict(), self.run_config)

    def __repr__(self) -> str:
        """Write the app and the number of nodes."""
        app = repr(self.app) if type(self.app).__repr__ is not object.__repr__ else type(self.app).__name__
        return f"{type(self).__name__}({app}, {len(self.contexts)} nodes)"

    def run_app(self, app: ServerApp) -> None:
        """Run a ServerApp to its end.

        Parameters
        ----------
        app : ServerApp
            The ServerApp, which has the grid's run-config.
        """
        app(self, Context(self._run.run_id, 0, {}, RecordDict(), self.run_config))

    @override
    def get_node_ids(self) -> Iterable[int]:
        return list(self.contexts)

    @override
    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        ids = []
        for message in messages:
            message_id = str(uuid.uuid4())
            message.metadata.__dict__["_message_id"] = message_id  # as Flower's own grids set it
            self._replies[message_id] = self._answer(message)
            ids.append(message_id)
        return ids

    @override
    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return [self._replies.pop(message_id) for message_id in list(message_ids) if message_id in self._replies]

    def _answer(self, message: Message) -> Message:
        """Return a node's reply, or an error that names the exception of its app as a SuperNode does."""
        try:
            with self._lock:
                return self.app(message, self.contexts[message.metadata.dst_node_id])
        except Exception as error:
            reason = f"{type(error)}:<'{error}'>"
            return Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason), reply_to=message)
