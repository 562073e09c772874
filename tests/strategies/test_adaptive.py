"""Adaptive: what is forecast is what happens, and the choice is the cheapest way that reaches the target."""

from dataclasses import replace

import numpy as np
import pytest

from fedpca_flwr import run
from fedpca_flwr.data import datasets
from fedpca_flwr.data.partition import split
from fedpca_flwr.errors import DisclosureError
from fedpca_flwr.maths.forecast import Forecast, Heterogeneity, Survey, make_survey
from fedpca_flwr.maths.moments import Head
from fedpca_flwr.maths.refine import CORRECTION_BITS, block_bits, entropy_bits
from fedpca_flwr.model.reference import pooled_pca, principal_angles
from fedpca_flwr.simulations.benchmarks.harness import PARTITIONS
from fedpca_flwr.strategies.adaptive import SPARE_CORRECTIONS, AdaptiveOptions, rank_candidates
from tests.families import cut, rows
from tests.hostile import HostileSession
from tests.refusals import refused, unnamed

NO_BYTES = np.zeros(21)
SOURCE = datasets.load("digits", ".")
TRUTH = pooled_pca(SOURCE.all_rows(), 10)
PRICES = {"n-components": 8, "download-weight": 2.0, "round-bytes": 100.0}


def parties(partition):
    return [SOURCE.all_rows()[part] for part in split(SOURCE.labels, 10, seed=42, **PARTITIONS[partition])]


def adaptive(parts, **options):
    return run("adaptive", parts, **{"n_components": 10, "min_rows": 1, **options})


def spent(model):
    entries = [entry for entry in model.log["rounds"] if entry["phase"] not in {"survey", "project"}]
    return len(entries), np.mean(sum(np.array(entry["up"]) for entry in entries))


def survey(n, values, coded=NO_BYTES):
    """Return the survey of ``n`` rows about zero whose variances times rows are their eigenvalues."""
    values, none = np.asarray(values, float), np.zeros(len(values))
    return Survey(Head(n, none, none), n * values, n * values, np.eye(len(values))[:, :4], coded)


def test_ways_are_forecast_to_cost_what_their_messages_hold():
    d, head = 20, 8 * (1 + 20) + 3 * 128
    forecast = Forecast.from_surveys([survey(n, np.linspace(2, 1, d)) for n in (15, 10)])
    options = AdaptiveOptions.parse(PRICES)
    ways = [way for way in rank_candidates(forecast, options) if way.method != "compressed"]
    narrow, wide = (forecast.krylov_rounds(8, width, 1e-6) for width in (5, 18))
    once, refined = head + 8 * d + 128, 2 * (4 * d * 18 + 128)
    assert {(way.method, way.options.get("block-size")): (way.rounds, way.up, way.down) for way in ways} == {
        ("p-cov", None): (1, head + 128 + 8 * 210, 0),
        ("qr-pca", None): (1, head + 128 + 8 * (189 + 144) / 2, 0),
        ("sub-it", 5): (narrow, once + (8 * d * 5 + 128) * narrow, (8 * d * 5 + 128) * (narrow - 1)),
        ("sub-it", 18): (wide, once + (8 * d * 18 + 128) * wide, (4 * d * 18 + 128) * (wide - 1)),
        ("sub-it", None): (3, head + 4 * 15 * d + 3 * 128 + refined, refined),  # from whole factors in float32
    }
    costs = [way.up + 2 * way.down + 100 * way.rounds for way in ways]
    assert costs == sorted(costs) == [options.cost(way) for way in ways]
    # Wide data, of fewer rows or as many components as features, have none.
    options = AdaptiveOptions.parse({**PRICES, "target": 0.1})

    def coded(counts, options, code_bytes=NO_BYTES, first=2.0):
        forecast = Forecast.from_surveys([survey(n, [first, *[2.0] * 7, *[1.0] * 12], code_bytes) for n in counts])
        return forecast, [way for way in rank_candidates(forecast, options) if way.method == "compressed"]

    steps = []
    for code_bytes, first in ((NO_BYTES, 2.0), (NO_BYTES, 1e3), (np.linspace(1e6, 0, 21), 2.0)):
        forecast, (way,) = coded((1500, 1000), options, code_bytes, first)
        number, step = way.options["corrections"] - SPARE_CORRECTIONS, way.options["step"]
        bits = [entropy_bits(block_bits(i)) for i in range(number)]
        assert way.rounds == 2 + number
        up = forecast.coded_bytes(step) + 2 * head + 5 * 128
        assert way.up == pytest.approx(up + number * (d * 18 * entropy_bits(CORRECTION_BITS) / 8 + 3 * 128))
        assert way.down == pytest.approx(sum(d * 18 * number_bits / 8 + 3 * 128 for number_bits in bits))
        steps.append((step, number))
    assert steps == [(1e-7, 0), (5e-7, 0), (0.01, 2)]  # finer ones would count beyond 2^26 in the largest variance
    assert not coded((10, 9), options)[1]
    assert not coded((1500, 1000), options.model_copy(update={"n_components": d}))[1]


@pytest.mark.parametrize(("partition", "target"), list(zip(PARTITIONS, [0.001, 0.1, 1.0, 0.001], strict=True)))
def test_targets_are_certified_and_forecasts_hold(partition, target):
    model = adaptive(parties(partition), target=target, round_bytes=0)
    forecast, measured = model.log["candidates"][0], model.log["measured"]
    assert model.log["chosen"] == {name: forecast[name] for name in ("method", "options")}
    assert forecast["method"] == "compressed"
    assert principal_angles(model, TRUTH).max <= measured["angle_bound_degrees"] <= target
    assert not model.log["exact"]
    rounds, up = spent(model)
    assert abs(rounds - forecast["rounds"]) <= 1
    assert up == pytest.approx(forecast["up"], rel=0.4)  # so few numbers compress worse
    down = np.mean(sum(np.array(entry["down"]) for entry in model.log["rounds"][1:-1]))
    ways = ("rounds", "bytes_up_per_party", "bytes_down_per_party")
    assert [measured[f"spent_{name}"] for name in ways] == [rounds, *map(pytest.approx, (up, down))]
    assert [measured[f"forecast_{name}"] for name in ways] == [forecast[key] for key in ("rounds", "up", "down")]


@pytest.mark.engine
@pytest.mark.parametrize("partition", list(PARTITIONS)[1:3])
def test_corrections_take_the_fewest_bytes(partition):
    model = adaptive(parties(partition), round_bytes=0, download_weight=0)
    assert model.log["chosen"]["method"] == "compressed"
    assert principal_angles(model, TRUTH).max <= model.log["measured"]["angle_bound_degrees"] <= 1e-6
    assert model.log["exact"]
    np.testing.assert_allclose(model.explained_variance_, TRUTH.explained_variance_, rtol=1e-8)
    assert spent(model)[1] < 0.6 * spent(run("p-cov", parties(partition), n_components=10))[1]


@pytest.mark.engine
@pytest.mark.parametrize("partition", PARTITIONS)
def test_the_number_of_krylov_rounds_is_as_forecast(partition):
    for candidate in adaptive(parties(partition)).log["candidates"]:
        if candidate["method"] == "sub-it":
            options = {key.replace("-", "_"): value for key, value in candidate["options"].items()}
            rounds, up = spent(run("sub-it", parties(partition), n_components=10, min_rows=1, **options))
            assert abs(rounds - candidate["rounds"]) <= 1 + 0.1 * rounds
            assert up == pytest.approx(candidate["up"], rel=0.25)


def test_what_is_pooled_of_surveys_in_numbers():
    shifted_head = Head(30, np.array([2.0, 0.0]), np.zeros(2))
    first = replace(survey(10, [3, 1]), sketch=np.diag([30.0, 10.0]))
    second = replace(survey(30, [1, 1]), head=shifted_head, sketch=np.diag([30.0, 30.0]))
    forecast = Forecast.from_surveys([first, second])
    assert (forecast.total, forecast.variances.tolist(), forecast.spectrum.tolist()) == (130, [90, 40], [90, 40])
    assert forecast.party_codes == Forecast.from_surveys([second, first]).party_codes  # in an order of its own
    entropy = [-sum(share * np.log2(share) for share in shares) for shares in ((9 / 16, 7 / 16), (3 / 4, 1 / 4))]
    of_score = (30 / 130, 0.75 / np.hypot(1.5, 1), entropy[0] - entropy[1] / 4 - 3 / 4, 0.75 / 2.5)
    assert list(forecast.heterogeneity.as_dict().values()) == pytest.approx([np.mean(of_score), *of_score])
    huge = [replace(one, sketch=1e200 * one.sketch, variances=1e200 * one.variances) for one in (first, second)]
    covariances = Forecast.from_surveys(huge).heterogeneity.covariances
    assert covariances == pytest.approx(of_score[1])  # their squares are beyond float64
    assert Heterogeneity(0.5, 3.0, 0.1, 0.4).score == 0.5
    wide, narrow = (make_survey(rows(20, 3) @ rows(40, 3).T, np.eye(40)[:, :3], most) for most in (39, 40))
    for one, other in ((wide.spectrum, narrow.spectrum), (wide.sketch, narrow.sketch)):
        np.testing.assert_allclose(one, other, atol=1e-9)
    np.testing.assert_allclose(wide.variances, narrow.variances)
    assert (wide.coded.any(), narrow.coded.all()) == (False, True)
    few = Forecast.from_surveys([survey(1, [3, 0, 0, 0]), survey(2, [2.5, 1, 0, 0])])
    assert few.spectrum.tolist() == [5, 3, 2, 0]  # as if no two parties shared a direction
    # A step is in mean variances of all rows, and a party's list of bytes is in mean variances of the party's rows.
    alike = Forecast.from_surveys([survey(n, [5, 3, 1, 0.5]) for n in (10, 30)])
    np.testing.assert_allclose(alike.spectrum, [200, 120, 40, 20])
    surveys = [survey(n, np.ones(4), np.arange(21.0)[::-1]) for n in (10, 90)] + [survey(100, np.zeros(4))]
    positions = 2 * (np.log10(1e-3 * 100 / np.array([10, 90])) + 7)  # of half decades from 1e-7
    assert Forecast.from_surveys(surveys).coded_bytes(1e-3) == pytest.approx((20 - positions).sum() / 3)
    parts = [rows(40, 4) + 9 * direction for direction in np.eye(4)[:3]]
    share = np.var(np.mean(parts, axis=1), axis=0).sum() / np.var(np.vstack(parts), axis=0).sum()
    model = adaptive(parts, n_components=2)
    measured = {name: value for name, value in model.log["measured"].items() if name.startswith("heterogeneity_")}
    assert measured["heterogeneity_means"] == pytest.approx(share, rel=1e-9)
    assert measured.pop("heterogeneity_score") == pytest.approx(np.mean(list(measured.values())))


@pytest.mark.engine
def test_costly_rounds_are_avoided_and_few_rows_start_warm():
    wide, parts = cut(rows(60, 200), 25, 20, 15), cut(rows(450, 150), 200, 155, 95)
    assert adaptive(wide, n_components=3).log["candidates"][0]["method"] == "qr-pca"
    assert adaptive(parts, n_components=3, round_bytes=1e9).log["candidates"][0]["rounds"] == 1
    weighed = [adaptive(parts, n_components=3, round_bytes=0, download_weight=weight) for weight in (0, 1, 1e3)]
    best = [model.log["candidates"][0] for model in weighed]
    assert best[0]["down"] >= best[1]["down"] > best[2]["down"] == 0
    assert best[0]["method"] == "compressed"
    with refused(DisclosureError, "party 0", "qr-pca", "allowed_methods"):
        adaptive(wide, n_components=3, allowed_methods="adaptive")
    # Float32 both ways: three rounds, and half of the bytes of factors in float64.
    X = np.random.default_rng(0).standard_normal((300, 2000))
    X += np.random.default_rng(1).standard_normal((300, 3)) @ (np.array([[12], [10], [8]]) * np.eye(3, 2000))
    parts = cut(X, 100, 90, 110)
    model = adaptive(parts, n_components=3, round_bytes=1e5)
    chosen, candidates = model.log["chosen"], model.log["candidates"]
    assert (chosen["method"], chosen["options"]["warm-rank"], model.log["exact"]) == ("sub-it", 110, True)
    assert principal_angles(model, pooled_pca(np.vstack(parts), 3)).max <= 1e-6
    assert spent(model) == (candidates[0]["rounds"], pytest.approx(candidates[0]["up"], rel=0.05))
    assert candidates[0]["rounds"] == 3
    assert spent(model)[1] < 0.8 * next(way["up"] for way in candidates if way["method"] == "qr-pca")


def test_what_one_way_does_not_resolve_another_goes_on_with():
    """Each party has a second variance; of all rows the second is as large as the third, which no party tells."""
    levels = np.where(np.arange(40) < 1, 20.0, 0.1)
    first, second = levels.copy(), levels.copy()
    first[[1, 2]], second[[1, 2]] = [8.0, 2.0], [2.0, 8.0]
    parts = [np.vstack([np.diag(x), -np.diag(x)]) for x in (first, second)]
    model = adaptive(parts, n_components=2, target=0.5, round_bytes=0)
    assert model.log["candidates"][0]["method"] == "compressed"
    assert any("compressed has no bound, so sub-it went on" in note for note in model.log["notes"])
    assert model.log["chosen"]["method"] == "sub-it"
    corrections = [entry for entry in model.log["rounds"] if entry["phase"] == "correction"]
    assert len(corrections) == model.log["candidates"][0]["rounds"] - 2 + SPARE_CORRECTIONS
    np.testing.assert_allclose(model.singular_values_**2, [1600, 136], rtol=1e-12)
    # A salary beside shares: the second component has 1e-20 of the variance of the first.
    X = rows(90) * np.where(np.arange(12) == 0, 1e10, 1.0)
    model = adaptive(cut(X, 30, 30, 30), n_components=3)
    assert principal_angles(model, pooled_pca(X, 3)).max < 1e-6
    assert (model.log["exact"], model.log["candidates"][0]["method"]) == (True, "p-cov")
    assert any("so qr-pca went on" in note for note in model.log["notes"])
    clustered = adaptive(cut(X, 30, 30, 30), n_components=3, clusters=2)  # after the second method
    assert sum(clustered.log["clusters"]["rows"]) == 90
    assert [entry["phase"] for entry in clustered.log["rounds"]][1:3] == ["moments", "factor"]


@pytest.mark.parametrize(("chosen", "further"), [(["p-cov"], "compressed"), (["p-cov", "qr-pca"], "sub-it")], ids=str)
def test_a_server_chooses_once_more_at_most(chosen, further, tmp_path):
    client = HostileSession(tmp_path, rows(40, 6), {"method": "adaptive", "n-components": 2}).client
    assert [client.responder({"method": name}).card.name for name in chosen] == chosen
    said = client.fit([], {"method": further, "phase": "moments"})[2]
    assert (said["error"], unnamed(said["message"], "twice")) == ("ContractError", [])
