"""Replies that are used as they come, in any order, so that a server holds few of them at a time."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from typing import Any

from fedpca_flwr.errors import ContractError
from fedpca_flwr.maths.reproducible_sum import ReproducibleSum
from fedpca_flwr.protocol.messages import Reply
from fedpca_flwr.protocol.payload import Fields
from fedpca_flwr.protocol.phase import Ask, Total


def as_they_come(question: Ask, take: Callable[[Fields, str], None]) -> Generator[Ask, Any, list[Reply]]:
    """Ask, and give the fields of each reply to ``take`` (`Ask.take`) once; what is left of the replies."""
    replies = yield replace(question, take=take)
    for reply in replies:
        if not reply.taken:
            take(reply.fields, reply.sender)
    return list(replies)


class ArrivingSum:
    """The sum of replies, field by field; its bits do not depend on the order in which they come."""

    def __init__(self) -> None:
        self._sums: dict[str, ReproducibleSum] = {}

    def add(self, fields: Fields, sender: str) -> None:
        """Add one party's fields.

        Raises
        ------
        ContractError
            Where they have other shapes than those before.
        """
        if not self._sums:
            self._sums = {name: ReproducibleSum(array.shape) for name, array in fields.items()}
        for name, array in fields.items():
            shape = self._sums[name].shape
            if array.shape != shape:
                raise ContractError(f"{sender}: field '{name}' has shape {array.shape}, others have {shape}")
        for name, array in fields.items():
            self._sums[name].add(array)

    def total(self, replies: Sequence[Reply]) -> Total:
        """The sum, of these replies."""
        return Total({name: added.total() for name, added in self._sums.items()}, len(replies), replies=replies)
