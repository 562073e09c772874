"""The replies to one question: checked and added up as they come, and what a server cannot compute with.

What is only added up is taken when it comes, in any order, so that a server holds few replies at a time; the rest is
kept until all have come. Every reply is finite. Yet one that is 1e300 times too large, or no part of anything, can let
a sum, a product or an eigenvalue solver fail. Then the run ends in one sentence, which names the party whose numbers
are out of all proportion to the others'. Why a client did not answer is said in our words: Flower's may quote anything.
"""

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from statistics import median
from typing import Any, Literal

import numpy as np
from flwr.common import FitRes, Parameters

from fedpca_flwr.errors import ConfigError, ContractError, FedPCAError, together
from fedpca_flwr.maths.sums import ReproducibleSum
from fedpca_flwr.protocol.admission import PartyInfo, Reply, reply_of
from fedpca_flwr.protocol.payload import Fields, Payload, check_together
from fedpca_flwr.protocol.question import Ask, Total

REASONS = (
    ("expired due to its TTL", "the {deadline} passed"),
    ("within its deadline", "the {deadline} passed"),
    ("ActorDied", "its process died"),
    ("stopped responding", "its process died"),
    ("Node Unavailable", "its node is offline"),
)
"""Flower's texts, and what we say instead."""


def reason_of(failure: Any, deadline: str = "round-deadline") -> str:
    """What to say of a failure that Flower reports, where a question had this ``deadline``."""
    text = f"{type(failure).__name__} {failure}" if isinstance(failure, BaseException) else ""
    found = next((ours for theirs, ours in REASONS if theirs in text), "it failed; see its own log")
    return found.format(deadline=deadline)


OUTSIZE = 1e140
"""The square root of what float64 holds, nearly: of larger numbers it may not hold the products."""

BEYOND = 10.0
"""Decimal digits by which a party's numbers must be off those of the others to be named for it."""


def size_of(fields: Fields) -> float:
    """The largest number of a reply, in size; that of real numbers only."""
    real = [array for array in fields.values() if array.dtype.kind == "f" and array.size]
    return max((float(max(array.max(), -array.min())) for array in real), default=0.0)


def without_warnings(asked: Fields) -> AbstractContextManager[object]:
    """Where a party computes with such numbers of a server, what overflows is no news: the answer is checked."""
    return _overflows(size_of(asked), "ignore")


def _overflows(largest: float, how: Literal["raise", "ignore"]) -> AbstractContextManager[object]:
    """What becomes of an overflow where numbers up to the ``largest`` are computed with; none are expected of small."""
    return nullcontext() if largest <= OUTSIZE else np.errstate(over=how, invalid=how, divide=how)


class Sizes:
    """How large the numbers of every party are, in every round of a run; ``sums_only``: the server sees none."""

    def __init__(self, *, sums_only: bool) -> None:
        self.sums_only = sums_only
        self._rounds: list[tuple[str, dict[str, float]]] = []

    @contextmanager
    def computing(self, phase: str, sizes: Mapping[str, float]) -> Iterator[None]:
        """Compute with the replies of one more round, of such sizes by sender, or say why not in a `ContractError`."""
        self._rounds.append((phase, dict(sizes)))
        try:
            with _overflows(self._largest, "raise"):
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
        if self.sums_only or off < BEYOND or self._largest <= OUTSIZE:
            return error
        sizes = ContractError(f"{sender}: {text}; look at the units and the values of its rows")
        return together([error, sizes] if of_server and isinstance(error, ConfigError) else [sizes, error])

    @property
    def _largest(self) -> float:
        return max((size for _, sizes in self._rounds for size in sizes.values()), default=0.0)

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


def as_they_come(question: Ask, take: Callable[[Fields, str], None]) -> Generator[Ask, Any, list[Reply]]:
    """Ask, and give the fields of each reply to ``take`` (`Ask.take`) once; what is left of the replies."""
    replies = yield replace(question, take=take)
    for reply in replies:
        if not reply.taken:
            take(reply.fields, reply.sender)
    return list(replies)


class StreamingSum:
    """The sum of replies, field by field; its bits do not depend on the order in which they come."""

    def __init__(self) -> None:
        self._sums: dict[str, ReproducibleSum] = {}

    def add(self, fields: Fields, sender: str) -> None:
        """Add one party's fields; a `ContractError` where they have other shapes than those before."""
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


class Replies:
    """The replies to one question: what each must hold, and who may ``take`` its fields (`Ask.take`).

    `sizes_of_numbers` has by sender the largest number of a reply that was checked, in size.
    """

    def __init__(
        self, payload: Payload, sizes: Mapping[str, int], take: Callable[[Fields, str], None] | None = None
    ) -> None:
        self.payload = payload
        self.sizes = sizes
        self.take = take
        self.sizes_of_numbers: dict[str, float] = {}
        self._taken: dict[int, tuple[int, Fields]] = {}  # bytes, and what is left of the fields, by partition
        self._claims: dict[str, int | None] = {}  # the features of those that are taken

    def receive(self, result: FitRes) -> None:
        """Look at a reply that has just come, and let its payload go where it is taken.

        What is wrong with it is told when all have come, of all parties together.
        """
        if self.take is None or "error" in result.metrics:
            return
        try:
            reply = reply_of(result, PartyInfo.parse(result.metrics))
            fields = self.payload.read(reply.tensors, reply.sender)
            claim = self.payload.features(fields)
            self.payload.check(fields, reply.sender, self.sizes if claim is None else {**self.sizes, "d": claim})
            if claim not in {None, self.sizes.get("d", claim)}:
                return  # which is the odd one is told when all have come
            self.sizes_of_numbers[reply.sender] = size_of(fields)
            self.take(fields, reply.sender)
        except FedPCAError:
            return
        self._claims[reply.sender] = claim
        self._taken[reply.party] = reply.nbytes, self.payload.single(fields)
        result.parameters = Parameters([], "")

    def count(self, replies: Sequence[Reply]) -> None:
        """Note of each how much of it is taken."""
        for reply in replies:
            reply.taken, left = self._taken.get(reply.party, (0, {}))
            reply.fields = dict(left)

    def check(self, replies: Sequence[Reply]) -> None:
        """Set the fields of those that are not taken, once all have come, or raise a `ContractError`."""
        whole = [reply for reply in replies if not reply.taken]
        named = {reply.sender: self.payload.read(reply.tensors, reply.sender) for reply in whole}
        check_together(self.payload, named, self.sizes, self._claims)
        for reply in whole:
            reply.fields = named[reply.sender]
            self.sizes_of_numbers[reply.sender] = size_of(reply.fields)
            reply.tensors.clear()
