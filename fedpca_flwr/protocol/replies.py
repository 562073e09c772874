"""Replies to a question: checked and added up on arrival, and guarded against numbers that no server can compute with.

Replies that need only be added up are consumed on arrival, so that a server holds few. Every reply is finite, yet
numbers that are 1e300 times too large can let a sum, a product or an eigenvalue solver fail: then the run ends in one
sentence, which names the party whose numbers are out of all proportion.
"""

import re
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any, Literal

import numpy as np
from flwr.common import FitRes, Parameters
from numpy.typing import NDArray

from fedpca_flwr.errors import ConfigError, ContractError, FedPCAError, combine_errors
from fedpca_flwr.maths.sums import ReproducibleSum
from fedpca_flwr.protocol.admission import PartyInfo, Reply, make_reply
from fedpca_flwr.protocol.payload import Fields, Payload, check_together
from fedpca_flwr.protocol.question import Round, Total

LEFT_OUT = "left out of the run by post"
"""Text of the error that stands for the reply of a site which the coordinator has left out."""

FAILURE_REASONS = (
    ("expired due to its TTL", "the {deadline} passed"),
    ("within its deadline", "the {deadline} passed"),
    ("ActorDied", "its process died"),
    ("stopped responding", "its process died"),
    ("Node Unavailable", "its node is offline{since}"),
    ("Message Unavailable", "the SuperLink lost its messages{since}"),
    (LEFT_OUT, "it was left out of the run"),
    ("fedpca'", "its ClientApp is not one of client_app, as FedPCA needs"),
)
"""Texts of Flower's errors, and the texts that replace them."""

LOST_SINCE = re.compile(r" since \d\d:\d\d:\d\d UTC")
"""End of the reason of an error that stands for a reply which has not come (`protocol.server.PendingReply`)."""

EXCEPTION_CLASS = re.compile(r"^RuntimeError <class '(?:\w{1,40}\.){0,9}(\w{1,40})'>")
"""Start of Flower's reason for an exception of an app. The exception's own text may quote rows and is never shown."""


class NodeFailure(Exception):  # noqa: N818 - no error that is raised
    """Failure in the place of a node's reply, with the id of Flower's client."""

    def __init__(self, cid: str, failure: BaseException) -> None:
        super().__init__(cid, failure)
        self.cid, self.failure = cid, failure


def failure_reason(failure: Any, deadline: str = "round-deadline") -> str:
    """Return our reason for Flower's failure, recognised from its text; `deadline` is the key of the time limit."""
    failure = failure.failure if isinstance(failure, NodeFailure) else failure
    text = f"{type(failure).__name__} {failure}" if isinstance(failure, BaseException) else ""
    template = next((our_text for flower_text, our_text in FAILURE_REASONS if flower_text in text), "")
    if template:
        since = LOST_SINCE.search(text)
        return template.format(deadline=deadline, since=since[0] if since else "")
    kind = EXCEPTION_CLASS.search(text)
    return f"its app raised {kind[1]}; see its own log" if kind else "it failed; see its own log"


MAX_SAFE_MAGNITUDE = 1e140
"""About the square root of the largest float64. Products of larger numbers may overflow."""

MIN_OUTLIER_DIGITS = 10.0
"""Orders of magnitude by which a party's numbers must differ from those of others for an error to name the party."""


def max_magnitude(fields: Fields) -> float:
    """Return the largest absolute value in all floating-point fields of a reply; 0 without such values."""
    largest = 0.0
    for array in fields.values():
        if array.dtype.kind == "f" and array.size:
            largest = max(largest, float(max(array.max(), -array.min())))
    return largest


def overflow_handling(max_value: float, action: Literal["raise", "ignore"]) -> AbstractContextManager[object]:
    """Return a context that handles overflows and invalid operations; up to `MAX_SAFE_MAGNITUDE` it does nothing."""
    return nullcontext() if max_value <= MAX_SAFE_MAGNITUDE else np.errstate(over=action, invalid=action, divide=action)


class Magnitudes:
    """Largest absolute value in each party's reply, by round, to find absurd numbers; `sums_only` names no party."""

    def __init__(self, *, sums_only: bool) -> None:
        self.sums_only = sums_only
        self._rounds: list[tuple[str, dict[str, float]]] = []
        self._max_magnitude = 0.0  # of all rounds

    @contextmanager
    def guard(self, phase: str, sizes: Mapping[str, float]) -> Iterator[None]:
        """Compute with replies in a with statement; errors are FedPCAErrors, with the party of outlying `sizes`."""
        self._rounds.append((phase, dict(sizes)))
        self._max_magnitude = max(self._max_magnitude, *sizes.values(), 0.0)
        try:
            with overflow_handling(self._max_magnitude, "raise"):
                yield
        except FedPCAError as error:
            raise self.explain(error, at_server=True) from error
        except (ArithmeticError, ValueError) as error:  # LinAlgError is a ValueError
            raise ContractError(self._failure_text(phase, type(error).__name__)) from error

    def explain(self, error: FedPCAError, *, at_server: bool = False) -> FedPCAError:
        """Return the error with the name of the party whose numbers differ by many orders of magnitude; else unchanged.

        If the server itself (`at_server`) finds an option wrong, that ConfigError comes first.
        """
        digits, sender, text = self._largest_deviation()
        if self.sums_only or digits < MIN_OUTLIER_DIGITS or self._max_magnitude <= MAX_SAFE_MAGNITUDE:
            return error
        sizes = ContractError(f"{sender}: {text}; look at the units and the values of its rows")
        return combine_errors([error, sizes] if at_server and isinstance(error, ConfigError) else [sizes, error])

    def _largest_deviation(self) -> tuple[float, str, str]:
        """Return the largest difference in log10 (0: 1e-324) from the other parties' median, its party, and a text."""
        deviations: list[tuple[float, str, str]] = []
        for phase, sizes in self._rounds:
            with np.errstate(divide="ignore"):
                digits: dict[str, Any] = {sender: max(float(np.log10(size)), -324.0) for sender, size in sizes.items()}
            for sender, magnitude in digits.items():
                typical = median([peer for name, peer in digits.items() if name != sender] or [magnitude])
                scales = f"up to {sizes[sender]:.3g} in size, the others' {10.0**typical:.3g}"
                text = f"its reply to '{phase}' holds numbers {scales}"
                deviations.append((abs(magnitude - typical), sender, text))
        return max(deviations, default=(0.0, "", ""))

    def _failure_text(self, phase: str, kind: str) -> str:
        """Return the reason why the server cannot compute with a round's replies, and the party out of scale."""
        failure = f"the server cannot compute with the replies to '{phase}' ({kind})"
        if self.sums_only:
            return (
                f"{failure}: what they add up to is no sum over rows, so some party's share is false; secure sums do "
                "not show whose. Run again without secure aggregation, if the parties agree, to see it"
            )
        digits, sender, text = self._largest_deviation()
        if digits < MIN_OUTLIER_DIGITS:
            return f"{failure}: some party's reply is false, but by their sizes it cannot be told whose"
        return f"{sender}: {text}, so {failure}; look at the units and the values of its rows"


def stream_replies(question: Round, consume: Callable[[Fields, str], None]) -> Generator[Round, Any, list[Reply]]:
    """Yield a question, and return its replies after `consume` (`Round.consume`) has had the fields of each."""
    replies = yield replace(question, consume=consume)
    for reply in replies:
        if not reply.consumed_bytes:
            consume(reply.fields, reply.sender)
    return list(replies)


class StreamingSum:
    """Sum of replies, field by field, with the same bits for any order of arrival; the first reply sets the shapes."""

    def __init__(self) -> None:
        self._sums: dict[str, ReproducibleSum] = {}

    def add(self, fields: Fields, sender: str) -> None:
        """Add the fields of a party's reply; raise ContractError if a shape is not that of the first reply."""
        if not self._sums:
            self._sums = {name: ReproducibleSum(array.shape) for name, array in fields.items()}
        for name, array in fields.items():
            shape = self._sums[name].shape
            if array.shape != shape:
                raise ContractError(f"{sender}: field '{name}' has shape {array.shape}, others have {shape}")
        for name, array in fields.items():
            self._sums[name].add(array)

    def total(self, replies: Sequence[Reply]) -> Total:
        """Return the sum of the fields so far, with the replies that were added."""
        return Total({name: added.total() for name, added in self._sums.items()}, len(replies), replies=replies)


@dataclass(eq=False)
class ReplyCollector:
    """Collector of the replies to a question: checks each, and passes its fields and sender to `consume`.

    `sizes` has the values of symbols in shapes, and `digest` returns that of a reply's arrays for the log, if any.
    """

    payload: Payload
    sizes: Mapping[str, int]
    consume: Callable[[Fields, str], None] | None = None
    digest: Callable[[Sequence[NDArray[Any]]], str] | None = None
    digests: dict[int, str] = field(default_factory=dict)  # digest of each checked reply, by partition
    magnitudes: dict[str, float] = field(default_factory=dict)  # largest number of each checked reply, by sender
    # by partition: bytes of the reply, and the small fields that are kept
    _consumed: dict[int, tuple[int, Fields]] = field(default_factory=dict)
    _claims: dict[str, int | None] = field(default_factory=dict)  # by sender: number of features of a consumed reply

    def receive(self, result: FitRes) -> None:
        """Check a reply on arrival, pass its fields to `consume`, if any, and release them; `check` raises faults."""
        if self.consume is None or "error" in result.metrics:
            return
        try:
            reply = make_reply(result, PartyInfo.parse(result.metrics))
            fields = self.payload.read(reply.tensors, reply.sender)
            claim = self.payload.count_features(fields)
            self.payload.check(fields, reply.sender, self.sizes if claim is None else {**self.sizes, "d": claim})
            if claim not in {None, self.sizes.get("d", claim)}:
                return  # which party has the wrong number of features is decided once all have replied
            self._note(reply, fields)
            self.consume(fields, reply.sender)
        except FedPCAError:
            return
        self._claims[reply.sender] = claim
        small = [entry.name for entry in self.payload.fields if all(map(str.isdigit, entry.shape))]
        self._consumed[reply.party] = reply.nbytes, {name: fields[name] for name in small}
        result.parameters = Parameters([], "")

    def mark_consumed(self, replies: Sequence[Reply]) -> None:
        """Set the number of bytes and the fixed-size fields of each reply: 0 and none if it was not consumed."""
        for reply in replies:
            reply.consumed_bytes, small_fields = self._consumed.get(reply.party, (0, {}))
            reply.fields = dict(small_fields)

    def check(self, replies: Sequence[Reply]) -> None:
        """Read and check replies that were not consumed, and set their fields; ContractError for wrong ones."""
        remaining = [reply for reply in replies if not reply.consumed_bytes]
        fields_by_sender = {reply.sender: self.payload.read(reply.tensors, reply.sender) for reply in remaining}
        check_together(self.payload, fields_by_sender, self.sizes, self._claims)
        for reply in remaining:
            reply.fields = fields_by_sender[reply.sender]
            self._note(reply, reply.fields)
            reply.tensors.clear()

    def _note(self, reply: Reply, fields: Fields) -> None:
        """Store the largest number and the digest of a reply."""
        self.magnitudes[reply.sender] = max_magnitude(fields)
        if self.digest is not None:
            self.digests[reply.party] = self.digest(self.payload.to_arrays(fields))
