"""What a transport is: how answers travel, for both sides. The transports are in `fedpca_flwr.transports`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from fedpca_flwr.protocol.journal import Journal
from fedpca_flwr.protocol.payload import Fields
from fedpca_flwr.protocol.question import Program, Public, Questions, Round, SumRound
from fedpca_flwr.protocol.quorum import Quorum


class Run(Protocol):
    """What a transport needs of the server's half of a run."""

    script: Questions
    quorum: Quorum

    @property
    def public(self) -> Public: ...


class Party(Protocol):
    """What a transport needs of a party's half of a run."""

    question_number: int

    @property
    def public(self) -> Public: ...

    @property
    def journal(self) -> Journal: ...

    def statistics(self, phase: str, request: Fields) -> Fields | Sequence[Fields]: ...

    def permit_survivors(self, dropped: int) -> None: ...

    def permit_sum(self, members: Sequence[str]) -> None: ...


def relay(program: Program, ask: Callable[[Round], Program]) -> Program:
    """The program with each of its questions put in another way, and its return value.

    ``put`` makes of a question a program that asks whatever answers it, and returns what ``program`` goes on with.
    """
    answer = None
    while True:
        try:
            question = program.send(answer)
        except StopIteration as end:
            return end.value
        answer = yield from ask(question)


def sum_parts(answer: Fields | Sequence[Fields]) -> Fields:
    """A party's answer, which may come as the parts that it is the sum of; a field that a part lacks is zero there."""
    if isinstance(answer, Mapping):
        return answer
    names = dict.fromkeys(name for part in answer for name in part)
    return {name: np.sum([part[name] for part in answer if name in part], axis=0) for name in names}


class Transport(ABC):
    """What both halves have: the script of a run."""

    sums_only: bool = False  # whether the server sees sums over parties only

    def parties_per_sum(self, parties: int) -> int:
        """Of how many of so many parties the server sees the sum of the replies, and no less."""
        return parties if self.sums_only else 1

    @abstractmethod
    def script(self, method: str, questions: Questions) -> Questions:
        """The script of a run, from the method's own phases: what travels in each, and what comes around them; a
        `ConfigError` where the method's answers cannot travel so."""


class ServerTransport(Transport):
    """The server's half."""

    def plain_rounds(self, program: Program, run: Run) -> Program:
        """A method's program of `Ask` and `Sum` as one of `Ask` alone, which goes on with lists of replies."""

        def ask(question: Round) -> Program:
            if isinstance(question, SumRound):
                return (yield from self.sum_replies(question, run))
            return (yield question)

        return relay(program, ask)

    @abstractmethod
    def sum_replies(self, question: SumRound, run: Run) -> Program:
        """The questions that answer a `Sum`; returns its `Total`, or None where no sum can be had."""

    def measurements(self, quorum: Quorum) -> dict[str, float]:
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
    def answer(self, party: Party, phase: str, request: Fields) -> Fields:
        """What leaves this party in a phase of the script."""
