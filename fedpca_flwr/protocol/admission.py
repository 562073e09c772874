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
    ERRORS_BY_NAME,
    ConfigError,
    ContractError,
    DataError,
    FedPCAError,
    PartyError,
    QuorumError,
    combine_errors,
)

MAX_MESSAGE_CHARACTERS = 4000
"""Characters of the text of a client's error."""

CONTROL_CHARACTERS = re.compile(r"[\x00-\x09\x0b-\x1f\x7f]")
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
        return party_label(self.partition_id, self.name)


class ErrorReport(Config):
    """What a client says instead when something is wrong; partition -1: it does not know which it is."""

    public = False

    partition_id: Annotated[int, Limits(ge=-1)]
    name: Name = ""
    error: Annotated[str, Limits(max_length=64)]
    message: Annotated[str, Limits(max_length=MAX_MESSAGE_CHARACTERS)]

    @property
    def sender(self) -> str:
        return party_label(self.partition_id, self.name) if self.partition_id >= 0 else "a client"


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
    consumed_bytes: int = 0  # bytes of a payload that is not kept

    @property
    def nbytes(self) -> int:
        return self.consumed_bytes or sum(map(len, self.tensors))

    @property
    def member(self) -> str:
        """What a federation that lasts knows it by: its name, or its partition where it has none."""
        return self.name or f"partition {self.party}"


def party_label(party: int, name: str) -> str:
    """How texts name a party."""
    return f"client {party} ({name})" if name else f"client {party}"


def party_labels(parties: Sequence[int], names: Mapping[int, str]) -> str:
    """How texts name several, of whom some (-1) nobody knows yet."""
    return ", ".join(party_label(party, names.get(party, "")) if party >= 0 else "a client" for party in parties)


def parse_info(metrics: dict[str, Any]) -> PartyInfo | ErrorReport:
    """What a client says of itself, or a `ContractError`: it may be anything."""
    try:
        info = (ErrorReport if "error" in metrics else PartyInfo).parse(metrics, source="a client's reply")
    except ConfigError as error:
        raise ContractError(f"{error}; do all parties run the same version?") from None
    if isinstance(info, ErrorReport) and CONTROL_CHARACTERS.search(info.message):
        raise ContractError(
            f"{info.sender}: the message of its error holds control characters, expected text and line feeds; does it "
            "run the same version?"
        )
    return info


def make_reply(result: FitRes, info: PartyInfo) -> Reply:
    """A party's reply, and what it says of itself, before its arrays are read."""
    if result.num_examples < 1:
        raise ContractError(f"{info.sender}: it says that it has {result.num_examples} rows, expected at least 1")
    return Reply(info.partition_id, info.name, info.sender, result.num_examples, result.parameters.tensors)


MAX_FEATURES = 2**24
"""A claim beyond this is refused before anything of that size is made."""


def reported_errors(infos: Sequence[PartyInfo | ErrorReport]) -> list[FedPCAError]:
    """The errors that clients report, each as the kind that it names."""
    reports = sorted((r for r in infos if isinstance(r, ErrorReport)), key=lambda r: r.partition_id)
    return [
        ERRORS_BY_NAME.get(report.error, PartyError)(_prefix_lines(report.sender, report.message)) for report in reports
    ]


def admission_faults(infos: Sequence[PartyInfo], *, partitions: int | None, same_features: bool) -> list[FedPCAError]:
    """All that is wrong with what clients say they hold, before anything is asked of it.

    There are so many ``partitions``, or None where parties of any number may take part.
    """
    if faults := feature_claim_faults(infos):
        return faults
    faults = mismatch_faults(infos, partitions=partitions) + (duplicate_faults(infos) if partitions is not None else [])
    return faults + (width_faults(infos) if same_features else [])


def mismatch_faults(infos: Sequence[PartyInfo], *, partitions: int | None) -> list[FedPCAError]:
    """What is wrong with clients whose data are not parts of the same run; ``partitions`` as of `unfit`."""
    infos = sorted(infos, key=lambda info: info.partition_id)
    all_simulated = all(info.simulated for info in infos)
    mismatches = [(info, text) for info in infos for text in _mismatch_texts(info, infos[0], partitions, all_simulated)]
    infos_with_names = [info for info in infos if info.columns]
    if infos_with_names:
        witness, dissenters = _disagreeing_parties(infos_with_names, "columns")
        text = (
            f"its column names, or their order, differ from those of {witness.sender}. If only their order does, name "
            "them all in the order of the model as run-config 'features'; else rename them"
        )
        mismatches += [(info, text) for info in dissenters]
        no_names_text = (
            f"its columns have no names, and those of {witness.sender} have: whether they are the same ones cannot be "
            "told. If the first line of its file holds names, it must say header=true; else it needs a file with names"
        )
        mismatches += [(info, no_names_text) for info in infos if not (info.columns or info.simulated)]
    return [ConfigError(_prefix_lines(info.sender, text)) for info, text in mismatches]


def _mismatch_texts(info: PartyInfo, first: PartyInfo, partitions: int | None, all_simulated: bool) -> Iterator[str]:
    """In what the data of a client differ from those of the ``first``, and of others."""
    partitions_text = f"its node-config says the rows are in {info.num_partitions} partitions, the run expects "
    if partitions is not None and info.num_partitions != partitions:
        yield f"{partitions_text}{partitions} clients; both must be the same, or part of the rows would be left out"
    if partitions is None and info.simulated and info.num_partitions != first.num_partitions:
        yield f"{partitions_text}{first.num_partitions}, as {first.sender} says; the parts would overlap"
    if info.simulated and not all_simulated:
        yield "its node-config names no 'data', but that of other clients does"
    if info.covariates != first.covariates:
        yield (
            f"the columns of 'adjust-for' stand elsewhere than in those of {first.sender}: name columns that all "
            "parties have, in one order"
        )


def _disagreeing_parties(infos: Sequence[PartyInfo], attribute: str) -> tuple[PartyInfo, list[PartyInfo]]:
    """The first of most clients, which say the same of something, and those that say otherwise."""
    (common_value, _), *_ = Counter(getattr(info, attribute) for info in infos).most_common(1)
    witness = next(info for info in infos if getattr(info, attribute) == common_value)
    return witness, [info for info in infos if getattr(info, attribute) != common_value]


def feature_claim_faults(infos: Sequence[PartyInfo]) -> list[FedPCAError]:
    """What is wrong with clients that do not say how many features their rows have, or say what cannot be."""
    faults: list[FedPCAError] = []
    for info in infos:
        if not info.features:
            faults.append(ContractError(_prefix_lines(info.sender, "it did not say how many features its rows have")))
        if info.features > MAX_FEATURES:
            text = f"it says {info.features} features, at most {MAX_FEATURES:,} can be"
            faults.append(ContractError(_prefix_lines(info.sender, text)))
    return faults


def width_faults(infos: Sequence[PartyInfo]) -> list[FedPCAError]:
    """What is wrong with clients whose rows have not as many features as those of most."""
    witness, dissenters = _disagreeing_parties(sorted(infos, key=lambda info: info.partition_id), "features")
    expected_text = f"those of {witness.sender} have {witness.features}; every party needs the same columns"
    return [
        DataError(_prefix_lines(info.sender, f"its rows have {info.features} columns, {expected_text}"))
        for info in dissenters
    ]


def duplicate_faults(infos: Sequence[PartyInfo]) -> list[FedPCAError]:
    """Clients that claim a partition which is another's too."""
    partitions = sorted(party for party, times in Counter(info.partition_id for info in infos).items() if times > 1)
    text = f"several clients say they are partition {partitions}: give each its own partition-id"
    return [QuorumError(text)] if partitions else []


def surplus_error(infos: Mapping[str, PartyInfo], expected: int) -> QuorumError:
    """More clients joined than ``expected``: those that have no partition of their own, or all where each has one.

    What they say is by Flower's id of their nodes.
    """
    times = Counter(info.partition_id for info in infos.values())
    extra = {cid: info for cid, info in infos.items() if info.partition_id >= expected or times[info.partition_id] > 1}
    ordered = sorted((extra or infos).items(), key=lambda entry: (entry[1].partition_id, entry[0]))
    client_list = ", ".join(f"{info.sender} at node {cid}" for cid, info in ordered)
    return QuorumError(
        f"{len(infos)} clients joined, expected exactly {expected}. Stop the nodes that are none of this run, or change "
        f"'clients': {client_list}"
    )


def impersonation_faults(
    nodes: Sequence[str], infos: Sequence[PartyInfo | ErrorReport], partition_by_node: Mapping[str, int]
) -> list[FedPCAError]:
    """Clients that speak as another partition than they have, or as one that another client has.

    ``nodes`` are Flower's ids, and ``seats`` the partition that each said first. An error may come from a client that
    does not know which it is (-1).
    """
    owners = {party: node for node, party in partition_by_node.items()}
    faults: list[FedPCAError] = []
    for node, info in zip(nodes, infos, strict=True):
        party, first_partition = info.partition_id, partition_by_node.get(node)
        if party != -1 and (owners.get(party, node) != node or first_partition not in (None, party)):
            who = "a client that is new in the run" if first_partition is None else f"client {first_partition}"
            owner_text = ", which is another's" if party in owners else ""
            text = f"it replies as partition {party}{owner_text}; a node keeps its partition-id for the whole run"
            faults.append(ContractError(_prefix_lines(who, text)))
    return faults


def raise_all(faults: Sequence[FedPCAError]) -> None:
    """Raise what is wrong, all of it at once, as an error of the kind of the first."""
    if faults:
        raise combine_errors(faults)


def _prefix_lines(sender: str, text: str) -> str:
    return "\n".join(f"{sender}: {line}" for line in text.split("\n"))  # no line of its own passes for another's


def agreed_columns(infos: Sequence[PartyInfo]) -> str:
    """Digest of the column names that all agree on; empty where none has any."""
    return next((info.columns for info in infos if info.columns), "")
