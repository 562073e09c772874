"""A site's privacy ledger: what it has released, at what noise, so that a budget can stop the next release.

Each entry is one noisy reply: run, party, phase, noise multiplier, a digest of what was asked, a digest of the reply.
The reply itself is kept beside it: the same question in the same run gets the same bytes, never fresh noise, which
could be averaged away. Reply first, then entry, and both are on disk before the reply leaves.

The ledger is a JSON file of the site, with replies as ``.npz`` files beside it. Without a path it lives in the state
that Flower keeps for a run: then it outlives the rounds, not the run. A file that is not whole is an error, never an
empty ledger.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, RecordDict
from numpy.typing import NDArray
from pydantic import Field

from fedpca_flwr.config import Config
from fedpca_flwr.errors import DisclosureError
from fedpca_flwr.files import site_file, to_write
from fedpca_flwr.maths.privacy import Relation, composed, gaussian_epsilon

FORMAT = 1


class Entry(Config):
    """One release.

    Attributes
    ----------
    run : str
    party : int
    phase : str
    relation : str
        Of neighbouring data sets, by which the multiplier is meant. One for replace-one holds for add-remove too.
    multiplier : float
        Standard deviation of the noise over the sensitivity.
    question : str
        Digest of what the run asked.
    reply : str
        Digest of the stored reply.
    """

    run: str
    party: Annotated[int, Field(ge=0)]
    phase: str
    relation: Relation
    multiplier: Annotated[float, Field(ge=0)]
    question: str
    reply: str

    @property
    def key(self) -> str:
        return f"{self.run}-{self.party}-{self.phase}"


class Ledger(ABC):
    """The releases of a site. Use it inside ``with ledger.locked()``."""

    @abstractmethod
    def locked(self) -> AbstractContextManager[None]:
        """A context in which no other process changes the ledger."""

    @abstractmethod
    def entries(self) -> list[Entry]:
        """What was released so far."""

    @abstractmethod
    def _reply(self, key: str) -> list[NDArray[Any]]: ...

    @abstractmethod
    def _write(self, entries: list[Entry], key: str, reply: Sequence[NDArray[Any]]) -> None: ...

    def recall(self, asked: Entry) -> list[NDArray[Any]] | None:
        """The stored reply to what this run has asked before.

        Raises
        ------
        DisclosureError
            When the same phase of the same run now asks something else, or the stored reply is damaged.
        """
        for entry in self.entries():
            if entry.key != asked.key:
                continue
            if entry.question != asked.question:
                raise DisclosureError(
                    f"this run has had its reply in phase '{asked.phase}', and now asks the same phase something else; "
                    "start a new run"
                )
            reply = self._reply(entry.key)
            if digest(reply) != entry.reply:
                raise DisclosureError("the reply that this site's privacy ledger keeps is not the one it wrote")
            return reply
        return None

    def permit(self, asked: Entry, whole_run: float, epsilon: float, delta: float) -> None:
        """Refuse a release with which the site would have spent more than its budget.

        Parameters
        ----------
        asked : Entry
        whole_run : float
            Multiplier of all phases of the run together: a run that cannot end need not begin.
        epsilon, delta : float
            The budget.

        Raises
        ------
        DisclosureError
        """
        entries = self.entries()
        this = [entry.multiplier for entry in entries if (entry.run, entry.party) == (asked.run, asked.party)]
        others = [entry.multiplier for entry in entries if (entry.run, entry.party) != (asked.run, asked.party)]
        own = min(whole_run, composed([*this, asked.multiplier]))
        spent, after = (gaussian_epsilon(composed(m), delta) for m in (others, [*others, own]))
        if after > epsilon * (1 + 1e-9):
            raise DisclosureError(
                f"this site's privacy budget does not allow the run: with it epsilon would be {after:.4g} at delta "
                f"{delta:g} ({spent:.4g} without it), allowed is {epsilon:g} (node-config 'epsilon-budget')"
            )

    def record(self, entry: Entry, reply: Sequence[NDArray[Any]]) -> None:
        """Write a release down; only after this may it leave."""
        self._write([*self.entries(), entry], entry.key, reply)


class StateLedger(Ledger):
    """In the state that Flower keeps for a party during a run."""

    def __init__(self, state: RecordDict) -> None:
        self.state = state

    @contextmanager
    def locked(self) -> Iterator[None]:
        yield

    def entries(self) -> list[Entry]:
        if "ledger" not in self.state:
            return []
        return _parsed(str(self.state.config_records["ledger"]["entries"]))

    def _reply(self, key: str) -> list[NDArray[Any]]:
        return self.state.array_records[f"reply {key}"].to_numpy_ndarrays()

    def _write(self, entries: list[Entry], key: str, reply: Sequence[NDArray[Any]]) -> None:
        self.state.array_records[f"reply {key}"] = ArrayRecord(list(reply))
        self.state.config_records["ledger"] = ConfigRecord({"entries": _text(entries)})


class FileLedger(Ledger):
    """In a file of the site's own."""

    def __init__(self, path: str) -> None:
        self.path = Path(path).expanduser()

    @contextmanager
    def locked(self) -> Iterator[None]:
        with to_write("ledger", self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._beside("lock").touch()
        with open(self._beside("lock"), "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # released when the file is closed, even by a crash
            yield

    def entries(self) -> list[Entry]:
        if not self.path.exists():
            return []
        try:
            return _parsed(self.path.read_text())
        except Exception as error:  # a damaged file can be anything
            raise DisclosureError(
                "this site's privacy ledger is not whole, so nothing may be released; restore it from a copy",
                local=f"{type(error).__name__} in {self.path}",
            ) from None

    def _reply(self, key: str) -> list[NDArray[Any]]:
        try:
            with np.load(self._beside(f"{key}.npz"), allow_pickle=False) as stored:
                return [np.asarray(stored[name]) for name in stored.files]  # bytes where it is no array
        except Exception as error:
            raise DisclosureError(
                "a reply that this site's privacy ledger keeps cannot be read; start a new run",
                local=f"{type(error).__name__} in {self._beside(f'{key}.npz')}",
            ) from None

    def _write(self, entries: list[Entry], key: str, reply: Sequence[NDArray[Any]]) -> None:
        with site_file("ledger", self._beside(f"{key}.npz")) as stream:
            np.savez(stream, *reply)
        with site_file("ledger", self.path) as stream:
            stream.write(_text(entries).encode())

    def _beside(self, name: str) -> Path:
        return self.path.with_name(f"{self.path.name}.{name}")


def ledger_of(path: str, state: RecordDict) -> Ledger:
    """The ledger in the site's file, or without a path in a run's state."""
    return FileLedger(path) if path else StateLedger(state)


def _text(entries: list[Entry]) -> str:
    return json.dumps({"format": FORMAT, "entries": [entry.model_dump() for entry in entries]}, indent=1)


def _parsed(text: str) -> list[Entry]:
    content: dict[str, Any] = json.loads(text)
    if content["format"] != FORMAT:
        raise ValueError("unknown format")
    return [Entry.parse(entry, source="ledger") for entry in content["entries"]]


def digest(arrays: Sequence[NDArray[Any]], text: str = "") -> str:
    """SHA-256 of arrays (dtype, shape and values) and a text."""
    sha = hashlib.sha256(text.encode())
    for array in arrays:
        sha.update(f"|{array.dtype.str}{array.shape}|".encode())
        sha.update(np.ascontiguousarray(array).tobytes())
    return sha.hexdigest()
