"""In clear, what adds up is added as it comes: the server does not hold the parties' replies, and no bit depends on
which came first."""

from functools import partial

import numpy as np
import pytest
from flwr.common import ndarrays_to_parameters

from fedpca_flwr.errors import ContractError
from fedpca_flwr.maths.moments import Moments
from fedpca_flwr.protocol.replies import Replies
from fedpca_flwr.protocol.server import PCAServer
from fedpca_flwr.questions import rows as arriving_moments
from tests.families import rows
from tests.harness import finish, fit, peak_of, server_of, tamper, tamper_arrays
from tests.refusals import refused

FEATURES = 120
REPLY = 8 * FEATURES * (FEATURES + 1) // 2


@pytest.fixture
def few_bytes(monkeypatch):
    """Nothing is kept for the parties' influence."""
    monkeypatch.setattr(arriving_moments, "FOR_INFLUENCE", 0)


def parties(number, features=FEATURES):
    return [rows(20 + i % 3, features, seed=i) + i % 5 for i in range(number)]


def server(number, method="p-cov", **options):
    return server_of(method, parties(number), **{"n_components": 2, **options})


@pytest.mark.usefixtures("few_bytes")
@pytest.mark.parametrize("method", ["p-cov", "ap-cov", "sub-it"])
def test_four_times_the_parties_do_not_need_the_memory_of_their_replies(method):
    options = {"block_size": 60} if method == "sub-it" else {}
    few, many = (peak_of(partial(finish, server(number, method, **options))) for number in (8, 32))
    assert many - few < 24 * REPLY / 2


def test_what_is_needed_of_each_party_is_kept():
    """At so many parties that their replies outweigh what the influence of one needs."""
    few, many = (peak_of(partial(finish, server(number, max_share=1.0))) for number in (24, 72))
    assert many - few > 48 * REPLY / 2


def in_order(monkeypatch, order):
    """Let the parties' answers come in this order of their partitions."""
    honest = PCAServer._answers

    def answers(self, fits, timeout, group):
        ranked = sorted(fits, key=lambda pair: order[int(pair[0].cid) - 1])
        return honest(self, ranked, timeout, group)

    monkeypatch.setattr(PCAServer, "_answers", answers)


@pytest.mark.usefixtures("few_bytes")
@pytest.mark.parametrize("method", ["p-cov", "p-cov scale=true", "ap-cov", "sub-it", "personalised"])
def test_no_order_in_which_answers_come_changes_a_bit(method, monkeypatch):
    data = [1e3 ** (i % 3) * part for i, part in enumerate(parties(7, 30))]
    models = []
    for seed in range(3):
        with monkeypatch.context() as patch:
            in_order(patch, np.random.default_rng(seed).permutation(len(data)))
            models.append(fit(method, data, n_components=3))
    for model in models[1:]:
        for name in ("components_", "mean_", "explained_variance_", "total_variance"):
            one, other = (np.asarray(getattr(found, name)) for found in (models[0], model))
            assert one.tobytes() == other.tobytes(), name


def test_the_bits_are_those_of_a_server_that_keeps_all(monkeypatch):
    kept = fit("p-cov", parties(6), n_components=3)
    monkeypatch.setattr(arriving_moments, "FOR_INFLUENCE", 0)
    added = fit("p-cov", parties(6), n_components=3)
    assert kept.components_.tobytes() == added.components_.tobytes()
    assert [entry["up"] for entry in kept.log["rounds"]] == [entry["up"] for entry in added.log["rounds"]]
    assert "influence" in kept.log
    assert "influence" not in added.log
    assert any("no influence of single parties is told" in note for note in added.log["notes"])
    asked = fit("p-cov", parties(6), n_components=3, max_share=1.0)
    assert asked.log["influence"] == kept.log["influence"]


@pytest.mark.usefixtures("few_bytes")
@pytest.mark.parametrize("method", ["p-cov", "sub-it"])
def test_the_sum_is_the_same_whether_replies_are_taken_or_not(method, monkeypatch):
    taken = finish(server(6, method))
    monkeypatch.setattr(Replies, "receive", lambda incoming, result: None)
    kept = finish(server(6, method))
    assert taken.components_.tobytes() == kept.components_.tobytes()
    assert [entry["up"] for entry in taken.log["rounds"]] == [entry["up"] for entry in kept.log["rounds"]]


# Faults


@pytest.mark.usefixtures("few_bytes")
@pytest.mark.parametrize("party", [0, 3])
@pytest.mark.parametrize("fault", ["short", "no arrays", "of other features", "not finite"])
def test_a_fault_is_told_of_its_party_though_the_others_are_taken(party, fault):
    run = server(6)

    def broken(reply):
        other = Moments.of(rows(20, FEATURES - 1, seed=9))
        others = [np.asarray(20), other.mean, np.empty(0), other.scatter]
        reply.parameters.tensors = _tensors(reply.parameters.tensors, others, fault)
        return reply

    tamper(run, party, broken, "moments")
    with refused(ContractError, f"client {party}"):
        finish(run)


def _tensors(honest, others, fault):
    if fault == "no arrays":
        return []
    if fault == "short":
        return [*honest[:-1], honest[-1][:-8]]
    if fault == "of other features":
        return ndarrays_to_parameters(others).tensors
    return [*honest[:-1], honest[-1][:-8] + np.array([np.nan]).tobytes()]


@pytest.mark.usefixtures("few_bytes")
@pytest.mark.parametrize("options", [{}, {"scale": True}])
def test_a_scatter_that_takes_away_what_others_have_is_found_among_its_group(options):
    """And the run that keeps what each sent names it."""
    for more, said in (({}, "client 4"), ({"max_share": 1.0}, "^client 4:")):
        run = server(12, **options, **more)

        def negative(arrays):
            dense = np.full((FEATURES, FEATURES), -0.9 * arrays[3].max())
            dense[np.diag_indices(FEATURES)] = arrays[3].max()
            return [*arrays[:3], dense[np.triu_indices(FEATURES)]]

        tamper_arrays(run, 4, negative, "moments")
        with refused(ContractError, "client 4", match=said):
            finish(run)
