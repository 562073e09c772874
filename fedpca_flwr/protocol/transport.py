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
    """Interface of a transport to the server's half of a run."""

    script: Questions
    quorum: Quorum

    @property
    def public(self) -> Public:
        """Public parameters of the run."""


class Party(Protocol):
    """Interface of a transport to a party's half of a run."""

    question_number: int

    @property
    def public(self) -> Public:
        """Public parameters of the run."""

    @property
    def journal(self) -> Journal:
        """Journal of the party."""

    def statistics(self, phase: str, request: Fields) -> Fields | Sequence[Fields]:
        """Compute the fields of an answer, or parts whose sum the fields are.

        Parameters
        ----------
        phase : str
            Name of the question.
        request : mapping of str to ndarray
            Fields of the question, checked.

        Returns
        -------
        mapping, or sequence of mappings, of str to ndarray
            The fields.
        """

    def permit_survivors(self, dropped: int) -> None:
        """Refuse to open a sum without some parties if that breaks a promise.

        Parameters
        ----------
        dropped : int
            Number of parties that dropped out.
        """

    def permit_sum(self, members: Sequence[str]) -> None:
        """Refuse a sum that, with an earlier sum, would tell a party's share.

        Parameters
        ----------
        members : sequence of str
            Names of the parties in the sum.
        """


def relay(program: Program, ask: Callable[[Round], Program]) -> Program:
    """Run a program with each of its questions asked in another way.

    Parameters
    ----------
    program : Program
        The program.
    ask : callable
        Function of a question that returns a program: it asks whatever answers the question, and returns what
        ``program`` continues with.

    Yields
    ------
    Round
        Questions of the programs that ``ask`` returns.

    Returns
    -------
    object
        Return value of ``program``.
    """
    answer = None
    while True:
        try:
            question = program.send(answer)
        except StopIteration as end:
            return end.value
        answer = yield from ask(question)


def sum_parts(answer: Fields | Sequence[Fields]) -> Fields:
    """Return a party's answer as a single set of fields.

    Parameters
    ----------
    answer : mapping of str to ndarray, or sequence of such mappings
        The answer, or parts whose sum it is; a field that a part lacks is zero there.

    Returns
    -------
    mapping of str to ndarray
        The fields.
    """
    if isinstance(answer, Mapping):
        return answer
    names = dict.fromkeys(name for part in answer for name in part)
    return {name: np.sum([part[name] for part in answer if name in part], axis=0) for name in names}


class Transport(ABC):
    """Base of both halves of a transport, which makes the script of a run."""

    sums_only: bool = False  # whether the server sees sums over parties only

    def parties_per_sum(self, parties: int) -> int:
        """Return over how many parties the sums extend that the server sees, and no smaller sums.

        Parameters
        ----------
        parties : int
            Number of parties of the run.

        Returns
        -------
        int
            Number of parties in a sum; 1 if the server sees single replies.
        """
        return parties if self.sums_only else 1

    @abstractmethod
    def script(self, method: str, questions: Questions) -> Questions:
        """Return the script of a run: the method's questions as sent, and the questions that surround the sums.

        Parameters
        ----------
        method : str
            Name of the method in errors.
        questions : mapping of str to Question
            The method's own questions.

        Returns
        -------
        mapping of str to Question
            The script.

        Raises
        ------
        ConfigError
            If the method's answers cannot travel in this way.
        """


class ServerTransport(Transport):
    """Server's half of a transport."""

    def plain_rounds(self, program: Program, run: Run) -> Program:
        """Translate a method's program of `Round` and `SumRound` into a program of plain rounds.

        Parameters
        ----------
        program : Program
            The method's program.
        run : Run
            Server's half of the run.

        Returns
        -------
        Program
            Program that continues with lists of replies.
        """

        def ask(question: Round) -> Program:
            if isinstance(question, SumRound):
                return (yield from self.sum_replies(question, run))
            return (yield question)

        return relay(program, ask)

    @abstractmethod
    def sum_replies(self, question: SumRound, run: Run) -> Program:
        """Ask the questions that answer a `SumRound`.

        Parameters
        ----------
        question : SumRound
            The question.
        run : Run
            Server's half of the run.

        Returns
        -------
        Program
            Program that returns the `Total`, or None if no sum can be had.
        """

    def measurements(self, quorum: Quorum) -> dict[str, float]:
        """Return numbers for the model, by the names of `fedpca_flwr.model.measurements`.

        Parameters
        ----------
        quorum : Quorum
            Parties of the run.

        Returns
        -------
        dict of str to float
            The numbers; none by default.
        """
        return {}

    def notes(self, quorum: Quorum) -> list[str]:
        """Return notes for a reader of the model.

        Parameters
        ----------
        quorum : Quorum
            Parties of the run.

        Returns
        -------
        list of str
            The notes; none by default.
        """
        return []

    def parties(self, quorum: Quorum) -> list[dict[str, Any]]:
        """Return the parties whose rows are in the model.

        Parameters
        ----------
        quorum : Quorum
            Parties of the run.

        Returns
        -------
        list of dict
            ``party``, ``name`` and ``rows`` of each.
        """
        return quorum.parties()


class PartyTransport(Transport):
    """Party's half of a transport."""

    @abstractmethod
    def answer(self, party: Party, phase: str, request: Fields) -> Fields:
        """Return the fields that leave this party in a phase of the script.

        Parameters
        ----------
        party : Party
            Party's half of the run.
        phase : str
            Name of the question.
        request : mapping of str to ndarray
            Fields of the question, checked.

        Returns
        -------
        mapping of str to ndarray
            Fields of the reply.
        """
