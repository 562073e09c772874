"""A server in the middle, alone and with one site that hands it all that it has: sites know each other by their keys.

Each attack is played on real clients with files of their own. With verification off the first reads out a site's share,
as the test after it shows.
"""

from dataclasses import replace
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from fedpca_flwr.config.node_config import NodeConfig
from fedpca_flwr.errors import ConfigError
from fedpca_flwr.site.identity import Identity, identity_of
from fedpca_flwr.transports.double_masks import Ring
from fedpca_flwr.transports.pairwise_masks import combine, mask, new_private_key, public_key, transcript
from tests.harness import identities
from tests.hostile import HostileSession

PARTIES = 5
SUMS = {"method": "p-cov", "secure-aggregation": True, "bound": 1000.0, "n-components": 2}
SURVIVING = {**SUMS, "survivors": 4}
FIRST = {"masked": ("sums", SUMS), "surviving": ("shares", SURVIVING)}

each_transport = pytest.mark.parametrize("transport", FIRST)


def rows_of(party):
    return np.round(np.random.default_rng(party).normal(50, 10, (30, 4)))


def sites(folder, run, *, parties=PARTIES, **options):
    return [
        HostileSession(
            folder / str(party), rows_of(party), run, parties=parties, index=party, **{"secure-only": True, **options}
        )
        for party in range(parties)
    ]


def keys_of(sessions):
    """What each party sends in the first round: keys and signatures, a row for each party."""
    return [np.stack(rows) for rows in zip(*(session.ask("keys", [])[0] for session in sessions), strict=True)]


def asked_first(session, transport, keys, signatures):
    """The question with which keys travel to a party."""
    phase = FIRST[transport][0]
    return session.ask(phase, [keys, signatures] if transport == "masked" else [np.arange(len(keys)), keys, signatures])


def refused(answer, *names):
    arrays, said = answer
    assert arrays == []
    assert said["error"] == "DisclosureError"
    for name in names:
        assert name in said["message"]
    return True


def in_the_middle(sessions, victim):
    """What the server shows the victim: keys of its own for all others, with the signatures that the parties gave."""
    keys, signatures = keys_of(sessions)
    privates = {party: new_private_key() for party in range(PARTIES) if party != victim}
    for party, private in privates.items():
        keys[party, :32] = np.frombuffer(public_key(private), np.uint8)
    return keys, signatures, privates


def share_of(session, words, keys, privates, victim):
    """What a server reads from a party's masked words with the private keys that it put in place of the others'."""
    publics = [key.tobytes() for key in keys]
    for private in privates.values():
        words = words + mask(private, [public_key(private), publics[victim]], asked_of(session, publics), words.size)
    return layout_of(session).decode(words)


def asked_of(session, publics):
    return transcript("sums", session.client.transport.group.signer.about, publics, [np.asarray(1)])


def layout_of(session, phase="sums"):
    """Of the first sum."""
    client = session.client
    assert phase in client.script
    return client.transport.own[phase].layout({}, client.public)


@each_transport
def test_a_server_that_relays_keys_of_its_own_is_refused_by_every_party(transport, tmp_path):
    sessions = sites(tmp_path, FIRST[transport][1])
    real = keys_of(sessions)
    for victim, session in enumerate(sessions):
        keys, signatures = (array.copy() for array in real)
        others = [party for party in range(PARTIES) if party != victim]
        for party in others:
            own = b"".join(public_key(new_private_key()) for _ in range(keys.shape[1] // 32))
            keys[party] = np.frombuffer(own, np.uint8)
        answer = asked_first(session, transport, keys, signatures)
        assert refused(answer, f"signature of party {others[0]} under the run keys", "'identities'")


def test_where_nobody_verifies_it_reads_a_partys_share(tmp_path, monkeypatch):
    """That the attack above is one."""
    monkeypatch.setattr(Identity, "signed", lambda self, party, said, signature: True)
    sessions = sites(tmp_path, SUMS)
    keys, signatures, privates = in_the_middle(sessions, victim=2)
    (words,), _ = asked_first(sessions[2], "masked", keys, signatures)
    count, fields = share_of(sessions[2], words, keys, privates, victim=2)
    assert (count, fields["count"]) == (1, 30)
    np.testing.assert_allclose(fields["sum"], rows_of(2).sum(axis=0))


@each_transport
@pytest.mark.parametrize("claimed", [1, 4])
def test_with_one_colluder_it_still_cannot_act_for_anybody_else(transport, claimed, tmp_path):
    """Party 4 gives it all that it has. With that it signs what it relays as the keys of party 1."""
    sessions = sites(tmp_path, FIRST[transport][1])
    keys, signatures = keys_of(sessions)
    keys[1] = np.frombuffer(b"".join(public_key(new_private_key()) for _ in range(keys.shape[1] // 32)), np.uint8)
    signatures[1] = sign_as(sessions[4], 4, claimed, keys[1].tobytes())
    assert refused(asked_first(sessions[0], transport, keys, signatures), "signature of party 1 under the run keys")


def sign_as(colluder, party, claimed, key):
    """A signature by the colluder's identity under keys that are said to be those of another party."""
    node = {**colluder.context.node_config, **identities(PARTIES)[party], "partition-id": party}
    identity = identity_of(NodeConfig.parse(node))
    signer = replace(colluder.client.transport.group.signer, identity=identity)
    return np.frombuffer(identity.sign(signer._message(claimed, "run keys", [key])), np.uint8)


def test_one_colluder_unmasks_what_he_shares_with_a_party_and_no_more(tmp_path):
    sessions = sites(tmp_path, SUMS)
    keys, signatures = keys_of(sessions)
    (left,), _ = asked_first(sessions[0], "masked", keys, signatures)
    publics = [key.tobytes() for key in keys]
    plain = layout_of(sessions[0]).encode_sum([sessions[0].client.statistics("sums", {})])
    for other in (4, 1, 2, 3):  # what he shares with the party, then what hides its share further
        assert np.count_nonzero(left == plain) < 3
        private = sessions[other].client.journal.recall("private")
        left = left + mask(private, [publics[other], publics[0]], asked_of(sessions[0], publics), left.size)
    np.testing.assert_array_equal(left, plain)


TEN, TRAITOR, HONEST = 10, 9, range(9)


def words_less_the_traitors(sessions, transport):
    """Each honest party's words of the first sum, less all masks that the server and one traitor together know.

    Those are the masks that he shares with each; of survivors the server also has the seeds, which are revealed.
    """
    keys, signatures = keys_of(sessions)
    publics = [key.tobytes() for key in keys]
    if transport == "masked":
        words = [asked_first(session, transport, keys, signatures)[0][0] for session in sessions]
        name, asked = "private", asked_of(sessions[0], publics)
    else:
        for session in sessions:
            asked_first(session, transport, keys, signatures)
        words = [session.ask("uncentred", [np.arange(TEN)])[0][0].copy() for session in sessions]
        for own, session in zip(words, sessions, strict=True):
            combine(own, session.client.journal.recall("seed"), np.subtract)
        name, asked = "masking", Ring(publics).mask_context("uncentred", range(TEN))
        publics = [public[32:] for public in publics]
    his = sessions[TRAITOR].client.journal.recall(name)
    return [words[i] + mask(his, [publics[TRAITOR], publics[i]], asked, words[i].size) for i in HONEST]


@each_transport
def test_one_traitor_of_ten_gains_the_sum_of_the_others_which_he_could_subtract_himself(transport, tmp_path):
    """With all that he has and all that the server sees: no sum of some of the nine opens, only that of all nine."""
    run, phase = {"masked": (SUMS, "sums"), "surviving": ({**SUMS, "survivors": 7}, "uncentred")}[transport]
    sessions = sites(tmp_path, run, parties=TEN)
    words = words_less_the_traitors(sessions, transport)
    for size in range(1, len(HONEST)):
        for some in combinations(HONEST, size):
            assert int(np.add.reduce([words[party] for party in some])[0]) != size
    count, fields = layout_of(sessions[0], phase).decode(np.add.reduce(words))
    assert count == len(HONEST)
    np.testing.assert_allclose(fields["sum"], np.vstack([rows_of(party) for party in HONEST]).sum(axis=0))


@each_transport
def test_keys_that_are_swapped_replaced_doubled_or_of_another_configuration_are_refused(transport, tmp_path):
    sessions = sites(tmp_path, FIRST[transport][1])
    keys, signatures = keys_of(sessions)
    order = [0, 1, 3, 2, 4]
    assert refused(asked_first(sessions[0], transport, keys[order], signatures[order]), "signature of party 2")
    sessions = sites(tmp_path / "2", FIRST[transport][1])
    keys, signatures = keys_of(sessions)
    keys[0] = np.frombuffer(public_key(new_private_key()) * (keys.shape[1] // 32), np.uint8)
    assert refused(asked_first(sessions[0], transport, keys, signatures), "others than its own", "party 0")
    # A colluder signs the key of an honest party as its own.
    sessions = sites(tmp_path / "3", FIRST[transport][1])
    keys, signatures = keys_of(sessions)
    keys[4] = keys[1]
    signatures[4] = sign_as(sessions[4], 4, 4, keys[1].tobytes())
    assert refused(asked_first(sessions[0], transport, keys, signatures), "parties 1 and 4 have signed the same key")
    run = FIRST[transport][1]
    sessions = sites(tmp_path / "4", run)
    sessions[3] = HostileSession(
        tmp_path / "4" / "other", rows_of(3), {**run, "bound": 900.0}, parties=PARTIES, index=3
    )
    assert refused(asked_first(sessions[0], transport, *keys_of(sessions)), "signature of party 3")


@each_transport
def test_keys_of_an_earlier_run_are_refused(transport, tmp_path):
    """The server has learned the private keys of that run, from a backup of the sites' disks, say."""
    run = FIRST[transport][1]
    earlier = keys_of(sites(tmp_path / "earlier", run))
    sessions = [
        HostileSession(tmp_path / str(party), rows_of(party), run, parties=PARTIES, index=party, run_id=2)
        for party in range(PARTIES)
    ]
    now = keys_of(sessions)
    for party in (1, 4):
        shown = [array.copy() for array in now]
        for array, old in zip(shown, earlier, strict=True):
            array[party] = old[party]
        victim = 0 if party == 1 else 2
        assert refused(asked_first(sessions[victim], transport, *shown), f"signature of party {party}", "another run")


@each_transport
def test_sites_with_other_lists_refuse_each_other(transport, tmp_path):
    """The server has given party 3 a list in which party 1 has a key of the server's."""
    sessions = sites(tmp_path, FIRST[transport][1])
    lines = Path(identities(PARTIES)[0]["identities"]).read_text(encoding="utf-8").splitlines()
    lines[1] = f"1 {'ab' * 32}"
    (tmp_path / "list").write_text("\n".join(lines))
    sessions[3].context.node_config["identities"] = str(tmp_path / "list")
    keys = keys_of(sessions)
    assert refused(asked_first(sessions[0], transport, *keys), "signature of party 3", "the sites' lists differ")
    assert refused(asked_first(sessions[3], transport, *keys), "signature of party 0")


@pytest.mark.parametrize("told", ["its own, of other keys", "another party's", "none"])
def test_a_member_that_was_dropped_is_not_played(told, tmp_path):
    """Party 4 is kept out, and the server answers in its place."""
    sessions = sites(tmp_path, SURVIVING)
    keys, signatures = keys_of(sessions)
    keys[4] = np.frombuffer(public_key(new_private_key()) + public_key(new_private_key()), np.uint8)
    if not told.startswith("its own"):
        signatures[4] = signatures[3] if told == "another party's" else 0
    assert refused(asked_first(sessions[0], "surviving", keys, signatures), "signature of party 4")


# One run, one configuration; one answer, one mask


@each_transport
def test_a_run_that_changes_its_configuration_on_its_way_is_over(transport, tmp_path, caplog):
    session = sites(tmp_path, FIRST[transport][1])[0]
    assert session.ask("keys", [])[0]
    session.context.run_config["n-components"] = 3
    keys = np.zeros((PARTIES, 32 if transport == "masked" else 64), np.uint8)
    arrays, said = asked_first(session, transport, keys, np.zeros((PARTIES, 64), np.uint8))
    assert arrays == []
    assert said["error"] == "PartyError"
    assert "another configuration of this run than with its first question" in caplog.text


def test_the_same_question_twice_is_answered_under_another_mask(tmp_path):
    """Else the difference of the two answers would be what has changed in the rows between them, in clear."""
    sessions = sites(tmp_path, {**SUMS, "method": "sub-it block-size=2"})
    keys, signatures = keys_of(sessions)
    asked_first(sessions[0], "masked", keys, signatures)
    assert sessions[0].ask("deviations", [np.asarray(150), np.full(4, 50.0)])[0]
    question = [np.full(4, 50.0), np.full(4, 200.0), np.eye(4)[:, :2]]
    first, second = (sessions[0].ask("product", question)[0][0] for _ in range(2))
    assert np.count_nonzero(first == second) == 0


# Survivors: what each was told is signed


def until_agreed(sessions, told):
    """A run of five up to the survivors; what each party says of the list that it was told."""
    keys, signatures = keys_of(sessions)
    sealed = [asked_first(session, "surviving", keys, signatures)[0][0] for session in sessions]
    for session in sessions:
        assert session.ask("uncentred", [np.arange(PARTIES)])[0]
    said = [session.ask("agree", [np.array(places)])[0][0] for session, places in zip(sessions, told, strict=True)]
    return said, sealed


def asked_to_reveal(sessions, party, agreed, signatures, sealed):
    shares = np.stack([rows[party] for rows in sealed])
    return sessions[party].ask("reveal", [np.array(agreed), np.stack(signatures), shares])


def test_survivors_reveal_for_the_one_list_that_they_all_signed(tmp_path):
    sessions = sites(tmp_path, SURVIVING)
    told = [0, 1, 2, 3]
    said, sealed = until_agreed(sessions, [told] * 4 + [[0, 1, 2, 4]])
    for party in told:
        assert asked_to_reveal(sessions, party, told, [said[i] for i in told], sealed)[0]
    sessions = sites(tmp_path / "2", SURVIVING)
    lists = [[0, 1, 2, 3, 4]] * 3 + [[0, 1, 2, 3]] + [[0, 1, 2, 4]]
    said, sealed = until_agreed(sessions, lists)
    answer = asked_to_reveal(sessions, 0, [0, 1, 2, 3], said[:4], sealed)
    assert refused(answer, "signature of party 3 under the survivors", "told something else")
    # Nobody but party 0 and the colluder, party 4, was told this list; the server needs four.
    sessions = sites(tmp_path / "3", SURVIVING)
    said, sealed = until_agreed(sessions, [[0, 1, 2, 4]] + [[0, 1, 2, 3]] * 3 + [[0, 1, 2, 4]])
    forged = [said[0], said[4], said[4], said[4]]
    assert refused(asked_to_reveal(sessions, 0, [0, 1, 2, 4], forged, sealed), "signature of party 1 under the surv")


def test_a_party_agrees_to_no_list_without_itself(tmp_path, caplog):
    sessions = sites(tmp_path, SURVIVING)
    keys, signatures = keys_of(sessions)
    asked_first(sessions[1], "surviving", keys, signatures)
    assert sessions[1].ask("uncentred", [np.arange(PARTIES)])[0]
    assert sessions[1].ask("agree", [np.array([0, 2, 3, 4])])[0] == []
    assert "own place 1" in caplog.text


def test_a_party_that_was_told_other_members_has_not_agreed(tmp_path):
    """All sign the same survivors, and party 3 was told that the sum is without party 4 from the start."""
    sessions, told = sites(tmp_path, SURVIVING), [0, 1, 2, 3]
    keys, signatures = keys_of(sessions)
    sealed = [asked_first(session, "surviving", keys, signatures)[0][0] for session in sessions]
    for party in told:
        assert sessions[party].ask("uncentred", [np.arange(4 if party == 3 else 5)])[0]
    said = [sessions[party].ask("agree", [np.array(told)])[0][0] for party in told]
    assert refused(asked_to_reveal(sessions, 0, told, said, sealed), "signature of party 3 under the survivors")


def test_a_party_that_was_told_other_keys_has_not_agreed(tmp_path):
    """The same, where party 3 was shown no keys of party 4."""
    sessions, told = sites(tmp_path, SURVIVING), [0, 1, 2, 3]
    keys, signatures = keys_of(sessions)
    sealed = []
    for party in told:
        there = 4 if party == 3 else 5
        sealed.append(asked_first(sessions[party], "surviving", keys[:there], signatures[:there])[0][0])
        assert sessions[party].ask("uncentred", [np.array(told)])[0]
    said = [sessions[party].ask("agree", [np.array(told)])[0][0] for party in told]
    assert refused(asked_to_reveal(sessions, 0, told, said, sealed), "signature of party 3 under the survivors")


# A site with data of its own, and without keys


@pytest.mark.parametrize(
    "run",
    [SUMS, SURVIVING, {**SUMS, "method": "dp-pca trust='distributed' honest-parties=3"}],
    ids=["masked", "surviving", "distributed noise"],
)
@pytest.mark.parametrize("lacking", ["identity", "identities", "both"])
def test_a_site_with_data_of_its_own_gives_nothing_to_a_sum_of_strangers(run, lacking, tmp_path):
    without = {"identity": "", "identities": ""} if lacking == "both" else {lacking: ""}
    node = {"secure-only": True, "honest-parties": 3, **without}
    session = HostileSession(tmp_path, rows_of(0), run, parties=PARTIES, **node)
    said = session.client.get_properties({})
    assert said["error"] == "ConfigError"
    assert f"'{'identity' if lacking == 'both' else lacking}'" in said["message"]
    assert session.ask("keys", [])[0] == []


def test_what_an_identity_needs_is_named(tmp_path):
    node = {"secure-only": True, "identity": "", "identities": ""}
    for run in ({"method": "p-cov"}, SUMS):
        said = HostileSession(tmp_path, rows_of(0), run, parties=PARTIES, index=2, **node).client.get_properties({})
        assert (said["error"], said["partition-id"]) == ("ConfigError", 2)
        assert "'secure-only' needs 'identity' and 'identities'" in said["message"]
        assert "make a key with 'python -m fedpca_flwr site keys'" in said["message"]
    with pytest.raises(ConfigError, match=r"'group-secret' is no key any more: .*'identity'.*site keys.*'ids-secret'"):
        NodeConfig.parse({"partition-id": 0, "num-partitions": 3, "group-secret": "file"}, source="node-config")
