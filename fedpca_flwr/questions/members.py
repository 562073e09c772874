"""Moments of members who return from run to run: moments that the server has already are not sent again.

In clear each member sends a digest of its moments first. Where only sums are shown, the server asks first who takes
part, and the sums of all follow. With survivors there is no such sum: the difference of two sums over different parties
would show the share of those that left. So a run with survivors has the script in clear, and is refused because the
script has no sums.
"""

import numpy as np

from fedpca_flwr.config.run_config import RunConfig
from fedpca_flwr.model.federation import moments_digest
from fedpca_flwr.protocol.payload import Field, Fields, Payload
from fedpca_flwr.protocol.question import Question, Questions, by_transport
from fedpca_flwr.questions.fields import HEAD, head_fields, read_moments
from fedpca_flwr.questions.rows import local_moments, moments_questions
from fedpca_flwr.questions.rows_client import Party

COUNT, MEAN, REMAINDER = HEAD


def members_questions(config: RunConfig) -> Questions:
    """Return the questions for members' moments: in clear a digest and then new moments, else the sum of all.

    Parameters
    ----------
    config : RunConfig

    Returns
    -------
    mapping of str to Question
    """
    if by_transport(config, clear=False, masked=True, surviving=False):
        members = Question(reply=Payload(()), answer=_announce, in_clear=True)
        return {"members": members, **moments_questions(config)}
    return {
        "digest": Question(reply=Payload((Field("digest", ("32",), "uint8"), COUNT, REMAINDER, MEAN)), answer=_digest),
        "moments": Question(
            request=Payload((Field("wanted", (), "bool"),)),
            reply=Payload((*HEAD, Field("scatter", ("d(d+1)/2",), kind="scatter", optional=True))),
            answer=_moments,
            optional=True,
        ),
    }


def _announce(party: Party, request: Fields) -> Fields:
    """Return no fields: the empty reply only announces that the party takes part."""
    return {}


def _digest(party: Party, request: Fields) -> Fields:
    """Return count and mean of a party's rows, and the digest of the moments that the server would read."""
    fields = local_moments(party, request)
    digest_bytes = bytes.fromhex(moments_digest(read_moments(fields)))
    return {**fields, "digest": np.frombuffer(digest_bytes, np.uint8)}


def _moments(party: Party, request: Fields) -> Fields:
    """Return count and mean of a party's rows, and the packed scatter if the request's ``wanted`` is true."""
    if request["wanted"]:
        return local_moments(party, request)
    return {**head_fields(*party.vault.head_and_diagonal()), "scatter": np.empty(0)}
