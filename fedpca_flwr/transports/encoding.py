"""Sums of 64-bit words, for every transport with masks: a site's rules, the encoding of answers, the decoding of sums.

Limits on sums are public: no share of rows within the run's `bound` can exceed them, whatever was asked. A party whose
share exceeds a limit (its rows changed, or exceed the bound) must not say so: it sends random words, and the sum opens
for nobody.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from fedpca_flwr.errors import ConfigError, ContractError, DisclosureError, TravelError
from fedpca_flwr.maths.secure import Layout
from fedpca_flwr.protocol.admission import Reply
from fedpca_flwr.protocol.client import Site
from fedpca_flwr.protocol.payload import Field, Fields, Payload
from fedpca_flwr.protocol.question import SERVER, Question, Questions, Total
from fedpca_flwr.protocol.site_log import site_logger
from fedpca_flwr.protocol.transport import Party
from fedpca_flwr.transports.identity import load_identity
from fedpca_flwr.transports.pairwise_masks import Words, split_keys
from fedpca_flwr.transports.signed import Signer

MASKED_PAYLOAD = Payload((Field("masked", ("any",), "uint64"),))


@dataclass(frozen=True)
class SumPolicy:
    """Rules of a site for sums with other sites: number of parties, its minimum, signer, and survivors."""

    parties: int  # number of parties that the site knows of
    min_parties: int  # smallest number of parties in a sum
    signer: Signer  # this party in this run: masks depend on the run, its configuration and the list of members
    survivors: int = 0  # smallest number of survivors, if a run continues without some parties; else 0

    @classmethod
    def of(cls, site: Site, configuration: str) -> SumPolicy:
        """Return a site's rules for sums in a run with this text of its configuration; raise as `load_identity`."""
        node, signer = site.node, Signer(load_identity(site.node), site.run_id, configuration)
        return cls(node.num_partitions, node.min_parties, signer, site.config.survivors)

    def members(self, parties: Iterable[int]) -> list[str]:
        """Return the parties' public keys in hexadecimal, in order, which name the same site in every run."""
        return [self.signer.identity.member_keys[party].hex() for party in parties]

    def require_size(self, parties: int) -> None:
        """Raise DisclosureError for a sum over fewer parties than the site's minimum."""
        if parties < self.min_parties:
            raise DisclosureError(
                f"the sum would have {parties} different parties, this site asks for at least {self.min_parties}: add "
                "parties, or lower node-config 'min-parties', to 2 at least"
            )


def require_summable(method: str, questions: Questions) -> Questions:
    """Return a method's questions; if one is no sum, raise TravelError, or ConfigError with an option that helps."""
    unsummable = [name for name, question in questions.items() if not question.in_clear and question.limits is None]
    if unsummable:
        suggestion = questions[unsummable[0]].suggestion
        need = f"'{method}' needs more than a sum of the parties' replies ('{unsummable[0]}')"
        text = f"run-config: 'secure-aggregation' is true, but {need}"
        raise ConfigError(f"{text}; {suggestion}") if suggestion else TravelError(text)
    return questions


def mask_question(question: Question, *further_fields: Field) -> Question:
    """Return a question with `further_fields` before its request and masked words as reply; unchanged if in clear."""
    if question.in_clear:
        return question
    request = Payload((*further_fields, *question.request.fields))
    return replace(question, request=request, reply=MASKED_PAYLOAD, plain_reply=question.reply)


def encode_answer(party: Party, phase: str, question: Question, request: Fields) -> Words:
    """Return this party's answer in fixed point, or random words, logged, if the answer exceeds the public limits."""
    layout = question.layout(request, party.public)
    if not all(np.isfinite(limit).all() for limit in layout.limits.values()):  # which follow from the request alone
        raise ContractError(f"{SERVER}: what it asked in phase '{phase}' makes limits that are not finite")
    answer = party.statistics(phase, request)
    try:
        return layout.encode(*([answer] if isinstance(answer, Mapping) else answer))
    except ValueError as error:
        site_logger.error("phase '%s': %s; this site sent random words, so that the sum opens for nobody", phase, error)
        return np.frombuffer(secrets.token_bytes(8 * layout.size), "<u8").copy()


class MaskedSum:
    """Sum `words` of masked vectors modulo 2^64, which are added on arrival, in any order."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.words = np.zeros(layout.size, np.uint64)

    def add(self, fields: Fields, sender: str) -> None:
        """Add the masked vector of a party to the sum; raise ContractError for a vector of another length."""
        vector = fields["masked"]
        if vector.size != self.layout.size:
            raise ContractError(
                f"{sender}: field 'masked' has shape {vector.shape}, expected {(self.layout.size,)}; do its data have "
                "another number of features, or does it run another version?"
            )
        self.words += vector

    def decode(self, replies: Sequence[Reply], estimate: Fields) -> Total:
        """Decode the sum of all replies, with the server's estimate; raise ContractError unless the masks cancel."""
        if (parties := int(self.words[0])) != len(replies):
            raise ContractError(
                f"the masks of the {len(replies)} parties do not cancel: a request was altered on its way, or a site's "
                "share was beyond its public limit (did its data change during the run?); its own log says so. Nothing "
                "can be read from the sum"
            )
        return decode_total(self.layout, self.words, parties, estimate)


def decode_total(layout: Layout, words: Words, parties: int, estimate: Fields | None = None) -> Total:
    """Return the total of each field from the words of an unmasked sum over `parties`; `estimate` is the server's."""
    fields, low = layout.decode(words, estimate)
    return Total(fields, parties, low, partial(layout.decode_exactly, words), layout.error_bound(parties))


def require_secret(party: Party, name: str) -> bytes:
    """Load a secret of this run from the party's journal; raise ContractError if there is none."""
    value = party.journal.load_secret(name)
    if value is None:
        raise ContractError("this site has no key of this run: it was started anew, or never asked for one")
    return value


def pairwise_secrets(party: Party) -> dict[bytes, bytes]:
    """Return the secrets that this party shares with other parties, by public key; ContractError without any."""
    peers, shared_keys = (split_keys(require_secret(party, name)) for name in ("others", "shared"))
    return dict(zip(peers, shared_keys, strict=True))
