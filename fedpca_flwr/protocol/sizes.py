"""Numbers that the server cannot compute with, and whose they are.

Every reply is finite. Yet one that is 1e300 times too large, or no part of anything, can let a sum, a product or an
eigenvalue solver fail. Then the run ends in one sentence, which names the party whose numbers are out of all
proportion to the others'.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from statistics import median
from typing import Any

import numpy as np

from fedpca_flwr.errors import ConfigError, ContractError, FedPCAError, together
from fedpca_flwr.protocol.payload import Fields

OUTSIZE = 1e140
"""The square root of what float64 holds, nearly: of larger numbers it may not hold the products."""

BEYOND = 10.0
"""Decimal digits by which a party's numbers must be off those of the others to be named for it."""


def size_of(fields: Fields) -> float:
    """The largest number of a reply, in size; that of real numbers only."""
    real = [array for array in fields.values() if array.dtype.kind == "f" and array.size]
    return max((float(max(array.max(), -array.min())) for array in real), default=0.0)


def checked_arithmetic(sizes: Sequence[float]) -> AbstractContextManager[object]:
    """Where numbers of such sizes are computed with, what overflows is an error, and no warning."""
    if max(sizes, default=0.0) <= OUTSIZE:
        return nullcontext()
    return np.errstate(over="raise", invalid="raise", divide="raise")


def without_warnings(asked: Fields) -> AbstractContextManager[object]:
    """Where a party computes with such numbers of a server, what overflows is no news: the answer is checked."""
    if size_of(asked) <= OUTSIZE:
        return nullcontext()
    return np.errstate(over="ignore", invalid="ignore", divide="ignore")


class Sizes:
    """How large the numbers of every party are, in every round of a run.

    Parameters
    ----------
    sums_only : bool
        Whether the server sees no party's numbers.
    """

    def __init__(self, *, sums_only: bool) -> None:
        self.sums_only = sums_only
        self._rounds: list[tuple[str, dict[str, float]]] = []

    @contextmanager
    def computing(self, phase: str, sizes: Mapping[str, float]) -> Iterator[None]:
        """Compute with the replies of one more round, of such sizes by sender.

        Raises
        ------
        ContractError
            Where that fails.
        """
        self._rounds.append((phase, dict(sizes)))
        try:
            with checked_arithmetic([size for _, known in self._rounds for size in known.values()]):
                yield
        except FedPCAError as error:
            raise self.explained(error, of_server=True) from error
        except (ArithmeticError, ValueError) as error:  # LinAlgError is a ValueError
            raise ContractError(self._told(phase, type(error).__name__)) from error

    def explained(self, error: FedPCAError, *, of_server: bool = False) -> FedPCAError:
        """An error of a round, after whose numbers are out of all proportion: parties may have computed with them.

        Where the server itself finds an option wrong, that comes first and stays an error of the run-config.
        """
        off, sender, text = self._farthest()
        if (
            self.sums_only
            or off < BEYOND
            or max(size for _, sizes in self._rounds for size in sizes.values()) <= OUTSIZE
        ):
            return error
        sizes = ContractError(f"{sender}: {text}; look at the units and the values of its rows")
        return together([error, sizes] if of_server and isinstance(error, ConfigError) else [sizes, error])

    def _farthest(self) -> tuple[float, str, str]:
        """By how many digits a party's numbers are off those of the others, who it is, and that in words."""
        return max((found for one in self._rounds for found in _off(*one)), default=(0.0, "", ""))

    def _told(self, phase: str, kind: str) -> str:
        """Why it failed, as far as the sizes show it."""
        about = f"the server cannot compute with the replies to '{phase}' ({kind})"
        if self.sums_only:
            return (
                f"{about}: what they add up to is no sum over rows, so some party's share is false; secure sums do not "
                "show whose. Run again without secure aggregation, if the parties agree, to see it"
            )
        off, sender, text = self._farthest()
        if off < BEYOND:
            return f"{about}: some party's reply is false, but by their sizes it cannot be told whose"
        return f"{sender}: {text}, so {about}; look at the units and the values of its rows"


def _off(phase: str, sizes: Mapping[str, float]) -> list[tuple[float, str, str]]:
    """By how many digits each is off the others, who it is, and that in words."""
    with np.errstate(divide="ignore"):
        digits: dict[str, Any] = {sender: max(float(np.log10(size)), -324.0) for sender, size in sizes.items()}
    found = []
    for sender, own in digits.items():
        others = median([other for name, other in digits.items() if name != sender] or [own])
        text = f"its reply to '{phase}' holds numbers up to {sizes[sender]:.3g} in size, the others' {10.0**others:.3g}"
        found.append((abs(own - others), sender, text))
    return found
