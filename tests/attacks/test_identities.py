"""A server in the middle, alone and with one site that hands it all that it has: sites know each other by their keys.

Masks with some neighbours only are attacked at nine sites of four neighbours each, in place of more than fifty.
"""

from dataclasses import replace
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from fedpca_flwr.config.node_config import NodeConfig
from fedpca_flwr.errors import ConfigError
from fedpca_flwr.transports import neighbours, pairwise_masks
from fedpca_flwr.transports.double_masks import PublicKeys
from fedpca_flwr.transports.identity import Identity
from fedpca_flwr.transports.neighbours import commitment, graph_seed
from fedpca_flwr.transports.pairwise_masks import combine, mask, new_private_key, public_key, transcript
from tests.harness import identities
from tests.hostile import HostileSession, keys_of
from tests.refusals import refused, unnamed

PARTIES = 5
SUMS = {"method": "p-cov", "secure-aggregation": True, "bound": 1000.0, "n-components": 2}
RUNS = {"masked": SUMS, "surviving": {**SUMS, "survivors": 4}}
each_transport = pytest.mark.parametrize("transport", RUNS)


def rows_of(party):
    return np.round(np.random.default_rng(party).normal(50, 10, (30, 4)))


def sites(folder, run, *, parties=PARTIES):
    given = {"parties": parties, "secure-only": True}
    return [HostileSession(folder / str(i), rows_of(i), run, index=i, **given) for i in range(parties)]


def with_keys(keys, signatures):
    """Return the question with which keys travel to a party: of 64 bytes each where some may go silent."""
    there = [] if keys.shape[1] == 32 else [np.arange(len(keys))]
    return "shares" if there else "moments", [*there, keys, signatures]


def strange(keys):
    """One of the server's own in the place of a party's key."""
    return array_of(b"".join(public_key(new_private_key()) for _ in range(keys.shape[1] // 32)))


def array_of(key):
    return np.frombuffer(key, np.uint8)


def sign_as(colluder, claimed, key):
    signer = colluder.client.transport.policy.signer
    return replace(signer, identity=replace(signer.identity, party=claimed)).sign("run keys", key.tobytes())


def require_disclosure(said, named):
    assert said.startswith("DisclosureError: ")
    assert not unnamed(said, named)


def asked_of(session, publics):
    return transcript("moments", session.client.transport.policy.signer.context, publics, [np.asarray(1)])


def layout_of(session):
    client = session.client
    assert "moments" in client.script
    return client.transport.method_questions["moments"].layout({}, client.public)


@each_transport
def test_keys_of_the_server_are_refused_by_every_party(transport, tmp_path):
    real, signatures = keys_of(sessions := sites(tmp_path, RUNS[transport]))
    for victim, session in enumerate(sessions):
        keys = np.stack([key if party == victim else strange(real) for party, key in enumerate(real)])
        require_disclosure(session.refusal(*with_keys(keys, signatures)), f"party {int(victim == 0)}")


def test_where_nobody_verifies_it_reads_a_partys_share(tmp_path, monkeypatch):
    """That the attack above is one."""
    monkeypatch.setattr(Identity, "is_signed_by", lambda self, party, said, signature: True)
    session, *others = sites(tmp_path, SUMS)
    keys, signatures = keys_of([session, *others])
    privates = [new_private_key() for _ in others]
    keys[1:] = [array_of(public_key(private)) for private in privates]
    (words,), _ = session.ask(*with_keys(keys, signatures))
    publics = [key.tobytes() for key in keys]
    for private in privates:
        words = words + mask(private, [public_key(private), publics[0]], asked_of(session, publics), words.size)
    fields, _ = layout_of(session).decode(words)
    assert (words[0], fields["count"]) == (1, 30)
    np.testing.assert_allclose(fields["sum"], rows_of(0).sum(axis=0))


@pytest.mark.engine
@each_transport
def test_keys_of_other_parties_or_runs_are_refused(transport, tmp_path):
    """Party 11 gives the server all that it has: it signs what the server likes, in any name."""
    run = {**RUNS[transport], **({"survivors": 9} if transport == "surviving" else {})}
    lines = Path(identities(12)[0]["identities"]).read_text(encoding="utf-8").splitlines()
    (tmp_path / "list").write_text("\n".join([lines[0], f"1 {'ab' * 32}", *lines[2:]]))
    elsewhere = [{"run": {**run, "bound": 900.0}}, {"run_id": 2}, {"identities": str(tmp_path / "list")}]
    sessions, there = sites(tmp_path, run, parties=12), {"run": run, "rows": rows_of(3), "parties": 12, "index": 3}
    others = [HostileSession(tmp_path / f"other {i}", **there | given) for i, given in enumerate(elsewhere)]
    keys, signatures = keys_of(sessions)
    shown, own = strange(keys), keys[1]
    places = [0, 1, 3, 2, *range(4, 12)]
    require_disclosure(sessions[0].refusal(*with_keys(keys[places], signatures[places])), "party 2")
    cases = [  # of a party another key and signature, and what the next site says to them
        (1, shown, signatures[1], "party 1"),
        (1, shown, sign_as(sessions[11], 1, shown), "party 1"),
        (1, shown, sign_as(sessions[11], 11, shown), "party 1"),
        (11, own, sign_as(sessions[11], 11, own), "parties 1 and 11"),
        (11, shown, signatures[11], "party 11"),
        (11, shown, signatures[3], "party 11"),
        (11, shown, 0, "party 11"),
        *((3, *other.ask("keys", [])[0], "party 3") for other in others),
    ]
    for session, (party, key, signature, named) in zip(sessions[1:], cases, strict=False):
        given = keys.copy(), signatures.copy()
        given[0][party], given[1][party] = key, signature
        require_disclosure(session.refusal(*with_keys(*given)), named)
    keys[3] = array_of(others[-1].own_key)
    require_disclosure(others[-1].refusal(*with_keys(keys, signatures)), "party 0")


@pytest.mark.engine
@each_transport
def test_one_traitor_gains_the_sum_of_the_others(transport, tmp_path):
    """Masks that he shares with each come off, and of survivors the seeds, which are revealed to the server."""
    *honest, traitor = sessions = sites(tmp_path, RUNS[transport])
    keys, signatures = keys_of(sessions)
    publics = [key.tobytes() for key in keys]
    words = [session.ask(*with_keys(keys, signatures))[0][0] for session in sessions]
    name, asked = "private", asked_of(traitor, publics)
    if transport == "surviving":
        name, asked = "masking", PublicKeys(publics).mask_context("moments", range(PARTIES))
        words = [session.ask("moments", [np.arange(PARTIES)])[0][0].copy() for session in sessions]
        for own, session in zip(words, sessions, strict=True):
            combine(own, session.client.journal.load_secret("seed"), np.subtract)
    publics = [public[-32:] for public in publics]
    his = traitor.client.journal.load_secret(name)
    left = [words[i] + mask(his, [publics[-1], publics[i]], asked, words[i].size) for i in range(len(honest))]
    for size in range(1, len(honest)):
        for some in combinations(left, size):
            assert np.add.reduce(some)[0] != size
    total, count = np.add.reduce(left), len(honest)
    fields, _ = layout_of(traitor).decode(total)
    assert total[0] == count
    np.testing.assert_allclose(fields["sum"], np.vstack([rows_of(i) for i in range(count)]).sum(axis=0))


ALL, THREE, FOUR = [0, 1, 2, 3, 4], [0, 1, 2, 3], [0, 1, 2, 4]
"""Lists of survivors: all, those to party 3, and those without it."""


def agreed(folder, told, *, members=PARTIES, keyed_of_3=PARTIES, members_of_3=PARTIES):
    """Return a run up to the survivors: sites, a share of each, and a signature of whoever was `told` a list."""
    sessions = sites(folder, RUNS["surviving"])
    keys, signatures = keys_of(sessions)
    there = [keyed_of_3 if party == 3 else PARTIES for party in ALL]
    shares = [own.ask(*with_keys(keys[:n], signatures[:n]))[0][0] for own, n in zip(sessions, there, strict=True)]
    said = []
    for party, places in enumerate(told):
        assert sessions[party].ask("moments", [np.arange(min(members, members_of_3) if party == 3 else members)])[0]
        said.append(sessions[party].ask("agree", [np.array(places)])[0][0])
    return sessions, shares[:members], said


def to_reveal(party, places, said, shares):
    return "reveal", [np.array(places), np.stack(said), np.stack([own[party] for own in shares])]


@pytest.mark.engine
def test_survivors_reveal_for_the_one_list_that_they_all_signed(tmp_path):
    sessions, shares, said = agreed(tmp_path, [THREE] * 4 + [FOUR])
    for party in THREE:
        assert sessions[party].ask(*to_reveal(party, THREE, said[:4], shares))[0]


@pytest.mark.engine
@pytest.mark.parametrize(
    ("told", "places", "signed", "given", "named"),
    [
        ([ALL, ALL, ALL, THREE, FOUR], THREE, THREE, {}, "party 3"),
        ([FOUR, THREE, THREE, THREE, FOUR], FOUR, [0, 4, 4, 4], {}, "party 1"),  # a colluder, party 4, signs for others
        ([THREE] * 4, THREE, THREE, {"members_of_3": 4}, "party 3"),  # told that party 4 was no member from the start
        ([THREE] * 4, THREE, THREE, {"members": 4, "keyed_of_3": 4}, "party 3"),  # shown no keys of party 4
    ],
)
def test_nobody_reveals_for_what_another_was_told_otherwise(told, places, signed, given, named, tmp_path):
    sessions, shares, said = agreed(tmp_path, told, **given)
    require_disclosure(sessions[0].refusal(*to_reveal(0, places, [said[i] for i in signed], shares)), named)


@pytest.mark.parametrize(
    ("run", "lacking"),
    [
        (SUMS, ["identity"]),
        (RUNS["surviving"], ["identities"]),
        ({**SUMS, "method": "dp-pca trust='distributed' honest-parties=3"}, ["identity", "identities"]),
        ({"method": "p-cov"}, ["identity", "identities"]),
    ],
)
def test_a_site_gives_nothing_to_a_sum_of_strangers(run, lacking, tmp_path):
    node = {"secure-only": True, "honest-parties": 3, **dict.fromkeys(lacking, "")}
    session = HostileSession(tmp_path, rows_of(0), run, parties=PARTIES, index=2, **node)
    said = session.client.get_properties({})
    assert (said["error"], said["partition-id"]) == ("ConfigError", 2)
    assert not unnamed(said["message"], *(f"'{name}'" for name in lacking))
    assert session.ask("keys", [])[0] == []


def test_the_key_of_a_group_is_named_with_what_came_for_it():
    with refused(ConfigError, "'group-secret'", "'identity'", "'ids-secret'"):
        NodeConfig.parse({"partition-id": 0, "num-partitions": 3, "group-secret": "file"}, source="node-config")


NINE, VICTIM, LAST = 9, 0, 8


class Sites:
    def __init__(self, folder):
        self.sessions = sites(folder, SUMS, parties=NINE)
        self.commitments, self.signatures = keys_of(self.sessions)
        self.layout = layout_of(self.sessions[0])
        self.about = self.sessions[0].client.transport.policy.signer.context

    def opened(self, parties=range(NINE), commitments=None):
        """Return the public keys, which all open once they have the commitments of all."""
        shown = self.commitments if commitments is None else commitments
        return np.stack([self.sessions[i].ask("openings", [shown])[0][0] for i in parties])

    def seed(self, publics):
        return graph_seed(self.about, [key.tobytes() for key in publics])

    def near(self, publics, own):
        return neighbours.neighbours(self.seed(publics), NINE, own)

    def words(self, publics, parties=range(NINE)):
        return {i: self.sessions[i].ask("moments", [publics, self.signatures])[0][0] for i in parties}

    def private(self, party):
        return self.sessions[party].client.journal.load_secret("private")

    def less_masks_with(self, words, own, privates, publics):
        """Return what is left of masked words where somebody has these private keys of other parties."""
        words, asked = words.copy(), transcript("moments", self.about, [self.seed(publics)], [np.asarray(2)])
        for private in privates:
            shared = pairwise_masks.shared_secrets(private, [publics[own].tobytes()])
            pairwise_masks.add_mask(words, public_key(private), shared, asked)
        return words

    def opens(self, *words):
        """Whether a sum of masked words counts the parties in it, and of what rows it is then."""
        total = np.add.reduce(words)
        fields, _ = self.layout.decode(total)
        return total[0] == len(words) and int(fields["count"]) == 30 * len(words)

    def sign_by_the_last(self, key):
        self.signatures[LAST] = self.sessions[LAST].sign(LAST, "run keys", key)


@pytest.fixture
def there(tmp_path, monkeypatch):
    monkeypatch.setattr(neighbours, "degree", lambda parties: 4)
    return Sites(tmp_path)


@pytest.mark.engine
def test_only_all_neighbours_together_expose_a_party(there):
    """What docs/security says of traitors beyond the bound, or of such as are chosen once the graph is known."""
    publics = there.opened()
    near, words = there.near(publics, VICTIM), there.words(publics)
    assert there.opens(*words.values())
    for left_out in words:
        assert not there.opens(words[left_out])
        assert not there.opens(*(words[i] for i in words if i != left_out))
    privates = {party: there.private(party) for party in range(1, NINE)}
    for others in (privates.keys() - near, *({*near} - {kept} for kept in near)):
        left = there.less_masks_with(words[VICTIM], VICTIM, map(privates.get, others), publics)
        assert not there.opens(left)
    fields, _ = there.layout.decode(there.less_masks_with(words[VICTIM], VICTIM, map(privates.get, near), publics))
    np.testing.assert_allclose(fields["sum"], rows_of(VICTIM).sum(axis=0))


@pytest.mark.engine
def test_traitors_in_two_gaps_learn_sums_and_no_share(there):
    """Two and two stand together on the ring, so that the five honest parties are cut into arcs of two and three."""
    publics = there.opened()
    near = {i: set(there.near(publics, i)) for i in range(NINE)}
    ring = [0]
    while len(ring) < NINE:  # with four neighbours each only the next ones have two in common
        ring.append(next(i for i in near[ring[-1]] if i not in ring and len(near[i] & near[ring[-1]]) == 2))
    traitors = {*ring[2:4], *ring[7:9]}
    words = there.words(publics)
    left = {i: there.less_masks_with(words[i], i, map(there.private, near[i] & traitors), publics) for i in words}
    for arc in (ring[0:2], ring[4:7]):
        assert there.opens(*(left[i] for i in arc))
        for party in arc:
            assert not there.opens(left[party])
            assert not there.opens(*(left[i] for i in arc if i != party))


@pytest.fixture
def fitted(there):
    """Public keys of which the last makes all neighbours of the victim traitors, in some twenty tries, and its half."""
    publics = there.opened()
    for _ in range(1000):
        private = new_private_key()
        publics[LAST] = array_of(public_key(private))
        if set(there.near(publics, VICTIM)) <= {4, 5, 6, 7, LAST}:
            break
    there.sign_by_the_last(public_key(private))
    return publics, private


@pytest.mark.engine
def test_keys_are_committed_to_before_they_are_opened_once(there, fitted):
    sent = there.commitments.tobytes() + there.signatures.tobytes()
    for party, session in enumerate(there.sessions):
        key = public_key(there.private(party))
        assert key not in sent
        assert session.own_key == there.commitments[party].tobytes() == commitment(party, key)
    require_disclosure(there.sessions[VICTIM].refusal("moments", [fitted[0], there.signatures]), LAST)
    other = there.commitments.copy()
    other[LAST] = 1
    assert "PartyError: " in there.sessions[1].refusal("openings", [other])


@pytest.mark.engine
def test_if_he_had_not_he_would_expose_the_victim(there, fitted, monkeypatch):
    """That the attack above is one."""
    monkeypatch.setattr(neighbours, "require_opened", lambda commitments, publics: None)
    publics, private = fitted
    (words,), _ = there.sessions[VICTIM].ask("moments", [publics, there.signatures])
    privates = [private if i == LAST else there.private(i) for i in there.near(publics, VICTIM)]
    assert there.opens(there.less_masks_with(words, VICTIM, privates, publics))


def test_a_commitment_is_not_replaced(there):
    for party, key in ((VICTIM, np.uint8(7)), (1, there.commitments[2])):
        other = there.commitments.copy()
        other[party] = key
        require_disclosure(there.sessions[party].refusal("openings", [other]), f"party {party}")
    assert "PartyError: " in there.sessions[2].refusal("moments", [there.commitments, there.signatures])


@pytest.fixture
def in_place(there):
    """Return commitments, the last one to a key of the server's, and the private half of that key."""
    private = new_private_key()
    shown = there.commitments.copy()
    shown[LAST] = array_of(commitment(LAST, public_key(private)))
    return shown, private


@pytest.mark.engine
def test_neighbours_notice_a_server_in_place_of_a_party(there, in_place):
    """It shows all others another key of party 8. Who has that as a neighbour refuses; no sum of the rest opens."""
    shown, private = in_place
    publics = np.stack([*there.opened(range(LAST), shown), array_of(public_key(private))])
    near, words = there.near(publics, LAST), []
    for party in range(LAST):
        answer, said = there.sessions[party].ask("moments", [publics, there.signatures])
        words += answer
        assert (not unnamed(said.get("message", ""), f"party {LAST}")) is (party in near)
    assert len(words) == 4
    assert not there.opens(*words)
    assert not any(map(there.opens, words))


@pytest.mark.engine
def test_parties_that_were_shown_different_lists_are_in_no_sum(there, in_place):
    """Each half is shown another key of party 8, which has committed to two: the server takes off what it shares."""
    halves, words = (range(4), range(4, LAST)), {}
    keys = [*there.opened(halves[0]), *there.opened(halves[1], in_place[0])]
    for half, own in zip(halves, (there.private(LAST), in_place[1]), strict=True):
        publics = np.stack([*keys, array_of(public_key(own))])
        there.sign_by_the_last(public_key(own))
        near = there.near(publics, LAST)
        told = there.words(publics, half)
        words |= {i: there.less_masks_with(word, i, [own] if i in near else [], publics) for i, word in told.items()}
    for some in (*halves, range(LAST)):
        assert not there.opens(*(words[i] for i in some))
