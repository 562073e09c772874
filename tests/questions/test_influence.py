"""Parties that lie in clear and so move the components, or have other units, are named; honest parties are not."""

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from flwr.common import ndarrays_to_parameters
from sklearn.datasets import load_breast_cancer, load_digits, load_wine

from fedpca_flwr import run
from fedpca_flwr.errors import ContractError
from fedpca_flwr.maths import influence
from fedpca_flwr.maths.adjustment import find_unit_mismatches
from fedpca_flwr.maths.influence import Influence, Turn
from fedpca_flwr.maths.moments import Moments, pack
from fedpca_flwr.model.model import PCAModel
from fedpca_flwr.protocol.payload import check_together
from fedpca_flwr.questions import influence as reports
from fedpca_flwr.questions.influence import HIDDEN_UNITS_NOTE, PartyInfluence
from fedpca_flwr.questions.pooling import MOMENTS
from fedpca_flwr.simulations.benchmarks.harness import clients
from fedpca_flwr.strategies import METHODS
from tests.families import cut, rows
from tests.harness import finish, fit, heard, server_of, tamper
from tests.refusals import refused

HIDDEN = {"secure_aggregation": True, "bound": 40.0}
POOLING = [name for name, method in METHODS.items() if method.strategy.card.pools_moments]
THREE = cut(rows(400) + 3, 200, 150, 50)
FOUR = cut(rows(1280), 1000, 200, 50, 30)
HARM = [("p-cov", 0.3, influence.MAX_GROUPS), ("p-cov", 0.3, 1), ("p-cov", 3.0, influence.MAX_GROUPS)]  # 1: it hides
HARM += [(method, 1.0, influence.MAX_GROUPS) for method in ("ap-cov", "p-cov scale=true", "p-cov center=false")]


def claiming(parties, party, claimed, method="p-cov", **options):
    """Return a run in which a party claims to have the given moments, and answers the last round accordingly."""
    server = server_of(method, parties, **{"n_components": 5, **options})
    questions = heard(server, party)

    def claim(reply):
        arrays = [claimed.mean, claimed.remainder, claimed.scatter]
        if questions[-1].phase != "moments":
            components, mean, _ = questions[-1].asked
            centred = replace(claimed, scatter=claimed.scatter_about(mean))
            squared = centred.diagonal().sum() - np.vdot(components, centred.times(components.T).T)
            arrays = [np.asarray(squared)]
        reply.parameters = ndarrays_to_parameters([np.asarray(claimed.count), *arrays])
        reply.num_examples = claimed.count
        return reply

    tamper(server, party, claim)
    return server


@pytest.mark.parametrize(("method", "strength", "groups"), HARM)
def test_a_share_that_takes_a_component_away_does_not_pass(method, strength, groups, monkeypatch):
    """The first component of honest parties is removed, and a diagonal hides the removal."""
    monkeypatch.setattr(influence, "MAX_GROUPS", groups)
    model, local = fit("p-cov", FOUR, n_components=1), Moments.from_rows(FOUR[0])
    u, value = model.components_[0], strength * model.singular_values_[0] ** 2
    scatter = np.asfortranarray(value * (np.eye(u.size) * (u**2).max() - np.outer(u, u)))
    negative = replace(local, scatter=pack(scatter))
    fields = {name: np.asarray(getattr(negative, name)) for name in ("count", "mean", "remainder", "scatter")}
    check_together(MOMENTS, {"client 0": fields}, {"d": 12})  # nothing shows
    with refused(ContractError, "client 2", match="eigenvalue"):
        finish(claiming(FOUR, 2, negative, method))


@pytest.mark.parametrize(("seed", "consistent"), [(0, True), (1, False), (2, True), (3, False)])
def test_a_party_that_claims_nearly_all_rows_is_named(seed, consistent):
    honest = clients("digits", ".", seed=seed)
    local = Moments.from_rows(honest[3])
    scatter = local.scatter * (2**40 / local.count if consistent else 1.0)
    model = finish(claiming(honest, 3, replace(local, count=2**40, scatter=scatter)))
    (note,) = (note for note in model.log["notes"] if "stands out" in note)
    assert note.startswith("client 3 stands out: it says that it has 100.0000% of all rows")
    assert model.log["influence"][3]["rows_share"] > 0.999999


@pytest.mark.parametrize("method", [*POOLING, "adaptive", "p-cov scale=true", "p-cov center=false"])
def test_methods_that_pool_moments_tell_shares(method, tmp_path):
    model = fit(method, THREE, n_components=4)
    assert not any("stands out" in note for note in model.log["notes"])
    assert method != "adaptive" or model.log["chosen"]["method"] in POOLING
    stored, report = PCAModel.load(model.save(tmp_path / "model")), model.log["influence"]
    assert stored.log["influence"] == report
    np.testing.assert_allclose([item["rows_share"] for item in report], [0.5, 0.375, 0.125])
    shares = np.array([item["component_shares"] for item in report])
    np.testing.assert_allclose([*shares.sum(axis=0), sum(item["variance_share"] for item in report)], 1)
    largest = float(shares.max())
    assert stored.log["measured"]["influence_component_share"] == largest
    if method != "adaptive":  # which takes no such limit
        fit(method, THREE, n_components=4, max_share=largest)
        with refused(ContractError, f"{largest:.2%}", "'max_share'"):
            fit(method, THREE, n_components=4, max_share=largest - 1e-9)
    holder = next(item for item in report if max(item["component_shares"]) == largest)
    held = f"{holder['party']} holds {largest:.1%} of component {holder['component_shares'].index(largest) + 1}"
    assert f"influence             {held}, with {holder['rows_share']:.1%} of the rows" in stored.summary(full=True)
    if method == "streaming":  # a member that is absent has influence, too
        kept = {"n_components": 4, "state": str(tmp_path / "state")}
        later = [fit(method, parties, **kept).log["influence"] for parties in (THREE, THREE[:2])]
        assert later == [report, report]
        with refused(ContractError, "partition 0"):
            fit(method, THREE[:2], **kept, max_share=0.4)


@pytest.mark.engine
def test_the_summary_and_the_log_say_what_components_turn_by():
    """They differ: in the digits of README's first run the first turns by 73.7 degrees, and the space of all by 28."""
    item, ten, twelve = (fit("p-cov", clients("digits", ".", seed=42), n_components=k) for k in (1, 10, 12))
    report = ten.log["influence"]
    turned = [max(party["angles_degrees"][0] for party in report), max(party["subspace_degrees"] for party in report)]
    np.testing.assert_allclose(turned, [73.7, 27.7], atol=0.1)
    line = next(line for line in ten.summary(full=True).splitlines() if "influence" in line)
    assert "components 1 and 2; 5 and 6; 7 and 8; 9 and 10 have nearly the same variance" in line
    assert not re.search(r"component [12] turns|\b74\b", line)  # a gap is the reason, and no alarm
    assert "the space of all 10 turns by up to 28 degrees" in line
    assert "the space of the first 10 turns" in twelve.summary(full=True)
    assert "space" not in item.summary(full=True)
    model = fit("p-cov", THREE, n_components=4, **HIDDEN)
    assert "influence" not in model.log
    assert "influence_component_share" not in model.log["measured"]


def test_shares_up_to_the_limit_are_told():
    turns = Turn(np.array([10.0, 40.0, 5.0]), 7.0), Turn(np.array([9.0, 50.0, 5.0]), 6.0)
    odd = Influence(0.125, 0.5, np.array([0.25, 0.75, 0.5]), turns, 0.25, 2.0)
    usual = Influence(0.125, 0.5, np.array([0.25, 0.25, 0.5]), turns, 0.75, 2.0, 1)
    party, other = PartyInfluence("client 1", odd, ("share", "spread", "fit")), PartyInfluence("client 2", usual, ())
    assert party.largest_share == (0.75, 2)
    log: dict[str, Any] = {"influence": [], "measured": reports.influence_measurements([party, other])}
    reports.complete_log(log, [party, other])
    values = {"component_share": 0.75, "axis_degrees": 10.0, "subspace_degrees": 7.0, "components": 3}
    assert log["measured"] == {f"influence_{name}": value for name, value in values.items()}
    assert [item["angles_degrees"] for item in log["influence"]] == [[10, 40, 5], [9, 50, 5]]
    alike = replace(other, influence=replace(other.influence, fit=np.nan, spread=np.nan)).entry()
    assert (alike["fit_share"], alike["spread_of_median"]) == (None, None)
    (mixing,) = reports.influence_notes([party, other], np.array([5.0, 4.0, 1.0]))
    assert ("75% of component 2" in mixing, "turns" in mixing) == (True, False)
    (note,) = reports.influence_notes([party, other], np.array([5.0, 3.9, 1.0]))
    assert "75% of component 2 with 12.50% of the rows, and without it that turns by up to 40 degrees" in note
    assert "vary 2 times as much as those of the median party" in note
    assert "hold 25% of its variance, of that of the median party 50%" in note


def hospitals(count=3, metres=()):
    """Heights in centimetres, but for those of some sites, glucose and age."""
    rng, sites = np.random.default_rng(0), range(count)
    draws = ([rng.normal(168 + 3 * i, 10, 60), rng.lognormal(4.6, 0.3, 60), rng.normal(50, 15, 60)] for i in sites)
    return [np.column_stack(own) * [0.01 if i in metres else 1.0, 1, 1] for i, own in enumerate(draws)]


METRES = hospitals(metres=[2])


def told(parts, method="p-cov"):
    return [note for note in run(method, parts, n_components=2).log["notes"] if "another unit" in note]


def found(parts):
    means, deviations = (np.stack([getattr(part, what)(axis=0) for part in parts]) for what in ("mean", "std"))
    return find_unit_mismatches(np.array([float(len(part)) for part in parts]), means, deviations)


@pytest.mark.parametrize("method", ["p-cov", "p-cov scale=true", "ap-cov scale=true", "qr-pca", "sub-it"])
def test_metres_at_one_of_three_sites_are_named(method):
    (note,) = told([pd.DataFrame(part, columns=["height_cm", "glucose", "age"]) for part in METRES], method)
    here, *others = (part[:, 0].mean() for part in METRES[::-1])
    assert note.startswith("client 2 seems to have features in another unit than the others: height_cm (mean ")
    assert f"(mean {here:.4g} there, {np.mean(others):.4g} elsewhere)." in note
    assert told(hospitals(), method) == []


def test_units_of_odd_parties_only_are_named():
    for party in (0, 1):
        ((who, which, *_),) = found(hospitals(2, metres=[party]))
        assert (who, which) == (1, 0)
    assert [unit.party for unit in found(hospitals(5, metres=[1, 4]))] == [1, 4]
    parts = [np.random.default_rng(i).normal(100, 10, (40, 6)) for i in range(3)]
    (note,) = told([parts[0] * 25.4, *parts[1:]])
    assert ["feature 1 (mean" in note, "feature 3 (mean" in note, "feature 4" in note] == [True, True, False]
    assert "and 3 more features." in note
    rng = np.random.default_rng(0)
    for usual in (
        [rng.poisson(rate, (200, 4)).astype(float) for rate in (2, 60, 3, 2)],  # 30 times the mean, 5 the deviation
        [rng.normal(mean, deviation, (80, 1)) for mean, deviation in ((75, 15), (78, 15), (20, 8))],
        [*METRES[:2], METRES[2][:9]],  # too few rows
        [np.full((20, 2), value) for value in (1.0, 1.0, 100.0)],  # constant
    ):
        assert not found(usual)
    # All pairs of 10,000 parties took minutes; a party between two units, which hides both, is one of the others.
    centres = np.ones((202, 1))
    centres[[1, 201]] = [[30.0], [100.0]]
    assert find_unit_mismatches(np.full(202, 10.0), centres, centres) == [(201, 0, 100.0, 1.0)]
    assert find_unit_mismatches(np.full(7, 10.0), *[centres[[0, 2, 3, 4, 5, 1, 201]]] * 2) == []

    # Another unit is as large a factor of mean and deviation.
    for parties, named in (
        ([(1, 1), (1, 1), (5, 5)], [(2, 0, 5, 1)]),
        ([(1, 1), (1, 1), (4.9, 4.9)], []),
        ([(1, 1), (1, 1), (20, 10.1)], [(2, 0, 20, 1)]),
        ([(1, 1), (1, 1), (20, 9.9)], []),  # mean and deviation by another factor
        ([(0.9, 1), (0.9, 1), (9, 10)], []),  # means within their deviations
        ([(1, 1), (1, 1), (-10, 10)], []),
        ([(1, 1), (1, 1), (3, 3), (10, 10)], []),  # by degrees
        ([(1, 1), (1, 1), (2, 2), (8, 8), (10, 10)], [(4, 0, 10, 1)]),  # the mean is of those with the other unit
    ):
        means, deviations = np.array(parties, dtype=float).T[:, :, None]
        assert find_unit_mismatches(np.full(len(parties), 10.0), means, deviations) == named


@pytest.mark.parametrize("alpha", [0.05, 0.3, 1.0])
@pytest.mark.parametrize("parties", [2, 3, 10])
@pytest.mark.parametrize("load", [load_digits, load_wine, load_breast_cancer])
def test_honest_parties_that_are_unlike_raise_no_alarm(load, parties, alpha):
    """Digits by label: pixels that some party never inks, constant pixels; tumours and wines by kind."""
    X, y = load(return_X_y=True)
    for seed in range(5):
        rng = np.random.default_rng(seed)
        shares = rng.dirichlet([alpha] * parties, y.max() + 1).cumsum(axis=1)
        of = (rng.random((len(y), 1)) > shares[y]).sum(axis=1)
        assert not found([X[of == party] for party in np.unique(of)])
    if alpha == 1:
        for column in X.T:  # what differs by degrees
            assert not found(np.array_split(X[np.argsort(column)], parties))


@pytest.mark.parametrize(("parts", "odd"), [(hospitals(), []), (METRES, [0])], ids=["one unit", "metres"])
def test_secure_scaled_runs_say_that_units_are_hidden(parts, odd):
    """Sites can see features that are beyond four times the model's own mean or scale."""
    options = {"n_components": 2, **HIDDEN, "bound": 1000.0}
    model, unscaled = (run("p-cov", parts, scale=scale, **options) for scale in (True, False))
    for part in parts:
        times = np.maximum(model.scale_ / part.std(axis=0), np.abs(model.mean_ / part.mean(axis=0)))
        assert np.flatnonzero(times > 4).tolist() == odd
    assert [HIDDEN_UNITS_NOTE in item.log["notes"] for item in (model, unscaled)] == [True, False]
    assert not any("seems to have" in note for item in (model, unscaled) for note in item.log["notes"])
