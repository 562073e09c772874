"""Masked transport: the server sees sums over all parties only (`fedpca_flwr.transports.pairwise_masks`).

The round ``keys`` comes before the first sum: each party sends a new, signed public key, and the server relays all with
that sum, in the order of the parties. A party that is missing leaves noise and ends the run.

Of many parties each shares masks with some (`fedpca_flwr.transports.neighbours`): in ``keys`` it sends a commitment to
its key, which one round more, ``openings``, opens, and it verifies its neighbours' signatures. A key of the server's in
the place of a party is found by that place's honest neighbours, which send nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from fedpca_flwr.errors import DisclosureError
from fedpca_flwr.protocol.admission import Reply
from fedpca_flwr.protocol.payload import Field, Fields, Payload
from fedpca_flwr.protocol.question import Program, Public, Question, Questions, Round, SumRound
from fedpca_flwr.protocol.quorum import Quorum
from fedpca_flwr.protocol.replies import stream_replies
from fedpca_flwr.protocol.transport import Party, PartyTransport, Run, ServerTransport, Transport, sum_parts
from fedpca_flwr.transports import neighbours
from fedpca_flwr.transports.encoding import (
    MaskedSum,
    SumPolicy,
    encode_answer,
    mask_question,
    pairwise_secrets,
    require_secret,
    require_summable,
)
from fedpca_flwr.transports.pairwise_masks import (
    KEY_BYTES,
    add_mask,
    new_private_key,
    public_key,
    shared_secrets,
    split_keys,
    transcript,
)
from fedpca_flwr.transports.signed import NO_ANSWER_TEXT, SIGNATURE_FIELD, SIGNATURE_SIZES

KEY_FIELDS = (Field("publics", ("parties", "key"), "uint8"), Field("signatures", ("parties", "signature"), "uint8"))
"""The parties' public keys, which the server sends with the first sum."""


def _sizes(public: Public) -> Mapping[str, int]:
    """Return the sizes of the symbolic axes "parties", "key" and "signature" in the shapes of fields."""
    return {"parties": public.parties, "key": KEY_BYTES, **SIGNATURE_SIZES}


KEYS_QUESTION = Question(reply=Payload((Field("public", ("key",), "uint8"), SIGNATURE_FIELD)), sizes=_sizes)
"""A party's public key, or its commitment to the key."""

OPENINGS_QUESTION = Question(
    request=Payload((Field("commitments", ("parties", "key"), "uint8"),)),
    reply=Payload((Field("public", ("key",), "uint8"),)),
    sizes=_sizes,
)
"""The parties' commitments to their public keys, which are of as many bytes; a party opens its own."""

DISCLOSURE_NOTE = (
    "the server saw sums over all parties only; to see more it must collude with {whom} (it cannot act in "
    "place of a site that has an 'identity')"
)


class Masked(Transport):
    """Base of both sides of the masked transport: a method's sums travel as masked words after a round ``keys``."""

    sums_only = True

    def __init__(self) -> None:
        self.method_questions: Questions = {}  # set by `script`

    def uses_commitments(self, parties: int) -> bool:
        """Return whether a party shares masks with only some others, so that keys are committed and opened first."""
        return not self._is_noisy and neighbours.degree(parties) < parties - 1

    @property
    def _is_noisy(self) -> bool:
        """True if any sum is differentially private; then every two parties share masks."""
        return any(question.differentially_private for question in self.method_questions.values())

    @override
    def script(self, method: str, questions: Questions) -> Questions:
        """Return masked questions, with rounds for keys before the first sum; raise as `require_summable`."""
        self.method_questions = require_summable(method, questions)
        script: dict[str, Question] = {}
        for name, question in questions.items():
            if question.in_clear or "keys" in script:
                script[name] = mask_question(question)
                continue
            assert question.times == 1  # the keys travel with the first sum
            script["keys"] = KEYS_QUESTION
            if not self._is_noisy:
                script["openings"] = replace(
                    OPENINGS_QUESTION, times=lambda public: int(self.uses_commitments(public.parties))
                )
            sizes = partial(_sizes_with_keys, question)
            script[name] = replace(mask_question(question, *KEY_FIELDS), sizes=sizes)
        return script


class MaskedServer(Masked, ServerTransport):
    """Server's side of the masked transport, which relays public keys and adds up masked words."""

    def __init__(self) -> None:
        super().__init__()
        self._keys_are_relayed = False

    @override
    def sum_replies(self, question: SumRound, run: Run) -> Program:
        """Collect and relay the keys before the first sum, then return the total of the masked replies."""
        keys: Fields = {}
        if not self._keys_are_relayed:
            keys = collect_keys((yield Round("keys")))
            if self.uses_commitments(run.public.parties):
                replies = yield Round("openings", {"commitments": keys["publics"]})
                keys = {**keys, "publics": np.stack([reply.fields["public"] for reply in replies])}
        self._keys_are_relayed = True
        total = MaskedSum(self.method_questions[question.phase].layout(question.request, run.public))
        replies = yield from stream_replies(Round(question.phase, {**keys, **question.request}), total.add)
        return total.decode(replies, question.estimate)

    @override
    def measurements(self, quorum: Quorum) -> dict[str, float]:
        return {"pairwise_masked_parties": quorum.expected}

    @override
    def notes(self, quorum: Quorum) -> list[str]:
        """Return the note on the numbers that the server saw, and on the collusion by which it would see more."""
        max_colluders = int(neighbours.MAX_COLLUDING_SHARE * quorum.initial_parties)
        some = f"more than {max_colluders} of the parties"
        whom = some if self.uses_commitments(quorum.initial_parties) else "all parties but one"
        return [DISCLOSURE_NOTE.format(whom=whom)]


class MaskedParty(Masked, PartyTransport):
    """Party's side of the masked transport, which adds this party's masks to its encoded answers."""

    def __init__(self, policy: SumPolicy) -> None:
        super().__init__()
        self.policy = policy

    @override
    def answer(self, party: Party, phase: str, request: Fields) -> Fields:
        """Answer a round for keys, or a sum by the encoded answer plus this party's masks."""
        if phase == "keys":
            return self._create_key(party)
        if phase == "openings":
            return self._open_commitment(party, request["commitments"])
        question = self.method_questions[phase]
        if question.in_clear:
            return sum_parts(party.statistics(phase, request))
        if "publics" in request:
            self._accept_keys(party, request["publics"], request["signatures"])
        participants, secrets = split_keys(require_secret(party, "listed")), pairwise_secrets(party)
        method_request = {field.name: request[field.name] for field in question.request.fields}
        arrays = [np.asarray(party.question_number), *method_request.values()]
        context = transcript(phase, self.policy.signer.context, participants, arrays)
        vector = encode_answer(party, phase, question, method_request)
        add_mask(vector, require_secret(party, "public"), secrets, context)
        return {"masked": vector}

    @property
    def _partition(self) -> int:
        """Number of this party's partition."""
        return self.policy.signer.identity.party

    def _create_key(self, party: Party) -> Fields:
        """Create and store a key pair; return the public key, or a commitment to it, with a signature on the key."""
        private = new_private_key()
        public = public_key(private)
        party.journal.store_secret("private", private)
        party.journal.store_secret("public", public)
        commits = self.uses_commitments(party.public.parties)
        sent_key = neighbours.commitment(self._partition, public) if commits else public
        return {"public": np.frombuffer(sent_key, np.uint8), "signature": self.policy.signer.sign("run keys", public)}

    def _open_commitment(self, party: Party, commitments: NDArray[np.uint8]) -> Fields:
        """Store all commitments and return the public key; raise DisclosureError if this party's own was altered."""
        public = require_secret(party, "public")
        if commitments[self._partition].tobytes() != neighbours.commitment(self._partition, public):
            raise DisclosureError(
                f"the server relays another commitment than its own as that of this site, party {self._partition}; "
                f"{NO_ANSWER_TEXT}"
            )
        party.journal.store_secret("commitments", commitments.tobytes())
        return {"public": np.frombuffer(public, np.uint8)}

    def _accept_keys(self, party: Party, keys: NDArray[np.uint8], signatures: NDArray[np.uint8]) -> None:
        """Check relayed keys, and store the secrets of pairwise masks; raise DisclosureError if a rule is broken."""
        publics = [key.tobytes() for key in keys]
        self.policy.require_size(len(publics))
        participants, neighbour_positions = publics, list(range(len(publics)))
        if self.uses_commitments(party.public.parties):
            neighbours.require_opened(split_keys(require_secret(party, "commitments")), publics)
            seed = neighbours.graph_seed(self.policy.signer.context, publics)
            participants, neighbour_positions = [seed], neighbours.neighbours(seed, len(publics), self._partition)
            neighbour_positions = sorted([*neighbour_positions, self._partition])
        neighbour_keys = [publics[position] for position in neighbour_positions]
        local_key = require_secret(party, "public")
        self.policy.signer.require_keys(neighbour_positions, neighbour_keys, signatures[neighbour_positions], local_key)
        party.permit_sum(self.policy.members(range(len(publics))))
        shared_keys = shared_secrets(require_secret(party, "private"), neighbour_keys)
        party.journal.store_secret("listed", b"".join(participants))
        party.journal.store_secret("others", b"".join(shared_keys))
        party.journal.store_secret("shared", b"".join(shared_keys.values()))


def _sizes_with_keys(phase: Question, public: Public) -> Mapping[str, int]:
    """Return a question's axis sizes and those of keys and signatures."""
    return {**phase.request_sizes(public), **_sizes(public)}


def collect_keys(replies: Sequence[Reply]) -> Fields:
    """Stack the replies' public keys (parties, key) and signatures (parties, signature), for the server to relay."""
    return {
        "publics": np.stack([reply.fields["public"] for reply in replies]),
        "signatures": np.stack([reply.fields["signature"] for reply in replies]),
    }
