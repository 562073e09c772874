"""Blind transport: masked sums, and sums that the parties alone can open, by a secret that the server does not have.

Rounds before the first sum: ``keys`` as in the masked transport; ``secrets``, in which each party sends 32 random bytes
to every other one, encrypted under a key for this direction (ChaCha20-Poly1305); ``agree``, in which each party signs a
digest of the secret that it has made of all contributions. With the first sum each party gets all these signatures, and
sends nothing unless all have the same secret. Every party shares masks with every other one, however many there are.

A *sealed sum* is one of integers in a prime field (`fedpca_flwr.blind.tagged_sums`). Each party adds to its integers
their linear tag, a pad of its own from the secret, and its pairwise masks. So the server sees noise in the sum of all
parties, and in any other. It hands the sum back in a later question, and `open_sum` takes off the pads, refuses what is
beyond public limits, and compares the tag. Tags, pads and masks depend on the run, the phase and every number of the
question, and a phase is answered once.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import NDArray
from typing_extensions import override

from fedpca_flwr.blind.tagged_sums import (
    ELEMENT_BYTES,
    Elements,
    combine_elements,
    elements_from_bytes,
    elements_to_bytes,
    linear_tag,
    secret_elements,
    signed_integer,
)
from fedpca_flwr.errors import ConfigError, ContractError, DisclosureError
from fedpca_flwr.protocol.payload import Field, Fields, Payload
from fedpca_flwr.protocol.question import Program, Public, Question, Questions, Round, SumRound, Total
from fedpca_flwr.protocol.quorum import Quorum
from fedpca_flwr.protocol.replies import stream_replies
from fedpca_flwr.protocol.transport import Party, Run
from fedpca_flwr.transports.encoding import mask_question, pairwise_secrets, require_secret, require_summable
from fedpca_flwr.transports.masked import KEY_FIELDS, KEYS_QUESTION, Masked, MaskedParty, MaskedServer, collect_keys
from fedpca_flwr.transports.pairwise_masks import KEY_BYTES, derive_key, digest_pieces, split_keys, transcript
from fedpca_flwr.transports.signed import NO_ANSWER_TEXT, SIGNATURE_FIELD, SIGNATURE_SIZES

CONTRIBUTION_BYTES = 32
ENCRYPTED_BYTES = CONTRIBUTION_BYTES + 16

SEALED_FIELD = Field("sealed", ("any", "element"), "uint8")
"""Elements of the field, of `ELEMENT_BYTES` each, the last of which is the tag."""

SEALED = Payload((SEALED_FIELD,))
"""Reply to a question whose sum the parties alone can open; its answer is a field "integers" of Python integers."""

ENCRYPTED_FIELD = Field("encrypted", ("parties", "encrypted"), "uint8")
"""A contribution to the secret for each party, or from each."""


def sealed_sizes(public: Public) -> dict[str, int]:
    """Return the sizes of "parties", "element", "encrypted", "key" and "signature" in the shapes of this transport."""
    sizes = {"element": ELEMENT_BYTES, "encrypted": ENCRYPTED_BYTES, "key": KEY_BYTES, **SIGNATURE_SIZES}
    return {"parties": public.parties, **sizes}


SECRET_QUESTIONS: Questions = {
    "keys": KEYS_QUESTION,
    "secrets": Question(request=Payload(KEY_FIELDS), reply=Payload((ENCRYPTED_FIELD,)), sizes=sealed_sizes),
    "agree": Question(request=Payload((ENCRYPTED_FIELD,)), reply=Payload((SIGNATURE_FIELD,)), sizes=sealed_sizes),
}
AGREED_FIELD = Field("agreed", ("parties", "signature"), "uint8")

DISCLOSURE_NOTE = (
    "the server saw the number of rows and each component's share of the variance, of rotated rows: this file has no "
    "components, the parties have them; one party that colludes with it shows it the sums over all parties"
)


def secret_key(party: Party, *labels: bytes) -> bytes:
    """Derive 32 bytes from the secret of the parties, with labels for each use; raise ContractError without it."""
    return _derived_key(require_secret(party, "secret"), *labels)


def _derived_key(secret: bytes, *labels: bytes) -> bytes:
    """Derive a key of 32 bytes from a secret and labels by HKDF-SHA256."""
    info = digest_pieces(b"fedpca blind", *labels)
    return HKDF(SHA256(), KEY_BYTES, salt=None, info=info).derive(secret)


def open_sum(party: Party, phase: str, sealed: NDArray[np.uint8], limits: Sequence[int]) -> list[int]:
    """Return the n integers of a sealed sum that the server hands back; raise DisclosureError for a changed sum.

    No integer may exceed its public limit in size. Raise ContractError if this site did not answer `phase`. Shapes:
    sealed (n + 1, ELEMENT_BYTES).
    """
    secret, context = require_secret(party, "secret"), require_secret(party, _context_name(phase))
    refusal = DisclosureError(
        f"the sum of '{phase}' that the server hands back is not the sum of one answer of each party to the same "
        f"question; {NO_ANSWER_TEXT}"
    )
    try:
        elements = elements_from_bytes(sealed)
    except ValueError:
        raise refusal from None
    if len(elements) != len(limits) + 1:
        raise refusal
    for member in range(party.public.parties):
        elements = combine_elements(elements, _pad(secret, context, member, len(elements)), -1)
    *integers, tag = elements
    integers = list(map(signed_integer, integers))
    if any(abs(integer) > limit for integer, limit in zip(integers, limits, strict=True)):
        raise refusal
    if linear_tag(_derived_key(secret, b"tag", context), integers) != tag:
        raise refusal
    return integers


def _context_name(phase: str) -> str:
    """Return the name under which a party stores the transcript of a sealed question."""
    return f"context of {phase}"


def _pad(secret: bytes, context: bytes, member: int, size: int) -> Elements:
    """Return `size` elements, the pad of a party (its number), which is known to all parties but not to the server."""
    return secret_elements(_derived_key(secret, b"pad", context, member.to_bytes(8, "little")), size)


class Blind(Masked):
    """Base of both sides of the blind transport: sites agree on a secret, then send sealed and masked sums."""

    @override
    def uses_commitments(self, parties: int) -> bool:
        """Return False: every two parties share masks, as they share the secret."""
        return False

    @override
    def script(self, method: str, questions: Questions) -> Questions:
        """Return the questions for the secret, then the method's, masked if not sealed; ConfigError for others."""
        self.method_questions = require_summable(method, questions)
        first = next(iter(questions))
        if questions[first].reply != SEALED:
            text = f"'{method}' begins with a sum that the server would open: leave out 'blind'"
            raise ConfigError(f"run-config: 'blind' is true, and {text}")
        script = dict(SECRET_QUESTIONS)
        for name, question in questions.items():
            script[name] = question if question.reply == SEALED else mask_question(question)
        request = Payload((AGREED_FIELD, *questions[first].request.fields))
        script[first] = replace(script[first], request=request)
        return script


class SealedSum:
    """Sum of sealed answers in `elements`, which are added on arrival in any order; empty without answers."""

    def __init__(self) -> None:
        self.elements: Elements = []

    def add(self, fields: Fields, sender: str) -> None:
        """Add the numbers in a party's field "sealed"; ContractError for more or fewer than in the first answer."""
        elements = [int.from_bytes(row.tobytes(), "little") for row in fields["sealed"]]
        self.elements = self.elements or [0] * len(elements)
        if len(elements) != len(self.elements):
            raise ContractError(
                f"{sender}: it sent {len(elements)} sealed numbers, another party {len(self.elements)}; does it run "
                "another version?"
            )
        self.elements = combine_elements(self.elements, elements)


class BlindServer(Blind, MaskedServer):
    """Server's side of the blind transport: relays encrypted contributions, and adds numbers that it cannot read."""

    @override
    def sum_replies(self, question: SumRound, run: Run) -> Program:
        """Return the total of masked replies, or the sealed sum (n + 1, ELEMENT_BYTES) in the field "sealed"."""
        agreed: Fields = {} if self._keys_are_relayed else (yield from self._relay_contributions())
        if self.method_questions[question.phase].reply != SEALED:
            return (yield from super().sum_replies(question, run))
        total = SealedSum()
        replies = yield from stream_replies(Round(question.phase, {**agreed, **question.request}), total.add)
        return Total({"sealed": elements_to_bytes(total.elements)}, len(replies))

    @override
    def notes(self, quorum: Quorum) -> list[str]:
        """Return the note on the numbers that the server saw, and those that a colluding party would show it."""
        return [DISCLOSURE_NOTE]

    def _relay_contributions(self) -> Program:
        """Relay keys and encrypted contributions; return the parties' signatures on the secret as field "agreed"."""
        keys = collect_keys((yield Round("keys")))
        encrypted = np.stack([reply.fields["encrypted"] for reply in (yield Round("secrets", keys))])
        received = {party: {"encrypted": encrypted[:, party]} for party in range(len(encrypted))}
        replies = yield Round("agree", {}, received)
        self._keys_are_relayed = True
        return {"agreed": np.stack([reply.fields["signature"] for reply in replies])}


class BlindParty(Blind, MaskedParty):
    """Party's side of the blind transport: agrees on the secret with other parties, and seals integers with it."""

    @override
    def answer(self, party: Party, phase: str, request: Fields) -> Fields:
        """Answer a round for the secret, a sealed sum, or another question; DisclosureError for wrong requests."""
        if phase == "secrets":
            return self._encrypt_contribution(party, request)
        if phase == "agree":
            return self._sign_secret(party, request["encrypted"])
        if "agreed" in request:
            self._require_agreement(party, request["agreed"])
        if phase in self.method_questions and self.method_questions[phase].reply == SEALED:
            return self._seal(party, phase, request)
        return super().answer(party, phase, request)

    def _encrypt_contribution(self, party: Party, request: Fields) -> Fields:
        """Accept the relayed keys; store a contribution to the secret, and return it encrypted for each other party."""
        self._accept_keys(party, request["publics"], request["signatures"])
        contribution = secrets.token_bytes(CONTRIBUTION_BYTES)
        party.journal.store_secret("contribution", contribution)
        encrypted = np.zeros((party.public.parties, ENCRYPTED_BYTES), np.uint8)
        for member in range(party.public.parties):
            if member != self._partition:
                text = self._cipher(party, self._partition, member).encrypt(bytes(12), contribution, None)
                encrypted[member] = np.frombuffer(text, np.uint8)
        return {"encrypted": encrypted}

    def _sign_secret(self, party: Party, encrypted: NDArray[np.uint8]) -> Fields:
        """Derive and store the secret of all contributions, and sign its digest; DisclosureError for altered ones."""
        contributions = [require_secret(party, "contribution")]
        for member, text in enumerate(encrypted):
            if member != self._partition:
                try:
                    opened = self._cipher(party, member, self._partition).decrypt(bytes(12), text.tobytes(), None)
                except InvalidTag:
                    raise DisclosureError(
                        f"the contribution of party {member} to the secret was altered on its way, or is another's; "
                        f"{NO_ANSWER_TEXT}"
                    ) from None
                contributions.append(opened)
        info = digest_pieces(b"fedpca blind secret", self.policy.signer.context, require_secret(party, "listed"))
        secret = HKDF(SHA256(), KEY_BYTES, salt=None, info=info).derive(b"".join(sorted(contributions)))
        party.journal.store_secret("secret", secret)
        return {"signature": self.policy.signer.sign("run secret", secret_key(party, b"digest"))}

    def _require_agreement(self, party: Party, signatures: NDArray[np.uint8]) -> None:
        """Raise DisclosureError unless all parties, in order, have signed the digest of this party's secret."""
        digest = secret_key(party, b"digest")
        for member, signature in enumerate(signatures):
            self.policy.signer.require_signature(member, "run secret", signature, digest)

    def _seal(self, party: Party, phase: str, request: Fields) -> Fields:
        """Return the party's integers and their tag under its pad and its pairwise masks; store the transcript."""
        question = self.method_questions[phase]
        publics = split_keys(require_secret(party, "listed"))
        arrays = [np.asarray(party.question_number), *(request[field.name] for field in question.request.fields)]
        context = transcript(phase, self.policy.signer.context, publics, arrays)
        party.journal.store_secret(_context_name(phase), context)
        answer = party.statistics(phase, request)
        assert not isinstance(answer, Sequence)
        integers = answer["integers"].tolist()
        secret = require_secret(party, "secret")
        elements = [*integers, linear_tag(_derived_key(secret, b"tag", context), integers)]
        elements = combine_elements(elements, _pad(secret, context, self._partition, len(elements)))
        local_key = require_secret(party, "public")
        for peer, pairwise in pairwise_secrets(party).items():
            mask = secret_elements(derive_key(pairwise, local_key, peer, context), len(elements))
            elements = combine_elements(elements, mask, 1 if local_key < peer else -1)
        return {"sealed": elements_to_bytes(elements)}

    def _cipher(self, party: Party, sender: int, recipient: int) -> ChaCha20Poly1305:
        """Return the cipher of a single message; its key is for this run, sender and recipient, and used once."""
        publics = split_keys(require_secret(party, "listed"))
        context = digest_pieces(b"fedpca contribution", self.policy.signer.context, publics[sender], publics[recipient])
        peer = publics[recipient if sender == self._partition else sender]
        local_key = require_secret(party, "public")
        return ChaCha20Poly1305(derive_key(pairwise_secrets(party)[peer], local_key, peer, context))
