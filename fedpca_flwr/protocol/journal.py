"""What a party must remember of a run, whatever happens to its process: how far the script is, and its keys."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

ENDED = "this site answers no more in this run; its own log says why"

OVER = "the run was over for this site, or silent for so long that another one has begun since; begin anew"

CHANGED = "the server sends another configuration of this run than with its first question; a run has one"


class Journal(ABC):
    """One party's record of one run."""

    @abstractmethod
    def begin(self, phase: str, digest: str, configuration: bytes, permit: Callable[[Sequence[str]], None]) -> None:
        """Note a question before it is answered, so that it is never answered twice.

        Parameters
        ----------
        phase : str
        digest : str
            Of all that was asked.
        configuration : bytes
            Digest of the run-config that came with it: what one allows must not be added to what another does.
        permit : callable
            Is given the phases of the questions before, and raises what refuses this one.

        Raises
        ------
        ContractError
            Where this party answers no more in this run, or began it with another configuration.
        """

    @abstractmethod
    def begun(self) -> bool:
        """Whether any question was answered."""

    @abstractmethod
    def answered(self, what: str, nbytes: int) -> None:
        """Note what leaves in answer to the last question."""

    @abstractmethod
    def note_release(
        self, phase: str, relation: str, multiplier: float, permit: Callable[[Sequence[float], Sequence[float]], None]
    ) -> None:
        """Note, before its noise is drawn, that a noisy reply leaves in a phase.

        Parameters
        ----------
        phase : str
        relation : str
            Of neighbouring data sets, by which the multiplier is meant.
        multiplier : float
            Standard deviation of the noise over the sensitivity.
        permit : callable
            Is given the multipliers of this run and those of all others that are noted, and raises what refuses this
            one: then nothing is noted.
        """

    @property
    @abstractmethod
    def data_key(self) -> bytes:
        """The secret of its digests of data; empty where nothing outlasts the run."""

    @abstractmethod
    def remember(self, kind: str, data: str, decide: Callable[[Sequence[str], Sequence[str]], str]) -> None:
        """Note what later runs must know of this site's data.

        Parameters
        ----------
        kind : str
        data : str
            Digest of the data.
        decide : callable
            Is given what was noted of that kind in all runs, of the same data and of others, and returns what to note
            now, nothing for an empty text; or raises what refuses it.
        """

    @abstractmethod
    def end(self, why: str) -> None:
        """Note that this party answers no more in this run."""

    @abstractmethod
    def keep(self, name: str, value: bytes) -> None:
        """Remember a secret of this run."""

    @abstractmethod
    def recall(self, name: str) -> bytes | None:
        """The secret of that name; None where there is none."""

    @abstractmethod
    def forget(self) -> None:
        """Drop the secrets of this run."""
