"""What clients say of themselves must fit the run and each other, before anything that they reply counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from fedpca_flwr.errors import BY_NAME, ConfigError, ContractError, FedPCAError, PartyError, QuorumError, together
from fedpca_flwr.protocol.messages import ErrorReport, PartyInfo

MOST_FEATURES = 2**24
"""A claim beyond this is refused before anything of that size is made."""


def reported(said: Sequence[PartyInfo | ErrorReport]) -> list[FedPCAError]:
    """The errors that clients report, each as the kind that it names."""
    reports = sorted((r for r in said if isinstance(r, ErrorReport)), key=lambda r: r.partition_id)
    return [BY_NAME.get(report.error, PartyError)(_of(report.sender, report.message)) for report in reports]


def unfit(said: Sequence[PartyInfo], *, partitions: int | None, same_features: bool) -> list[FedPCAError]:
    """All that is wrong with what clients say they hold, before anything is asked of it.

    Parameters
    ----------
    said : sequence of PartyInfo
    partitions : int or None
        How many there are; None where parties of any number may take part.
    same_features : bool
        Whether all must have equally many.
    """
    if faults := without_features(said):
        return faults
    faults = unlike(said, partitions=partitions) + (doubled(said) if partitions is not None else [])
    return faults + (of_other_width(said) if same_features else [])


def unlike(said: Sequence[PartyInfo], *, partitions: int | None) -> list[FedPCAError]:
    """What is wrong with clients whose data are not parts of the same run.

    Parameters
    ----------
    said : sequence of PartyInfo
    partitions : int or None
        How many there are; None where parties of any number may take part.
    """
    said = sorted(said, key=lambda info: info.partition_id)
    faults: list[FedPCAError] = []
    all_simulated = all(info.simulated for info in said)
    for info in said:
        if partitions is not None and info.num_partitions != partitions:
            text = (
                f"its node-config says the rows are in {info.num_partitions} partitions, the run expects {partitions} "
                "clients; both must be the same, or part of the rows would be left out"
            )
            faults.append(ConfigError(_of(info.sender, text)))
        if partitions is None and info.simulated and info.num_partitions != said[0].num_partitions:
            text = (
                f"its node-config says the rows are in {info.num_partitions} partitions, the run expects "
                f"{said[0].num_partitions}, as {said[0].sender} says; the parts would overlap"
            )
            faults.append(ConfigError(_of(info.sender, text)))
        if info.simulated and not all_simulated:
            text = "its node-config names no 'data', but that of other clients does"
            faults.append(ConfigError(_of(info.sender, text)))
        if info.covariates != said[0].covariates:
            text = (
                f"the columns of 'adjust-for' stand elsewhere than in those of {said[0].sender}: name columns that all "
                "parties have, in one order"
            )
            faults.append(ConfigError(_of(info.sender, text)))
    return faults + _of_other_columns([info for info in said if info.columns])


def _of_other_columns(said: Sequence[PartyInfo]) -> list[FedPCAError]:
    """Clients whose column names are not those of most."""
    most = Counter(info.columns for info in said).most_common(1)
    witness = next((info.sender for info in said if info.columns == most[0][0]), "")
    text = (
        f"its column names, or their order, differ from those of {witness}. If only their order does, name them all in "
        "the order of the model as run-config 'features'; else rename them"
    )
    return [ConfigError(_of(info.sender, text)) for info in said if info.columns != most[0][0]]


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
    said = sorted(said, key=lambda info: info.partition_id)
    most = Counter(info.features for info in said).most_common(1)
    witness = next((info.sender for info in said if info.features == most[0][0]), "")
    return [
        ContractError(_of(info.sender, f"its data has {info.features} features, {witness} has {most[0][0]}"))
        for info in said
        if info.features != most[0][0]
    ]


def doubled(said: Sequence[PartyInfo]) -> list[FedPCAError]:
    """Clients that claim a partition which is another's too."""
    found = sorted(party for party, times in Counter(info.partition_id for info in said).items() if times > 1)
    text = f"several clients say they are partition {found}: give each its own partition-id"
    return [QuorumError(text)] if found else []


def impostors(
    nodes: Sequence[str], said: Sequence[PartyInfo | ErrorReport], seats: Mapping[str, int]
) -> list[FedPCAError]:
    """Clients that speak as another partition than they have, or as one that another client has.

    Parameters
    ----------
    nodes : sequence of str
        Flower's ids.
    said : sequence of PartyInfo or ErrorReport
        What each of them says.
    seats : mapping of str to int
        The partition that each said first; an error may come from one that does not know which it is (-1).
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
    """Raise what is wrong, all of it at once.

    Raises
    ------
    FedPCAError
        Of the kind of the first.
    """
    if faults:
        raise together(faults)


def _of(sender: str, text: str) -> str:
    return "\n".join(f"{sender}: {line}" for line in text.split("\n"))  # no line of its own passes for another's


def columns_of(said: Sequence[PartyInfo]) -> str:
    """Digest of the column names that all agree on; empty where none has any."""
    return next((info.columns for info in said if info.columns), "")
