"""Masks with some neighbours only: a server and those who collude with it against the graph of who masks with whom.

Nine sites with files of their own, four neighbours each instead of the dozens that the protocol takes of more than
fifty: what that many colluders must do to expose a party is then seen in a test.
"""

import numpy as np
import pytest

from fedpca_flwr.transports import neighbours, pairwise_masks
from fedpca_flwr.transports.neighbours import commitment, graph_seed
from fedpca_flwr.transports.pairwise_masks import new_private_key, public_key
from tests.attacks.test_identities import SUMS, array_of, layout_of, rows_of, sites
from tests.hostile import keys_of
from tests.refusals import unnamed

PARTIES, VICTIM, LAST = 9, 0, 8


class Sites:
    def __init__(self, folder):
        self.sessions = sites(folder, SUMS, parties=PARTIES)
        self.commitments, self.signatures = keys_of(self.sessions)
        self.layout = layout_of(self.sessions[0])
        self.about = self.sessions[0].client.transport.policy.signer.context

    def opened(self, parties=range(PARTIES), commitments=None):
        """Return the public keys, which all open once they have the commitments of all."""
        shown = self.commitments if commitments is None else commitments
        return np.stack([self.sessions[i].ask("openings", [shown])[0][0] for i in parties])

    def seed(self, publics):
        return graph_seed(self.about, [key.tobytes() for key in publics])

    def near(self, publics, own):
        return neighbours.neighbours(self.seed(publics), PARTIES, own)

    def words(self, publics, parties=range(PARTIES)):
        return {i: self.sessions[i].ask("moments", [publics, self.signatures])[0][0] for i in parties}

    def private(self, party):
        return self.sessions[party].client.journal.load_secret("private")

    def less_masks_with(self, words, own, others, publics):
        """Return what is left of masked words when these others have handed over their private keys."""
        return self.unmasked(words, own, [self.private(other) for other in others], publics)

    def unmasked(self, words, own, privates, publics):
        asked = pairwise_masks.transcript("moments", self.about, [self.seed(publics)], [np.asarray(2)])
        for private in privates:
            shared = pairwise_masks.shared_secrets(private, [publics[own].tobytes()])
            words = words.copy()
            pairwise_masks.add_mask(words, public_key(private), shared, asked)
        return words

    def opens(self, *words):
        """Whether a sum of masked words counts the parties in it, and of what rows it is then."""
        total = np.add.reduce(words)
        fields, _ = self.layout.decode(total)
        return total[0] == len(words) and int(fields["count"]) == 30 * len(words)

    def signed_by_the_last(self, key):
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
    far = [party for party in range(1, PARTIES) if party not in near]
    for others in (far, *([party for party in near if party != kept] for kept in near)):
        assert not there.opens(there.less_masks_with(words[VICTIM], VICTIM, others, publics))
    fields, _ = there.layout.decode(there.less_masks_with(words[VICTIM], VICTIM, near, publics))
    np.testing.assert_allclose(fields["sum"], rows_of(VICTIM).sum(axis=0))


@pytest.mark.engine
def test_traitors_in_two_gaps_learn_sums_and_no_share(there):
    """Two and two stand together on the ring, so that the five honest parties are cut into arcs of two and three."""
    publics = there.opened()
    near = {i: set(there.near(publics, i)) for i in range(PARTIES)}
    ring = [0]
    while len(ring) < PARTIES:  # with four neighbours each only the next ones have two in common
        ring.append(next(i for i in near[ring[-1]] if i not in ring and len(near[i] & near[ring[-1]]) == 2))
    traitors = {*ring[2:4], *ring[7:9]}
    words = there.words(publics)
    left = {i: there.less_masks_with(words[i], i, near[i] & traitors, publics) for i in words}
    for arc in (ring[0:2], ring[4:7]):
        assert there.opens(*(left[i] for i in arc))
        for party in arc:
            assert not there.opens(left[party])
            assert not there.opens(*(left[i] for i in arc if i != party))


@pytest.fixture
def fitted(there):
    """Public keys among which the last party has one by which all neighbours of the victim are traitors, and its half.

    It is found in some twenty tries.
    """
    publics = there.opened()
    for _ in range(1000):
        private, tried = new_private_key(), publics.copy()
        tried[LAST] = array_of(public_key(private))
        if set(there.near(tried, VICTIM)) <= {4, 5, 6, 7, LAST}:
            break
    there.signed_by_the_last(tried[LAST].tobytes())
    return tried, private


@pytest.mark.engine
def test_keys_are_committed_to_before_they_are_opened_once(there, fitted):
    sent = there.commitments.tobytes() + there.signatures.tobytes()
    for party, session in enumerate(there.sessions):
        key = public_key(there.private(party))
        assert key not in sent
        assert session.own_key == there.commitments[party].tobytes() == commitment(party, key)
    said = there.sessions[VICTIM].refusal("moments", [fitted[0], there.signatures])
    assert said.startswith("DisclosureError: ")
    assert not unnamed(said, LAST)
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
    assert there.opens(there.unmasked(words, VICTIM, privates, publics))


def test_a_commitment_is_not_replaced(there):
    for party, key in ((VICTIM, np.uint8(7)), (1, there.commitments[2])):
        other = there.commitments.copy()
        other[party] = key
        said = there.sessions[party].refusal("openings", [other])
        assert said.startswith("DisclosureError: ")
        assert f"party {party}" in said
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
    """Show each half of the parties another key of party 8, which has committed to two and signed both.

    Each half has a ring of its own; what it shares with party 8 the server takes off.
    """
    halves, words = (range(4), range(4, LAST)), {}
    keys = [*there.opened(halves[0]), *there.opened(halves[1], in_place[0])]
    for half, own in zip(halves, (there.private(LAST), in_place[1]), strict=True):
        publics = np.stack([*keys, array_of(public_key(own))])
        there.signed_by_the_last(public_key(own))
        near = there.near(publics, LAST)
        told = there.words(publics, half)
        words |= {i: there.unmasked(word, i, [own] if i in near else [], publics) for i, word in told.items()}
    for some in (*halves, range(LAST)):
        assert not there.opens(*(words[i] for i in some))
