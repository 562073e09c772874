"""Masks between pairs and of parties alone, the graph of who masks with whom, signatures, and lists of identities."""

import hashlib
import hmac
import os
import re
from contextlib import nullcontext, suppress
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from scipy.sparse.csgraph import connected_components
from scipy.stats import chi2

from fedpca_flwr.cli import main
from fedpca_flwr.config.node_config import NodeConfig
from fedpca_flwr.errors import ConfigError, ContractError, DisclosureError
from fedpca_flwr.maths.secure import expected_arcs
from fedpca_flwr.state.files import write_new
from fedpca_flwr.strategies import METHODS
from fedpca_flwr.transports import double_masks, identity, neighbours, pairwise_masks
from fedpca_flwr.transports.double_masks import SHARE_BYTES, Channels, PublicKeys
from fedpca_flwr.transports.encoding import SumPolicy
from fedpca_flwr.transports.identity import load_identity, make_key, read_private_key, simulated_identity
from fedpca_flwr.transports.masked import Masked
from fedpca_flwr.transports.neighbours import MAX_COMPLETE_PARTIES, commitment, degree, graph_seed, require_opened
from fedpca_flwr.transports.pairwise_masks import BLOCK_WORDS, keystream, mask, new_private_key, public_key, transcript
from fedpca_flwr.transports.recommendation import EXAMPLE_CONFIGS, script_or_none
from fedpca_flwr.transports.signed import Signer
from tests.families import cut, rows
from tests.harness import fit
from tests.refusals import refused

# RFC 7748, section 6.1
ALICE = bytes.fromhex("77076d0a7318a57d3c16c17251b26645df4c2f87ebc0992ab177fba51db92c2a")
BOB = bytes.fromhex("5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb")
ALICE_PUBLIC = bytes.fromhex("8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a")
BOB_PUBLIC = bytes.fromhex("de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f")
SHARED = bytes.fromhex("4a5d9d5ba4ce2de1728e3bf480350f25e07e21c947d19e3376f09b3c1e161742")
PUBLICS, CONTEXT = [ALICE_PUBLIC, BOB_PUBLIC], bytes(range(32))
PARTIES = 5
KEYS = [bytes([party]) * 32 for party in range(60)]
RUN_CONTEXT = b"run"
PARTY, OTHER_PARTY = (Signer(simulated_identity(3, party), run="17", configuration="{}") for party in range(2))


def pair_key(private, other):
    return pairwise_masks.agreed_key(X25519PrivateKey.from_private_bytes(private), other, CONTEXT)


def test_keys_streams_and_digests_are_those_of_the_standards():
    assert [public_key(private) for private in (ALICE, BOB)] == PUBLICS
    # RFC 8439, appendix A.1, vector 1: key and nonce zero, from block 0.
    assert keystream(bytes(32)).update(bytes(64)).hex() == (
        "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
        "da41597c5157488d7724e03fb8d84a376a43b8f41518a11cc387b669b2ee6586"
    )
    info = pairwise_masks.KEY_PURPOSE + CONTEXT + b"".join(sorted(PUBLICS))
    expected = hmac.digest(hmac.digest(bytes(32), SHARED, "sha256"), info + b"\x01", "sha256")
    assert pair_key(ALICE, BOB_PUBLIC) == pair_key(BOB, ALICE_PUBLIC) == expected
    arrays = [np.arange(6.0).reshape(2, 3), np.array(7)]
    pieces = [b"keys", b"{}", *PUBLICS, b"<f8 (2, 3)", arrays[0].tobytes(), b"<i8 ()", arrays[1].tobytes()]
    by_hand = hashlib.sha256(b"".join(len(piece).to_bytes(8, "little") + piece for piece in pieces))
    assert transcript("keys", b"{}", PUBLICS, arrays) == by_hand.digest()
    assert len({new_private_key() for _ in range(100)}) == 100
    assert len(new_private_key()) == 32
    for point in (bytes(32), b"\x01" + bytes(31), b"short"):  # of small order
        with refused(ContractError):
            pair_key(ALICE, point)


@pytest.mark.parametrize("size", [0, 1, BLOCK_WORDS - 1, BLOCK_WORDS, BLOCK_WORDS + 9, 2 * BLOCK_WORDS + 3])
def test_a_mask_is_a_keystream_that_cancels_between_two(size):
    expected = np.frombuffer(keystream(pair_key(ALICE, BOB_PUBLIC)).update(bytes(8 * size)), "<u8")
    np.testing.assert_array_equal(mask(ALICE, PUBLICS, CONTEXT, size), expected)  # the smaller key adds
    np.testing.assert_array_equal(mask(BOB, PUBLICS, CONTEXT, size), -expected)
    third = public_key(CONTEXT)  # buffers that are used again for the next party leave nothing
    further = mask(ALICE, [ALICE_PUBLIC, third], CONTEXT, size)
    np.testing.assert_array_equal(mask(ALICE, [*PUBLICS, third], CONTEXT, size), expected + further)


def test_two_parties_agree_once_for_all_sums_of_a_run(monkeypatch):
    """A run of several sums has a key exchange for each peer, and the same masks as with an exchange for each sum."""
    agreed, honest = [], X25519PublicKey.from_public_bytes
    monkeypatch.setattr(X25519PublicKey, "from_public_bytes", lambda other: agreed.append(other) or honest(other))
    model = fit("p-cov", cut(rows(80), 20, 20, 20, 20), n_components=2, secure_aggregation=True, bound=100.0)
    assert [entry["phase"] for entry in model.log["rounds"]] == ["keys", "moments", "project"]
    assert len(agreed) == 4 * 3
    assert "it must collude with all parties but one" in model.log["notes"][-1]


class Parties:
    def __init__(self, contexts=(b"{}",) * PARTIES):
        self.runs, masks = ([new_private_key() for _ in range(PARTIES)] for _ in range(2))
        publics = [b"".join(map(public_key, privates)) for privates in zip(self.runs, masks, strict=True)]
        self.ring = PublicKeys(publics)
        self.channels = [Channels(PublicKeys(publics, contexts[i]), i, self.runs[i]) for i in range(PARTIES)]


def test_shares_are_for_their_recipient_in_their_run_only():
    group, shares = Parties(), bytes(range(2 * SHARE_BYTES))
    text = group.channels[0].seal(1, shares)
    assert len(text) == double_masks.SEALED_BYTES
    assert group.channels[1].unseal(0, text) == shares
    another_run = Parties(contexts=(b"{}", b"another run", *[b"{}"] * 3))
    text_of_another = another_run.channels[0].seal(1, shares)
    assert another_run.channels[2].unseal(0, another_run.channels[0].seal(2, shares)) == shares
    publics = [*group.ring.keys[:4], group.ring.keys[4][:32] + public_key(new_private_key())]
    for channels, sender, sent in (
        (group.channels[2], 0, text),
        (group.channels[1], 2, text),
        (group.channels[1], 0, text[:-1] + bytes([text[-1] ^ 1])),
        (another_run.channels[1], 0, text_of_another),
        (Channels(PublicKeys(publics, b"{}"), 1, group.runs[1]), 0, text),
    ):
        with refused(ContractError):
            channels.unseal(sender, sent)
    # Their nonce is constant: under one key the difference of two would be that of what they say.
    assert len({group.ring.shares_context(i, j) for i in range(PARTIES) for j in range(PARTIES)}) == PARTIES**2
    # Or a server that tells parties of different members, or asks them differently, would have masks that cancel.
    told = ("moments", [0, 1, 2, 3], [np.zeros(1)]), ("moments", [0, 1, 2, 4], [np.zeros(1)])
    contexts = {group.ring.mask_context(*of) for of in (*told, ("other", *told[0][1:]), (*told[0][:2], [np.ones(1)]))}
    assert len(contexts) == 4


def test_a_third_of_the_parties_opens_no_vector():
    """2 t > n + c: t shares of a seed and t of a key cannot both come. A note names the first c that is not allowed."""
    for n in range(1, 60):
        minimum = 2 * n // 3 + 1
        for survivors in range(n + 2):
            fits = minimum <= survivors <= n
            with nullcontext() if fits else refused(ConfigError, "'survivors'", survivors, minimum, n):
                double_masks.require_threshold(survivors, n)
    for survivors, parties, fewest in ((3, 4, 2), (4, 5, 3), (7, 10, 4), (9, 10, 8), (5, 5, 4)):
        assert double_masks.min_colluders(survivors, parties) == fewest


def graph_of(seed, parties, first=0):
    adjacency = np.zeros((parties, parties), bool)
    for party in range(first, parties):
        adjacency[party, neighbours.neighbours(seed, parties, party)] = True
    return adjacency


def test_degrees_graphs_and_commitments_are_those_of_the_docs():
    assert [degree(parties) for parties in (2, 10, MAX_COMPLETE_PARTIES)] == [1, 9, 49]
    assert [degree(parties) for parties in (51, 100, 1000, 10_000)] == [36, 54, 92, 108]
    for parties in (51, 60, 333):  # each party makes the same graph
        adjacency = graph_of(bytes(32), parties)
        assert (adjacency == adjacency.T).all()
        assert not adjacency.diagonal().any()
        assert set(adjacency.sum(axis=0)) == {degree(parties)}
    first = neighbours.neighbours(graph_seed(RUN_CONTEXT, KEYS), 60, 7)
    for party in (0, 31, 59):
        changed = [*KEYS[:party], b"\xff" * 32, *KEYS[party + 1 :]]
        assert neighbours.neighbours(graph_seed(RUN_CONTEXT, changed), 60, 7) != first
    assert neighbours.neighbours(graph_seed(b"another run", KEYS), 60, 7) != first
    assert len({commitment(party, public) for party in range(3) for public in KEYS}) == 180
    shown = [commitment(party, public) for party, public in enumerate(KEYS)]
    require_opened(shown, KEYS)
    with refused(DisclosureError, 4, 9, match="committed"):
        require_opened(shown, [b"\xff" * 32 if party in (4, 9) else key for party, key in enumerate(KEYS)])
    # A commitment is compared to its last byte: keys are searched for whose commitments begin or end alike.
    mine = commitment(0, KEYS[0])
    candidates = [number.to_bytes(32, "big") for number in range(1, 2000)]  # the first key is zero
    similar = [next(key for key in candidates if commitment(0, key)[end] == mine[end]) for end in (0, -1)]
    flipped = [bytes(byte ^ (i == place) for i, byte in enumerate(mine)) for place in range(32)]
    for committed, key in [*((mine, key) for key in similar), *((other, KEYS[0]) for other in flipped)]:
        with refused(DisclosureError, 0):
            require_opened([committed], [key])


@pytest.mark.engine
def test_neighbours_follow_the_formula(monkeypatch):
    monkeypatch.setattr(neighbours, "degree", lambda parties: 4)
    # Chi-square over 2000 graphs, whose seeds are fixed; wrong for one set of seeds in 500,000.
    seeds = [graph_seed(RUN_CONTEXT, [i.to_bytes(32, "little")]) for i in range(2000)]
    drawn = [neighbours.neighbours(seed, 12, 3) for seed in seeds]
    counts, expected = np.delete(np.bincount(np.ravel(drawn), minlength=12), 3), 2000 * 4 / 11
    assert chi2.ppf(1e-6, 10) < ((counts - expected) ** 2 / expected).sum() < chi2.ppf(1 - 1e-6, 10)
    # 1500 graphs of 14 parties, nine of whom collude: gaps cut the ring into as many arcs.
    pieces = np.array([connected_components(graph_of(seed, 14, 9)[9:, 9:])[0] for seed in seeds[:1500]])
    arcs = pieces * (pieces - 1)
    assert abs(np.mean(arcs) - float(expected_arcs(14, 9, 4))) < 4 * np.std(arcs) / np.sqrt(len(arcs))


@pytest.mark.parametrize(
    ("parties", "near", "colluders"),
    [(7, 4, 4), pytest.param(MAX_COMPLETE_PARTIES + 1, 36, 34, marks=pytest.mark.engine)],
)
def test_of_more_than_fifty_parties_keys_are_committed_to_first(parties, near, colluders, monkeypatch):
    """The sum that a site joins extends over all parties, whoever the site's neighbours are."""
    members, summed = SumPolicy.members, []
    monkeypatch.setattr(neighbours, "degree", {parties: near}.__getitem__)
    monkeypatch.setattr(SumPolicy, "members", lambda self, of: summed.append(len(of)) or members(self, of))
    data, secure = [rows(6, 4, seed=party) for party in range(parties)], {"secure_aggregation": True, "bound": 1e3}
    model, plain = (fit("p-cov", X, n_components=2, **way) for X, way in ((data, secure), ([np.vstack(data)], {})))
    np.testing.assert_allclose(model.components_, plain.components_, atol=1e-12)
    assert summed == [parties] * parties
    assert [entry["phase"] for entry in model.log["rounds"]] == ["keys", "openings", "moments", "project"]
    assert f"it must collude with more than {colluders} of the parties" in model.log["notes"][-1]


@pytest.mark.parametrize(("method", "committed"), [("p-cov", True), ("dp-pca", False)])
def test_few_parties_are_asked_nothing_more(method, committed):
    card, transport = METHODS[method].strategy.card, Masked()
    transport.method_questions, masked = (
        script_or_none(METHODS[method], EXAMPLE_CONFIGS[way], card.examples[0]) for way in ("clear", "masked")
    )
    assert ("openings" in masked) == transport.uses_commitments(MAX_COMPLETE_PARTIES + 1) == committed
    assert not transport.uses_commitments(MAX_COMPLETE_PARTIES)


def test_a_party_signs_as_itself_once_and_is_believed_in_nothing_else():
    parts = (b"keys", b"list")
    signature = PARTY.sign("survivors", *parts)
    OTHER_PARTY.require_signature(0, "survivors", signature, *parts)
    for party, what, pieces, changes in (
        (2, "survivors", parts, {}),
        (0, "run keys", parts, {}),
        (0, "survivors", (b"key", b"slist"), {}),
        (0, "survivors", (b"keys",), {}),
        (0, "survivors", parts, {"run": "18"}),
        (0, "survivors", parts, {"configuration": '{"bound": 2.0}'}),
        (0, "survivors", parts, {"run": "17{", "configuration": "}"}),
        (0, "survivors", parts, {"identity": simulated_identity(4, 1)}),
    ):
        with refused(DisclosureError, f"party {party}", what, "'identities'"):
            replace(OTHER_PARTY, **changes).require_signature(party, what, signature, *pieces)
    # Also where two lines of a list, against its rules, have one key.
    twice = replace(PARTY.identity, member_keys=[PARTY.identity.member_keys[0]] * 2)
    signature = replace(PARTY, identity=twice).sign("run keys", b"key")
    with refused(DisclosureError, "party 1", "'identities'"):
        replace(OTHER_PARTY, identity=replace(twice, party=1)).require_signature(1, "run keys", signature, b"key")
    # Or keys of two parties would pass for those of three, and a sum of two for one of as many as a site asks for.
    keys, parties = [bytes([i]) * 32 for i in range(3)], [PARTY, OTHER_PARTY, OTHER_PARTY]
    signatures = np.stack([signer.sign("run keys", key) for signer, key in zip(parties, keys, strict=True)])
    with refused(DisclosureError, "party 1"):
        PARTY.require_keys([0, 1, 1], keys, signatures, keys[0])


@pytest.fixture
def nodes(tmp_path):
    """Each party's node-config; their keys and the list are in files."""
    lines = [make_key(str(tmp_path / f"{party}.pem"), party, f"hospital {party}") for party in range(3)]
    (tmp_path / "list").write_text("# all of us\n\n" + "\n".join(lines) + "\n")
    every = {"num_partitions": 3, "data": "x.npy", "identities": str(tmp_path / "list")}
    return [NodeConfig(partition_id=party, identity=str(tmp_path / f"{party}.pem"), **every) for party in range(3)]


@pytest.fixture
def lines(nodes, tmp_path):
    return (tmp_path / "list").read_text().splitlines()[2:]


def keys_of(folder, parties, *lines):
    (folder / "list").write_text("\n".join(lines))
    return identity.read_member_keys(str(folder / "list"), parties)


def test_one_command_makes_a_key_and_prints_its_line_or_makes_none(tmp_path, capsys):
    for name in ("hospital 2", "Charité \u2013 Berlin", "St. Mary's", "UKE, Hamburg (Nord) & Co."):
        main(["site", "keys", file := str(tmp_path / "site.pem"), "--partition-id", "2", "--name", name])
        public = read_private_key(file).public_key().public_bytes_raw().hex()
        Path(file).unlink()
        assert capsys.readouterr().out == f"2 {public}  # {name}\n"
        assert NodeConfig.parse({"partition-id": 2, "num-partitions": 3, "name": name}).name == name
    for party, name, named in ((-1, "", [-1, 0]), (0, "a\n1 key", ["a\\n1 key"]), (0, "x" * 65, [64])):
        with refused(ConfigError, *named):
            make_key(str(tmp_path / "key"), party, name)
    assert not list(tmp_path.iterdir())


def test_the_list_gives_every_partys_key_and_what_a_site_lacks_is_named(nodes, lines, tmp_path):
    """Comments and the order of its lines do not matter."""
    both = ["'identity'", "'identities'"]
    for changes, named in (
        ({"identity": "", "identities": ""}, both),
        ({"identity": "", "identities": "", "secure_only": True}, ["'secure-only'", *both]),
        *(({key: ""}, both) for key in ("identity", "identities")),
        *(({key: "absent"}, [f"'{key}'"]) for key in ("identity", "identities")),
    ):
        with refused(ConfigError, *named) as raised:
            load_identity(NodeConfig.parse({**nodes[0].model_dump(), **changes}, source="node-config"))
        assert "absent" not in str(raised.value)
    first, other, third = map(load_identity, nodes)
    signature = first.sign(b"something")
    assert other.is_signed_by(0, b"something", signature)
    assert third.is_signed_by(0, b"something", signature)
    for wrong in ((0, b"something else", signature), (2, b"something", signature), (0, b"something", signature[::-1])):
        assert not other.is_signed_by(*wrong)
    assert first.digest == other.digest
    assert keys_of(tmp_path, 3, *(f"{line.split('#')[0]}\r" for line in lines[::-1])) == first.member_keys
    with refused(ConfigError, "partition 0", "'identities'", "'identity'") as raised:
        load_identity(nodes[0].model_copy(update={"identity": nodes[1].identity}))
    assert raised.value.local == lines[1].split("#")[0].strip().replace("1", "0", 1)
    first, other = (load_identity(NodeConfig(partition_id=i, num_partitions=3)) for i in range(2))  # without data
    assert other.is_signed_by(0, b"something", first.sign(b"something"))


def forged(key):
    """Check a signature that nobody made, R = 1 and S = 0, under each of 200 texts."""
    public_key, signature = Ed25519PublicKey.from_public_bytes(key), b"\x01" + bytes(63)
    for text in range(200):
        with suppress(InvalidSignature):
            public_key.verify(signature, bytes([text]))
            return True
    return False


def test_every_fault_of_the_list_is_named_at_once_and_keys_with_which_anybody_can_sign(lines, tmp_path):
    first, second, third = (line.split()[1] for line in lines)
    entries = [f"0 {first}", f"1 {second[:-2]}", f"hospital {second}", f"0 {third}", f"4 {third}", f"2 {first} # two"]
    with pytest.raises(ConfigError) as raised:
        keys_of(tmp_path, 4, *entries, f"3 {second} {third}")
    faults = {2: "64", 3: "64", 4: "partition 0", 5: "partition 4.*0 to 3", 6: "partition 2.*partition 0", 7: "64"}
    assert re.findall(r"line (\d)", str(raised.value)) == [str(line) for line in faults]
    for line, fault in faults.items():
        assert re.search(f"line {line}: [^;]*{fault}", str(raised.value))
    assert "partition 1, 2, 3" in str(raised.value)
    assert str(tmp_path) not in str(raised.value)
    assert not forged(bytes.fromhex(first))
    assert len(identity.SMALL_ORDER_KEYS) == 7
    for sign, y in product((0, 128), identity.SMALL_ORDER_KEYS):  # such as zeros for a key that is not there yet
        key = y[:-1] + bytes([y[-1] | sign])
        assert forged(key)
        with refused(ConfigError, "line 3", "partition 2"):
            keys_of(tmp_path, 3, *lines[:2], f"2 {key.hex()}")


@pytest.mark.skipif(os.name != "posix", reason="permissions of other systems are not these")
def test_a_private_key_is_one_that_others_neither_read_nor_write(nodes, tmp_path):
    for mode in (0o640, 0o602):
        (tmp_path / "0.pem").chmod(mode)
        with refused(ConfigError, "'identity'", "chmod 600"):
            load_identity(nodes[0])
    for number, text in enumerate(("no key", "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n")):
        write_new(tmp_path / f"key{number}", text.encode())
        with refused(ConfigError, "Ed25519"):
            read_private_key(str(tmp_path / f"key{number}"))
