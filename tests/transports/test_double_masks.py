"""Double masks: they come off for the survivors' sum, and for nothing else."""

from itertools import combinations

import numpy as np
import pytest

from fedpca_flwr.errors import ConfigError, ContractError
from fedpca_flwr.maths import secure
from fedpca_flwr.transports import double_masks
from fedpca_flwr.transports.double_masks import SHARE, Channels, Ring, unmasked
from fedpca_flwr.transports.pairwise_masks import BLOCK, mask, new_private_key, public_key
from tests.refusals import refused

PARTIES, THRESHOLD = 5, 4
SIZE = BLOCK + 100


class Group:
    """Parties with their keys, seeds and shares."""

    def __init__(self, about=(b"{}",) * PARTIES):
        self.runs, self.masks = ([new_private_key() for _ in range(PARTIES)] for _ in range(2))
        self.seeds = [bytes([i]) * 32 for i in range(PARTIES)]
        publics = [public_key(run) + public_key(own) for run, own in zip(self.runs, self.masks, strict=True)]
        self.ring = Ring(publics)
        self.channels = [Channels(Ring(publics, about[i]), i, self.runs[i]) for i in range(PARTIES)]

    def asked(self, members, told=0.0):
        return self.ring.mask_context("moments", members, [np.asarray(told)])

    def hidden(self, place, members, told=0.0):
        plain = np.arange(SIZE, dtype=np.uint64) * np.uint64(place + 1)
        plain[0] = 1
        own = self.masks[place], self.seeds[place]
        return plain, double_masks.hide(plain, self.ring, self.asked(members, told), members, *own)

    def revealed(self, members, survivors):
        """By party, a share of each member's seed or key."""
        secret = {m: self.seeds[m] if m in survivors else self.masks[m] for m in members}
        shares = {m: secure.split(secret[m], THRESHOLD, PARTIES) for m in members}
        return {place: {m: shares[m][place] for m in members} for place in survivors[:THRESHOLD]}


@pytest.mark.parametrize("members", [(0, 1, 2, 3, 4), (0, 2, 3, 4)])
def test_whoever_survives_the_sum_is_theirs(members):
    group = Group()
    for survivors in combinations(members, THRESHOLD):
        pairs = [group.hidden(place, members) for place in survivors]
        plain, total = (np.add.reduce(vectors) for vectors in zip(*pairs, strict=True))
        revealed = group.revealed(members, survivors)
        found = unmasked(total, group.ring, group.asked(members), members, survivors, revealed)
        np.testing.assert_array_equal(found, plain)


def test_without_its_self_mask_a_vector_stays_random_words():
    """What the server has of a party that it says dropped out, and whose vector it keeps: all pairwise masks."""
    group, members = Group(), range(PARTIES)
    plain, hidden = group.hidden(0, members)
    without = hidden - mask(group.masks[0], group.ring.mask_keys(members), group.asked(members), SIZE)
    bits = np.unpackbits((without - plain).view(np.uint8))
    assert abs(bits.mean() - 0.5) < 5 * 0.5 / np.sqrt(bits.size)


def test_wrong_shares_and_parties_that_were_asked_something_else_are_noticed():
    """A server that asks all others for nothing learns nothing about the one."""
    group, members, survivors = Group(), tuple(range(PARTIES)), (0, 1, 2, 3)
    total = np.add.reduce([group.hidden(place, members, told=float(place == 1))[1] for place in survivors])
    revealed = group.revealed(members, survivors)
    for told in (0.0, 1.0):
        with refused(ContractError):
            unmasked(total, group.ring, group.asked(members, told), members, survivors, revealed)
    group, survivors = Group(), (0, 1, 2, 4)
    total = np.add.reduce([group.hidden(place, members)[1] for place in survivors])
    for wrong in members:  # a survivor's seed, or the key of the party that dropped out
        revealed = group.revealed(members, survivors)
        revealed[1][wrong] = bytes(SHARE)
        with refused(ContractError):
            unmasked(total, group.ring, group.asked(members), members, survivors, revealed)


def test_shares_are_for_their_recipient_in_their_run_only():
    group, shares = Group(), bytes(range(2 * SHARE))
    text = group.channels[0].sealed(1, shares)
    assert len(text) == double_masks.SEALED
    assert group.channels[1].unsealed(0, text) == shares
    another_run = Group(about=(b"{}", b"another run", *[b"{}"] * 3))
    text_of_another = another_run.channels[0].sealed(1, shares)
    assert another_run.channels[2].unsealed(0, another_run.channels[0].sealed(2, shares)) == shares
    publics = [*group.ring.publics[:4], group.ring.publics[4][:32] + public_key(new_private_key())]
    for channels, sender, sent in (
        (group.channels[2], 0, text),
        (group.channels[1], 2, text),
        (group.channels[1], 0, text[:-1] + bytes([text[-1] ^ 1])),
        (another_run.channels[1], 0, text_of_another),
        (Channels(Ring(publics, b"{}"), 1, group.runs[1]), 0, text),
    ):
        with refused(ContractError):
            channels.unsealed(sender, sent)
    # Their nonce is constant: under one key the difference of two would be that of what they say.
    ring = group.ring
    assert len({ring.shares_context(i, j) for i in range(PARTIES) for j in range(PARTIES)}) == PARTIES**2
    # Or a server that tells parties of different members would have masks that cancel all the same.
    assert ring.mask_context("moments", [0, 1, 2, 3]) != ring.mask_context("moments", [0, 1, 2, 4])


def test_the_threshold_leaves_no_vector_to_a_server_with_less_than_a_third_of_the_parties():
    """2 t > n + c: t shares of a seed and t of a key cannot both come, and the smallest such t is allowed."""
    for n in range(1, 60):
        least = 2 * n // 3 + 1
        for survivors in range(n + 2):
            if least <= survivors <= n:
                double_masks.require_threshold(survivors, n)
            else:
                with refused(ConfigError, "'survivors'", survivors, least, n):
                    double_masks.require_threshold(survivors, n)
        colluding = max(0, -(-n // 3) - 1)  # less than a third
        assert 2 * least > n + colluding
        if n > 3:
            assert 2 * (least - 1) <= n + n // 3  # with one less, a third is enough


@pytest.mark.parametrize(("survivors", "parties", "fewest"), [(3, 4, 2), (4, 5, 3), (7, 10, 4), (9, 10, 8), (5, 5, 4)])
def test_the_note_names_the_fewest_who_see_more(survivors, parties, fewest):
    """The first number that 2 t > n + c does not bear; of parties that all must stay, those beside one."""
    assert double_masks.fewest_colluders(survivors, parties) == fewest
    if survivors < parties:
        assert [2 * survivors > parties + colluders for colluders in (fewest - 1, fewest)] == [True, False]
