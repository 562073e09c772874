"""What a transport is: how answers travel, for both sides. The transports are in `fedpca_flwr.transports`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Protocol

from fedpca_flwr.protocol.journal import Journal
from fedpca_flwr.protocol.payload import Fields
from fedpca_flwr.protocol.question import Program, Public, Questions
from fedpca_flwr.protocol.quorum import Quorum


class Running(Protocol):
    """What a transport must know of the strategy whose questions it carries."""

    quorum: Quorum

    @property
    def public(self) -> Public: ...


class Answering(Protocol):
    """What a transport must know of the party whose answers it carries.

    Attributes
    ----------
    number : int
        So many questions of the run came before this one.
    """

    number: int

    @property
    def journal(self) -> Journal: ...

    @property
    def public(self) -> Public: ...

    def statistics(self, phase: str, asked: Fields) -> Fields | Sequence[Fields]: ...

    def permit_sum(self, members: Sequence[str]) -> None: ...

    def permit_survivors(self, dropped: int) -> None: ...


class Transport(ABC):
    """What both halves have: the script of a run.

    Attributes
    ----------
    sums_only : bool
        Whether the server sees sums over parties only.
    """

    sums_only: bool = False

    @abstractmethod
    def script(self, method: str, phases: Questions) -> Questions:
        """The script of a run, from the method's own phases: what travels in each, and what comes around them.

        Raises
        ------
        ConfigError
            Where the method's answers cannot travel so.
        """


class ServerTransport(Transport):
    """The server's half."""

    @abstractmethod
    def questions(self, program: Program, run: Running) -> Program:
        """A method's program of `Ask` and `Sum` as one of `Ask` alone, which goes on with lists of replies."""

    def measured(self, quorum: Quorum) -> dict[str, float]:
        """Numbers for the model, by the names of `fedpca_flwr.model.measurements`."""
        return {}

    def notes(self, quorum: Quorum) -> list[str]:
        """What a reader of the model must know."""
        return []

    def parties(self, quorum: Quorum) -> list[dict[str, Any]]:
        """The parties whose rows are in the model."""
        return quorum.parties()


class PartyTransport(Transport):
    """A party's half."""

    @abstractmethod
    def answer(self, party: Answering, phase: str, asked: Fields) -> Fields:
        """What leaves this party in a phase of the script."""
