"""Surviving transport: a single sum over the remaining parties, opened once (`fedpca_flwr.transports.double_masks`).

Rounds: ``keys``; ``shares`` (each party's seed and mask key, shared among all); the method's own sum; ``agree`` (each
survivor signs which survivors it was told); ``reveal`` (the shares by which the sum opens). A party may drop out in any
of them while ``survivors`` are left: if its vector came it is in the sum, else the sum is without it. The last round is
a sum under pairwise masks of the survivors, left out where one of them has gone.

One sum a run, because the difference of two sums over different parties is the share of those that left. So methods
that need several are refused, unless each sum is differentially private: then their difference tells no more than they
do, and the rounds are gone through for each, with new keys, by the parties that are still there.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from fedpca_flwr.errors import ContractError, TravelError
from fedpca_flwr.maths import secure
from fedpca_flwr.protocol.payload import Field, Fields, Payload
from fedpca_flwr.protocol.question import Program, Question, Questions, Round, SumRound
from fedpca_flwr.protocol.quorum import Quorum
from fedpca_flwr.protocol.replies import stream_replies
from fedpca_flwr.protocol.transport import Party, PartyTransport, Run, ServerTransport, Transport, sum_parts
from fedpca_flwr.transports.double_masks import (
    SEALED_BYTES,
    SHARE_BYTES,
    Channels,
    PublicKeys,
    hide,
    min_colluders,
    require_threshold,
    unmask,
)
from fedpca_flwr.transports.encoding import (
    MaskedSum,
    SumPolicy,
    decode_total,
    encode_answer,
    mask_question,
    require_secret,
    require_summable,
)
from fedpca_flwr.transports.masked import collect_keys
from fedpca_flwr.transports.pairwise_masks import KEY_BYTES, mask, new_private_key, public_key, split_keys, transcript
from fedpca_flwr.transports.signed import SIGNATURE_FIELD, SIGNATURE_SIZES, Signer

KEY_PAIR_BYTES = 2 * KEY_BYTES
"""A run key and a mask key."""

DISCLOSURE_NOTE = (
    "the server saw {what}, over these parties; to see more it must collude with at least {colluders} of the {parties} "
    "parties (it cannot act in place of a site that has an 'identity')"
)


def _sizes(public: object) -> dict[str, int]:
    """Return the sizes of the symbolic axes "key", "sealed", "share" and "signature" in the shapes of fields."""
    return {"key": KEY_PAIR_BYTES, "sealed": SEALED_BYTES, "share": SHARE_BYTES, **SIGNATURE_SIZES}


def _stage_question(*reply: Field, request: Sequence[Field] = ()) -> Question:
    """Return the question, with its reply and request fields, of a protocol stage before or after a masked sum."""
    return Question(request=Payload(tuple(request)), reply=Payload(reply), sizes=_sizes)


MEMBERS_FIELD, SURVIVORS_FIELD = Field("members", ("any",), "int64"), Field("survivors", ("any",), "int64")
QUESTIONS_BEFORE_SUM: Questions = {
    "keys": _stage_question(Field("public", ("key",), "uint8"), SIGNATURE_FIELD),
    "shares": _stage_question(
        Field("sealed", ("any", "sealed"), "uint8"),
        request=[
            Field("parties", ("any",), "int64"),
            Field("publics", ("any", "key"), "uint8"),
            Field("signatures", ("any", "signature"), "uint8"),
        ],
    ),
}
QUESTIONS_AFTER_SUM: Questions = {
    "agree": _stage_question(SIGNATURE_FIELD, request=[SURVIVORS_FIELD]),
    "reveal": _stage_question(
        Field("shares", ("any", "share"), "uint8"),
        request=[
            Field("agreed", ("any",), "int64"),
            Field("signatures", ("any", "signature"), "uint8"),
            Field("sealed", ("any", "sealed"), "uint8"),
        ],
    ),
}


class Surviving(Transport):
    """Base of both sides of the transport that survives dropouts: stages for keys and shares around a masked sum."""

    sums_only = True

    def __init__(self) -> None:
        self.method_questions: Questions = {}  # set by `script`, as the others
        self.sum_phases: list[str] = []  # the phases that are opened
        self.stage_by_phase: dict[str, tuple[str, str]] = {}  # by phase: its stage, and the sum that it is of

    @override
    def script(self, method: str, questions: Questions) -> Questions:
        """Return the run's questions: each masked sum stands between the stages keys and shares, agree and reveal.

        Raise TravelError for several sums without noise in each, and the errors of `require_summable`.
        """
        questions = require_summable(method, questions)
        sums = [name for name, question in questions.items() if not (question.in_clear or question.closing)]
        several = len(sums) != 1 and not all(questions[name].differentially_private for name in sums)
        if several or any(questions[name].times != 1 for name in sums):
            raise TravelError(
                f"run-config: 'survivors' is set, but '{method}' asks for several sums ({', '.join(sums)}), and the "
                "difference of two over different parties would show the share of those that left; set 'survivors' to "
                "0 (everyone or no one), or take a method or options with one sum"
            )
        self.method_questions, self.sum_phases = questions, sums
        script: dict[str, Question] = {}
        for name, question in questions.items():
            if name not in sums:
                script[name] = mask_question(question)
                continue
            masked = mask_question(question, MEMBERS_FIELD)
            for stage, stage_question in {**QUESTIONS_BEFORE_SUM, name: masked, **QUESTIONS_AFTER_SUM}.items():
                phase = name if stage == name else self.stage_phase(stage, name)
                self.stage_by_phase[phase] = stage, name
                script[phase] = stage_question
        return script

    def stage_phase(self, stage: str, sum_phase: str) -> str:
        """Return the name of the question for a stage of a sum; after the first sum prefixed by the sum's name."""
        return stage if sum_phase == self.sum_phases[0] else f"{sum_phase} {stage}"


class SurvivingServer(Surviving, ServerTransport):
    """Server's side of the transport that survives dropouts: relays keys and shares, and unmasks the survivors' sum."""

    def __init__(self, threshold: int) -> None:
        super().__init__()
        self.threshold = threshold  # number of survivors that the run requires
        self._summed_parties: list[dict[str, Any]] = []

    @override
    def sum_replies(self, question: SumRound, run: Run) -> Program:
        """Return the survivors' total: under double masks, or under pairwise masks in the last round."""
        sum_replies = self._sum_survivors if question.phase in self.sum_phases else self._sum_last_round
        return (yield from sum_replies(question, run))

    @override
    def measurements(self, quorum: Quorum) -> dict[str, float]:
        """Return the number of parties in the sum, and the number at the start, by names of measurements."""
        return {"double_masked_parties": len(self._summed_parties), "expected_parties": quorum.initial_parties}

    @override
    def notes(self, quorum: Quorum) -> list[str]:
        """Return notes on the parties that dropped out, if any did, and on the numbers that the server saw."""
        inside = {party["party"] for party in self._summed_parties}
        absent = [name for party, name in sorted(quorum.dropped.items()) if party not in inside]
        dropout_note = f"the PCA of {len(inside)} of {quorum.initial_parties} parties: {', '.join(absent)} dropped out"
        seen_sums = "one sum" if len(self.sum_phases) == 1 else f"{len(self.sum_phases)} sums with noise, the last"
        colluders = min_colluders(self.threshold, quorum.initial_parties)
        note = DISCLOSURE_NOTE.format(what=seen_sums, colluders=colluders, parties=quorum.initial_parties)
        return [dropout_note, note] if absent else [note]

    @override
    def parties(self, quorum: Quorum) -> list[dict[str, Any]]:
        """Return the log entries of the parties whose vectors are in the sum; empty before the sum."""
        return self._summed_parties

    def _sum_survivors(self, question: Round, run: Run) -> Program:
        """Ask for all stages of a sum, and return the survivors' total; ContractError if masks do not come off."""
        require_threshold(self.threshold, run.quorum.initial_parties)
        replies = yield Round(self.stage_phase("keys", question.phase))
        position_of = {reply.party: i for i, reply in enumerate(replies)}
        public_keys = PublicKeys([reply.fields["public"].tobytes() for reply in replies])
        relayed = {"parties": np.asarray(list(position_of)), **collect_keys(replies)}
        replies = yield Round(self.stage_phase("shares", question.phase), relayed)
        sealed = {position_of[r.party]: _require_rows(r.fields["sealed"], len(position_of), r.sender) for r in replies}
        declared = self.method_questions[question.phase]
        total = MaskedSum(declared.layout(question.request, run.public))
        request = {"members": np.asarray(list(sealed)), **question.request}
        replies = yield from stream_replies(Round(question.phase, request), total.add)
        survivors, self._summed_parties = [position_of[r.party] for r in replies], run.quorum.parties
        replies = yield Round(self.stage_phase("agree", question.phase), {"survivors": np.asarray(survivors)})
        agreed = {position_of[r.party]: r.fields["signature"] for r in replies}
        agreement = {"agreed": np.asarray(list(agreed)), "signatures": np.stack(list(agreed.values()))}
        boxes = {party: np.stack([rows[i] for rows in sealed.values()]) for party, i in position_of.items()}
        party_requests = {party: {"sealed": box} for party, box in boxes.items()}
        replies = yield Round(self.stage_phase("reveal", question.phase), agreement, party_requests)
        shares = {position_of[r.party]: _require_rows(r.fields["shares"], len(sealed), r.sender) for r in replies}
        revealing = sorted(shares)[: self.threshold]
        revealed = {p: {m: row.tobytes() for m, row in zip(sealed, shares[p], strict=True)} for p in revealing}
        method_request = [question.request[field.name] for field in declared.request.fields]
        context = public_keys.mask_context(question.phase, list(sealed), method_request)
        opened = unmask(total.words, public_keys, context, list(sealed), survivors, revealed)
        return decode_total(total.layout, opened, len(survivors))

    def _sum_last_round(self, question: Round, run: Run) -> Program:
        """Sum the last round under pairwise masks; None if a survivor left, as a smaller sum would show who."""
        total = MaskedSum(self.method_questions[question.phase].layout(question.request, run.public))
        replies = yield Round(question.phase, question.request, consume=total.add)
        if len(replies) < len(self._summed_parties):
            return None
        for reply in replies:
            if not reply.consumed_bytes:
                total.add(reply.fields, reply.sender)
        return total.decode(replies, {})


def _require_rows(rows: NDArray[np.uint8], expected: int, sender: str) -> NDArray[np.uint8]:
    """Return an array with a row for each other party; raise ContractError for another number of rows."""
    if len(rows) != expected:
        raise ContractError(f"{sender}: it sent something for {len(rows)} parties, expected {expected}")
    return rows


class SurvivingParty(Surviving, PartyTransport):
    """Party's side of the transport that survives dropouts: masks the answer, and reveals shares once."""

    def __init__(self, policy: SumPolicy) -> None:
        super().__init__()
        self.policy = policy
        self.current_sum = ""  # that the open question is of

    @override
    def answer(self, party: Party, phase: str, request: Fields) -> Fields:
        """Answer a stage of a sum, a question in clear, or the last round under pairwise masks."""
        stages = {"keys": self._create_keys, "shares": self._share_secrets}
        stages |= {"agree": self._sign_survivors, "reveal": self._reveal_shares}
        stage, self.current_sum = self.stage_by_phase.get(phase, ("", self.sum_phases[-1]))
        if stage:
            return stages.get(stage, self._mask_answer)(party, request)
        if self.method_questions[phase].in_clear:
            return sum_parts(party.statistics(phase, request))
        return self._answer_last_round(party, phase, request)

    # One stage each

    def _create_keys(self, party: Party, request: Fields) -> Fields:
        """Create and store run key, mask key and seed; return signed public keys; ConfigError for too few survivors."""
        require_threshold(self.policy.survivors, self.policy.parties)
        private, masking = new_private_key(), new_private_key()
        party.journal.store_secret("private", private)
        party.journal.store_secret("masking", masking)
        party.journal.store_secret("seed", secrets.token_bytes(secure.SECRET_BYTES))
        public = public_key(private) + public_key(masking)
        return {"public": np.frombuffer(public, np.uint8), "signature": self._signer.sign("run keys", public)}

    def _share_secrets(self, party: Party, request: Fields) -> Fields:
        """Store relayed keys after the site's checks; return shares of seed and mask key, encrypted for each party."""
        parties, publics = request["parties"].tolist(), [keys.tobytes() for keys in request["publics"]]
        if not len(parties) == len(publics) == len(request["signatures"]):
            raise ContractError(
                f"the server sent keys of {len(publics)} parties, {len(request['signatures'])} signatures, and a list "
                f"of {len(parties)} parties"
            )
        self._require_enough(len(publics))
        self.policy.require_size(len(publics))
        self._signer.require_keys(parties, publics, request["signatures"], self._local_public_keys(party))
        party.journal.store_secret("keys", b"".join(publics))
        _store_positions(party, "parties", parties)
        channels, secrets_ = self._channels(party), (require_secret(party, name) for name in ("seed", "masking"))
        share_pairs = [secure.split_secret(value, self.policy.survivors, len(publics)) for value in secrets_]
        sealed = [channels.seal(i, seed + key) for i, (seed, key) in enumerate(zip(*share_pairs, strict=True))]
        return {"sealed": np.stack([np.frombuffer(text, np.uint8) for text in sealed])}

    def _mask_answer(self, party: Party, request: Fields) -> Fields:
        """Return this party's encoded answer plus its pairwise masks and its self mask."""
        channels = self._channels(party)
        members = self._check_positions(party, request["members"], range(len(channels.public_keys.keys)))
        _store_positions(party, "members", members)
        question = self.method_questions[self.current_sum]
        method_request = {field.name: request[field.name] for field in question.request.fields}
        vector = encode_answer(party, self.current_sum, question, method_request)
        context = channels.public_keys.mask_context(self.current_sum, members, list(method_request.values()))
        masking, seed = require_secret(party, "masking"), require_secret(party, "seed")
        return {"masked": hide(vector, channels.public_keys, context, members, masking, seed)}

    def _sign_survivors(self, party: Party, request: Fields) -> Fields:
        """Store the announced survivors, and return a signature on them, if the site's rules allow their sum."""
        members = _load_positions(party, "members")
        survivors = self._check_positions(party, request["survivors"], members)
        self.policy.require_size(len(survivors))
        party.permit_survivors(self.policy.parties - len(survivors))
        _store_positions(party, "survivors", survivors)
        return {"signature": self._signer.sign("survivors", *_agreement_parts(party))}

    def _reveal_shares(self, party: Party, request: Fields) -> Fields:
        """Return shares of survivors' seeds and of dropouts' mask keys, if enough survivors signed the same lists."""
        channels = self._channels(party)
        members, survivors = _load_positions(party, "members"), _load_positions(party, "survivors")
        agreed = self._check_positions(party, request["agreed"], survivors)  # as many as the threshold
        if (len(request["signatures"]), len(request["sealed"])) != (len(agreed), len(members)):
            raise ContractError(
                f"the server sent {len(request['signatures'])} signatures and {len(request['sealed'])} sealed shares, "
                f"expected {len(agreed)} and {len(members)}"
            )
        parties = _load_positions(party, "parties")
        for position, signature in zip(agreed, request["signatures"], strict=True):
            self._signer.require_signature(parties[position], "survivors", signature, *_agreement_parts(party))
        party.permit_sum(self.policy.members([parties[position] for position in survivors]))
        revealed = []
        for position, text in zip(members, request["sealed"], strict=True):
            shares = channels.unseal(position, text.tobytes())
            share = shares[:SHARE_BYTES] if position in survivors else shares[SHARE_BYTES:]
            revealed.append(np.frombuffer(share, np.uint8))
        return {"shares": np.stack(revealed)}

    def _answer_last_round(self, party: Party, phase: str, request: Fields) -> Fields:
        """Return this party's answer to the last round under pairwise masks of the survivors."""
        channels = self._channels(party)
        publics = [channels.public_keys.run_key(position) for position in _load_positions(party, "survivors")]
        vector = encode_answer(party, phase, self.method_questions[phase], request)
        context = transcript(phase, self._signer.context, publics, list(request.values()))
        vector += mask(require_secret(party, "private"), publics, context, vector.size)
        return {"masked": vector}

    # Inside

    @property
    def _signer(self) -> Signer:
        """Signer bound to the current sum, so that a signature is valid for no other sum."""
        signer, suffix = self.policy.signer, "" if self.current_sum == self.sum_phases[0] else self.current_sum
        return replace(signer, configuration=signer.configuration + suffix)

    def _channels(self, party: Party) -> Channels:
        """Return this party's encrypted channels, from keys in its journal; raise ContractError without them."""
        publics = split_keys(require_secret(party, "keys"), KEY_PAIR_BYTES)
        position = publics.index(self._local_public_keys(party))
        return Channels(PublicKeys(publics, self._signer.context), position, require_secret(party, "private"))

    def _local_public_keys(self, party: Party) -> bytes:
        """Return this party's public run key, then its public mask key."""
        return public_key(require_secret(party, "private")) + public_key(require_secret(party, "masking"))

    def _check_positions(self, party: Party, listed: NDArray[np.int64], candidates: Sequence[int]) -> list[int]:
        """Return positions; raise ContractError if unsorted, too few, not of `candidates`, or without this party."""
        positions: list[int] = listed.tolist()
        local_position = self._channels(party).position
        is_sublist = positions == sorted(set(positions)) and set(positions) <= set(candidates)
        if not is_sublist or local_position not in positions:
            raise ContractError(
                f"the server's list of parties is {positions}, expected some of {list(candidates)}, in order, with "
                f"this site's own place {local_position}"
            )
        self._require_enough(len(positions))
        return positions

    def _require_enough(self, parties: int) -> None:
        """Raise ContractError for fewer parties than the number of survivors that the run requires."""
        if parties < self.policy.survivors:
            raise ContractError(
                f"the server goes on with {parties} parties, fewer than the run's 'survivors' = {self.policy.survivors}"
            )


def _agreement_parts(party: Party) -> list[bytes]:
    """Return the byte strings that survivors sign: all keys, the members' positions, and the survivors' positions."""
    return [require_secret(party, name) for name in ("keys", "members", "survivors")]


def _store_positions(party: Party, name: str, positions: Sequence[int]) -> None:
    """Store positions in the list of keys in this party's journal, under a name."""
    party.journal.store_secret(name, np.asarray(positions, "<i8").tobytes())


def _load_positions(party: Party, name: str) -> list[int]:
    """Load positions in the list of keys, stored under a name; raise ContractError if there are none."""
    return [int(position) for position in np.frombuffer(require_secret(party, name), "<i8")]
