"""In clear: the server sees every party's answer, and adds them up itself where a method asks for a sum."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedpca_flwr.protocol.payload import Fields
from fedpca_flwr.protocol.question import Program, Questions, Sum
from fedpca_flwr.protocol.replies import ArrivingSum, as_they_come
from fedpca_flwr.protocol.transport import Answering, PartyTransport, Running, ServerTransport, Transport


class Clear(Transport):
    """Every phase as it is."""

    def script(self, method: str, phases: Questions) -> Questions:
        return phases


class ClearServer(Clear, ServerTransport):
    def questions(self, program: Program, run: Running) -> Program:
        answer = None
        while True:
            try:
                question = program.send(answer)
            except StopIteration:
                return
            if not isinstance(question, Sum):
                answer = yield question
                continue
            arriving = ArrivingSum()
            replies = yield from as_they_come(question, arriving.add)
            answer = arriving.total(replies)


class ClearParty(Clear, PartyTransport):
    def answer(self, party: Answering, phase: str, asked: Fields) -> Fields:
        answer = party.statistics(phase, asked)
        return answer if isinstance(answer, Mapping) else _added_parts(answer)


def _added_parts(parts: Sequence[Fields]) -> dict[str, NDArray[Any]]:
    """The sum of the parts of one party's answer; a field that a part lacks is zero there."""
    names = dict.fromkeys(name for part in parts for name in part)
    return {name: np.sum([part[name] for part in parts if name in part], axis=0) for name in names}
