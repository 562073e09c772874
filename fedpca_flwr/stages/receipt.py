"""Receipt (option ``receipt``): at the end of a run each site signs which model it was shown.

Two questions follow the projection. In ``witness`` each site draws a nonce and commits itself to its answers so far. In
``sign`` it is shown what is left to see of the model, and all parties' nonces and commitments; it makes the manifest
(`fedpca_flwr.model.receipt`) by itself and signs it. Nothing here depends on rows.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Annotated, Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ValidationError
from pydantic import Field as Limits
from typing_extensions import override

from fedpca_flwr.config.method_text import shared_settings
from fedpca_flwr.config.run_config import RunConfig
from fedpca_flwr.errors import ContractError
from fedpca_flwr.model.model import PCAModel
from fedpca_flwr.model.receipt import RECEIPT_KIND, Manifest, Receipt, commitment, model_digests, model_numbers
from fedpca_flwr.protocol.card import MethodCard, PCAOptions, method_questions
from fedpca_flwr.protocol.payload import Field, Fields, Payload
from fedpca_flwr.protocol.question import SERVER, Program, Question, Questions, Round
from fedpca_flwr.protocol.strategy import PCAStrategy
from fedpca_flwr.questions.rows_client import PROJECTION, RowsClient, RowsStage
from fedpca_flwr.site.identity import SIGNATURE_BYTES, load_identity
from fedpca_flwr.site.site import loaded_app

BYTES = ("nonce", "answers", "head")
"""Fields of 32 bytes in a party's witness."""
WITNESS_NAME = "witness"
"""Name under which a party stores what it has sent as its witness."""
WITNESS = tuple(Field(name, ("32",), "uint8") for name in BYTES)
SHOWN = tuple(Field(name, ("<=p", "32"), "uint8") for name in BYTES)
NUMBERS = (Field("variances", ("<=k",)), Field("numbers", ("3",)))
"""Numbers of the model that the projection does not show (`model_numbers`)."""


class Statement(BaseModel):
    """Statement of a party about its run: Flower's number, digest of its list of members, and app."""

    run: Annotated[str, Limits(max_length=64)]
    members: Annotated[str, Limits(max_length=64)]
    app: Annotated[str, Limits(max_length=1000)]


class Attendance(BaseModel):
    """Statement of the server about who takes part: partition, name and app of each party."""

    parties: list[int]
    names: list[str]
    apps: list[str]


Text = TypeVar("Text", Statement, Attendance)


class ReceiptOptions(PCAOptions):
    """Options of the receipt."""

    receipt: bool = False
    """Each site signs at the end which model it received (docs/receipt.md)."""


class ReceiptStage(RowsStage):
    """Stage that asks for signatures on a manifest, once the parties have projected their rows."""

    Options = ReceiptOptions
    option_names = ("receipt",)
    examples = ({"receipt": True},)

    @classmethod
    @override
    def fits(cls, card: MethodCard) -> bool:
        """Return whether all parties are shown the model's own components, by one method."""
        return card.split == "rows" and not (card.local_components or card.successors)

    @override
    def script(self, config: RunConfig, questions: Questions) -> Questions:
        """Add the questions for witnesses and signatures after the projection."""
        if "project" not in questions:  # the method goes on as another one, whose script has it
            return questions
        statement = Field("statement", ("any",), "uint8")
        witness = Question(
            reply=Payload((*WITNESS, statement)), answer=_testify, needs="files", in_clear=True, closing=True
        )
        shown = (*NUMBERS, *SHOWN, Field("attendance", ("any",), "uint8"))
        sign = Question(
            request=Payload(shown),
            reply=Payload((Field("signature", (str(SIGNATURE_BYTES),), "uint8"),)),
            answer=_sign,
            needs="files",
            sizes=lambda public: {"k": public.features, "p": public.parties},
            in_clear=True,
            closing=True,
        )
        return {**questions, "witness": witness, "sign": sign}

    @override
    def store_request(self, party: RowsClient, request: Fields) -> None:
        """Store the components, mean and scale with which the party projects its rows."""
        if request.keys() >= set(PROJECTION):
            party.site.state[RECEIPT_KIND] = [request[name] for name in PROJECTION]

    @override
    def seal(self, run: PCAStrategy, model: PCAModel, request: Fields) -> Program:
        """Ask for witnesses and signatures, and put the receipt into the model's log."""
        if run.quorum.dropped:
            model.log["notes"].append("a party left before the last round: there is no receipt")
            return
        replies = yield Round("witness")
        statements = [_read(Statement, bytes(reply.fields["statement"]), reply.sender) for reply in replies]
        first = statements[0]
        for reply, statement in zip(replies, statements, strict=True):
            if (statement.run, statement.members) != (first.run, first.members):
                raise ContractError(
                    f"{reply.sender}: it signs for another run or list of members than {replies[0].sender}; let all "
                    "sites have the same list (node-config 'identities')"
                )
        attendance = Attendance(
            parties=[reply.party for reply in replies],
            names=[reply.name for reply in replies],
            apps=[statement.app for statement in statements],
        )
        shown: dict[str, Any] = {
            **dict(zip(("variances", "numbers"), model_numbers(model), strict=True)),
            "attendance": _encode(attendance),
            **{name: np.stack([reply.fields[name] for reply in replies]) for name in BYTES},
        }
        replies = yield Round("sign", shown)
        manifest = Manifest(
            run=first.run,
            members=first.members,
            settings=shared_settings(run.card.name, run.options, run.config),
            phases=list(method_questions(run.card.script, run.config, run.options)),
            columns=run.quorum.columns,
            model=_shown_model([request[name] for name in PROJECTION], shown),
            parties=_parties(attendance, shown),
        )
        signatures = {str(reply.party): bytes(reply.fields["signature"]).hex() for reply in replies}
        model.log["receipt"] = Receipt(manifest=manifest, signatures=signatures).model_dump()


def _testify(party: RowsClient, request: Fields) -> Fields:
    """Draw a nonce, commit to the answers so far, and note the salt of the commitment in the journal."""
    salt, nonce = secrets.token_bytes(32), secrets.token_bytes(32)
    answers, head = party.journal.evidence()
    party.journal.remember(RECEIPT_KIND, salt.hex(), lambda same, other_notes: "salt of the commitment to the answers")
    identity = load_identity(party.site.node)
    statement = Statement(run=party.site.run_id, members=identity.digest.hex(), app=loaded_app())
    commitments = {"nonce": nonce, "answers": bytes.fromhex(commitment(salt, answers)), "head": bytes.fromhex(head)}
    fields = {name: np.frombuffer(value or bytes(32), np.uint8) for name, value in commitments.items()}
    party.site.state[WITNESS_NAME] = [*fields.values()]
    return {**fields, "statement": _encode(statement)}


def _sign(party: RowsClient, request: Fields) -> Fields:
    """Make the manifest from what this party knows and was shown, and sign it; refuse another's words as its own."""
    attendance = _read(Attendance, bytes(request["attendance"]), SERVER)
    parties, identity = _parties(attendance, request), load_identity(party.site.node)
    words = [bytes(array).hex() for array in party.site.state[WITNESS_NAME]]
    own_entry = {"name": party.site.node.name, "app": loaded_app(), **dict(zip(BYTES, words, strict=True))}
    if parties.get(str(party.site.node.partition_id)) != own_entry:
        raise ContractError(f"{SERVER}: what it shows as this party's statement is not what this party has sent")
    manifest = Manifest(
        run=party.site.run_id,
        members=identity.digest.hex(),
        settings=shared_settings(party.card.name, party.options, party.site.config),
        phases=list(party.questions),
        columns=party.site.table.columns,
        model=_shown_model(party.site.state[RECEIPT_KIND], request),
        parties=parties,
    )
    return {"signature": np.frombuffer(identity.sign(manifest.message()), np.uint8)}


def _shown_model(projection: Sequence[NDArray[Any]], shown: Fields) -> dict[str, str]:
    """Return the digests of a model of which the projection has shown one part, and the last question the other."""
    components, mean, scale = projection
    return model_digests(components, mean, scale, shown["variances"], shown["numbers"])


def _parties(attendance: Attendance, shown: Fields) -> dict[str, dict[str, str]]:
    """Return the manifest's entry of each party, by partition."""
    lengths = {
        len(attendance.parties),
        len(attendance.names),
        len(attendance.apps),
        *(len(shown[name]) for name in BYTES),
    }
    if len(lengths) != 1 or len(set(attendance.parties)) != len(attendance.parties):
        raise ContractError(f"{SERVER}: it names parties twice, or not as many as it has statements of")
    return {
        str(number): {"name": name, "app": app, **{kind: bytes(shown[kind][i]).hex() for kind in BYTES}}
        for i, (number, name, app) in enumerate(zip(attendance.parties, attendance.names, attendance.apps, strict=True))
    }


def _encode(text: BaseModel) -> NDArray[np.uint8]:
    """Return the JSON of a statement as bytes."""
    return np.frombuffer(text.model_dump_json().encode(), np.uint8)


def _read(kind: type[Text], content: bytes, sender: str) -> Text:
    """Return a statement from its JSON, or refuse something else in the name of who sent it."""
    try:
        return kind.model_validate_json(content)
    except ValidationError:
        raise ContractError(f"{sender}: its statement for the receipt is no {kind.__name__}") from None
