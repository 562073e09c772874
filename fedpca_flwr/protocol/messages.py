"""Questions and replies as messages of Flower's Message API, and a grid's nodes as the clients of a run.

Messages have types of their own, ``query.fedpca`` and ``train.fedpca``, so that an app's other messages never meet
them. A question has the records ``config`` (the phase, and the name of the PCA) and ``arrays`` (the fields of the
question by name); a reply has ``party`` (the party's statement), ``arrays`` and ``metrics``.
"""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, MessageType, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.common import Code, FitIns, FitRes, GetPropertiesIns, Parameters, Status
from flwr.common.constant import SUPERLINK_NODE_ID, ErrorCode, SType
from flwr.server import SimpleClientManager
from flwr.server.client_proxy import ClientProxy
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity
from typing_extensions import override

from fedpca_flwr.model.loadings import Loadings
from fedpca_flwr.protocol.client import PartyClient, RefusingClient
from fedpca_flwr.protocol.payload import read_array, write_array
from fedpca_flwr.protocol.quorum import PCA_KEY, require_pca_name

ACTION = "fedpca"
"""Action name of this project's messages, by which Flower selects a function of the app."""

QUERY = f"{MessageType.QUERY}.{ACTION}"
TRAIN = f"{MessageType.TRAIN}.{ACTION}"

CLASSIC_RECORDS = ("fitins.config", "getpropertiesins.config")
"""Records in which Flower's classic server sends the config of a question."""


def identify_run(grid: Grid) -> None:
    """Set the run of the messages that this process makes, as Flower's ServerApp process does, unless set already."""
    try:
        is_known = TaskIdentity.run_id == grid.run.run_id
    except RuntimeError:  # not set
        is_known = False
    if not is_known:
        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, grid.run.run_id, SUPERLINK_NODE_ID


class OwnGrid(Grid):
    """Base of grids without a SuperLink, whose replies are there once messages are pushed."""

    def __init__(self, run: Run) -> None:
        self._run = run
        identify_run(self)

    @override
    def set_run(self, run: Run) -> None:
        self._run = run

    @property
    @override
    def run(self) -> Run:
        return self._run

    @override
    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        return Message(content, dst_node_id, message_type, group_id=group_id, ttl=ttl)

    @override
    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        return self.pull_messages(self.push_messages(messages))


class Node(ClientProxy):
    """Name of a grid's node. A question goes to all nodes together (`GridNodes.ask_properties`, `question_message`)."""

    @override
    def fit(self, *arguments: Any, **keywords: Any) -> Any:
        raise NotImplementedError

    get_properties = get_parameters = evaluate = reconnect = fit  # none of these is asked


class GridNodes(SimpleClientManager):
    """Nodes of a grid, which lists the nodes that are connected at the time."""

    def __init__(self, grid: Grid) -> None:
        super().__init__()
        self.grid = grid
        identify_run(grid)

    @override
    def all(self) -> dict[str, ClientProxy]:
        return {str(node_id): Node(str(node_id)) for node_id in self.grid.get_node_ids()}

    def ask_properties(self, clients: Sequence[ClientProxy], question: GetPropertiesIns, timeout: float) -> list[Any]:
        """Return each node's statement, unchecked, or the exception in its place; all nodes are asked at once."""
        messages = [
            Message(RecordDict({"config": ConfigRecord(dict(question.config))}), int(client.cid), QUERY, ttl=timeout)
            for client in clients
        ]
        answers: dict[str, Any] = {}
        silence: Exception = TimeoutError("no reply within its deadline")
        try:
            for reply in self.grid.send_and_receive(messages, timeout=timeout):
                answers[str(reply.metadata.src_node_id)] = _statement(reply)
        except Exception as failure:  # of the grid
            silence = failure
        return [answers.get(client.cid, silence) for client in clients]


def question_message(node: str, question: FitIns, fields: Sequence[str], server_round: int, ttl: float) -> Message:
    """Return the message of a question to a node; `fields` names its arrays, and the reply is due in `ttl` seconds."""
    named = zip(fields, question.parameters.tensors, strict=True)
    arrays = ArrayRecord({name: Array("", (), SType.NUMPY, data) for name, data in named})
    content = RecordDict({"arrays": arrays, "config": ConfigRecord(dict(question.config))})
    return Message(content, int(node), TRAIN, group_id=str(server_round), ttl=ttl)


def fit_result(reply: Message) -> FitRes:
    """Return a node's reply, unchecked; raise RuntimeError if its app failed or is silent, KeyError without records."""
    # each record by its name: a view of one kind of records, as `array_records`, would hold the arrays in a circle of
    # references, until the collector comes
    content: Any = _content(reply)
    tensors = [array.data for array in content["arrays"].values()]
    rows: Any = content["metrics"]["num-examples"]
    party: dict[str, Any] = dict(content["party"])
    return FitRes(Status(Code.OK, ""), Parameters(tensors, SType.NUMPY), rows, party)


def answer_message(message: Message, client: PartyClient) -> tuple[Message, Loadings | None]:
    """Return a client's reply to a `QUERY` or `TRAIN` message, and, after the last question, the party's loadings."""
    config: dict[str, Any] = dict(question_config(message) or {})
    if message.metadata.message_type == QUERY:
        statement: dict[str, Any] = client.get_properties(config)
        return Message(RecordDict({"party": ConfigRecord(statement)}), reply_to=message), None
    request = [read_array(array.data) for array in message.content.array_records.get("arrays", {}).values()]
    responder = client.responder(config)
    arrays, rows, party = responder.fit(request, config)
    names = responder.reply_fields(str(config["phase"])) if arrays else []  # none beside the report of an error
    named = zip(names, arrays, strict=True)
    record = ArrayRecord({name: Array(str(a.dtype), a.shape, SType.NUMPY, write_array(a)) for name, a in named})
    metrics = MetricRecord({"num-examples": rows})
    content = RecordDict({"arrays": record, "metrics": metrics, "party": ConfigRecord(dict(party))})
    return Message(content, reply_to=message), responder.loadings


def refusal_message(message: Message, context: Context, client: RefusingClient) -> Message:
    """Return a refusal as the reply to any message: as a report to a question of this project, else as an error."""
    if message.metadata.message_type in (QUERY, TRAIN):
        records: dict[str, Any] = {"party": ConfigRecord(client.report)}
        if message.metadata.message_type == TRAIN:
            records |= {"arrays": ArrayRecord(), "metrics": MetricRecord({"num-examples": 0})}
        return Message(RecordDict(records), reply_to=message)
    if question_config(message) is not None:
        with suppress(Exception):  # the question may hold anything
            return ClientApp(lambda _: client.to_client())(message, context)
    return Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, str(client.report["message"])), reply_to=message)


def asks_for_arrays(message: Message) -> bool:
    """Return whether a message of Flower's classic server is a question of a round, and not for a statement."""
    return CLASSIC_RECORDS[0] in message.content.config_records


def question_config(message: Message) -> ConfigRecord | None:
    """Return the config of a question in either of Flower's ways; None for a message that is not of this project."""
    records = message.content.config_records
    if message.metadata.message_type in (QUERY, TRAIN):
        return records.get("config") or ConfigRecord()
    return next((records[name] for name in CLASSIC_RECORDS if PCA_KEY in records.get(name, {})), None)


def pca_name(config: ConfigRecord) -> str:
    """Return the name of the PCA that a question is for; raise ConfigError if it has none or no valid one."""
    return require_pca_name(config.get(PCA_KEY))


def _statement(reply: Message) -> Any:
    """Return a node's statement, unchecked, or the exception that came in its place."""
    try:
        return dict(_content(reply).config_records["party"])
    except Exception as failure:  # of the node, its app, or a reply without our records
        return failure


def _content(reply: Message) -> RecordDict:
    """Return the records of a reply; raise RuntimeError if an error came in its place."""
    if reply.has_error():
        raise RuntimeError(reply.error.reason)
    return reply.content
