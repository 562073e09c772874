"""Secure sums that go on with the survivors: their PCA, named as such, or an error; and nothing else for the server."""

from collections import defaultdict
from itertools import cycle
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from fedpca_flwr.errors import ConfigError, ContractError, DisclosureError, QuorumError
from fedpca_flwr.maths import secure
from fedpca_flwr.model.reference import principal_angles
from fedpca_flwr.protocol import quorum
from fedpca_flwr.protocol.journal import StateJournal
from fedpca_flwr.strategies import METHODS
from fedpca_flwr.transports import masked, surviving
from fedpca_flwr.transports.double_masks import SHARE_BYTES
from fedpca_flwr.transports.recommendation import transports_of
from fedpca_flwr.transports.signed import Signer
from tests import harness
from tests.families import cut, rows
from tests.harness import finish, fit, heard, proxy_of, server_of
from tests.refusals import refused

PARTIES = cut(rows(400) + 1, 150, 100, 80, 50, 20)
SUM = {"p-cov": "moments", "ap-cov": "moments", "dp-pca": "joint"}
OPTIONS = {"n_components": 3}, {"n_components": 3, "release": "joint", "clip": 5.0, "epsilon": 100.0}
"""Without and with noise, with a budget at which components stand out of the noise: else variances are unknown."""
BEFORE, AFTER = ("keys", "shares", "sum"), ("agree", "reveal", "project")
"""Where a party that drops out is not in the sum, and where it is."""
DIRECTIONS = {"release": "directions", "clip": ""}


def server(method="p-cov", parties=PARTIES, *, gone=(), **options):
    """``gone`` has pairs of a party and the round from which on the party is silent."""
    secure = {"secure_aggregation": True, "bound": 20.0, "survivors": 4}
    running = server_of(method, parties, **{**OPTIONS[method == "dp-pca"], **secure, **options})
    for party, at in gone:
        drop(running, party, at)
    return running


def plain(method, parties, **options):
    return fit(method, parties, **{**OPTIONS[method == "dp-pca"], **options})


def drop(running, party, at):
    """Let a party be silent from a round on, and return the list of the phases that the party was asked."""
    proxy, phases = proxy_of(running, party), []
    honest, at = proxy.fit, SUM[running.strategy.card.name] if at == "sum" else at

    def fit_until(ins, timeout, group_id):
        phases.append(ins.config["phase"])
        if at in phases:
            raise TimeoutError("no reply within its deadline of 1 s")
        return honest(ins, timeout, group_id)

    proxy.fit = fit_until
    return phases


def same(model, other):
    assert np.isfinite(model.explained_variance_).all()
    assert principal_angles(model, other).max <= 1e-8
    assert model.n_samples_ == other.n_samples_
    np.testing.assert_allclose(model.explained_variance_, other.explained_variance_, rtol=1e-9)
    np.testing.assert_allclose(model.mean_, other.mean_, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("at", "method"), [*zip((*BEFORE, *AFTER), cycle(SUM), strict=False), ("sum", "p-cov"), ("project", "p-cov")]
)
def test_a_party_that_drops_late_is_in_the_result(method, at):
    running = server(method)
    phases = drop(running, 4, at)
    model, inside = finish(running), 4 + (at in AFTER)
    same(model, plain(method, PARTIES[:inside]))
    assert [party["party"] for party in model.log["parties"]] == list(range(inside))
    assert model.log["measured"].items() >= {"double_masked_parties": inside, "expected_parties": 5}.items()
    dropouts = ["the PCA of 4 of 5 parties: client 4 dropped out"] * (at in BEFORE)
    assert [note for note in model.log["notes"] if "dropped out" in note] == dropouts
    assert phases[-1] == (SUM[method] if at == "sum" else at)  # and nothing afterwards
    if method != "dp-pca":
        assert "collude with at least 3 of the 5 parties" in model.log["notes"][-1] or at in AFTER
        assert ("squared_error_per_row" in model.log["measured"]) == (at in BEFORE)
        assert any("squared error is not measured" in note for note in model.log["notes"]) == (at in AFTER)


def test_bytes_stand_beside_the_party_that_they_went_to():
    assert {name for name, method in METHODS.items() if "surviving" in transports_of(method)} == set(SUM)
    rounds = finish(server(gone=[(1, "shares")])).log["rounds"]
    assert {len(entry[way]) for entry in rounds for way in ("up", "down")} == {5}
    assert rounds[1]["down"][1] > 0
    assert [entry["down"][1] for entry in rounds[2:]] == [0] * 4
    assert all(size > 0 for party, size in enumerate(rounds[-1]["down"]) if party != 1)


@pytest.mark.parametrize("rounds", [("keys", "keys"), ("keys", "sum"), ("shares", "agree"), ("sum", "reveal")], ids=str)
def test_several_may_drop_out_down_to_the_threshold(rounds):
    parties = cut(rows(490) + 2, *[70] * 7)
    gone = list(zip((2, 5), rounds, strict=True))
    outside = [party for party, at in gone if at in BEFORE]
    model = finish(server(parties=parties, survivors=5, gone=gone))
    assert any("collude with at least 3 of the 7 parties" in note for note in model.log["notes"])
    assert len(model.log["rounds"][-1]["up"]) == 7
    same(model, plain("p-cov", [X for i, X in enumerate(parties) if i not in outside]))


def test_fewer_than_a_threshold_or_a_minimum_and_options_that_do_not_go_together_are_an_error():
    for gone, options, kind, named in (
        *(([(0, "shares"), (3, at)], {}, QuorumError, [3, "'survivors'", 4]) for at in [*BEFORE, "agree", "reveal"]),
        *(([(4, at)], {"min_parties": 5}, DisclosureError, ["client 0", 4, 5]) for at in ("keys", "sum")),
    ):
        with refused(kind, *named):
            finish(server(gone=gone, **options))
    for method, wrong, words in (
        *(("p-cov", {"survivors": number}, ["'survivors'", number, 4, 5]) for number in (3, 6)),
        ("p-cov", {"secure_aggregation": False}, ["'survivors'", 4, "secure-aggregation"]),
        ("p-cov", {"bound": 0.0}, ["secure-aggregation", "'bound'", 0]),
        ("p-cov", {"bound": 1e19}, ["'bound'", "1e+19"]),
        ("sub-it", {}, ["sub-it", "p-cov", "ap-cov", "dp-pca"]),
        ("qr-pca", {}, ["secure-aggregation", "qr-pca", "'factor'"]),
        ("dp-pca", {"trust": "distributed", "honest_parties": 5}, ["honest-parties", 5, 4, "'survivors'"]),
    ):
        with refused(ConfigError, *words):
            finish(server(method, **wrong))


def test_silent_parties_are_dropped(monkeypatch):
    monkeypatch.setattr(quorum, "time", harness.Clock())
    running = server()
    running.client_manager().unregister(proxy_of(running, 0))
    model = finish(running)
    same(model, plain("p-cov", PARTIES[1:]))
    assert "the PCA of 4 of 5 parties: client 0 dropped out" in model.log["notes"]
    # Not even what it is: the server asks the next one.
    running = server(gone=[(0, "keys")])
    proxy_of(running, 0).get_properties = Mock(side_effect=TimeoutError)
    same(finish(running), plain("p-cov", PARTIES[1:]))
    leaves, is_late = server(), server(round_deadline=70.0)
    manager, leaving = leaves.client_manager(), proxy_of(leaves, 2)
    harness.tamper(leaves, 2, lambda reply: manager.unregister(leaving) or reply, "shares")
    deadlines = harness.late(is_late, 2, "moments")
    assert [len(finish(running).log["parties"]) for running in (leaves, is_late)] == [4, 4]
    assert deadlines == [70.0]
    refusing = server()
    harness.context_of(refusing, 2).node_config["min-rows"] = 500
    with refused(DisclosureError, "client 2", "min-rows"):
        finish(refusing)


@pytest.mark.engine
def test_several_sums_open_each_with_its_noise_and_keys(tmp_path):
    """The rounds around a sum are gone through for each, and the model is that of the parties without masks."""
    running = server("dp-pca", **DIRECTIONS)
    sent = heard(running, 0)
    model = finish(running)
    same(model, plain("dp-pca", PARTIES, **DIRECTIONS))
    assert "saw 6 sums with noise, the last, over these parties" in model.log["notes"][-1]
    # Else what is revealed of a party that left would open its share of the sums before.
    keys = [message.said[0].tobytes() for message in sent if message.phase.endswith("keys")]
    assert len(keys) == len(set(keys)) == 6
    # Each adds its share; what the eigenvalues are corrected for is the noise of four shares.
    distributed = {"trust": "distributed", "honest_parties": 3}
    running = server("dp-pca", gone=[(4, "sum")], **distributed)
    same(finish(running), plain("dp-pca", PARTIES[:4], **distributed))
    # A site that trusts too few refuses the survivors.
    site = {"data": "x.npy", "epsilon-budget": 100.0, "honest-parties": 3, "journal": str(tmp_path)}
    distributed |= {"epsilon": 1.0, "noise_seed": 0, "site": site}
    assert finish(server("dp-pca", **distributed)).n_components_ == 3
    with refused(DisclosureError, 1, 5, 3, match="honest"):
        finish(server("dp-pca", gone=[(4, "sum")], **distributed))


@pytest.mark.parametrize("at", ["octaves", "nearer_octaves shares", "directions", "variances agree"])
def test_a_party_may_leave_between_two_sums_that_have_noise(at):
    """The party is in the sums before, and asked for nothing more; the remaining parties agree on new keys."""
    running = server("dp-pca", **DIRECTIONS)
    phases = drop(running, 4, at)
    model = finish(running)
    assert phases[-1] == at
    inside = 5 if at == "variances agree" else 4  # of the last sum
    assert model.log["measured"]["double_masked_parties"] == inside
    assert np.isfinite(model.explained_variance_).all()


def test_masks_depend_on_the_run_and_its_configuration_and_signatures_are_for_one_noisy_sum(monkeypatch):
    """Otherwise parties would agree twice to the same list of survivors."""
    client: Any
    for module, running in ((masked, server(survivors=0)), (surviving, server())):
        monkeypatch.setattr(module, "transcript", transcript := Mock(side_effect=module.transcript))
        finish(running)
        client = harness.client_of(running, 0)
        assert {call.args[1] for call in transcript.call_args_list} == {client.transport.policy.signer.context}
    contexts, sign = [], Signer.sign
    monkeypatch.setattr(Signer, "sign", lambda self, *said: contexts.append(self.context) or sign(self, *said))
    finish(running := server("dp-pca", **DIRECTIONS))
    client = harness.client_of(running, 0)
    assert (contexts[0], len(set(contexts))) == (client.transport.policy.signer.context, 6)


def test_a_party_sends_a_right_share_for_each_party():
    for number in (4, 6):
        running = server()
        harness.tamper_arrays(running, 1, lambda sent, n=number: [np.resize(sent[0], (n, sent[0].shape[1]))], "shares")
        with refused(ContractError, "client 1", number, 5):
            finish(running)
    for wrong in range(5):  # a survivor's seed, or the key of the party that dropped out
        running = server(gone=[(3, "sum")])
        harness.tamper_arrays(running, 1, lambda sent, i=wrong: [sent[0] * (np.arange(5) != i)[:, None]], "reveal")
        with refused(ContractError):
            finish(running)


@pytest.mark.parametrize(
    ("phase", "change", "named"),
    [
        ("shares", lambda parties, keys, signed: [parties[:3], keys[:3], signed[:3]], [3, "'survivors'", 4]),
        ("shares", lambda *arrays: [array[[0, 1, 2, 2, 4]] for array in arrays], ["party 2"]),
        ("shares", lambda *arrays: [array[[0, 2, 3, 4]] for array in arrays], ["party 1"]),
        ("shares", lambda parties, *rest: [parties + 1, *rest], ["party 5", "'identities'", 0, 4]),
        ("shares", lambda parties, *rest: [parties[:4], *rest], [5, 4]),
        ("shares", lambda parties, keys, signed: [parties, keys, signed[:4]], [5, 4]),
        ("shares", lambda *arrays: [], [0, 3, "(parties, publics, signatures)"]),
        ("shares", lambda parties, keys, signed: [parties, keys[:, :32], signed], ["'publics'", "(5, 32)", "(5, 64)"]),
        ("moments", lambda members: [members[:3]], [3, "'survivors'", 4]),
        ("moments", lambda members: [members[::-1]], ["[4, 3, 2, 1, 0]", "[0, 1, 2, 3, 4]"]),
        ("moments", lambda members: [members + 1], ["[1, 2, 3, 4, 5]", "[0, 1, 2, 3, 4]"]),
        ("agree", lambda _: [np.array([0, 2, 3, 4])], ["[0, 2, 3, 4]", "[0, 1, 2, 3, 4]", 1]),
        ("agree", lambda _: [np.array([1])], [1, "'survivors'", 4]),
        ("agree", lambda survivors: [survivors.astype(float)], ["'survivors'", "float64", "int64"]),
        ("moments", lambda _: [np.array([0, 1, 2, 3])], ["[0, 1, 2, 3, 4]", "[0, 1, 2, 3]"]),
        ("reveal", lambda who, signed, shares: [who[:3], signed[:3], shares], [3, "'survivors'", 4]),
        ("reveal", lambda who, signed, shares: [who, signed ^ 1, shares], ["party 0", "'identities'"]),
        ("reveal", lambda who, signed, shares: [who, signed[::-1], shares], ["party 0", "'identities'"]),
        ("reveal", lambda who, signed, shares: [who, signed[:4], shares], [4, 5]),
        ("reveal", lambda who, signed, shares: [who, signed, shares ^ 1], ["shares"]),
        ("reveal", lambda who, signed, shares: [who, signed, shares[:4]], [5, 4]),
    ],
)
def test_a_party_that_is_told_something_else_reveals_nothing(phase, change, named):
    running, revealed = server(), []
    harness.on_request(running, 1, phase, lambda arrays: change(*arrays))
    for party in range(5):
        harness.tamper(running, party, lambda reply: revealed.append(reply) or reply)
    with refused((ContractError, DisclosureError), "client 1", *named):
        finish(running)
    shares = [r for r in revealed if [len(t) - 128 for t in r.parameters.tensors] == [5 * SHARE_BYTES]]
    assert not shares or phase == "reveal"  # then those who were told the truth have revealed


def test_the_server_never_learns_seed_and_key(monkeypatch):
    secrets_by_party, noted, keep = defaultdict(dict), [], StateJournal.store_secret
    monkeypatch.setattr(StateJournal, "store_secret", lambda *secret: noted.append(secret) or keep(*secret))
    running, places = server(gone=[(3, "sum")]), (0, 1, 2, 4)
    exchanged = [heard(running, party) for party in places]
    finish(running)
    revealed = [array for exchange in exchanged for array in (exchange[-2].said[0],) if array.shape == (5, SHARE_BYTES)]
    assert len(revealed) == 4
    for journal, name, value in noted:
        secrets_by_party[id(journal.record)][name] = value
    for member, secrets in enumerate(secrets_by_party.values()):
        shares = {place: of_all[member].tobytes() for place, of_all in zip(places, revealed, strict=True)}
        secret = secrets["masking" if member == 3 else "seed"]
        assert secure.combine_shares(shares) == secret
        assert secure.combine_shares({place: shares[place] for place in places[1:]}) != secret  # a share less: nothing
    names = ("private", "masking", "seed")
    assert len({secrets[name] for secrets in secrets_by_party.values() for name in names}) == 5 * len(names)
