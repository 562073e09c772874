"""Journal of a party: the record of a run that must survive the end of the party's process.

`Journal` is the interface. `StateJournal` stores the record in the state that Flower keeps for a party over the rounds
of a run, in a simulation and on a site alike. The journal in a site's own folder is `fedpca_flwr.site.rules.journal`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from flwr.app import ConfigRecord, RecordDict
from flwr.app import Context as Context
from numpy.typing import ArrayLike, NDArray
from typing_extensions import override

from fedpca_flwr.errors import ContractError
from fedpca_flwr.protocol.payload import read_array, write_array

ENDED_TEXT = "this site answers no more in this run; its own log says why"
RUN_OVER_TEXT = "the run was over for this site, or silent for so long that another one has begun since; begin anew"
CONFIGURATION_CHANGED_TEXT = "the server sends another configuration than with its first question; a run has one"

REPLY_NAME = "reply"
"""Name of the secret that stores the last reply until the next question, so that a lost reply can be sent again."""

PermitQuestion = Callable[[Sequence[str]], None]
"""Function of the phases that were answered before; it raises an error to refuse the question."""

PermitRelease = Callable[[Sequence[float], Sequence[float]], None]
"""Function of the noise multipliers of this run and of all other runs; it raises an error to refuse a release."""

Progress = Literal["new", "computing", "answered"]


class Note(NamedTuple):
    """Entry of a journal about a site's data, which a later run reads: text, id of the run, and time."""

    content: str
    run: str
    time: str


NoteDecision = Callable[[Sequence[Note], Sequence[Note]], str]
"""Function of the notes of a kind in all runs, on the same data and on other data; it returns the text to note, empty
for none, or raises an error to refuse the run."""


class Journal(ABC):
    """Interface of a party's record of a run: its questions, answers, privacy releases and secrets."""

    @abstractmethod
    def begin(self, phase: str, digest: str, configuration: bytes, permit: PermitQuestion) -> None:
        """Record a question before its answer, if `permit` accepts the phases that were answered before.

        The digests are of its fields and of the run-config. Raise the error of `permit`, and ContractError if this
        party answers no more, or began with another configuration.
        """

    @abstractmethod
    def progress(self, digest: str, configuration: bytes) -> Progress:
        """Return "computing" or "answered" for the last question of this run, "new" for others and an ended run."""

    @abstractmethod
    def has_begun(self) -> bool:
        """Return whether the journal holds a question of this run."""

    @abstractmethod
    def record_answer(self, what: str, nbytes: int, digest: Callable[[], str]) -> None:
        """Record fields and bytes of the last answer, and its SHA-256 (`digest`) if the journal outlasts the run."""

    @abstractmethod
    def record_release(self, phase: str, relation: str, multiplier: float, permit: PermitRelease) -> None:
        """Record a noise multiplier (deviation by sensitivity) before its noise is drawn, unless `permit` raises."""

    @property
    @abstractmethod
    def data_key(self) -> bytes:
        """Secret key for digests of this site's data; empty if no entry outlasts the run."""

    @abstractmethod
    def remember(self, kind: str, data: str, decide: NoteDecision) -> None:
        """Record the text, if any, that `decide` makes from the notes of a kind; raise its error to refuse the run."""

    @abstractmethod
    def record_refusal(self, why: str) -> None:
        """Record, once a run, that this party refused to take part before any answer, and the kind of error."""

    @abstractmethod
    def end(self, why: str) -> None:
        """Record that this party answers no more in this run, and the kind of error; delete the run's secrets."""

    @abstractmethod
    def store_secret(self, name: str, value: bytes) -> None:
        """Store a secret, such as a key for masks, until the end of this run."""

    @abstractmethod
    def load_secret(self, name: str) -> bytes | None:
        """Return a stored secret of this run by its name, or None."""

    @abstractmethod
    def complete(self) -> None:
        """Record that this party has answered the run's last question, and delete the run's secrets."""

    @abstractmethod
    def end_digest(self) -> str:
        """Return the keyed digest of the last event, by which a journal that is put back shows; empty without a key."""


class SimulatedContext(Context):
    """Context of a party that is simulated in the server's own process: its rows are nobody's own."""


class PostContext(Context):
    """Context of a party whose questions come by post: the run has no deadline, however long it is silent."""


RECORD_NAME = "journal"
ARRAYS_KEY, EVENTS_KEY = "arrays", "events"


@dataclass(eq=False)
class State:
    """Mapping from names to lists of arrays, which Flower's `RecordDict` stores between the rounds of a run."""

    records: RecordDict  # whose views of one kind are made anew each time, so none is used

    def __contains__(self, name: str) -> bool:
        record = self.records.get(name)
        return isinstance(record, ConfigRecord) and ARRAYS_KEY in record

    def __getitem__(self, name: str) -> list[NDArray[Any]]:
        """Return the list of arrays under this name; raise ContractError if the question that stores it never came."""
        if name not in self:
            raise ContractError(f"the server's question follows '{name}', but it did not ask this party '{name}'")
        tensors: Any = self.records[name][ARRAYS_KEY]
        return list(map(read_array, tensors))

    def __setitem__(self, name: str, arrays: Sequence[ArrayLike]) -> None:
        # one entry of bytes: Flower checks and copies each `Array` several times
        self.records[name] = ConfigRecord({ARRAYS_KEY: [write_array(np.asarray(array)) for array in arrays]})

    def drop(self, name: str) -> None:
        """Delete the list of arrays with this name, if present."""
        if name in self:
            del self.records[name]

    def clear(self) -> None:
        """Delete all lists of arrays at the end of a run, because they may contain values of single rows."""
        for name in list(self.records):
            self.drop(name)


class StateJournal(Journal):
    """Journal of a single run in Flower's state; beside a site's own journal it holds how far that was read."""

    def __init__(self, state: RecordDict) -> None:
        if RECORD_NAME not in state:
            state[RECORD_NAME] = ConfigRecord({EVENTS_KEY: "\n" * 3})
        self.record: Any = state[RECORD_NAME]

    @property
    def events(self) -> list[str]:
        """Why the run ended, digests of configuration and last question, "answered" if that is, and all questions."""
        return str(self.record[EVENTS_KEY]).split("\n")

    @events.setter
    def events(self, events: list[str]) -> None:
        self.record[EVENTS_KEY] = "\n".join(events)  # one text: Flower checks each entry, each time

    @property
    def last_seen_event(self) -> tuple[int, str]:
        """Number and digest of the last event that this run has seen in the site's own journal; (0, "") for none."""
        return int(self.record.get("seen events", 0)), str(self.record.get("seen digest", ""))

    @last_seen_event.setter
    def last_seen_event(self, end: tuple[int, str]) -> None:
        self.record["seen events"], self.record["seen digest"] = end

    @override
    def begin(self, phase: str, digest: str, configuration: bytes, permit: PermitQuestion) -> None:
        """Record a question if `permit` accepts the phase; any error ends the run for this party."""
        ended, first_configuration, _, _, *answered = self.events
        if ended:
            raise ContractError(ENDED_TEXT)
        try:
            if first_configuration not in ("", configuration.hex()):
                raise ContractError(CONFIGURATION_CHANGED_TEXT)
            permit(answered)
        except Exception as error:
            self.end(type(error).__name__)
            raise
        self.events = ["", configuration.hex(), digest, "", *answered, phase]
        self.record.pop(f"secret {REPLY_NAME}", None)

    @override
    def progress(self, digest: str, configuration: bytes) -> Progress:
        ended, last_configuration, last_digest, answered, *_ = self.events
        if ended or (last_digest, last_configuration) != (digest, configuration.hex()):
            return "new"
        return "answered" if answered else "computing"

    @override
    def has_begun(self) -> bool:
        return len(self.events) > 4

    @override
    def record_answer(self, what: str, nbytes: int, digest: Callable[[], str]) -> None:
        """Record only that the last question is answered: nobody reads this journal after the run."""
        self.events = [*self.events[:3], "answered", *self.events[4:]]

    @override
    def record_release(self, phase: str, relation: str, multiplier: float, permit: PermitRelease) -> None:
        """Record and check nothing: only a journal in a folder counts privacy budgets over several runs."""

    @property
    @override
    def data_key(self) -> bytes:
        """Empty key: no note about data outlasts the run."""
        return b""

    @override
    def remember(self, kind: str, data: str, decide: NoteDecision) -> None:
        """Record and check nothing: only a journal in a folder lasts from run to run."""

    @override
    def record_refusal(self, why: str) -> None:
        """Record nothing: nobody reads this journal after the run."""

    @override
    def end(self, why: str) -> None:
        """Record why the run ended for this party, and delete its secrets."""
        self.events = [why, *self.events[1:]]
        self.complete()

    @override
    def store_secret(self, name: str, value: bytes) -> None:
        self.record[f"secret {name}"] = value

    @override
    def load_secret(self, name: str) -> bytes | None:
        value: bytes | None = self.record.get(f"secret {name}")
        return value

    @override
    def complete(self) -> None:
        """Delete all secrets of this run, and record nothing."""
        for name in list(self.record):
            if name.startswith("secret "):
                del self.record[name]

    @override
    def end_digest(self) -> str:
        return ""
