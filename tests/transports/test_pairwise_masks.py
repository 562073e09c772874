"""Masks: the standards' own test vectors, cancellation, and nothing else to see."""

import hashlib
import hmac
from itertools import pairwise

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from scipy.stats import chi2

from fedpca_flwr.errors import ContractError
from fedpca_flwr.transports import pairwise_masks
from fedpca_flwr.transports.pairwise_masks import BLOCK, keystream, mask, new_private_key, public_key, transcript
from tests.families import cut, rows
from tests.harness import fit
from tests.refusals import refused

# RFC 7748, section 6.1
ALICE = bytes.fromhex("77076d0a7318a57d3c16c17251b26645df4c2f87ebc0992ab177fba51db92c2a")
BOB = bytes.fromhex("5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb")
ALICE_PUBLIC = bytes.fromhex("8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a")
BOB_PUBLIC = bytes.fromhex("de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f")
SHARED = bytes.fromhex("4a5d9d5ba4ce2de1728e3bf480350f25e07e21c947d19e3376f09b3c1e161742")

PUBLICS, ASKED = [ALICE_PUBLIC, BOB_PUBLIC], bytes(range(32))
SIZE = BLOCK + 1000


def masks(parties, *, size=SIZE):
    privates = [new_private_key() for _ in range(parties)]
    return [mask(private, list(map(public_key, privates)), ASKED, size) for private in privates]


def pair_key(private, other):
    return pairwise_masks.agreed_key(X25519PrivateKey.from_private_bytes(private), other, ASKED)


def test_keys_streams_and_digests_are_those_of_the_standards():
    assert [public_key(private) for private in (ALICE, BOB)] == PUBLICS
    # RFC 8439, appendix A.1, vector 1: key and nonce zero, from block 0.
    assert keystream(bytes(32)).update(bytes(64)).hex() == (
        "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
        "da41597c5157488d7724e03fb8d84a376a43b8f41518a11cc387b669b2ee6586"
    )
    extracted = hmac.digest(bytes(32), SHARED, "sha256")
    expected = hmac.digest(extracted, pairwise_masks.PURPOSE + ASKED + b"".join(sorted(PUBLICS)) + b"\x01", "sha256")
    assert pair_key(ALICE, BOB_PUBLIC) == pair_key(BOB, ALICE_PUBLIC) == expected
    pieces = [b"keys", b"{}", ALICE_PUBLIC]
    by_hand = hashlib.sha256(b"".join(len(piece).to_bytes(8, "little") + piece for piece in pieces))
    assert transcript("keys", b"{}", [ALICE_PUBLIC], []) == by_hand.digest()
    assert len({new_private_key() for _ in range(100)}) == 100
    assert len(new_private_key()) == 32


def test_a_mask_is_a_uniform_keystream_that_cancels_between_two():
    expected = np.frombuffer(keystream(pair_key(ALICE, BOB_PUBLIC)).update(bytes(8 * SIZE)), "<u8")
    np.testing.assert_array_equal(mask(ALICE, PUBLICS, ASKED, SIZE), expected)  # the smaller key adds
    np.testing.assert_array_equal(mask(BOB, PUBLICS, ASKED, SIZE), -expected)
    # Its bytes, and those of the differences of neighbouring words (chi-square; wrong once in 250,000 runs).
    own = masks(3, size=2**17)[0]
    for words in (own, np.diff(own)):
        counts = np.bincount(words.view(np.uint8), minlength=256)
        statistic = float(((counts - counts.mean()) ** 2 / counts.mean()).sum())
        assert chi2.ppf(1e-6, 255) < statistic < chi2.ppf(1 - 1e-6, 255)


@pytest.mark.parametrize("parties", [2, 3, 7])
def test_the_masks_of_all_parties_cancel_and_those_of_fewer_do_not(parties):
    own = masks(parties)
    total = np.add.reduce(own)
    assert not total.any()
    for left_out in own:
        assert np.count_nonzero(total - left_out) > SIZE - 2


def test_every_part_of_a_request_changes_the_mask():
    array = np.arange(6.0)
    asked = [
        transcript("product", b"{}", PUBLICS, [array]),
        transcript("scatter", b"{}", PUBLICS, [array]),
        transcript("product", b'{"bound": 2.0}', PUBLICS, [array]),
        transcript("product", b"{}", PUBLICS[::-1], [array]),
        transcript("product", b"{}", PUBLICS, [array + 1e-15]),
        transcript("product", b"{}", PUBLICS, [array.reshape(2, 3)]),
        transcript("product", b"{}", PUBLICS, [array.view(np.int64)]),
        transcript("product", b"{}", PUBLICS, [array[:3], array[3:]]),
    ]
    assert len(set(asked)) == len(asked)
    for one, other in pairwise(mask(ALICE, PUBLICS, one, 100) for one in asked):
        assert (one != other).all()


@pytest.mark.parametrize("point", [bytes(32), b"\x01" + bytes(31), b"short"])
def test_a_key_of_small_order_is_refused(point):
    with refused(ContractError):
        pair_key(ALICE, point)


def test_two_parties_agree_once_for_all_sums_of_a_run(monkeypatch):
    """Of a run of several sums: one key exchange for each other party, and the same masks as of one for each sum."""
    agreed, honest = [], pairwise_masks._agreed
    monkeypatch.setattr(pairwise_masks, "_agreed", lambda key, other: agreed.append(other) or honest(key, other))
    model = fit("p-cov", cut(rows(80), 20, 20, 20, 20), n_components=2, secure_aggregation=True, bound=100.0)
    assert [entry["phase"] for entry in model.log["rounds"]] == ["keys", "sums", "deviations", "scatter", "project"]
    assert len(agreed) == 4 * 3
    assert "it must collude with all parties but one" in model.log["notes"][-1]


@pytest.mark.parametrize("size", [0, 1, BLOCK - 1, BLOCK, 2 * BLOCK + 3])
def test_buffers_that_are_used_again_leave_nothing_in_a_mask(size):
    publics = [*PUBLICS, public_key(bytes(range(32)))]
    alone = [mask(ALICE, [publics[0], other], ASKED, size) for other in publics[1:]]
    np.testing.assert_array_equal(mask(ALICE, publics, ASKED, size), alone[0] + alone[1])
