"""Who lies in clear, and by it moves the components, is named; who is only different is not."""

import itertools
import re
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from flwr.common import ndarrays_to_parameters, parameters_to_ndarrays
from sklearn.datasets import load_breast_cancer, load_wine

from fedpca_flwr.errors import ConfigError, ContractError
from fedpca_flwr.maths import influence
from fedpca_flwr.maths.eigen import principal_angles
from fedpca_flwr.maths.moments import Moments, pack
from fedpca_flwr.model.model import PCAModel
from fedpca_flwr.protocol.payload import check_together
from fedpca_flwr.questions.fields import MOMENTS
from fedpca_flwr.questions.influence import PartyInfluence, _require_below
from simulations.benchmarks.influence import LIES, digits, liars_of, named_in, until_nobody_stands_out, with_lies
from strategies import METHODS
from tests.families import cut, rows
from tests.harness import finish, fit, proxy_of, server_of
from tests.refusals import refused

POOLING = [name for name, method in METHODS.items() if method.strategy.card.pools_moments]

HIDDEN = {"secure_aggregation": True, "bound": 40.0}


def angles(model, truth):
    return principal_angles(model.components_.T, truth.components_.T)


@pytest.mark.parametrize(("lie", "seed"), list(zip(LIES, itertools.cycle([0, 4]), strict=False)))
def test_two_of_ten_who_lie_are_named_and_without_them_the_components_are_those_of_honest_parties(lie, seed):
    honest = digits(seed)
    sent, liars = with_lies(honest, LIES[lie], seed), liars_of(honest)
    truth = fit("p-cov", honest)
    out, model = until_nobody_stands_out(sent, 10)
    others = fit("p-cov", [part for party, part in enumerate(honest) if party not in liars])
    assert out == liars
    assert angles(fit("p-cov", sent), truth).mean() > 1.5 * angles(others, truth).mean()  # the lie does harm
    assert angles(model, truth).max() <= 2 * angles(others, truth).max()
    assert angles(model, truth).mean() <= 2 * angles(others, truth).mean()


@pytest.mark.parametrize("lie", LIES)
def test_a_limit_to_shares_ends_the_run_and_names_who_holds_more(lie):
    honest = digits(0)
    assert max(max(one["component_shares"]) for one in fit("p-cov", honest).log["influence"]) < 0.35
    assert fit("p-cov", honest, max_share=0.35).components_.shape == (10, 64)
    with refused(ContractError, "max_share", "0.35") as raised:
        fit("p-cov", with_lies(honest, LIES[lie], 0), max_share=0.35)
    lines = re.findall(r"client (\d+) holds (.*)% of component (\d+) with (.*)% of the rows", str(raised.value))
    assert {int(party) for party, *_ in lines} & set(liars_of(honest))
    for party, share, component, held in lines:
        assert float(share) > 35
        assert 1 <= int(component) <= 10
        np.testing.assert_allclose(float(held), 100 * len(honest[int(party)]) / 1797, atol=0.006)


@pytest.mark.parametrize("k", [2, 5, 10])
def test_honest_parties_that_differ_are_not_named(k):
    found = [named_in(fit("p-cov", digits(seed), n_components=k)) for seed in range(6)]
    assert found == [[]] * 6


@pytest.mark.parametrize("load", [load_wine, load_breast_cancer])
@pytest.mark.parametrize("options", [{}, {"scale": True}, {"center": False}])
def test_honest_parties_of_one_class_each_are_not_named(load, options):
    source = load()
    parties = [source.data[source.target == label] for label in np.unique(source.target)]
    for k in (2, 5):
        assert named_in(fit("p-cov", parties, n_components=k, **options)) == []


# Lies about what no rows can be


def claiming(parties, party, claimed, method="p-cov", **options):
    """A run in which a party claims to have these moments, and answers the last round accordingly."""
    server = server_of(method, parties, **{"n_components": 5, **options})
    proxy = proxy_of(server, party)
    honest = proxy.fit

    def fit(ins, timeout, group_id):
        reply = honest(ins, timeout, group_id)
        if ins.config["phase"] == "moments":
            arrays = [np.asarray(claimed.count), claimed.mean, claimed.remainder, claimed.scatter]
        else:
            components, mean, _ = parameters_to_ndarrays(ins.parameters)
            about = Moments(claimed.count, claimed.mean, claimed.remainder, claimed.scatter_about(mean))
            squared = about.diagonal().sum() - np.vdot(components, about.times(components.T).T)
            arrays = [np.asarray(claimed.count), np.asarray(squared)]
        reply.parameters = ndarrays_to_parameters(arrays)
        reply.num_examples = claimed.count
        return reply

    proxy.fit = fit
    return server


def erasing(honest, strength):
    """Moments that take the first component of honest parties away, with a diagonal that hides it."""
    model, own = fit("p-cov", honest, n_components=1), Moments.of(honest[0])
    u, value = model.components_[0], strength * model.singular_values_[0] ** 2
    hidden = np.asfortranarray(value * (np.eye(u.size) * (u**2).max() - np.outer(u, u)))
    return replace(own, scatter=pack(hidden))


@pytest.mark.parametrize("method", ["p-cov", "ap-cov", "p-cov scale=true", "p-cov center=false"])
@pytest.mark.parametrize("strength", [0.3, 1.0, 3.0])
def test_a_share_that_takes_a_component_away_does_not_pass(strength, method):
    honest = cut(rows(1280), 1000, 200, 50, 30)
    negative = erasing(honest, strength)
    check_together(MOMENTS, {"client 0": _fields(negative)}, {"d": 12})  # field by field nothing shows
    with refused(ContractError, "client 2", match="eigenvalue"):
        finish(claiming(honest, 2, negative, method))


def test_what_takes_a_little_of_a_leading_component_away_is_named_though_its_group_hides_it(monkeypatch):
    monkeypatch.setattr(influence, "GROUPS", 1)
    honest = cut(rows(1280), 1000, 200, 50, 30)
    with refused(ContractError, "client 2", match="eigenvalue"):
        finish(claiming(honest, 2, erasing(honest, 0.3)))


def _fields(moments):
    count, remainder = np.asarray(moments.count), moments.remainder
    return {"count": count, "mean": moments.mean, "remainder": remainder, "scatter": moments.scatter}


@pytest.mark.parametrize("consistent", [True, False])
@pytest.mark.parametrize("seed", range(4))
def test_a_party_that_claims_nearly_all_rows_is_named_and_nobody_else(seed, consistent):
    honest = digits(seed)
    own = Moments.of(honest[3])
    scatter = own.scatter * (2**40 / own.count if consistent else 1.0)
    model = finish(claiming(honest, 3, replace(own, count=2**40, scatter=scatter)))
    assert named_in(model) == [3]
    assert any("client 3 stands out: it says that it has 100.0000% of all rows" in note for note in model.log["notes"])
    assert model.log["influence"][3]["rows_share"] > 0.999999


# Where it is kept, and where it cannot be had


@pytest.mark.parametrize("method", POOLING)
def test_every_method_that_pools_moments_says_what_each_party_has(method, tmp_path):
    parties = cut(rows(400) + 3, 200, 150, 50)
    model = fit(method, parties, n_components=4)
    model.save(tmp_path / "model")
    kept = PCAModel.load(tmp_path / "model")
    assert kept.log["influence"] == model.log["influence"]
    told = kept.log["influence"]
    np.testing.assert_allclose([one["rows_share"] for one in told], [0.5, 0.375, 0.125])
    np.testing.assert_allclose(np.sum([one["component_shares"] for one in told], axis=0), 1)
    np.testing.assert_allclose(sum(one["variance_share"] for one in told), 1)
    largest = max(max(one["component_shares"]) for one in told)
    assert kept.log["measured"]["influence_component_share"] == largest
    assert f"influence             one party holds {largest:.1%} of a component at most" in kept.summary()


def test_the_summary_and_the_log_say_what_components_turn_by():
    """They differ: in the digits of README's first run the first turns by 73.7 degrees, and the space of all by 28."""
    model = fit("p-cov", digits(42), n_components=10)
    told = model.log["influence"]
    axis = max(one["angles_degrees"][0] for one in told)
    space = max(one["subspace_degrees"] for one in told)
    np.testing.assert_allclose([axis, space], [73.7, 27.7], atol=0.1)
    said = "without one, the first turns by up to 74 degrees, the space of all 10 by 28"
    assert said in model.summary()
    with_more = fit("p-cov", digits(42), n_components=12)
    assert "the space of the first 10 by 28" in with_more.summary()
    assert "space" not in fit("p-cov", digits(42), n_components=1).summary()
    model = fit("adaptive", cut(rows(400), 200, 150, 50), n_components=4)
    assert model.log["chosen"]["method"] in POOLING
    np.testing.assert_allclose(np.sum([one["component_shares"] for one in model.log["influence"]], axis=0), 1)
    model = fit("p-cov", cut(rows(400), 200, 150, 50), n_components=4, secure_aggregation=True, bound=40.0)
    assert "influence" not in model.log
    assert "influence_component_share" not in model.log["measured"]


def test_a_member_that_is_absent_has_influence_too(tmp_path):
    parties = cut(rows(400) + 3, 200, 150, 50)
    whole = fit("streaming", parties, n_components=4, state=str(tmp_path))
    later = fit("streaming", parties[:2], n_components=4, state=str(tmp_path))
    assert later.log["influence"] == whole.log["influence"]
    assert [one["party"] for one in later.log["influence"]] == [f"partition {i}" for i in range(3)]
    with refused(ContractError, "partition 0"):
        fit("streaming", parties[:2], n_components=4, state=str(tmp_path), max_share=0.4)


@pytest.mark.parametrize("method", [name for name in METHODS if name not in POOLING])
def test_a_limit_is_refused_where_there_are_no_moments(method):
    with refused(ConfigError, "max-share", "0.5", method):
        server_of(method, cut(rows(90), 60, 30), max_share=0.5)


@pytest.mark.parametrize("survivors", [0, 3])
def test_a_limit_is_refused_where_nobody_sees_shares(survivors):
    with refused(ConfigError, "max-share", "0.5", "secure-aggregation=true"):
        server_of("p-cov", cut(rows(90), 30, 30, 30), max_share=0.5, **HIDDEN, survivors=survivors)


PARTY = PartyInfluence("client 1", SimpleNamespace(components=np.array([0.25, 0.75, 0.5]), rows=0.125))


def test_a_share_may_be_as_large_as_the_limit_and_is_told_with_its_component():
    assert PARTY.most == (0.75, 2)
    _require_below(0.75, [PARTY])
    with refused(ContractError, "client 1", "75.00%", 2, "12.50%", "'max-share'", 0.749):
        _require_below(0.749, [PARTY])
