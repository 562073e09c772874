"""What clients say of themselves must fit the run and each other, before anything that they reply counts."""

from __future__ import annotations

from collections.abc import Sequence

from fedpca_flwr.errors import BY_NAME, ConfigError, ContractError, PartyError
from fedpca_flwr.protocol.messages import ErrorReport, PartyInfo

MOST_FEATURES = 2**24
"""A claim beyond this is refused before anything of that size is made."""


def raise_reported(said: Sequence[PartyInfo | ErrorReport]) -> None:
    """Raise the errors that clients report, as the kind that the first of them names."""
    reports = sorted((r for r in said if isinstance(r, ErrorReport)), key=lambda r: r.partition_id)
    if reports:
        lines = [f"{report.sender}: {report.message}" for report in reports]
        raise BY_NAME.get(reports[0].error, PartyError)("\n".join(lines))


def require_features(said: Sequence[PartyInfo]) -> None:
    """Refuse a client that does not say how many features its rows have, or says what cannot be.

    Raises
    ------
    ContractError
    """
    for info in said:
        if not info.features:
            raise ContractError(f"{info.sender}: it did not say how many features its rows have")
        if info.features > MOST_FEATURES:
            raise ContractError(f"{info.sender}: it says {info.features} features, at most {MOST_FEATURES:,} can be")


def require_one_run(said: Sequence[PartyInfo], *, partitions: int | None) -> None:
    """Refuse clients whose data are not parts of the same run.

    Parameters
    ----------
    said : sequence of PartyInfo
    partitions : int or None
        How many there are; None where parties of any number may take part.

    Raises
    ------
    ConfigError
    """
    said = sorted(said, key=lambda info: info.partition_id)
    for info in said:
        if partitions is not None and info.num_partitions != partitions:
            raise ConfigError(
                f"{info.sender}: its node-config says the rows are in {info.num_partitions} partitions, the run "
                f"expects {partitions} clients; both must be the same, or part of the rows would be left out"
            )
        if partitions is None and info.simulated and info.num_partitions != said[0].num_partitions:
            raise ConfigError(
                f"{info.sender}: its node-config says the rows are in {info.num_partitions} partitions, the run "
                f"expects {said[0].num_partitions}, as {said[0].sender} says; the parts would overlap"
            )
        if info.simulated != said[0].simulated:
            alone = next(other for other in said if other.simulated)
            raise ConfigError(f"{alone.sender}: its node-config names no 'data', but that of other clients does")
    named = [info for info in said if info.columns]
    for info in named:
        if info.columns != named[0].columns:
            raise ConfigError(
                f"{info.sender}: its column names, or their order, differ from those of {named[0].sender}. If only "
                "their order does, name them all in the order of the model as run-config 'features'; else rename them"
            )

    for info in said:
        if info.covariates != said[0].covariates:
            raise ConfigError(
                f"{info.sender}: the columns of 'adjust-for' stand elsewhere than in those of {said[0].sender}: name "
                "columns that all parties have, in one order"
            )


def columns_of(said: Sequence[PartyInfo]) -> str:
    """Digest of the column names that all agree on; empty where none has any."""
    return next((info.columns for info in said if info.columns), "")
