"""Masks with some neighbours only: a server and those who collude with it against the graph of who masks with whom.

Nine sites with files of their own, four neighbours each instead of the dozens that the protocol takes of more than
fifty: what that many colluders must do to expose a party is then seen in a test.
"""

import numpy as np
import pytest

from fedpca_flwr.transports import neighbours
from fedpca_flwr.transports.neighbours import commitment, seed_of
from fedpca_flwr.transports.pairwise_masks import mask_of, new_private_key, public_key, shared_secrets, transcript
from tests.attacks.test_identities import SUMS, keys_of, layout_of, refused, rows_of, sites

PARTIES = 9
VICTIM = 0


@pytest.fixture(autouse=True)
def _few_neighbours(monkeypatch):
    monkeypatch.setattr(neighbours, "degree", lambda parties: 4)


class Sites:
    """All sites of a run, and what the server has of them."""

    def __init__(self, folder):
        self.sessions = sites(folder, SUMS, parties=PARTIES)
        self.commitments, self.signatures = keys_of(self.sessions)

    def opened(self):
        """The public keys, which all open once they have the commitments of all."""
        return np.stack([session.ask("openings", [self.commitments])[0][0] for session in self.sessions])

    def seed(self, publics):
        about = self.sessions[VICTIM].client.transport.group.signer.about
        return seed_of(about, [key.tobytes() for key in publics])

    def near(self, publics, own):
        return neighbours.neighbours(self.seed(publics), PARTIES, own)

    def private(self, party):
        return self.sessions[party].client.journal.recall("private")

    def less_masks_with(self, words, own, others, publics):
        """Masked words without what a party shares with these others, who have handed over their private keys."""
        return self.unmasked(words, own, [self.private(other) for other in others], publics)

    def unmasked(self, words, own, privates, publics):
        about = self.sessions[own].client.transport.group.signer.about
        asked = transcript("sums", about, [self.seed(publics)], [np.asarray(2)])
        for private in privates:
            shared = shared_secrets(private, [publics[own].tobytes()])
            words = words + mask_of(public_key(private), shared, asked, words.size)
        return words

    def words(self, publics, parties=range(PARTIES)):
        return {i: self.sessions[i].ask("sums", [publics, self.signatures])[0][0] for i in parties}


def opens(words, layout, parties):
    """Whether a sum of masked words counts the parties in it, and of what rows it is then."""
    count, fields = layout.decode(words)
    return count == parties and int(fields["count"]) == 30 * parties


def test_the_sum_of_all_opens_and_no_other_without_a_traitor(tmp_path):
    there = Sites(tmp_path)
    words = there.words(there.opened())
    layout = layout_of(there.sessions[0])
    assert opens(np.add.reduce(list(words.values())), layout, PARTIES)
    for left_out in range(PARTIES):
        some = np.add.reduce([words[i] for i in range(PARTIES) if i != left_out])
        assert not opens(some, layout, PARTIES - 1)
        assert not opens(words[left_out], layout, 1)


def test_all_neighbours_of_a_party_expose_it_and_all_but_one_do_not(tmp_path):
    """What docs/security says of traitors beyond the bound, or of such as are chosen once the graph is known."""
    there = Sites(tmp_path)
    publics = there.opened()
    near, words = there.near(publics, VICTIM), there.words(publics)
    layout = layout_of(there.sessions[0])
    for kept in near:
        others = [party for party in near if party != kept]
        assert not opens(there.less_masks_with(words[VICTIM], VICTIM, others, publics), layout, 1)
    far = [party for party in range(1, PARTIES) if party not in near]
    assert not opens(there.less_masks_with(words[VICTIM], VICTIM, far, publics), layout, 1)
    _, fields = layout.decode(there.less_masks_with(words[VICTIM], VICTIM, near, publics))
    np.testing.assert_allclose(fields["sum"], rows_of(VICTIM).sum(axis=0))


def test_traitors_in_two_gaps_learn_the_sum_of_each_arc_and_no_share(tmp_path):
    """Two and two stand together on the ring, so that the five honest parties are cut into arcs of two and three."""
    there = Sites(tmp_path)
    publics = there.opened()
    ring = _ring(there, publics)
    arcs, traitors = [ring[0:2], ring[4:7]], [*ring[2:4], *ring[7:9]]
    words = there.words(publics)
    left = {i: there.less_masks_with(words[i], i, set(there.near(publics, i)) & set(traitors), publics) for i in words}
    layout = layout_of(there.sessions[0])
    for arc in arcs:
        assert opens(np.add.reduce([left[i] for i in arc]), layout, len(arc))
        for party in arc:
            assert not opens(left[party], layout, 1)
            assert not opens(np.add.reduce([left[i] for i in arc if i != party]), layout, len(arc) - 1)


def _ring(there, publics):
    """The parties as they stand on the ring, where with four neighbours each only the next ones have two in common."""
    near = {i: set(there.near(publics, i)) for i in range(PARTIES)}
    ring = [0]
    while len(ring) < PARTIES:
        last = near[ring[-1]]
        ring.append(next(i for i in last if i not in ring and len(near[i] & last) == 2))
    return ring


def array_of(key):
    return np.frombuffer(key, np.uint8)


# The server would like to choose the graph


TRAITORS = (4, 5, 6, 7, 8)


def fitted_key(there, publics):
    """Public keys among which party 8 has one by which all neighbours of the victim are traitors, and its private half.

    It is found in some twenty tries.
    """
    for _ in range(1000):
        private, tried = new_private_key(), publics.copy()
        tried[8] = array_of(public_key(private))
        if set(there.near(tried, VICTIM)) <= set(TRAITORS):
            break
    there.signatures[8] = there.sessions[8].sign(8, "run keys", tried[8].tobytes())
    return tried, private


def test_keys_are_committed_to_before_they_are_opened_once(tmp_path):
    there = Sites(tmp_path)
    tried, _ = fitted_key(there, there.opened())
    answer = there.sessions[VICTIM].ask("sums", [tried, there.signatures])
    assert refused(answer, "public keys of parties 8 are not those to which they committed")
    there = Sites(tmp_path / "2")
    sent = b"".join([there.commitments.tobytes(), there.signatures.tobytes()])
    for party, key in enumerate(there.opened()):
        assert key.tobytes() not in sent
        assert there.commitments[party].tobytes() == commitment(party, key.tobytes())
    there = Sites(tmp_path / "3")
    there.opened()
    other = there.commitments.copy()
    other[8] = 1
    arrays, said = there.sessions[VICTIM].ask("openings", [other])
    assert arrays == []
    assert said["error"] == "PartyError"
    there = Sites(tmp_path / "4")
    arrays, said = there.sessions[VICTIM].ask("sums", [there.commitments, there.signatures])
    assert arrays == []
    assert said["error"] == "PartyError"


def test_if_he_had_not_he_would_expose_the_victim(tmp_path, monkeypatch):
    """That the attack above is one."""
    monkeypatch.setattr(neighbours, "require_opened", lambda commitments, publics: None)
    there = Sites(tmp_path)
    tried, private = fitted_key(there, there.opened())
    near = there.near(tried, VICTIM)
    (words,), _ = there.sessions[VICTIM].ask("sums", [tried, there.signatures])
    privates = [private if i == 8 else there.private(i) for i in near]
    assert opens(there.unmasked(words, VICTIM, privates, tried), layout_of(there.sessions[VICTIM]), 1)


@pytest.mark.parametrize("shown", ["another", "swapped"])
def test_a_partys_own_commitment_is_not_replaced(shown, tmp_path):
    there = Sites(tmp_path)
    other = there.commitments.copy()
    other[VICTIM] = 7 if shown == "another" else other[1]
    answer = there.sessions[VICTIM].ask("openings", [other])
    assert refused(answer, "another commitment than its own", "party 0")


def test_of_few_parties_nobody_is_asked_to_open_anything(tmp_path, monkeypatch):
    monkeypatch.undo()
    there = Sites(tmp_path)
    assert there.sessions[VICTIM].ask("openings", [there.commitments])[0] == []


def in_place_of(there, party):
    """Commitments among which that of a party is one to a key of the server's, and that key's private half."""
    private = new_private_key()
    shown = there.commitments.copy()
    shown[party] = np.frombuffer(commitment(party, public_key(private)), np.uint8)
    return shown, private


def test_a_server_in_the_place_of_a_party_is_found_by_those_around_it_and_opens_nothing(tmp_path):
    """It shows all others another key of party 8. Who has that as a neighbour refuses; no sum of the rest opens."""
    there = Sites(tmp_path)
    shown, private = in_place_of(there, 8)
    honest = range(8)
    keys = [there.sessions[i].ask("openings", [shown])[0][0] for i in honest]
    publics = np.stack([*keys, array_of(public_key(private))])
    answers = {i: there.sessions[i].ask("sums", [publics, there.signatures]) for i in honest}
    near = there.near(publics, 8)
    assert all(refused(answers[i], "signature of party 8 under the run keys") for i in near)
    words = {i: answers[i][0][0] for i in honest if i not in near}
    assert len(words) == 4
    layout = layout_of(there.sessions[0])
    assert not opens(np.add.reduce(list(words.values())), layout, len(words))
    assert not any(opens(word, layout, 1) for word in words.values())


def test_parties_that_were_shown_different_lists_are_in_no_sum(tmp_path):
    """Party 8 has committed to two keys and signed both. Each half of the others is shown one, and finds a ring of its
    own; what they share with party 8 the server takes off."""
    there = Sites(tmp_path)
    shown, private = in_place_of(there, 8)
    halves, words = (range(4), range(4, 8)), {}
    keys = [there.sessions[i].ask("openings", [there.commitments if i < 4 else shown])[0][0] for i in range(8)]
    for half, own in zip(halves, (there.private(8), private), strict=True):
        publics = np.stack([*keys, array_of(public_key(own))])
        there.signatures[8] = there.sessions[8].sign(8, "run keys", public_key(own))
        told = there.words(publics, half)
        near = there.near(publics, 8)
        words |= {i: there.unmasked(word, i, [own] if i in near else [], publics) for i, word in told.items()}
    layout = layout_of(there.sessions[0])
    for some in (*halves, range(8)):
        assert not opens(np.add.reduce([words[i] for i in some]), layout, len(some))
