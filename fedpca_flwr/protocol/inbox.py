"""What comes in answer to one question: what is only added up is taken at once, the rest kept until all have come."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from flwr.common import FitRes, Parameters
from numpy.typing import NDArray

from fedpca_flwr.errors import FedPCAError
from fedpca_flwr.protocol.messages import PartyInfo, Reply, arrays_in, reply_of
from fedpca_flwr.protocol.payload import Fields, Payload, check_together
from fedpca_flwr.protocol.sizes import size_of


class Inbox:
    """The replies to one question.

    Parameters
    ----------
    payload : Payload
        What each must hold.
    sizes : mapping of str to int
        What the symbols of its shapes stand for.
    take : callable, optional
        As `Ask.take`.

    Attributes
    ----------
    sizes_of_numbers : dict of str to float
        By sender, the largest number of a reply that was checked, in size.
    """

    def __init__(
        self, payload: Payload, sizes: Mapping[str, int], take: Callable[[Fields, str], None] | None = None
    ) -> None:
        self.payload = payload
        self.sizes = sizes
        self.take = take
        self.sizes_of_numbers: dict[str, float] = {}
        self._taken: dict[int, tuple[int, Fields]] = {}  # bytes, and what is left of the fields, by partition
        self._claims: dict[str, int | None] = {}  # the features of those that are taken

    def receive(self, result: FitRes) -> None:
        """Look at a reply that has just come, and let its payload go where it is taken.

        What is wrong with it is told when all have come, of all parties together.
        """
        if self.take is None or "error" in result.metrics:
            return
        try:
            reply = reply_of(result, PartyInfo.parse(result.metrics))
            fields = self._named(reply)
            check_together(self.payload, {reply.sender: fields}, self.sizes)
            claim = self.payload.features(fields)
            if claim not in {None, self.sizes.get("d", claim)}:
                return  # which is the odd one is told when all have come
            self.sizes_of_numbers[reply.sender] = size_of(fields)
            self.take(fields, reply.sender)
        except FedPCAError:
            return
        self._claims[reply.sender] = claim
        self._taken[reply.party] = reply.nbytes, self.payload.single(fields)
        result.parameters = Parameters([], "")

    def count(self, replies: Sequence[Reply]) -> None:
        """Note of each how much of it is taken."""
        for reply in replies:
            reply.taken, left = self._taken.get(reply.party, (0, {}))
            reply.fields = dict(left)

    def check(self, replies: Sequence[Reply]) -> None:
        """Set the fields of those that are not taken, once all have come.

        Raises
        ------
        ContractError
        """
        kept = [reply for reply in replies if not reply.taken]
        named = {reply.sender: self._named(reply) for reply in kept}
        check_together(self.payload, named, self.sizes, self._claims)
        for reply in kept:
            reply.fields = named[reply.sender]
            self.sizes_of_numbers[reply.sender] = size_of(reply.fields)
            reply.tensors.clear()

    def _named(self, reply: Reply) -> dict[str, NDArray[Any]]:
        """The fields of a reply by name, before their values are checked."""
        self.payload.require_count(len(reply.tensors), reply.sender)
        return self.payload.named(arrays_in(reply), reply.sender)
