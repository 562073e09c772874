"""Flower's grid without Flower's network."""

import uuid
from collections.abc import Callable
from types import SimpleNamespace

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid


class GridOfThisProcess(Grid):
    """Flower's messages, handed to a ClientApp in this process."""

    def __init__(
        self, parties: int, app: ClientApp, node: Callable[[int], dict] = lambda party: {}, **run_config
    ) -> None:
        self.app = app
        self.contexts = {
            party + 1: Context(1, party + 1, self._node_config(party, parties) | node(party), RecordDict(), run_config)
            for party in range(parties)
        }
        self.replies: dict[str, Message] = {}

    @staticmethod
    def _node_config(party: int, parties: int) -> dict:
        return {"partition-id": party, "num-partitions": parties}

    def set_run(self, run_id):
        pass

    @property
    def run(self):
        return SimpleNamespace(run_id=1)

    def create_message(self, content, message_type, dst_node_id, group_id, ttl=None):
        return Message(content, dst_node_id, message_type, group_id=group_id)

    def get_node_ids(self):
        return list(self.contexts)

    def push_messages(self, messages):
        ids = []
        for message in messages:
            message.metadata.__dict__["_message_id"] = ids.append(str(uuid.uuid4())) or ids[-1]
            self.replies[ids[-1]] = self.app(message, self.contexts[message.metadata.dst_node_id])
        return ids

    def pull_messages(self, message_ids):
        return [self.replies.pop(one) for one in list(message_ids) if one in self.replies]

    def send_and_receive(self, messages, *, timeout=None):
        return self.pull_messages(self.push_messages(messages))
