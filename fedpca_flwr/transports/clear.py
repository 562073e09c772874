"""Clear transport: the server sees every party's answer, and adds up the answers if a method asks for a sum."""

from __future__ import annotations

from typing_extensions import override

from fedpca_flwr.errors import ContractError
from fedpca_flwr.maths.sums import exceeds
from fedpca_flwr.protocol.payload import Fields
from fedpca_flwr.protocol.question import Program, Questions, SumRound
from fedpca_flwr.protocol.quorum import Quorum
from fedpca_flwr.protocol.replies import StreamingSum, stream_replies
from fedpca_flwr.protocol.transport import Party, PartyTransport, Run, ServerTransport, Transport, sum_parts


class Clear(Transport):
    """Base of both sides of the clear transport, which passes every question on unchanged."""

    @override
    def script(self, method: str, questions: Questions) -> Questions:
        return questions


class ClearServer(Clear, ServerTransport):
    """Server's side of the clear transport, which adds up the parties' answers on arrival."""

    @override
    def notes(self, quorum: Quorum) -> list[str]:
        """Return a note on the parties that did not take part; empty if all did."""
        if not quorum.dropped:
            return []
        absent = ", ".join(name for _, name in sorted(quorum.dropped.items()))
        return [f"the PCA of {quorum.expected} of {quorum.initial_parties} parties: {absent} did not take part"]

    @override
    def sum_replies(self, question: SumRound, run: Run) -> Program:
        """Return the sum of all replies; raise ContractError for a reply beyond twice the public limits on a share."""
        total, share_limits = StreamingSum(), run.script[question.phase].share_limits
        limits = share_limits(question.request, run.public) if share_limits else {}
        max_shares = {name: 2 * limit for name, limit in limits.items()}  # computed once for all replies

        def add(fields: Fields, sender: str) -> None:
            """Refuse a reply above twice the public limits on a party's share, else add the reply to the sum."""
            for name, limit in max_shares.items():
                if fields[name].shape == limit.shape and exceeds(fields[name], limit):
                    raise ContractError(
                        f"{sender}: field '{name}' of phase '{question.phase}' holds numbers that are larger than any "
                        "rows can add; does it run another version, or did its data change during the run?"
                    )
            total.add(fields, sender)
            if question.consume is not None:
                question.consume(fields, sender)

        replies = yield from stream_replies(question, add)
        return total.total(replies)


class ClearParty(Clear, PartyTransport):
    """Party's side of the clear transport, which sends the answer unchanged."""

    @override
    def answer(self, party: Party, phase: str, request: Fields) -> Fields:
        return sum_parts(party.statistics(phase, request))
