"""A site's half of a run by post: a question from a file, which the site's app answers as on a network."""

from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from flwr.app import Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.serde import recorddict_from_proto, recorddict_to_proto
from flwr.proto import recorddict_pb2

from fedpca_flwr.config.node_config import NodeConfig
from fedpca_flwr.errors import ConfigError, ContractError, FedPCAError, excerpt
from fedpca_flwr.post import files
from fedpca_flwr.protocol.client import PENDING_KEY
from fedpca_flwr.protocol.journal import PostContext
from fedpca_flwr.protocol.messages import QUERY, question_config
from fedpca_flwr.strategies import FACTORY

STATE_FOLDER = Path("post")  # beside the site's file, for what lasts from question to question
ENVELOPE_BYTES = 2**21  # which a question may have more than a reply
LIFETIME_SECONDS = 1e12  # of a message without a deadline
OWN_RECORDS = ("post", "run-config")  # of a question, which a network does not send


class PostedQuestion:
    """Question to a site from a file, which anybody may have written.

    Raise ContractError or ConfigError if the file is damaged, for another site, of another version, or not signed.
    """

    def __init__(self, path: Path, node: NodeConfig) -> None:
        self.node, version = node, metadata.version("fedpca-flwr")
        try:
            self.message = files.read_message(path, node.max_reply_bytes + ENVELOPE_BYTES)
            content = self.message.content
            envelope, self.run_config = (dict[str, Any](content.config_records.get(name, {})) for name in OWN_RECORDS)
            self.envelope = files.Envelope.parse(envelope, source="what it says of its run")
            if node.coordinator_key and not files.is_signed(self.message, node.coordinator_key):
                raise ContractError("it is not signed with this site's 'coordinator-key': ask the coordinator")
            if node.name and self.envelope.site != node.name:
                raise ContractError(f"it is for '{self.envelope.site}': take it there, or let both have one name")
            if self.envelope.version.split(".")[:2] != version.split(".")[:2]:
                raise ContractError(f"it is of fedpca-flwr {self.envelope.version}, and this site has {version}")
        except (ContractError, ConfigError) as error:
            raise type(error)(f"{path}, question to {node.name or 'this site'}: {error}") from None
        self.message.content = RecordDict({name: content[name] for name in content if name not in OWN_RECORDS})
        self.message.metadata.__dict__["_ttl"] = LIFETIME_SECONDS

    def text(self) -> str:
        """Return who asks what, by the question's own words, and what the server learns in such a run."""
        about, envelope = self.message.metadata, self.envelope
        config: Mapping[str, Any] = question_config(self.message) or {}
        try:
            strategy = FACTORY.strategy(self.run_config)
            whose = "this site" if strategy.sees_single_replies else "all sites together"
            learns = f"of {whose}: {strategy.server_learns}"
        except FedPCAError:
            learns = "nothing, because these settings are not allowed"
        proof = "proved by its signature" if self.node.coordinator_key else "not proved"
        settings = ", ".join(f"{key}={value!r}" for key, value in self.run_config.items())
        return (
            f"  from           {envelope.coordinator} ({proof})\n"
            f"  run            {envelope.run}, {about.run_id}, exchange {envelope.exchange}\n"
            f"  settings       {excerpt(settings, 2000)}\n"
            f"  asks for       {excerpt(str(config.get('phase', about.message_type)))}\n"
            f"  server learns  {learns}"
        )

    def answer(self, app: ClientApp, node_config: dict[str, Any]) -> Message:
        """Return the reply to the question: the stored one, or the app's; raise ContractError if none was finished."""
        about, state = self.message.metadata, RecordDict()
        folder = STATE_FOLDER / f"{about.run_id}-{self.node.partition_id}"
        stored, state_file = folder / f"{about.message_id[:64]}.reply", folder / "state"
        with files.locked(folder):
            if stored.exists():
                return files.read_message(stored)
            if state_file.exists():
                state = recorddict_from_proto(recorddict_pb2.RecordDict.FromString(state_file.read_bytes()))
            context = PostContext(about.run_id, about.dst_node_id, node_config, state, self.run_config)
            reply = app(self.message, context)
            files.write(state_file, recorddict_to_proto(context.state).SerializeToString())
            if PENDING_KEY in statement_of(reply):
                rule = "computes each answer once: begin a new run"
                raise ContractError(f"this site was stopped while it computed the answer, and {rule}")
            if about.message_type != QUERY and "error" not in statement_of(reply):  # a statement may be put right
                files.write(stored, files.seal(reply)[1])
        return reply


def reply_text(reply: Message) -> str:
    """Return what a reply would send, in words and bytes."""
    arrays = {name: array.shape for record in reply.content.array_records.values() for name, array in record.items()}
    words = [f"{name} ({' x '.join(map(str, shape)) or 'a number'})" for name, shape in arrays.items()]
    words += [f"{key}={value!r}" for key, value in statement_of(reply).items()]
    return f"{', '.join(words)}; {len(files.seal(reply)[1]):,} bytes"


def statement_of(reply: Message) -> dict[str, Any]:
    """Return what a reply says of the site, or the report of an error; empty for another app."""
    return dict(reply.content.config_records.get("party", {}))
