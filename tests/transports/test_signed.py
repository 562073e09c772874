"""A signature is of one statement of one kind, by one party, in one run."""

from dataclasses import replace

import numpy as np
import pytest

from fedpca_flwr.errors import DisclosureError
from fedpca_flwr.site.identity import simulated
from fedpca_flwr.transports.signed import Signer
from tests.refusals import refused

RUN = {"run": "17", "configuration": "{}"}
PARTY = Signer(simulated(3, 0), **RUN)
OTHER = Signer(simulated(3, 1), **RUN)
SIGNATURE = PARTY.sign("survivors", b"keys", b"list")


def test_a_party_signs_as_itself_once_and_is_believed():
    OTHER.require(0, "survivors", SIGNATURE, b"keys", b"list")
    # Also where two lines of a list, against its rules, have one key.
    first, second = (replace(PARTY.identity, party=i, members=[PARTY.identity.members[0]] * 2) for i in range(2))
    said = replace(PARTY, identity=first).sign("run keys", b"key")
    with refused(DisclosureError, "party 1", "'identities'"):
        replace(OTHER, identity=second).require(1, "run keys", said, b"key")
    # Or keys of two parties would pass for those of three, and a sum of two for one of as many as a site asks for.
    keys = [bytes([i]) * 32 for i in range(3)]
    signatures = np.stack(
        [Signer(simulated(3, i), **RUN).sign("run keys", key) for i, key in zip((0, 1, 1), keys, strict=True)]
    )
    with refused(DisclosureError, "party 1", "more than once"):
        PARTY.require_keys([0, 1, 1], keys, signatures, keys[0])


@pytest.mark.parametrize(
    ("verifier", "party", "what", "said"),
    [
        (OTHER, 2, "survivors", (b"keys", b"list")),
        (OTHER, 0, "run keys", (b"keys", b"list")),
        (OTHER, 0, "survivors", (b"key", b"slist")),
        (OTHER, 0, "survivors", (b"keys",)),
        (replace(OTHER, run="18"), 0, "survivors", (b"keys", b"list")),
        (replace(OTHER, configuration='{"bound": 2.0}'), 0, "survivors", (b"keys", b"list")),
        (replace(OTHER, run="17{", configuration="}"), 0, "survivors", (b"keys", b"list")),
        (replace(OTHER, identity=simulated(4, 1)), 0, "survivors", (b"keys", b"list")),
    ],
    ids=["party", "kind", "where pieces end", "less", "run", "configuration", "where the run ends", "list"],
)
def test_nobody_believes_it_of_anything_else(verifier, party, what, said):
    with refused(DisclosureError, f"party {party}", what, "'identities'"):
        verifier.require(party, what, SIGNATURE, *said)
