"""Statements of clients about themselves: parsed where they arrive, and compared with the run and with each other."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from operator import attrgetter
from typing import Annotated, Any, ClassVar

from flwr.common import FitRes
from numpy.typing import NDArray
from pydantic import Field as Limits

from fedpca_flwr.config.run_config import Config, Count, Name
from fedpca_flwr.data.table import names_digest
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
from fedpca_flwr.maths.description import represent_by_shapes

MAX_MESSAGE_CHARACTERS = 4000
"""Largest number of characters of a client's error text."""

MAX_NAMES_CHARACTERS = 2**28

MESSAGES = 4
"""Version of the messages, which grows with each change of a statement, a question or a reply."""

CONTROL_CHARACTERS = re.compile(r"[\x00-\x09\x0b-\x1f\x7f]")
"""Characters that a site's error text never contains (`fedpca_flwr.errors`)."""


class PartyInfo(Config):
    """Statement of a client about itself in every reply: partition, name, columns and features.

    `columns` is the digest of the column names, empty if there are none, and `names` are these, with a NUL between two,
    if the site shows them. `covariates` are the positions of the columns of `adjust-for`, separated by spaces.
    `simulated` says that the rows are a partition of the run's data set. `features` is 0 if the client does not say.
    `journal` is a keyed digest of the journal's end, with the last reply. `messages` is `MESSAGES` at the site, or 0.
    """

    public = False
    long_keys: ClassVar[Mapping[str, int]] = {"names": MAX_NAMES_CHARACTERS}

    partition_id: Annotated[int, Limits(ge=0)]
    num_partitions: Count
    name: Name = ""
    columns: Annotated[str, Limits(max_length=64, pattern=r"^[0-9a-f]*$")] = ""
    covariates: Annotated[str, Limits(max_length=4096, pattern=r"^[0-9 ]*$")] = ""
    simulated: bool
    journal: Annotated[str, Limits(max_length=64, pattern=r"^[0-9a-f]*$")] = ""
    features: Annotated[int, Limits(ge=0)] = 0
    names: Annotated[str, Limits(max_length=MAX_NAMES_CHARACTERS)] = ""
    messages: Annotated[int, Limits(ge=0)] = 0

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Names in `names`, if `columns` is their digest; else empty."""
        names = tuple(self.names.split("\0"))
        return names if len(names) == self.features and names_digest(names) == self.columns else ()

    @cached_property
    def sender(self) -> str:
        """Label of the party in error texts: "client 3 (name)"."""
        return party_label(self.partition_id, self.name)


class ErrorReport(Config):
    """Statement of a client that could not answer: class and text of its error, and partition, -1 if unknown."""

    public = False

    partition_id: Annotated[int, Limits(ge=-1)]
    name: Name = ""
    error: Annotated[str, Limits(max_length=64)]
    message: Annotated[str, Limits(max_length=MAX_MESSAGE_CHARACTERS)]
    messages: Annotated[int, Limits(ge=0)] = 0

    @cached_property
    def sender(self) -> str:
        """Label of the party in error texts: "client 3 (name)", or "a client" without a partition."""
        return party_label(self.partition_id, self.name) if self.partition_id >= 0 else "a client"


@represent_by_shapes
@dataclass
class Reply:
    """Reply of a party to a question: its arrays as bytes, later as fields, and its number of rows."""

    party: int
    """Number of the party's partition."""
    name: str
    """Name of the party; empty if it has none."""
    sender: str
    """Label of the party in texts: "client 3 (name)"."""
    rows: int
    """Number of rows that the message states."""
    tensors: list[bytes]
    """Arrays of the payload in NumPy's file format; emptied once they are read."""
    fields: dict[str, NDArray[Any]] = field(default_factory=dict)
    """Fields of the payload, set once they are checked. Of a consumed reply only fields of a fixed size remain."""
    consumed_bytes: int = 0
    """Bytes of a payload that was consumed on arrival; 0 if the payload is stored."""

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays that the party sent, whether the server still holds the arrays or not."""
        return self.consumed_bytes or sum(map(len, self.tensors))

    @property
    def member(self) -> str:
        """Name of the party that is the same in several runs: its name, or for example "partition 3" without a name."""
        return self.name or f"partition {self.party}"


def party_label(party: int, name: str) -> str:
    """Return the label of a party in error texts: "client 3 (name)", or "client 3" without a name."""
    return f"client {party} ({name})" if name else f"client {party}"


def party_labels(parties: Sequence[int], names: Mapping[int, str]) -> str:
    """Return the labels of parties in error texts, separated by commas; "a client" for -1, a party not known yet."""
    return ", ".join(party_label(party, names.get(party, "")) if party >= 0 else "a client" for party in parties)


def version_advice(messages: object) -> str:
    """Return the end of an error's text where a site's messages have another version than the server's, else ""."""
    if messages == MESSAGES or not isinstance(messages, int):
        return ""
    place = "at this site" if messages < MESSAGES else "at the server"
    version = f"version {messages}" if messages else "an earlier version"
    return f". Messages of this site have {version}, the server's version {MESSAGES}: upgrade fedpca-flwr {place}"


def parse_info(metrics: dict[str, Any], sender: str = "a client") -> PartyInfo | ErrorReport:
    """Parse a reply's metrics, which may hold anything; raise ContractError for other keys and control characters."""
    try:
        info = (ErrorReport if "error" in metrics else PartyInfo).parse(metrics, source=f"the reply of {sender}")
    except ConfigError as error:
        advice = version_advice(metrics.get("messages")) or "; do all parties run the same version?"
        raise ContractError(f"{error}{advice}") from None
    if isinstance(info, ErrorReport) and CONTROL_CHARACTERS.search(info.message):
        raise ContractError(
            f"{info.sender}: the message of its error contains control characters, expected text and line feeds; does "
            "this party run the same version?"
        )
    return info


def make_reply(result: FitRes, info: PartyInfo) -> Reply:
    """Return a party's reply, with its arrays still as bytes; raise ContractError if the message states no rows."""
    if result.num_examples < 1:
        raise ContractError(f"{info.sender}: it reports {result.num_examples} rows, expected at least 1")
    return Reply(info.partition_id, info.name, info.sender, result.num_examples, result.parameters.tensors)


MAX_FEATURES = 2**24
"""Largest size that a client may claim. A larger claim is refused before arrays of that size are created."""


def reported_errors(infos: Sequence[PartyInfo | ErrorReport]) -> list[FedPCAError]:
    """Return an error for each report in the statements, in order of partitions, of the named class or `PartyError`."""
    errors = []
    for report in sorted(infos, key=attrgetter("partition_id")):
        if isinstance(report, ErrorReport):
            kind = ERRORS_BY_NAME.get(report.error, PartyError)
            # no line of its own passes for another's
            lines = f"{report.message}{version_advice(report.messages)}".split("\n")
            errors.append(kind("\n".join(f"{report.sender}: {line}" for line in lines)))
    return errors


def admission_faults(infos: Sequence[PartyInfo], *, partitions: int | None, same_features: bool) -> list[FedPCAError]:
    """Return all faults in the clients' statements at the start of a run; empty if the clients fit together.

    Missing and too large numbers of features come alone. `partitions` is None if any number of parties may take part.
    """
    faults: list[FedPCAError] = []
    for info in infos:
        if info.messages != MESSAGES:
            faults.append(ConfigError(f"{info.sender}: it cannot take part{version_advice(info.messages)}"))
        if not info.features:
            faults.append(ContractError(f"{info.sender}: it did not say how many features its rows have"))
        if info.features > MAX_FEATURES:
            text = f"it says {info.features} features, at most {MAX_FEATURES:,} can be"
            faults.append(ContractError(f"{info.sender}: {text}"))
    if faults:
        return faults
    faults = mismatch_faults(infos, partitions=partitions)
    if partitions is not None:
        faults += duplicate_faults(infos)
    if same_features:
        witness, dissenters = _disagreeing_parties(sorted(infos, key=attrgetter("partition_id")), "features")
        expected = f"those of {witness.sender} have {witness.features}; every party needs the same columns"
        for info in dissenters:
            faults.append(DataError(f"{info.sender}: its rows have {info.features} columns, {expected}"))
    return faults


def mismatch_faults(infos: Sequence[PartyInfo], *, partitions: int | None) -> list[FedPCAError]:
    """Return a ConfigError for each mismatch of a statement with the run; `partitions` None allows any number."""
    infos = sorted(infos, key=attrgetter("partition_id"))
    owner = next((info.sender for info in infos if not info.simulated), "")
    mismatches = []
    for info in infos:
        first = infos[0]
        partitions_text = f"its node-config says the rows are in {info.num_partitions} partitions, the run expects "
        if partitions is not None and info.num_partitions != partitions:
            text = f"{partitions} clients; both must be the same, or part of the rows would be left out"
            mismatches.append((info, partitions_text + text))
        if partitions is None and info.simulated and info.num_partitions != first.num_partitions:
            text = f"{first.num_partitions}, as {first.sender} says; the parts would overlap"
            mismatches.append((info, partitions_text + text))
        if info.simulated and owner:
            mismatches.append((info, f"its node-config names no 'data', but that of {owner} does"))
        if info.covariates != first.covariates:
            text = f"the columns of 'adjust-for' stand elsewhere than in those of {first.sender}"
            mismatches.append((info, f"{text}: name columns that all parties have, in one order"))
    infos_with_names = list(filter(attrgetter("columns"), infos))
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
    return [ConfigError(f"{info.sender}: {text}") for info, text in mismatches]


def _disagreeing_parties(infos: Sequence[PartyInfo], attribute: str) -> tuple[PartyInfo, list[PartyInfo]]:
    """Return the first client with the commonest value of an attribute, and all with another value, in their order."""
    values = list(map(attrgetter(attribute), infos))
    (common_value, _), *_ = Counter(values).most_common(1)
    dissenters = [info for info, value in zip(infos, values, strict=True) if value != common_value]
    return infos[values.index(common_value)], dissenters


def duplicate_faults(infos: Sequence[PartyInfo]) -> list[FedPCAError]:
    """Return one QuorumError that names all partitions which several clients claim; empty without such partitions."""
    counts = Counter(map(attrgetter("partition_id"), infos))
    if len(counts) == len(infos):
        return []
    partitions = sorted(party for party, times in counts.items() if times > 1)
    return [QuorumError(f"several clients say they are partition {partitions}: give each its own partition-id")]


def surplus_error(infos: Mapping[str, PartyInfo], expected: int) -> QuorumError:
    """Return the error for more clients than expected: it names those without a partition of their own, or else all."""
    times = Counter(info.partition_id for info in infos.values())
    extra = {cid: info for cid, info in infos.items() if info.partition_id >= expected or times[info.partition_id] > 1}
    ordered = sorted((extra or infos).items(), key=lambda entry: (entry[1].partition_id, entry[0]))
    client_list = ", ".join(f"{info.sender} at node {cid}" for cid, info in ordered)
    return QuorumError(
        f"{len(infos)} clients joined, expected exactly {expected}. Stop the nodes that are none of this run, or "
        f"change 'clients': {client_list}"
    )


def impersonation_faults(
    nodes: Sequence[str], infos: Sequence[PartyInfo | ErrorReport], partition_by_node: Mapping[str, int]
) -> list[FedPCAError]:
    """Return a ContractError for each client that claims a partition other than its first, or another client's.

    `partition_by_node` has the first claim of each node. The partition -1 of an error report claims nothing.
    """
    owners = {party: node for node, party in partition_by_node.items()}
    faults: list[FedPCAError] = []
    for node, info in zip(nodes, infos, strict=True):
        party, first_partition = info.partition_id, partition_by_node.get(node)
        if party != -1 and (owners.get(party, node) != node or first_partition not in (None, party)):
            who = "a client that is new in the run" if first_partition is None else f"client {first_partition}"
            owner_text = ", which is another's" if party in owners else ""
            text = f"it replies as partition {party}{owner_text}; a node keeps its partition-id for the whole run"
            faults.append(ContractError(f"{who}: {text}"))
    return faults


def raise_all(faults: Sequence[FedPCAError]) -> None:
    """Raise the faults together as an error of the first fault's class; do nothing without faults."""
    if faults:
        raise combine_errors(faults)
