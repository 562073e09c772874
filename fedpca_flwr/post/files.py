"""Messages as files: Flower's own format, sealed by a digest, and read within limits.

A file is a protobuf `Message` without times, so the same question or reply has the same bytes. The message's id is the
SHA-256 of all else, and of a signed question the signature follows after a dot.
"""

import hashlib
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import ClassVar

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from flwr.app import Message
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto import message_pb2

from fedpca_flwr.config.run_config import Config, Name
from fedpca_flwr.errors import ContractError
from fedpca_flwr.state.files import atomic_file, make_folder

MAX_MESSAGE_BYTES = 2**31 - 1  # of a message in protobuf
LOCK_SECONDS = 3600.0  # for which a second command waits
SIGNATURE_PURPOSE = "fedpca question by post "


class Envelope(Config):
    """Record of a question that says of which run, and for whom, the question is."""

    public: ClassVar[bool] = False

    run: Name
    exchange: int
    site: Name
    coordinator: Name = ""
    version: Name


def path_part(text: str) -> str:
    """Return a name as a part of a path, without spaces and signs."""
    return re.sub(r"[^\w.-]+", "_", text)


def seal(message: Message, key: Ed25519PrivateKey | None = None) -> tuple[str, bytes]:
    """Return the id of a message and the content of its file, signed if there is a key."""
    sealed = message_to_proto(message)
    for name in ("src_task_id", "dst_task_id", "created_at", "ttl", "message_id"):
        sealed.metadata.ClearField(name)
    digest = hashlib.sha256(sealed.SerializeToString(deterministic=True)).hexdigest()
    signature = f".{key.sign(f'{SIGNATURE_PURPOSE}{digest}'.encode()).hex()}" if key else ""
    sealed.metadata.message_id = f"{digest}{signature}"
    return sealed.metadata.message_id, sealed.SerializeToString(deterministic=True)


def is_signed(message: Message, public_key: str) -> bool:
    """Return whether a message is signed by the private key of a public key (64 hexadecimal digits)."""
    digest, _, signature = message.metadata.message_id.partition(".")
    try:
        key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(public_key))
        key.verify(bytes.fromhex(signature), f"{SIGNATURE_PURPOSE}{digest}".encode())
    except (InvalidSignature, ValueError):
        return False
    return True


def read_message(path: Path, max_bytes: int = MAX_MESSAGE_BYTES) -> Message:
    """Read a message of at most `max_bytes`; raise ContractError for another file, or one that was cut or changed."""
    if not path.is_file():
        raise ContractError("there is no such file: check its name")
    size = path.stat().st_size
    if not 0 < size <= max_bytes:
        raise ContractError(f"it has {size:,} bytes, expected 1 to {max_bytes:,}: have the file sent again")
    try:
        message = message_from_proto(message_pb2.Message.FromString(path.read_bytes()))
        is_whole = message.metadata.message_id.partition(".")[0] == seal(message)[0]
        _ = message.has_error() or message.content
    except Exception:  # of protobuf or Flower, for bytes of somebody else
        is_whole = False
    if not is_whole:
        raise ContractError("a part of it is missing or was changed on its way: have the file sent again")
    return message


def write(path: Path, content: bytes) -> None:
    """Write a file, complete or not at all."""
    with atomic_file(path) as stream:
        stream.write(content)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Let one process at a time work in a folder, by SQLite, whose lock ends with the process on every system."""
    make_folder(folder)
    with closing(sqlite3.connect(folder / ".lock", timeout=LOCK_SECONDS, isolation_level=None)) as database:
        try:
            database.execute("BEGIN EXCLUSIVE")
        except sqlite3.OperationalError as error:
            raise ContractError(f"the folder {folder} is in use, or cannot be locked ({error}): try again") from None
        yield
