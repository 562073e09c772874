"""Questions of a run: their requests, their replies and their order.

A `Question` is declared in one place, with its request, its reply, a party's answer, and limits on the sum of the
answers. Server and parties read the same declaration, and neither knows the other. The server's half of a method is a
generator, a *program*: it yields `Round` and `SumRound`, and continues with the replies.

A run's *script* holds its questions by name (their *phases*), in their order: each comes at most `Question.times` times
in a row, and those that are not optional at least once. The script is a pure function of the run-config and the number
of parties. Constants of the run that several questions name (its centre, its rows) keep the values of the first
question.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import methodcaller
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedpca_flwr.config.run_config import RunConfig
from fedpca_flwr.errors import ContractError, value_text
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.description import represent_by_shapes
from fedpca_flwr.maths.secure import Digits, Layout, digits_size
from fedpca_flwr.maths.short_words import MAX_VALUES_PER_WORD, ShortWords, WordSharing
from fedpca_flwr.protocol.admission import Reply
from fedpca_flwr.protocol.journal import State
from fedpca_flwr.protocol.payload import HEADER_BYTES, Field, Fields, Payload

SERVER = "the server"
"""Name of the sender of requests in errors."""

SumLimits = Mapping[str, Array]
"""Largest absolute value of each entry of the sum over all parties, by field."""


@dataclass(frozen=True)
class Public:
    """Parameters of a run that the server and every party know: configuration, parties, features and rows."""

    config: RunConfig
    options: Any  # a `PCAOptions` of the method
    parties: int
    """Number of parties that take part."""
    features: int = 0
    """Number d of features, if the parties hold rows of the same features; else 0."""
    rows: int = 0
    """Number n of rows, if the parties hold columns of the same rows; else 0."""


NO_FIELDS = Payload(())

Answer = Callable[[Any, Fields], Fields | Sequence[Fields]]
"""Function of a party (its `PCAClient`) and the request that returns the fields of the reply, or parts whose sum the
fields are. No row leaves."""


@represent_by_shapes
@dataclass(frozen=True, kw_only=True)
class Question:
    """Declaration of a question: fields of request and reply, a party's answer, and limits on the sum."""

    request: Payload = NO_FIELDS
    """Fields that the server sends. A party checks the request as strictly as the server checks replies."""
    reply: Payload
    """Fields that a party returns."""
    answer: Answer | None = None
    """Function that computes the reply. None for a question of a transport, which the transport answers."""
    sizes: Callable[[Public], Mapping[str, int]] | None = None
    """Function of the public parameters that returns the values of symbols in shapes other than ``d`` and ``n``."""
    limits: Callable[[Fields, Public], SumLimits] | None = None
    """Function of the request and the public parameters that returns limits on the sum of the replies. A question
    without limits is not a sum, and is refused if the server may see only sums."""
    share_limits: Callable[[Fields, Public], SumLimits] | None = None
    """Function, as `limits`, that returns limits on a single reply that the server sees. With None a reply has no
    limits."""
    suggestion: str = ""
    """For a question without limits: advice for runs that may show only sums, as the end of an error's text."""
    words: int | Callable[[Mapping[str, int]], Mapping[str, Digits]] = 1
    """Number of 64-bit words for each value of the sum; or function of the symbols' values that returns, by field, the
    digits of the values (a word for fields that are not named)."""
    short: Mapping[str, WordSharing] | Callable[[Fields, Public], Mapping[str, WordSharing]] = field(
        default_factory=dict
    )
    """Coding of the fields of the sum whose values share words; or a function of the request and the public parameters,
    if the request says how many."""
    spare_bits: Mapping[str, int] = field(default_factory=dict)
    """Bits by which the limits of fields of the sum are larger than any sum that the server reads."""
    plain_reply: Payload | None = None
    """Fields that a masked reply encodes; None for a reply in clear."""
    work_shape: tuple[str, ...] = ()
    """Shape of the float64 array that a party holds while it answers, if that may be larger than the reply."""
    times: int | Callable[[Public], int] = 1
    """Largest number of times that a run may ask the question; or a function of the public parameters, if it depends on
    the number of parties (0 while that number is unknown)."""
    optional: bool = False
    """Whether a run may leave the question out."""
    in_clear: bool = False
    """Whether replies contain nothing about values, only for example the number of rows. They then travel in clear with
    every transport."""
    needs: Literal["", "groups", "rows", "files"] = ""
    """Data that the answer needs besides functions of the moments of all rows that take part: sums over groups of rows,
    single rows, or a site's own files, which stay there. The method's card, or a stage, declares the first two."""
    differentially_private: bool = False
    """Whether replies hold enough noise: then the difference of sums over different parties tells no more than the
    sums do."""
    closing: bool = False
    """Whether the question comes after the method has its result; it is left out if a party has left since."""

    def max_times(self, public: Public) -> int:
        """Return how many times in a row a run may ask this question.

        Parameters
        ----------
        public : Public
            Public parameters of the run.

        Returns
        -------
        int
        """
        return self.times if isinstance(self.times, int) else self.times(public)

    def layout(self, request: Fields, public: Public) -> Layout:
        """Return how the sum of the replies is encoded as fixed-point integers in 64-bit words.

        Parameters
        ----------
        request : mapping of str to ndarray
            Fields of the question.
        public : Public
            Public parameters of the run.

        Returns
        -------
        Layout
            Positions and digits of values. A limit with fewer axes than its field holds for each entry.
        """
        assert self.limits is not None
        limits, sizes = dict(self.limits(request, public)), self.reply_sizes(request, public)
        for reply_field in self.reply.fields:
            if reply_field.name in limits and limits[reply_field.name].ndim < len(reply_field.shape):
                limits[reply_field.name] = np.broadcast_to(limits[reply_field.name], reply_field.lengths(sizes))
        sharing = self.short(request, public) if callable(self.short) else self.short
        short = {name: ShortWords(limits.pop(name), coding, public.parties) for name, coding in sharing.items()}
        return Layout(limits, self._digits(sizes), short, public.parties, self.spare_bits)

    def _digits(self, sizes: Mapping[str, int]) -> int | Mapping[str, Digits]:
        """Return how many 64-bit words each value takes in fixed point, or a coding by field (`words`)."""
        return self.words if isinstance(self.words, int) else self.words(sizes)

    def nbytes(self, sizes: Mapping[str, int], *, with_optional: bool = False) -> int:
        """Return a lower limit on the bytes of a reply, with the words of fixed point if replies are masked.

        Parameters
        ----------
        sizes : mapping of str to int
            Values of the symbols in shapes.
        with_optional : bool
            Whether optional fields count.

        Returns
        -------
        int
        """
        if self.plain_reply is None:
            return self.reply.nbytes(sizes, with_optional=with_optional)
        words = self._digits(sizes)
        field_digits: dict[str, Digits] = {} if isinstance(words, int) else dict(words)
        if callable(self.short):  # the request is not known here, and no field takes fewer words
            field_digits = {reply_field.name: (MAX_VALUES_PER_WORD,) for reply_field in self.plain_reply.fields}
        else:
            field_digits |= {name: (coding.values_per_word,) for name, coding in self.short.items()}
        default_digits = (1,) * words if isinstance(words, int) else (1,)
        total_words = 1  # which counts the parties
        for reply_field in self.plain_reply.fields:
            values = math.prod(reply_field.lengths(sizes))
            total_words += digits_size(values, field_digits.get(reply_field.name, default_digits))
        return HEADER_BYTES + 8 * total_words

    @property
    def has_fixed_size(self) -> bool:
        """True if `nbytes` is the exact size of every reply, and not only a lower limit."""
        return not callable(self.short) and (self.plain_reply is not None or self.reply.has_fixed_size)

    def request_sizes(self, public: Public) -> dict[str, int]:
        """Return the values of all symbols in the shapes of the request's fields, such as ``d`` and ``k``.

        Parameters
        ----------
        public : Public
            Public parameters of the run.

        Returns
        -------
        dict of str to int
        """
        sizes = {"d": public.features} if public.features else {}
        sizes |= {"n": public.rows} if public.rows else {}
        return {**sizes, **self.sizes(public)} if self.sizes else sizes

    def reply_sizes(self, request: Fields, public: Public) -> dict[str, int]:
        """Return the values of the symbols in the reply's shapes; "<=b" in the request sets ``b``.

        Parameters
        ----------
        request : mapping of str to ndarray
            Fields of the question.
        public : Public
            Public parameters of the run.

        Returns
        -------
        dict of str to int
        """
        sizes = self.request_sizes(public)
        for name, axis, symbol in self.request.bounded_axes:
            if name in request:
                sizes[symbol] = request[name].shape[axis]
        return sizes


Questions = Mapping[str, Question]
"""Questions by name, in the order of a run."""


def require_next(script: Questions, answered: Sequence[str], phase: str, public: Public) -> None:
    """Raise ContractError for a question that the script lacks, has elsewhere, or allows less often than it came."""
    max_times = script[phase].max_times(public) if phase in script else 0
    if not max_times:
        raise ContractError(
            f"the server asked for {value_text(phase)}, expected one of: {_allowed_names(script, public)}; do all "
            "parties run the same version?"
        )
    names = list(script)
    position, last = names.index(phase), names.index(answered[-1]) if answered else -1
    times = answered.count(phase)
    if position >= last and times >= max_times:
        raise ContractError(f"the server asked for '{phase}' {times + 1} times in one run; {times} are allowed")
    between = names[last + 1 : position]
    if position < last or any(not script[name].optional and script[name].max_times(public) for name in between):
        before, order = f"after '{answered[-1]}'" if answered else "first", _allowed_names(script, public)
        raise ContractError(f"the server asked for '{phase}' {before}; a run asks in the order {order}")


def _allowed_names(script: Questions, public: Public) -> str:
    """Return the names of the questions that a run may ask."""
    return ", ".join(name for name, question in script.items() if question.max_times(public))


def require_unchanged(payload: Payload, request: Fields, state: State) -> None:
    """Raise ContractError if a constant of the run, such as its centre, is not the first one, which `state` stores."""
    for entry in payload.fields:
        if not (entry.constant or entry.constant_or_zero):
            continue
        value, name = request[entry.name], f"told {entry.constant or entry.constant_or_zero}"
        is_constant, is_stored = bool(entry.constant and value.size), name in state
        if is_constant and not is_stored:
            state[name] = [value]
            continue
        must_equal = is_constant or (entry.constant_or_zero and is_stored and value.any())
        if must_equal and not np.array_equal(state[name][0], value):
            raise ContractError(f"{SERVER}: '{entry.name}' differs from the value in an earlier question of this run")


def max_questions(script: Questions, public: Public) -> int:
    """Return the largest number of questions that a run can ask by its script, optional ones included."""
    return sum(map(methodcaller("max_times", public), script.values()))


def answer_cost(question: Question, sizes: Mapping[str, int]) -> tuple[int, int]:
    """Return lower limits on the bytes of a reply, and of the largest array that a party holds to answer."""
    nbytes = question.nbytes(sizes)
    work = Payload((Field("", question.work_shape),)).nbytes(sizes) if question.work_shape else 0
    return nbytes, max(work, nbytes)


def min_sizes(question: Question, public: Public, rows: int) -> dict[str, int]:
    """Return the smallest values that the symbols in shapes can have for a party of `rows` rows."""
    sizes = {"n": rows, "d": 1, **question.request_sizes(public)}
    for _, _, symbol in question.request.bounded_axes:
        sizes[symbol] = 1
    return sizes


def max_reply_cost(script: Questions, public: Public, rows: int) -> tuple[int, int]:
    """Return lower limits on the bytes of a run's largest reply that must come, and of the largest array behind one."""
    nbytes = largest = 0
    for question in script.values():
        if not question.optional:
            reply_bytes, answer_bytes = answer_cost(question, min_sizes(question, public, rows))
            nbytes, largest = max(nbytes, reply_bytes), max(largest, answer_bytes)
    return nbytes, largest


Kind = TypeVar("Kind")


def by_transport(config: RunConfig, *, clear: Kind, masked: Kind, surviving: Kind | None = None) -> Kind:
    """Return `clear`, `masked` or `surviving` by how the run's answers travel.

    Parameters
    ----------
    config : RunConfig
        Configuration of the run.
    clear, masked : object
        Values for answers in clear, and for masked ones.
    surviving : object, optional
        Value for masked answers of a run that continues without some parties; as ``masked`` if None.

    Returns
    -------
    object
    """
    return {"clear": clear, "masked": masked, "surviving": masked if surviving is None else surviving}[config.transport]


@represent_by_shapes
@dataclass(frozen=True)
class Round:
    """Question that a program yields, to receive the replies of all parties singly."""

    phase: str
    """Name of the question."""
    request: Fields = field(default_factory=dict)
    """Fields that every party receives."""
    party_requests: Mapping[int, Fields] = field(default_factory=dict)
    """Further fields of single parties, by partition."""
    method: str = ""
    """Name and options of the method whose question this is, if the run has chosen a method on its way."""
    consume: Callable[[Fields, str], None] | None = None
    """Function of a checked reply's fields and of its sender. It is called when a reply arrives, with one reply at a
    time and in any order, and may not be called at all. Of a reply that it consumed only short fields are stored. If it
    raises a `ContractError`, the reply is stored as a whole."""


@represent_by_shapes
@dataclass(frozen=True)
class SumRound(Round):
    """Question for which the program needs only the sum of all replies. In clear, `consume` sees each reply."""

    estimate: Fields = field(default_factory=dict)
    """Estimate of the sum by the server. Only the difference between a field and its estimate must be within limits."""


@represent_by_shapes
@dataclass(frozen=True)
class Total(Mapping[str, Array]):
    """Sum of the parties' replies: a mapping from field names to summed arrays."""

    fields: Fields
    parties: int
    """Number of parties in the sum."""
    low: Fields = field(default_factory=dict)
    """Low parts of sums in fixed point: what rounding to float64 left out; empty for sums in clear."""
    exact_integers: Callable[[str], tuple[NDArray[np.object_], NDArray[np.int32]]] | None = None
    """For sums in fixed point: function of a field's name that returns integers n and exponents e, for n 2^-e without
    any rounding."""
    error_bounds: Fields = field(default_factory=dict)
    """Bound on what fixed point rounded off in each entry; empty if nothing was rounded."""
    replies: Sequence[Reply] = ()
    """The replies, if the server sees them."""

    def __getitem__(self, name: str) -> Array:
        return self.fields[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.fields)

    def __len__(self) -> int:
        return len(self.fields)


Program = Generator[Round, Any, Any]
"""Generator that yields a `Round` and continues with the replies in order of the partitions, or yields a `SumRound` and
continues with a `Total`, or with None if no sum is possible (in the last round of a run from which a party has
left)."""
