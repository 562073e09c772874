"""In clear: the server sees every party's answer, and adds them up itself where a method asks for a sum."""

from __future__ import annotations

from fedpca_flwr.errors import ContractError
from fedpca_flwr.maths.sums import exceeds
from fedpca_flwr.protocol.payload import Fields
from fedpca_flwr.protocol.question import Program, Questions, Sum
from fedpca_flwr.protocol.replies import StreamingSum, as_they_come
from fedpca_flwr.protocol.transport import Party, PartyTransport, Run, ServerTransport, Transport, whole


class Clear(Transport):
    """Every phase as it is."""

    def script(self, method: str, phases: Questions) -> Questions:
        return phases


class ClearServer(Clear, ServerTransport):
    def summed(self, question: Sum, run: Run) -> Program:
        phase, total = run.phases[question.phase], StreamingSum()
        limits = phase.share_limits(question.asked, run.public) if phase.share_limits else {}
        most = {name: 2 * limit for name, limit in limits.items()}  # once, of all replies

        def add(fields: Fields, sender: str) -> None:
            for name, limit in most.items():
                if fields[name].shape == limit.shape and exceeds(fields[name], limit):
                    raise ContractError(
                        f"{sender}: field '{name}' of phase '{question.phase}' holds numbers that are larger than any "
                        "rows can add; does it run another version, or did its data change during the run?"
                    )
            total.add(fields, sender)
            if question.take is not None:
                question.take(fields, sender)

        replies = yield from as_they_come(question, add)
        return total.total(replies)


class ClearParty(Clear, PartyTransport):
    def answer(self, party: Party, phase: str, asked: Fields) -> Fields:
        return whole(party.statistics(phase, asked))
