"""Questions of a run: what the server requests, what a party replies, and in which order.

A `Question` is declared in one place, with its request, its reply, a party's answer, and limits on the sum of the
answers. Server and parties read the same declaration, and neither knows the other. The server's half of a method is a
generator, a *program*: it yields `Round` and `SumRound`, and continues with the replies.

A run's *script* holds its questions by name (their *phases*), in their order: each comes at most `Question.times` times
in a row, and those that are not optional at least once. The script is a pure function of the run-config and the number
of parties, and no party answers a question outside the script. Constants of the run that several questions name (its
centre, its rows) keep the values of the first question.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedpca_flwr.config.run_config import RunConfig
from fedpca_flwr.errors import ContractError
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.secure import Digits, Layout, digits_size
from fedpca_flwr.maths.short_words import ShortWords, WordSharing
from fedpca_flwr.protocol.admission import Reply
from fedpca_flwr.protocol.journal import State
from fedpca_flwr.protocol.payload import HEADER_BYTES, Field, Fields, Payload

SERVER = "the server"
"""How errors name whoever asked."""

SumLimits = Mapping[str, Array]
"""By field, the largest size that each entry of the sum over all parties can have."""


@dataclass(frozen=True)
class Public:
    """Public parameters of a run, which the server and every party know.

    Parameters
    ----------
    config : RunConfig
        Configuration of the run.
    options : PCAOptions
        Options of the method.
    parties : int
        Number of parties that take part.
    features : int
        Number d of features, if the parties hold rows of the same features; else 0.
    rows : int
        Number n of rows, if the parties hold columns of the same rows; else 0.
    """

    config: RunConfig
    options: Any  # the method's own
    parties: int  # how many take part in the run
    features: int = 0  # d, where the parties hold rows of the same features
    rows: int = 0  # n, where they hold columns of the same rows

    @cached_property
    def sizes(self) -> Mapping[str, int]:
        """Values of the symbols ``d`` and ``n`` in shapes, as far as they are known."""
        return {symbol: size for symbol, size in (("d", self.features), ("n", self.rows)) if size}


NO_FIELDS = Payload(())

Answer = Callable[[Any, Fields], Fields | Sequence[Fields]]
"""From a party (its `PCAClient`) and what was asked: the fields of its reply, or the parts of which they are the sum.
No row leaves."""


@dataclass(frozen=True, kw_only=True)
class Question:
    """Kind of question in a script.

    The texts at the attributes describe each of them.
    """

    request: Payload = NO_FIELDS
    """What the server sends. The party checks it as strictly as the server checks replies."""
    reply: Payload  # what a party returns
    answer: Answer | None = None
    """How it makes that: see `Answer`. A question of a transport has none: the transport answers it."""
    sizes: Callable[[Public], Mapping[str, int]] = lambda public: {}
    """From what is public: what symbols in the shapes stand for, besides ``d`` and ``n``."""
    limits: Callable[[Fields, Public], SumLimits] | None = None
    """From what was asked and what is public: limits on the sum of the replies. A phase without them is no sum, and
    is refused where only sums may be shown."""
    share_limits: Callable[[Fields, Public], SumLimits] | None = None
    """As `limits`, of what one reply adds to the sum where the server sees it; None: it is not held against any."""
    suggestion: str = ""
    """Of a question without limits: what to choose where only sums may be shown, as the end of an error."""
    words: int | Callable[[Mapping[str, int]], Mapping[str, Digits]] = 1
    """Words of 64 bits that a value of that sum travels in; or, from what the symbols in shapes stand for, by field the
    digits of its values (one word where it says nothing)."""
    short: Mapping[str, WordSharing] = field(default_factory=dict)
    """By field of that sum whose values share words: how."""
    plain_reply: Payload | None = None  # what a reply of such words holds
    work_shape: tuple[str, ...] = ()
    """What a party holds while it answers, where that may be larger than the reply: the shape of a float64 array."""
    times: int | Callable[[Public], int] = 1
    """How often one run may ask it, at most; or that from what is public, where it depends on the number of parties
    (0 while nobody has said how many there are)."""
    optional: bool = False  # whether a run may leave it out
    in_clear: bool = False
    """Whether replies tell nothing of anyone's values (how many rows there are, say), so that they travel in clear
    however the other answers do."""
    needs: Literal["", "groups", "rows", "files"] = ""
    """What its answer needs beside functions of the moments of all rows that take part: sums over groups of rows,
    single rows, or a site's own files, which stay there. The first two the method's card, or a stage, declares."""
    differentially_private: bool = False
    """Whether replies have the noise that makes them so: then the difference of sums over different parties tells
    no more than they do."""
    closing: bool = False
    """Whether it comes after the method has its result: where a party has left since, it is left out."""

    def max_times(self, public: Public) -> int:
        """Return how often a run may ask this question.

        Parameters
        ----------
        public : Public
            Public parameters of the run.

        Returns
        -------
        int
            Largest number of times.
        """
        return self.times if isinstance(self.times, int) else self.times(public)

    def layout(self, request: Fields, public: Public) -> Layout:
        """Return how the sum of the replies travels in fixed point.

        Parameters
        ----------
        request : mapping of str to ndarray
            Fields of the question.
        public : Public
            Public parameters of the run.

        Returns
        -------
        Layout
            Positions and digits of each field's values. A limit with fewer axes than its field holds for each entry.
        """
        assert self.limits is not None
        limits, sizes = dict(self.limits(request, public)), self.reply_sizes(request, public)
        for reply_field in self.reply.fields:
            if reply_field.name in limits and limits[reply_field.name].ndim < len(reply_field.shape):
                limits[reply_field.name] = np.broadcast_to(limits[reply_field.name], reply_field.lengths(sizes))
        short = {name: ShortWords(limits.pop(name), coding, public.parties) for name, coding in self.short.items()}
        return Layout(limits, words=self.digits(sizes), short=short, parties=public.parties)

    def digits(self, sizes: Mapping[str, int]) -> int | Mapping[str, Digits]:
        """Return `words` for given values of the symbols.

        Parameters
        ----------
        sizes : mapping of str to int
            Values of the symbols in shapes.

        Returns
        -------
        int or mapping of str to Digits
            Words of 64 bits for each value, or digits by field.
        """
        return self.words if isinstance(self.words, int) else self.words(sizes)

    def nbytes(self, sizes: Mapping[str, int], *, with_optional: bool = False) -> int:
        """Return a lower limit on the bytes of a reply (see `Payload.nbytes`).

        Parameters
        ----------
        sizes : mapping of str to int
            Values of the symbols in shapes.
        with_optional : bool
            Whether optional fields count.

        Returns
        -------
        int
            Number of bytes.
        """
        if self.plain_reply is not None:
            words = self.digits(sizes)
            field_digits = {} if isinstance(words, int) else words
            field_digits = {**field_digits, **{name: (coding.values_per_word,) for name, coding in self.short.items()}}
            default_digits = (1,) * words if isinstance(words, int) else (1,)
            counts = self.plain_reply.counts(sizes)
            return HEADER_BYTES + 8 * (
                1 + sum(digits_size(count, field_digits.get(name, default_digits)) for name, count in counts)
            )
        return self.reply.nbytes(sizes, with_optional=with_optional)

    @property
    def has_fixed_size(self) -> bool:
        """True if `nbytes` is the size of every reply, and not only a lower limit."""
        return self.plain_reply is not None or self.reply.has_fixed_size

    def cost(self, sizes: Mapping[str, int]) -> tuple[int, int]:
        """Return lower limits on the bytes of a reply and on the memory that a party needs to answer.

        Parameters
        ----------
        sizes : mapping of str to int
            Values of the symbols in shapes.

        Returns
        -------
        nbytes : int
            Bytes of a reply.
        memory : int
            Bytes of memory.
        """
        nbytes = self.nbytes(sizes)
        return nbytes, max(Payload((Field("", self.work_shape),)).nbytes(sizes), nbytes) if self.work_shape else nbytes

    def min_sizes(self, public: Public, rows: int) -> dict[str, int]:
        """Return the smallest values of the symbols in shapes, before anything is asked.

        Parameters
        ----------
        public : Public
            Public parameters of the run.
        rows : int
            Number of rows of the party.

        Returns
        -------
        dict of str to int
            Values of the symbols.
        """
        bounded = {symbol[2:]: 1 for field in self.request.fields for symbol in field.shape if symbol.startswith("<=")}
        return {"n": rows, "d": 1, **self.request_sizes(public), **bounded}

    def request_sizes(self, public: Public) -> dict[str, int]:
        """Return the values of all symbols in the shapes of the request.

        Parameters
        ----------
        public : Public
            Public parameters of the run.

        Returns
        -------
        dict of str to int
            Values of the symbols.
        """
        return {**public.sizes, **self.sizes(public)}

    def reply_sizes(self, request: Fields, public: Public) -> dict[str, int]:
        """Resolve the symbols in the shapes of the reply; a symbol with an upper limit has the length in the request.

        Parameters
        ----------
        request : mapping of str to ndarray
            Fields of the question.
        public : Public
            Public parameters of the run.

        Returns
        -------
        dict of str to int
            Values of the symbols.
        """
        sizes = self.request_sizes(public)
        for request_field in self.request.fields:
            if request_field.name in request:
                for symbol, length in zip(request_field.shape, request[request_field.name].shape, strict=True):
                    if symbol.startswith("<="):
                        sizes[symbol[2:]] = length
        return sizes


Questions = Mapping[str, Question]
"""By name, in the order in which a run asks them."""


Kind = TypeVar("Kind")


def by_transport(config: RunConfig, *, clear: Kind, masked: Kind, surviving: Kind | None = None) -> Kind:
    """Return the value for the transport of a run.

    Parameters
    ----------
    config : RunConfig
        Configuration of the run.
    clear : object
        Value for answers in clear.
    masked : object
        Value for masked answers.
    surviving : object, optional
        Value for masked answers of a run that continues without some parties; as ``masked`` by default.

    Returns
    -------
    object
        The value.
    """
    return {"clear": clear, "masked": masked, "surviving": masked if surviving is None else surviving}[config.transport]


@dataclass(frozen=True)
class Round:
    """Question to all parties, whose replies the server sees singly.

    Parameters
    ----------
    phase : str
        Name of the question.
    request : mapping of str to ndarray
        Fields that every party receives.
    party_requests : mapping of int to mapping
        Further fields of single parties, by partition.
    method : str
        Name and options of the method whose question this is, if the run has chosen a method on its way.
    consume : callable, optional
        Function of the fields of a checked reply and of its sender, called on arrival, with one reply at a time and in
        any order. It need not be called. A reply that it consumed keeps only fields of a few numbers. A reply that it
        refuses by a `ContractError` is stored.
    """

    phase: str
    request: Fields = field(default_factory=dict)  # what every party receives
    party_requests: Mapping[int, Fields] = field(default_factory=dict)  # what the party of a partition receives besides
    method: str = ""  # whose question it is, where a run has chosen a method on its way: its name and options
    consume: Callable[[Fields, str], None] | None = None
    """Is given the fields of each reply as it comes, checked, and who sent it, one reply at a time and in any order.
    It need not be called. Where it was, the reply has no fields any more but those of a few numbers. What it
    refuses by a `ContractError` is kept."""


@dataclass(frozen=True)
class SumRound(Round):
    """Question whose replies only need to be added up; `consume` sees each reply if answers travel in clear.

    Parameters
    ----------
    estimate : mapping of str to ndarray
        The server's estimate of the sum: only the residual of a field from its estimate must be within limits.
    """

    estimate: Fields = field(default_factory=dict)
    """What the server knows of that sum: a field whose residual alone has limits is near this."""


@dataclass(frozen=True)
class Total(Mapping[str, Array]):
    """Sum of the parties' replies, by field.

    Parameters
    ----------
    fields : mapping of str to ndarray
        The sums.
    parties : int
        Number of parties in the sum.
    low : mapping of str to ndarray
        Low parts of sums in fixed point: what rounding to float64 left out.
    exact_integers : callable, optional
        For sums in fixed point: function of a field's name that returns integers n and exponents e, for n 2^-e without
        any rounding.
    error_bounds : mapping of str to ndarray
        Bound on what fixed point rounded off in each entry; empty if nothing was rounded.
    replies : sequence of Reply
        The replies, if the server sees them.
    """

    fields: Fields
    parties: int  # how many are in it
    low: Fields = field(default_factory=dict)
    """What rounding each sum to float64 left out, where it is of fixed point."""
    exact_integers: Callable[[str], tuple[NDArray[np.object_], NDArray[np.int32]]] | None = None
    """By field of such sums: whole numbers n and exponents e, for n 2^-e without any rounding."""
    error_bounds: Fields = field(default_factory=dict)
    """Bound on what fixed point rounded off in each entry; empty where nothing was."""
    replies: Sequence[Reply] = ()  # what it is the sum of, where the server sees that

    def __getitem__(self, name: str) -> Array:
        return self.fields[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.fields)

    def __len__(self) -> int:
        return len(self.fields)


Program = Generator[Round, Any, Any]
"""Yields an `Ask`, and goes on with the parties' replies by partition; or a `Sum`, and goes on with a `Total`, or with
None where no sum could be had (in the last round of a run from which a party has left)."""


def require_next(script: Questions, answered: Sequence[str], phase: str, public: Public) -> None:
    """Refuse a question that is not the next of a script.

    Parameters
    ----------
    script : mapping of str to Question
        Questions of the run by name.
    answered : sequence of str
        Names of the questions that were answered so far.
    phase : str
        Name of the question.
    public : Public
        Public parameters of the run.

    Raises
    ------
    ContractError
        If the script has no such question, or has it at another place.
    """
    names = [name for name in script if script[name].max_times(public)]
    if phase not in names:
        raise ContractError(
            f"the server asked for '{phase[:20]}', expected one of: {', '.join(names)}; do all parties run the same "
            "version?"
        )
    position, last = names.index(phase), names.index(answered[-1]) if answered else -1
    times = list(answered).count(phase)
    if position >= last and times >= script[phase].max_times(public):
        raise ContractError(f"the server asked for '{phase}' {times + 1} times in one run; {times} are allowed")
    if position == last:
        return
    skipped = [name for name in names[last + 1 : position] if not script[name].optional]
    if position < last or skipped:
        before = f"after '{answered[-1]}'" if answered else "first"
        raise ContractError(f"the server asked for '{phase}' {before}; a run asks in the order {', '.join(names)}")


def require_unchanged(payload: Payload, request: Fields, state: State) -> None:
    """Refuse a constant of the run with another value than before; store constants that are new.

    Parameters
    ----------
    payload : Payload
        Fields of the question, of which some are declared as constants.
    request : mapping of str to ndarray
        Values of the fields.
    state : State
        Constants that this party received earlier in the run.

    Raises
    ------
    ContractError
        If a constant changed.
    """
    for entry in payload.fields:
        value, name = request[entry.name], f"told {entry.constant or entry.constant_or_zero}"
        if entry.constant and value.size and name not in state:
            state[name] = [value]
        elif (entry.constant and value.size) or (entry.constant_or_zero and name in state and value.any()):
            require_same(entry.name, np.array_equal(state[name][0], value))


def require_same(name: str, same: bool) -> None:
    """Refuse a constant that changed within a run.

    Parameters
    ----------
    name : str
        Name of the field.
    same : bool
        Whether the value is that of an earlier question.

    Raises
    ------
    ContractError
        If the value changed.
    """
    if not same:
        raise ContractError(f"{SERVER}: '{name}' is not what an earlier question of this run said")


def max_questions(script: Questions, public: Public) -> int:
    """Return the largest number of questions of a run.

    Parameters
    ----------
    script : mapping of str to Question
        Questions of the run by name.
    public : Public
        Public parameters of the run.

    Returns
    -------
    int
        Number of questions.
    """
    return sum(question.max_times(public) for question in script.values())
