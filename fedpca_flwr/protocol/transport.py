"""Interface of transports: how answers travel, on both sides. The transports are in `fedpca_flwr.transports`."""

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
    """Interface that a transport needs of the server's half of a run: script, parties, public parameters."""

    script: Questions
    quorum: Quorum

    @property
    def public(self) -> Public:
        """Parameters of the run that the server and every party know."""


class Party(Protocol):
    """Interface that a transport needs of a party's half of a run: answers, journal, permissions."""

    question_number: int

    @property
    def public(self) -> Public:
        """Parameters of the run that the server and every party know."""

    @property
    def journal(self) -> Journal:
        """Journal in which the party records the questions and answers of a run."""

    def statistics(self, phase: str, request: Fields) -> Fields | Sequence[Fields]:
        """Compute the fields that answer a question, or parts that add up to the fields; the request is checked."""

    def permit_survivors(self, dropped: int) -> None:
        """Raise a FedPCAError if a sum without `dropped` parties breaks a promise, for example on noise."""

    def permit_sum(self, members: Sequence[str]) -> None:
        """Raise DisclosureError if a sum over parties (public keys) less an earlier sum shows a single summand."""


def relay(program: Program, ask: Callable[[Round], Program]) -> Program:
    """Run a program, with each of its questions replaced by ``ask(question)``, whose result the program receives."""
    answer = None
    while True:
        try:
            question = program.send(answer)
        except StopIteration as end:
            return end.value
        answer = None  # it may be large, and is not held while the next one is awaited
        answer = yield from ask(question)


def sum_parts(answer: Fields | Sequence[Fields]) -> Fields:
    """Add up the parts of a party's answer, field by field (a part may lack some); a whole answer is unchanged."""
    if isinstance(answer, Mapping):
        return answer
    names = dict.fromkeys(name for part in answer for name in part)
    return {name: np.sum([part[name] for part in answer if name in part], axis=0) for name in names}


class Transport(ABC):
    """Base of a transport's two halves: sends answers in clear, or masked so that only sums are seen."""

    sums_only: bool = False  # whether the server sees sums over parties only

    def parties_per_sum(self, parties: int) -> int:
        """Return the number of a run's parties in the smallest sum that the server sees; 1 in clear."""
        return parties if self.sums_only else 1

    @abstractmethod
    def script(self, method: str, questions: Questions) -> Questions:
        """Return a method's questions as they travel, with others such as for keys; ConfigError if they cannot."""


class ServerTransport(Transport):
    """Server's half of a transport: turns a question about a sum into plain rounds."""

    def plain_rounds(self, program: Program, run: Run) -> Program:
        """Return the method's program, with plain rounds in place of its questions about sums."""

        def ask(question: Round) -> Program:
            """Ask a plain question, or obtain the sum that a `SumRound` wants by the transport's own questions."""
            if isinstance(question, SumRound):
                return (yield from self.sum_replies(question, run))
            return (yield question)

        return relay(program, ask)

    @abstractmethod
    def sum_replies(self, question: SumRound, run: Run) -> Program:
        """Ask for the sum of the parties' replies, and return its `Total`, or None if no sum can be had."""

    def measurements(self, quorum: Quorum) -> dict[str, float]:
        """Return numbers about the transport for the model's log, by name; the base has none."""
        return {}

    def notes(self, quorum: Quorum) -> list[str]:
        """Return sentences about the transport for the model's log; the base has none."""
        return []

    def parties(self, quorum: Quorum) -> list[dict[str, Any]]:
        """Return ``party`` (partition), ``name`` and ``rows`` of each party whose rows are in the model."""
        return quorum.parties


class PartyTransport(Transport):
    """Party's half of a transport, which turns a party's statistics into the reply."""

    @abstractmethod
    def answer(self, party: Party, phase: str, request: Fields) -> Fields:
        """Return the fields that a site sends in this phase, in clear or masked; the request is checked."""
