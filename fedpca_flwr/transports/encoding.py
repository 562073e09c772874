"""Sums of 64-bit words, for every transport with masks: who is in them, how an answer is encoded, how a sum is read.

Limits on sums are public: no share of rows within the run's `bound` can exceed them, whatever was asked. A party whose
share does (its rows changed, or are beyond) must not say so: it sends random words, and the sum opens for nobody.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from fedpca_flwr.errors import ConfigError, ContractError, DisclosureError, TravelError
from fedpca_flwr.maths.secure import Layout
from fedpca_flwr.protocol.admission import Reply
from fedpca_flwr.protocol.payload import Field, Fields, Payload
from fedpca_flwr.protocol.question import SERVER, Question, Questions, Total
from fedpca_flwr.protocol.transport import Party
from fedpca_flwr.transports.pairwise_masks import Words
from fedpca_flwr.transports.signed import Signer

MASKED_PAYLOAD = Payload((Field("masked", ("any",), "uint64"),))

logger = logging.getLogger("fedpca_flwr.client")


@dataclass(frozen=True)
class SumPolicy:
    """Whose sums a party takes part in, by its own rules."""

    parties: int  # how many there are
    min_parties: int  # with fewer it refuses
    signer: Signer  # this party in this run: masks depend on the run, its configuration and the list of members
    survivors: int = 0  # of a run that goes on without some: with so many at least

    def members(self, parties: Iterable[int]) -> list[str]:
        """Who these parties are, in words that mean the same in every run: their keys in this site's list."""
        return [self.signer.identity.member_keys[party].hex() for party in parties]

    def require_size(self, parties: int) -> None:
        """Refuse a sum of too few."""
        if parties < self.min_parties:
            raise DisclosureError(
                f"the sum would have {parties} different parties, this site asks for at least {self.min_parties} "
                "(node-config 'min-parties')"
            )


def require_summable(method: str, questions: Questions) -> Questions:
    """A method's questions as they are asked where only sums open.

    Raises
    ------
    TravelError
        Where it needs more than sums of the parties' replies, and no option of it helps.
    ConfigError
        With what to choose, where one does.
    """
    unsummable = [name for name, phase in questions.items() if not phase.in_clear and phase.limits is None]
    if unsummable:
        suggestion = questions[unsummable[0]].suggestion
        text = (
            f"run-config: 'secure-aggregation' is true, but '{method}' needs more than a sum of the parties' replies "
            f"('{unsummable[0]}')"
        )
        raise ConfigError(f"{text}; {suggestion}") if suggestion else TravelError(text)
    return questions


def encode_answer(party: Party, phase: str, question: Question, request: Fields) -> Words:
    """This party's answer in fixed point, or random words where it is beyond the public limit.

    Raises
    ------
    ContractError
        Where that limit is beyond float64.
    """
    layout = question.layout(request, party.public)
    if not all(np.isfinite(limit).all() for limit in layout.limits.values()):  # which follow from what was asked alone
        raise ContractError(f"{SERVER}: what it asked in phase '{phase}' makes limits that are not finite")
    answer = party.statistics(phase, request)
    try:
        return layout.encode(*([answer] if isinstance(answer, Mapping) else answer))
    except ValueError as error:
        return _random_words(layout, phase, error)


def _random_words(layout: Layout, phase: str, why: Exception) -> Words:
    logger.error("phase '%s': %s; this site sent random words, so that the sum opens for nobody", phase, why)
    return np.frombuffer(secrets.token_bytes(8 * layout.size), "<u8").copy()


class MaskedSum:
    """The sum of masked vectors modulo 2^64. Each is added as it comes, in any order, and need not be kept."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self._words = np.zeros(layout.size, np.uint64)

    def add(self, fields: Fields, sender: str) -> None:
        """Add one party's vector, or raise a `ContractError`."""
        vector = fields["masked"]
        if vector.size != self.layout.size:
            raise ContractError(
                f"{sender}: field 'masked' has shape {vector.shape}, expected {(self.layout.size,)}; do its data have "
                "another number of features, or does it run another version?"
            )
        self._words += vector

    def complete(self, replies: Sequence[Reply]) -> Words:
        """The sum of all replies, those that came with their vectors among them."""
        for reply in replies:
            if not reply.consumed_bytes:
                self.add(reply.fields, reply.sender)
        return self._words

    def decode(self, replies: Sequence[Reply], estimate: Fields) -> Total:
        """What the whole sum says, of which some fields are ``near`` what the server knows: masks cancel only if those
        of all parties are in it."""
        total = self.complete(replies)
        if (parties := int(total[0])) != len(replies):
            raise ContractError(
                f"the masks of the {len(replies)} parties do not cancel: a request was altered on its way, or a site's "
                "share was beyond its public limit (did its data change during the run?); its own log says so. Nothing "
                "can be read from the sum"
            )
        return decode_total(self.layout, total, parties, estimate)


def decode_total(layout: Layout, words: Words, parties: int, estimate: Fields | None = None) -> Total:
    """What opened ``words`` of so many parties say."""
    fields, low = layout.decode(words, estimate)
    return Total(fields, parties, low, partial(layout.decode_exactly, words), layout.error_bound(parties))


def require_secret(party: Party, name: str) -> bytes:
    """A secret of this run, or a `ContractError`."""
    value = party.journal.load_secret(name)
    if value is None:
        raise ContractError("this site has no key of this run: it was started anew, or never asked for one")
    return value
