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

from fedpca_flwr.errors import ConfigError, ContractError, FedPCAError, combine_errors
from fedpca_flwr.maths.sums import ReproducibleSum
from fedpca_flwr.protocol.admission import PartyInfo, Reply, make_reply
from fedpca_flwr.protocol.payload import Fields, Payload, check_together
from fedpca_flwr.protocol.question import Round, Total

FAILURE_REASONS = (
    ("expired due to its TTL", "the {deadline} passed"),
    ("within its deadline", "the {deadline} passed"),
    ("ActorDied", "its process died"),
    ("stopped responding", "its process died"),
    ("Node Unavailable", "its node is offline"),
)
"""Flower's texts, and what we say instead."""


def failure_reason(failure: Any, deadline: str = "round-deadline") -> str:
    """What to say of a failure that Flower reports, where a question had this ``deadline``."""
    text = f"{type(failure).__name__} {failure}" if isinstance(failure, BaseException) else ""
    template = next(
        (our_text for flower_text, our_text in FAILURE_REASONS if flower_text in text), "it failed; see its own log"
    )
    return template.format(deadline=deadline)


MAX_SAFE_MAGNITUDE = 1e140
"""The square root of what float64 holds, nearly: of larger numbers it may not hold the products."""

MIN_OUTLIER_DIGITS = 10.0
"""Decimal digits by which a party's numbers must be off those of the others to be named for it."""


def max_magnitude(fields: Fields) -> float:
    """The largest number of a reply, in size; that of real numbers only."""
    real = [array for array in fields.values() if array.dtype.kind == "f" and array.size]
    return max((float(max(array.max(), -array.min())) for array in real), default=0.0)


def ignore_overflow(request: Fields) -> AbstractContextManager[object]:
    """Where a party computes with such numbers of a server, what overflows is no news: the answer is checked."""
    return _overflow_handling(max_magnitude(request), "ignore")


def _overflow_handling(max_value: float, action: Literal["raise", "ignore"]) -> AbstractContextManager[object]:
    """What becomes of an overflow where numbers up to the ``largest`` are computed with; none are expected of small."""
    return nullcontext() if max_value <= MAX_SAFE_MAGNITUDE else np.errstate(over=action, invalid=action, divide=action)


class Magnitudes:
    """How large the numbers of every party are, in every round of a run; ``sums_only``: the server sees none."""

    def __init__(self, *, sums_only: bool) -> None:
        self.sums_only = sums_only
        self._rounds: list[tuple[str, dict[str, float]]] = []

    @contextmanager
    def guard(self, phase: str, sizes: Mapping[str, float]) -> Iterator[None]:
        """Compute with the replies of one more round, of such sizes by sender, or say why not in a `ContractError`."""
        self._rounds.append((phase, dict(sizes)))
        try:
            with _overflow_handling(self._max_magnitude, "raise"):
                yield
        except FedPCAError as error:
            raise self.explain(error, at_server=True) from error
        except (ArithmeticError, ValueError) as error:  # LinAlgError is a ValueError
            raise ContractError(self._failure_text(phase, type(error).__name__)) from error

    def explain(self, error: FedPCAError, *, at_server: bool = False) -> FedPCAError:
        """An error of a round, after whose numbers are out of all proportion: parties may have computed with them.

        Where the server itself finds an option wrong, that comes first and stays an error of the run-config.
        """
        digits, sender, text = self._largest_deviation()
        if self.sums_only or digits < MIN_OUTLIER_DIGITS or self._max_magnitude <= MAX_SAFE_MAGNITUDE:
            return error
        sizes = ContractError(f"{sender}: {text}; look at the units and the values of its rows")
        return combine_errors([error, sizes] if at_server and isinstance(error, ConfigError) else [sizes, error])

    @property
    def _max_magnitude(self) -> float:
        return max((size for _, sizes in self._rounds for size in sizes.values()), default=0.0)

    def _largest_deviation(self) -> tuple[float, str, str]:
        """By how many digits a party's numbers are off those of the others, who it is, and that in words."""
        return max((deviation for entry in self._rounds for deviation in _deviations(*entry)), default=(0.0, "", ""))

    def _failure_text(self, phase: str, kind: str) -> str:
        """Why it failed, as far as the sizes show it."""
        failure = f"the server cannot compute with the replies to '{phase}' ({kind})"
        if self.sums_only:
            return (
                f"{failure}: what they add up to is no sum over rows, so some party's share is false; secure sums do not "
                "show whose. Run again without secure aggregation, if the parties agree, to see it"
            )
        digits, sender, text = self._largest_deviation()
        if digits < MIN_OUTLIER_DIGITS:
            return f"{failure}: some party's reply is false, but by their sizes it cannot be told whose"
        return f"{sender}: {text}, so {failure}; look at the units and the values of its rows"


def _deviations(phase: str, sizes: Mapping[str, float]) -> list[tuple[float, str, str]]:
    """By how many digits each is off the others, who it is, and that in words."""
    with np.errstate(divide="ignore"):
        digits: dict[str, Any] = {sender: max(float(np.log10(size)), -324.0) for sender, size in sizes.items()}
    deviations = []
    for sender, magnitude in digits.items():
        typical = median([peer for name, peer in digits.items() if name != sender] or [magnitude])
        text = (
            f"its reply to '{phase}' holds numbers up to {sizes[sender]:.3g} in size, the others' {10.0**typical:.3g}"
        )
        deviations.append((abs(magnitude - typical), sender, text))
    return deviations


def stream_replies(question: Round, consume: Callable[[Fields, str], None]) -> Generator[Round, Any, list[Reply]]:
    """Ask, and give the fields of each reply to ``take`` (`Ask.take`) once; what is left of the replies."""
    replies = yield replace(question, consume=consume)
    for reply in replies:
        if not reply.consumed_bytes:
            consume(reply.fields, reply.sender)
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


class ReplyCollector:
    """The replies to one question: what each must hold, and who may ``take`` its fields (`Ask.take`).

    `sizes_of_numbers` has by sender the largest number of a reply that was checked, in size.
    """

    def __init__(
        self, payload: Payload, sizes: Mapping[str, int], consume: Callable[[Fields, str], None] | None = None
    ) -> None:
        self.payload = payload
        self.sizes = sizes
        self.consume = consume
        self.magnitudes: dict[str, float] = {}
        self._consumed: dict[int, tuple[int, Fields]] = {}  # bytes, and what is left of the fields, by partition
        self._claims: dict[str, int | None] = {}  # the features of those that are taken

    def receive(self, result: FitRes) -> None:
        """Look at a reply that has just come, and let its payload go where it is taken.

        What is wrong with it is told when all have come, of all parties together.
        """
        if self.consume is None or "error" in result.metrics:
            return
        try:
            reply = make_reply(result, PartyInfo.parse(result.metrics))
            fields = self.payload.read(reply.tensors, reply.sender)
            claim = self.payload.count_features(fields)
            self.payload.check(fields, reply.sender, self.sizes if claim is None else {**self.sizes, "d": claim})
            if claim not in {None, self.sizes.get("d", claim)}:
                return  # which is the odd one is told when all have come
            self.magnitudes[reply.sender] = max_magnitude(fields)
            self.consume(fields, reply.sender)
        except FedPCAError:
            return
        self._claims[reply.sender] = claim
        self._consumed[reply.party] = reply.nbytes, self.payload.fixed_size_fields(fields)
        result.parameters = Parameters([], "")

    def mark_consumed(self, replies: Sequence[Reply]) -> None:
        """Note of each how much of it is taken."""
        for reply in replies:
            reply.consumed_bytes, small_fields = self._consumed.get(reply.party, (0, {}))
            reply.fields = dict(small_fields)

    def check(self, replies: Sequence[Reply]) -> None:
        """Set the fields of those that are not taken, once all have come, or raise a `ContractError`."""
        remaining = [reply for reply in replies if not reply.consumed_bytes]
        fields_by_sender = {reply.sender: self.payload.read(reply.tensors, reply.sender) for reply in remaining}
        check_together(self.payload, fields_by_sender, self.sizes, self._claims)
        for reply in remaining:
            reply.fields = fields_by_sender[reply.sender]
            self.magnitudes[reply.sender] = max_magnitude(reply.fields)
            reply.tensors.clear()
