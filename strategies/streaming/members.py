"""Moments of members who return from run to run. A party does not send moments that the server already has.

In clear each member sends a digest of its moments first. Where only sums are shown, the server asks first who takes
part, and the sums of all follow. With survivors there is no such sum: the difference of two sums over different parties
would show the share of those that left. So a run with survivors has the script in clear, and is refused because the
script has no sums.

Members know the federation's state again: each notes the revision that a run makes, and says if the server's state is
older than the last one that it noted. So a state that was put back from a copy is named.
"""

from collections.abc import Sequence

import numpy as np
from typing_extensions import override

from fedpca_flwr.config.run_config import RunConfig
from fedpca_flwr.model.federation import moments_digest
from fedpca_flwr.protocol.journal import Note
from fedpca_flwr.protocol.payload import Field, Fields, Payload
from fedpca_flwr.protocol.question import Question, Questions, by_transport
from fedpca_flwr.protocol.site_log import site_logger
from fedpca_flwr.questions.pooling import HEAD, head_fields, read_moments
from fedpca_flwr.questions.rows import local_moments, moments_questions
from fedpca_flwr.questions.rows_client import Party, RowsClient

COUNT, MEAN, REMAINDER = HEAD
STATE_REQUEST = Payload((Field("federation", ("16",), "uint8"), Field("revision", (), "int64")))
"""The federation's random name, and the revision of its state."""
STATE_REPLY = Field("latest", (), "int64")  # the federation's latest revision that the party has noted, or -1
REVISION_KIND = "revision"  # kind of the notes in a party's journal, and key of the run's revision in its state


def members_questions(config: RunConfig) -> Questions:
    """Return the questions for members' moments: ``digest`` and ``moments`` in clear, else ``members`` and the sums."""
    if by_transport(config, clear=False, masked=True, surviving=False):
        members = Question(request=STATE_REQUEST, reply=Payload((STATE_REPLY,)), answer=_announce, in_clear=True)
        return {"members": members, **moments_questions(config)}
    return {
        "digest": Question(
            request=STATE_REQUEST,
            reply=Payload((Field("digest", ("32",), "uint8"), STATE_REPLY, COUNT, REMAINDER, MEAN)),
            answer=_digest,
        ),
        "moments": Question(
            request=Payload((Field("wanted", (), "bool"),)),
            reply=Payload((*HEAD, Field("scatter", ("d(d+1)/2",), kind="scatter", optional=True))),
            answer=_moments,
            optional=True,
        ),
    }


class MembersClient(RowsClient):
    """Party's half of a run that changes a federation: its journal has the revision that it last took part in."""

    @override
    def store_request(self, request: Fields) -> None:
        """Recall the latest revision of a federation when a run begins, and note the next with its last question."""
        super().store_request(request)
        if "federation" in request:
            name, revision = request["federation"].tobytes(), max(int(request["revision"]), 0)
            self.journal.store_secret(REVISION_KIND, name + revision.to_bytes(8))
            self.site.state[REVISION_KIND] = [np.asarray(self._recall_revision(name.hex(), revision))]
        elif "components" in request and (state := self.journal.load_secret(REVISION_KIND)):
            revision = int.from_bytes(state[16:]) + 1
            self.journal.remember(REVISION_KIND, state[:16].hex(), lambda same, other_notes: str(revision))

    def _recall_revision(self, federation: str, revision: int) -> int:
        """Return the latest noted revision of a federation, -1 for none; warn if the server's is older."""
        latest = -1

        def decide(same: Sequence[Note], other_notes: Sequence[Note]) -> str:
            """Read the latest revision from the notes on this federation; return "", to note nothing."""
            nonlocal latest
            latest = max((int(note.content) for note in same), default=-1)
            return ""

        self.journal.remember(REVISION_KIND, federation, decide)
        if revision < latest:
            site_logger.warning(
                "the federation's state at the server has revision %s, and this site has taken part in revision %s: an "
                "older state was put back, or the last run failed elsewhere",
                revision,
                latest,
            )
        return latest


def _announce(party: Party, request: Fields) -> Fields:
    """Return ``latest``, the federation's latest revision that the party has noted, or -1."""
    return {"latest": party.state[REVISION_KIND][0]}


def _digest(party: Party, request: Fields) -> Fields:
    """Return a party's moments, their ``digest`` (32,) as the server would compute it, and ``latest``."""
    fields = local_moments(party, request)
    digest_bytes = bytes.fromhex(moments_digest(read_moments(fields)))
    return {**fields, **_announce(party, request), "digest": np.frombuffer(digest_bytes, np.uint8)}


def _moments(party: Party, request: Fields) -> Fields:
    """Return count and mean of a party's rows, and the packed scatter, (0,) unless the request's ``wanted`` is true."""
    if request["wanted"]:
        return local_moments(party, request)
    return {**head_fields(*party.vault.head_and_diagonal()), "scatter": np.empty(0)}
