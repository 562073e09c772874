"""What clients say of themselves: read where it arrives, since it may be anything, and held against the run.

All of it must fit the run and what the other clients say before anything that they reply counts.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

from flwr.common import FitRes
from numpy.typing import NDArray
from pydantic import Field as Limits

from fedpca_flwr.config.run_config import Config, Count, Name
from fedpca_flwr.errors import (
    BY_NAME,
    ConfigError,
    ContractError,
    DataError,
    FedPCAError,
    PartyError,
    QuorumError,
    together,
)

LONGEST_MESSAGE = 4000
"""Characters of the text of a client's error."""

CONTROLS = re.compile(r"[\x00-\x09\x0b-\x1f\x7f]")
"""What that text never holds: a site sends none (`fedpca_flwr.errors`), so who does runs other code."""


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

    ``fields`` are set once the payload is checked; where it is not kept, they are those of a few numbers.
    """

    party: int  # the partition
    name: str
    sender: str  # how texts name it
    rows: int
    tensors: list[bytes]
    fields: dict[str, NDArray[Any]] = field(default_factory=dict)
    taken: int = 0  # bytes of a payload that is not kept

    @property
    def nbytes(self) -> int:
        return self.taken or sum(map(len, self.tensors))

    @property
    def member(self) -> str:
        """What a federation that lasts knows it by: its name, or its partition where it has none."""
        return self.name or f"partition {self.party}"


def sender(party: int, name: str) -> str:
    """How texts name a party."""
    return f"client {party} ({name})" if name else f"client {party}"


def senders(parties: Sequence[int], names: Mapping[int, str]) -> str:
    """How texts name several, of whom some (-1) nobody knows yet."""
    return ", ".join(sender(party, names.get(party, "")) if party >= 0 else "a client" for party in parties)


def info_of(metrics: dict[str, Any]) -> PartyInfo | ErrorReport:
    """What a client says of itself, or a `ContractError`: it may be anything."""
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
    return Reply(info.partition_id, info.name, info.sender, result.num_examples, result.parameters.tensors)


MOST_FEATURES = 2**24
"""A claim beyond this is refused before anything of that size is made."""


def reported(said: Sequence[PartyInfo | ErrorReport]) -> list[FedPCAError]:
    """The errors that clients report, each as the kind that it names."""
    reports = sorted((r for r in said if isinstance(r, ErrorReport)), key=lambda r: r.partition_id)
    return [BY_NAME.get(report.error, PartyError)(_of(report.sender, report.message)) for report in reports]


def unfit(said: Sequence[PartyInfo], *, partitions: int | None, same_features: bool) -> list[FedPCAError]:
    """All that is wrong with what clients say they hold, before anything is asked of it.

    There are so many ``partitions``, or None where parties of any number may take part.
    """
    if faults := without_features(said):
        return faults
    faults = unlike(said, partitions=partitions) + (doubled(said) if partitions is not None else [])
    return faults + (of_other_width(said) if same_features else [])


def unlike(said: Sequence[PartyInfo], *, partitions: int | None) -> list[FedPCAError]:
    """What is wrong with clients whose data are not parts of the same run; ``partitions`` as of `unfit`."""
    said = sorted(said, key=lambda info: info.partition_id)
    all_simulated = all(info.simulated for info in said)
    found = [(info, text) for info in said for text in _differences(info, said[0], partitions, all_simulated)]
    named = [info for info in said if info.columns]
    if named:
        witness, others = _minority(named, "columns")
        text = (
            f"its column names, or their order, differ from those of {witness.sender}. If only their order does, name "
            "them all in the order of the model as run-config 'features'; else rename them"
        )
        found += [(info, text) for info in others]
        nameless = (
            f"its columns have no names, and those of {witness.sender} have: whether they are the same ones cannot be "
            "told. If the first line of its file holds names, it must say header=true; else it needs a file with names"
        )
        found += [(info, nameless) for info in said if not (info.columns or info.simulated)]
    return [ConfigError(_of(info.sender, text)) for info, text in found]


def _differences(info: PartyInfo, first: PartyInfo, partitions: int | None, all_simulated: bool) -> Iterator[str]:
    """In what the data of a client differ from those of the ``first``, and of others."""
    parts = f"its node-config says the rows are in {info.num_partitions} partitions, the run expects "
    if partitions is not None and info.num_partitions != partitions:
        yield f"{parts}{partitions} clients; both must be the same, or part of the rows would be left out"
    if partitions is None and info.simulated and info.num_partitions != first.num_partitions:
        yield f"{parts}{first.num_partitions}, as {first.sender} says; the parts would overlap"
    if info.simulated and not all_simulated:
        yield "its node-config names no 'data', but that of other clients does"
    if info.covariates != first.covariates:
        yield (
            f"the columns of 'adjust-for' stand elsewhere than in those of {first.sender}: name columns that all "
            "parties have, in one order"
        )


def _minority(said: Sequence[PartyInfo], what: str) -> tuple[PartyInfo, list[PartyInfo]]:
    """The first of most clients, which say the same of something, and those that say otherwise."""
    (most, _), *_ = Counter(getattr(info, what) for info in said).most_common(1)
    witness = next(info for info in said if getattr(info, what) == most)
    return witness, [info for info in said if getattr(info, what) != most]


def without_features(said: Sequence[PartyInfo]) -> list[FedPCAError]:
    """What is wrong with clients that do not say how many features their rows have, or say what cannot be."""
    faults: list[FedPCAError] = []
    for info in said:
        if not info.features:
            faults.append(ContractError(_of(info.sender, "it did not say how many features its rows have")))
        if info.features > MOST_FEATURES:
            text = f"it says {info.features} features, at most {MOST_FEATURES:,} can be"
            faults.append(ContractError(_of(info.sender, text)))
    return faults


def of_other_width(said: Sequence[PartyInfo]) -> list[FedPCAError]:
    """What is wrong with clients whose rows have not as many features as those of most."""
    witness, others = _minority(sorted(said, key=lambda info: info.partition_id), "features")
    known = f"those of {witness.sender} have {witness.features}; every party needs the same columns"
    return [DataError(_of(info.sender, f"its rows have {info.features} columns, {known}")) for info in others]


def doubled(said: Sequence[PartyInfo]) -> list[FedPCAError]:
    """Clients that claim a partition which is another's too."""
    found = sorted(party for party, times in Counter(info.partition_id for info in said).items() if times > 1)
    text = f"several clients say they are partition {found}: give each its own partition-id"
    return [QuorumError(text)] if found else []


def too_many(said: Mapping[str, PartyInfo], expected: int) -> QuorumError:
    """More clients joined than ``expected``: those that have no partition of their own, or all where each has one.

    What they say is by Flower's id of their nodes.
    """
    times = Counter(info.partition_id for info in said.values())
    extra = {cid: info for cid, info in said.items() if info.partition_id >= expected or times[info.partition_id] > 1}
    ordered = sorted((extra or said).items(), key=lambda one: (one[1].partition_id, one[0]))
    named = ", ".join(f"{info.sender} at node {cid}" for cid, info in ordered)
    return QuorumError(
        f"{len(said)} clients joined, expected exactly {expected}. Stop the nodes that are none of this run, or change "
        f"'clients': {named}"
    )


def impostors(
    nodes: Sequence[str], said: Sequence[PartyInfo | ErrorReport], seats: Mapping[str, int]
) -> list[FedPCAError]:
    """Clients that speak as another partition than they have, or as one that another client has.

    ``nodes`` are Flower's ids, and ``seats`` the partition that each said first. An error may come from a client that
    does not know which it is (-1).
    """
    owners = {party: node for node, party in seats.items()}
    faults: list[FedPCAError] = []
    for node, info in zip(nodes, said, strict=True):
        party, own = info.partition_id, seats.get(node)
        if party != -1 and (owners.get(party, node) != node or own not in (None, party)):
            who = "a client that is new in the run" if own is None else f"client {own}"
            whose = ", which is another's" if party in owners else ""
            text = f"it replies as partition {party}{whose}; a node keeps its partition-id for the whole run"
            faults.append(ContractError(_of(who, text)))
    return faults


def raise_all(faults: Sequence[FedPCAError]) -> None:
    """Raise what is wrong, all of it at once, as an error of the kind of the first."""
    if faults:
        raise together(faults)


def _of(sender: str, text: str) -> str:
    return "\n".join(f"{sender}: {line}" for line in text.split("\n"))  # no line of its own passes for another's


def columns_of(said: Sequence[PartyInfo]) -> str:
    """Digest of the column names that all agree on; empty where none has any."""
    return next((info.columns for info in said if info.columns), "")
