"""What adds up is added as it comes: no reply is held, no order changes a bit, and faults are told of their parties."""

from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
from flwr.common import ndarrays_to_parameters

from fedpca_flwr.errors import ContractError
from fedpca_flwr.maths.moments import pack
from fedpca_flwr.protocol.payload import Field, Payload
from fedpca_flwr.protocol.question import Question, SumRound
from fedpca_flwr.protocol.replies import ReplyCollector
from fedpca_flwr.protocol.strategy import PCAStrategy
from fedpca_flwr.questions import rows as arriving_moments
from fedpca_flwr.transports.clear import ClearServer
from tests.families import rows
from tests.harness import differences, finish, fit, peak_of, server_of, tamper, tamper_arrays
from tests.refusals import refused

FEATURES = 120
REPLY = 8 * FEATURES * (FEATURES + 1) // 2
MASKED = {"secure_aggregation": True, "bound": 1e4}
SURVIVING = {**MASKED, "survivors": 5}
OF_OTHERS = [np.asarray(20), np.zeros(FEATURES - 1), np.empty(0), pack(np.eye(FEATURES - 1))]
FAULTS = {
    "short": lambda sent: [*sent[:-1], sent[-1][:-8]],
    "no array": lambda sent: [*sent[:-1], b"x"],
    "no arrays": lambda sent: [],
    "not finite": lambda sent: [*sent[:-1], sent[-1][:-8] + np.array([np.nan]).tobytes()],
    "of other features": lambda sent: ndarrays_to_parameters(OF_OTHERS).tensors,
}
AT_FAULT = [(way, fault) for way in ({}, MASKED, SURVIVING) for fault in (list(FAULTS)[:3] if way else FAULTS)]


@pytest.fixture(autouse=True)
def few_bytes(monkeypatch):
    monkeypatch.setattr(arriving_moments, "MAX_INFLUENCE_BYTES", 0)
    monkeypatch.setattr(arriving_moments, "MAX_STORED_PARTIES", 0)


def parties(number, features=FEATURES):
    return [rows(20 + i % 3, features, seed=i) + i % 5 for i in range(number)]


def server(number, method="p-cov", **options):
    return server_of(method, parties(number), **{"n_components": 2, **options})


@pytest.mark.engine
@pytest.mark.parametrize(
    ("method", "options"), [("p-cov", {}), ("ap-cov", {}), ("sub-it block-size=60", {}), ("p-cov", MASKED)]
)
def test_memory_does_not_grow_with_the_parties(method, options):
    few, many = (peak_of(partial(finish, server(number, method, **options))) for number in (8, 24))
    reply = 2 * REPLY if options else REPLY  # masked words are twice as many
    assert many - few < 16 * reply / 2  # some arrive at the same time; if all are kept it is as many replies or more


@pytest.mark.parametrize("method", ["p-cov", "p-cov scale=true", "ap-cov", "sub-it", "personalised"])
def test_no_order_in_which_answers_come_changes_a_bit(method, monkeypatch):
    data, models = [1e3 ** (i % 3) * part for i, part in enumerate(parties(7, 30))], []
    honest = PCAStrategy.configure_fit
    for seed in range(2):
        order = np.random.default_rng(seed).permutation(len(data))

        def in_order(*asked, order=order, **named):
            return sorted(honest(*asked, **named), key=lambda pair: order[int(pair[0].cid) - 1])

        monkeypatch.setattr(PCAStrategy, "configure_fit", in_order)
        models.append(fit(method, data, n_components=3))
    assert not differences(*models)
    assert models[0].total_variance == models[1].total_variance


def test_the_bits_are_those_of_a_server_that_keeps_all(monkeypatch):
    streamed = fit("p-cov", parties(6), n_components=3)
    monkeypatch.setattr(arriving_moments, "MAX_INFLUENCE_BYTES", 2**30)
    stored = fit("p-cov", parties(6), n_components=3)
    assert not differences(stored, streamed)
    assert [entry["up"] for entry in stored.log["rounds"]] == [entry["up"] for entry in streamed.log["rounds"]]
    assert "influence" in stored.log
    assert "influence" not in streamed.log
    assert any("no influence of single parties is told" in note for note in streamed.log["notes"])
    monkeypatch.setattr(arriving_moments, "MAX_INFLUENCE_BYTES", 0)
    assert fit("p-cov", parties(6), n_components=3, max_share=1.0).log["influence"] == stored.log["influence"]
    for limit in (6 * REPLY - 1, 6 * REPLY):  # as many bytes as all send are kept, and no more
        monkeypatch.setattr(arriving_moments, "MAX_INFLUENCE_BYTES", limit)
        assert ("influence" in fit("p-cov", parties(6), n_components=3).log) == (limit == 6 * REPLY)


@pytest.mark.parametrize(("method", "way"), [("p-cov", {}), ("sub-it", {}), ("p-cov", MASKED), ("p-cov", SURVIVING)])
def test_the_sum_is_the_same_whether_replies_are_taken_or_kept(method, way, monkeypatch):
    streamed = finish(server(6, method, **way))
    monkeypatch.setattr(ReplyCollector, "receive", lambda incoming, result: None)
    stored = finish(server(6, method, **way))
    assert not differences(streamed, stored)
    assert [entry["up"] for entry in streamed.log["rounds"]] == [entry["up"] for entry in stored.log["rounds"]]


@pytest.mark.parametrize("party", [0, 3])
@pytest.mark.parametrize(("way", "fault"), AT_FAULT)
def test_a_fault_names_its_party(way, party, fault):
    run = server(6, **way)
    tamper(run, party, lambda r: setattr(r.parameters, "tensors", FAULTS[fault](r.parameters.tensors)) or r, "moments")
    with refused(ContractError, f"client {party}"):
        finish(run)


@pytest.mark.parametrize("options", [{}, {"scale": True}])
@pytest.mark.parametrize(("more", "said"), [({}, "client 4"), ({"max_share": 1.0}, "^client 4:")], ids=str)
def test_a_negative_scatter_is_noticed_in_its_group(options, more, said):
    """The run that stores each party's moments also names the party."""
    run, negative = server(12, **options, **more), pack(1.9 * np.eye(FEATURES) - 0.9)
    tamper_arrays(run, 4, lambda arrays: [*arrays[:3], arrays[3].max() * negative], "moments")
    with refused(ContractError, "client 4", match=said):
        finish(run)


@pytest.mark.parametrize("values", [(np.nextafter(2.0, 3), 0.0), (0.0, np.nextafter(-6.0, -7)), (5.0, 0.0)])
def test_an_impossible_share_names_its_party(values):
    """The check is made in clear, if the method states limits; the factor allows for rounding and estimated limits."""
    limits = {"values": np.array([1.0, 3.0])}
    limited = Question(reply=Payload((Field("values", ("d",)),)), share_limits=lambda request, public: limits)
    run = SimpleNamespace(script={"values": limited}, public=None)
    consume = next(ClearServer().sum_replies(SumRound("values"), run)).consume
    consume({"values": np.array([2.0, -6.0])}, "client 0")
    with refused(ContractError, "client 1", "'values'"):
        consume({"values": np.array(values)}, "client 1")
