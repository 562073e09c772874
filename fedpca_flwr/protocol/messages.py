"""What a client says, checked where it arrives: it may be anything."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Annotated, Any

import numpy as np
from flwr.common import FitRes
from numpy.typing import NDArray
from pydantic import Field as Limits

from fedpca_flwr.config import Config, Count, Name
from fedpca_flwr.errors import ConfigError, ContractError

LONGEST_MESSAGE = 4000
"""Characters of the text of a client's error."""

CONTROLS = re.compile(r"[\x00-\x09\x0b-\x1f\x7f]")
"""What that text never holds: a site sends none (`fedpca_flwr.foreign_text`), so who does runs other code."""


class PartyInfo(Config):
    """What a client says of itself in every reply."""

    public = False

    partition_id: Annotated[int, Limits(ge=0)]
    num_partitions: Count
    name: Name = ""
    columns: Annotated[str, Limits(max_length=64, pattern=r"^[0-9a-f]*$")] = ""
    covariates: Annotated[str, Limits(max_length=4096, pattern=r"^[0-9 ]*$")] = ""
    simulated: bool
    features: Annotated[int, Limits(ge=0)] = 0

    @property
    def sender(self) -> str:
        return sender(self.partition_id, self.name)


class ErrorReport(Config):
    """What a client says instead when something is wrong; partition -1: it does not know which it is."""

    public = False

    partition_id: Annotated[int, Limits(ge=-1)]
    name: Name = ""
    error: Annotated[str, Limits(max_length=64)]
    message: Annotated[str, Limits(max_length=LONGEST_MESSAGE)]

    @property
    def sender(self) -> str:
        return sender(self.partition_id, self.name) if self.partition_id >= 0 else "a client"


@dataclass
class Reply:
    """One party's answer to one question.

    Attributes
    ----------
    party : int
        The partition.
    name : str
    rows : int
    tensors : list of bytes
    fields : dict
        Set once the payload is checked; where it is not kept, those of a few numbers.
    taken : int
        Bytes of a payload that is not kept.
    """

    party: int
    name: str
    rows: int
    tensors: list[bytes]
    fields: dict[str, NDArray[Any]] = field(default_factory=dict)
    taken: int = 0

    @property
    def nbytes(self) -> int:
        return self.taken or sum(map(len, self.tensors))

    @property
    def sender(self) -> str:
        return sender(self.party, self.name)

    @property
    def member(self) -> str:
        """What a federation that lasts knows it by: its name, or its partition where it has none."""
        return self.name or f"partition {self.party}"


def sender(party: int, name: str) -> str:
    """How texts name a party."""
    return f"client {party} ({name})" if name else f"client {party}"


def senders(parties: Sequence[int]) -> str:
    """How texts name several, of whom some (-1) nobody knows yet."""
    return ", ".join(f"client {party}" if party >= 0 else "a client" for party in parties)


def info_of(metrics: dict[str, Any]) -> PartyInfo | ErrorReport:
    """What a client says of itself, checked: it may be anything.

    Raises
    ------
    ContractError
    """
    try:
        info = (ErrorReport if "error" in metrics else PartyInfo).parse(metrics, source="a client's reply")
    except ConfigError as error:
        raise ContractError(f"{error}; do all parties run the same version?") from None
    if isinstance(info, ErrorReport) and CONTROLS.search(info.message):
        raise ContractError(
            f"{info.sender}: the message of its error holds control characters, expected text and line feeds; does it "
            "run the same version?"
        )
    return info


def reply_of(result: FitRes, info: PartyInfo) -> Reply:
    """A party's reply, and what it says of itself, before its arrays are read."""
    if result.num_examples < 1:
        raise ContractError(f"{info.sender}: it says that it has {result.num_examples} rows, expected at least 1")
    return Reply(info.partition_id, info.name, result.num_examples, result.parameters.tensors)


def arrays_in(reply: Reply) -> list[NDArray[Any]]:
    """The arrays of a reply, as views of the message.

    Raises
    ------
    ContractError
    """
    try:
        return [_view(tensor) for tensor in reply.tensors]
    except Exception:  # NumPy evaluates the header as a Python literal, which can fail in many ways
        raise ContractError(f"{reply.sender}: its reply does not hold whole arrays") from None


def _view(tensor: bytes) -> NDArray[Any]:
    """The array in a message of Flower's (NumPy's own file format), without a copy and without pickle."""
    start = 10 + int.from_bytes(tensor[8:10], "little")
    shape, fortran, dtype = _header(tensor[:start])
    return np.frombuffer(tensor, dtype, offset=start).reshape(shape, order="F" if fortran else "C")


@lru_cache(maxsize=64)  # a party's arrays begin as those of the others
def _header(text: bytes) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    stream = io.BytesIO(text)
    if np.lib.format.read_magic(stream) != (1, 0):  # what NumPy writes for plain arrays
        raise ValueError("not the file format of plain arrays")
    shape, fortran, dtype = np.lib.format.read_array_header_1_0(stream)
    if dtype.hasobject:
        raise ValueError("objects are not accepted")
    return shape, fortran, dtype
