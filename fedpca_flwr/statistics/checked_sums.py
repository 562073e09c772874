"""Sums that are held against their limits in clear too, and what is told where they are those of no rows."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from fedpca_flwr.errors import ContractError
from fedpca_flwr.protocol.arriving import ArrivingSum, as_they_come
from fedpca_flwr.protocol.payload import Fields
from fedpca_flwr.protocol.phase import Ask, Sum, Total
from fedpca_flwr.statistics.rows_strategy import RowsStrategy
from fedpca_flwr.table import LARGEST


def checked_sum(run: RowsStrategy, phase: str, asked: Fields) -> Generator[Ask, Any, Total]:
    """A sum to which in clear no party may add more than the limits of fixed point let it add where sums are masked.

    Raises
    ------
    ContractError
        Naming the party.
    """
    if run.transport.sums_only:
        total: Total = yield Sum(phase, asked)
        return total
    public = replace(run.public, config=run.config.model_copy(update={"bound": LARGEST}))
    limits_of = run.card.phases(run.config, run.options)[phase].limits
    assert limits_of is not None
    known = dict(asked)
    if "mean" in known:  # a constant feature, which is not divided by its spread, is as far as its mean was rounded
        unit = np.where(known["spread"] > 0, known["spread"], 1.0)
        known["mean"] = np.abs(known["mean"]) + 1e-9 * np.abs(known["centre"]) / unit
    limits, arriving = limits_of(known, public), ArrivingSum()

    def add(fields: Fields, sender: str) -> None:
        for name, limit in limits.items():
            if fields[name].shape == limit.shape and (np.abs(fields[name]) > 2 * limit).any():
                raise ContractError(
                    f"{sender}: field '{name}' of phase '{phase}' holds numbers that are larger than any rows can add; "
                    "does it run another version, or did its data change during the run?"
                )
        arriving.add(fields, sender)

    replies = yield from as_they_come(Ask(phase, asked), add)
    return arriving.total(replies)


@contextmanager
def sums_of_rows() -> Iterator[None]:
    """Where sums are taken that are those of no rows: nobody can check a single share.

    Raises
    ------
    ContractError
    """
    try:
        with np.errstate(all="ignore"):
            yield
    except (ArithmeticError, ValueError):  # a matrix that is not positive definite, or numbers that are not finite
        raise ContractError(
            "the parties' sums together are not those of any rows: the share of one of them is false, or was altered "
            "on its way"
        ) from None
