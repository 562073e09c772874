"""SUB-IT: the certificate, block sizes, the plain iteration, warm starts, float32 on the wire."""

import math
from unittest.mock import Mock

import numpy as np
import pytest

from fedpca_flwr import run
from fedpca_flwr.maths import factors
from fedpca_flwr.maths.eigen import principal_angles as angles_between
from fedpca_flwr.maths.marchenko_pastur import MarchenkoPastur
from fedpca_flwr.model.reference import pooled_pca, principal_angles
from fedpca_flwr.strategies import subspace_iteration
from tests.families import cut, rows, unlike_parties
from tests.harness import blocks_added, finish, server_of, tamper_arrays

PARTIES = unlike_parties(60)


def spiked(n, d, strengths, seed=0):
    rng = np.random.default_rng(seed)
    directions = np.linalg.qr(rng.standard_normal((d, len(strengths))))[0]
    return rng.standard_normal((n, d)) + rng.standard_normal((n, len(strengths))) * strengths @ directions.T


def fit(parts, **options):
    return run("sub-it", parts, **{"n_components": 4, **options})


def certified(model):
    angle = model.log["measured"]["certified_angle_degrees"]
    return math.inf if angle == 90 else angle


def fit_certified(parts, within=1e-6, **options):
    model = fit(parts, **options)
    truth = pooled_pca(np.vstack(parts), model.n_components_, scale=options.get("scale", False))
    assert principal_angles(model, truth).max <= certified(model) <= within
    return model


def test_too_few_rounds_and_coarse_tolerances_are_not_exact():
    model = fit_certified(PARTIES, within=math.inf, max_rounds=2, block_size=5)
    assert (model.log["exact"], certified(model) > 1e-6) == (False, True)
    assert model.log["notes"][0] == "stopped after max-rounds = 2 with no bound on the angle; wanted 1e-06 degrees"
    plain = {"acceleration": "none", "block_size": 4, "max_rounds": 2}
    for options in (plain, {"block_size": 2, "tolerance": 5.0}, {"tolerance": 30.0}):
        assert fit(PARTIES, **options).log["exact"] is False
    assert fit(PARTIES, block_size=60, tolerance=30.0).log["exact"] is True  # one round, and nothing left to ask
    phases = [entry["phase"] for entry in fit(PARTIES, scale=True, max_rounds=2).log["rounds"]]
    assert phases[:3] == ["heads", "product", "product"]  # scaling costs a round more
    fit_certified(cut(rows(400, 40) * 10.0 ** np.linspace(-45, 5, 40), 200, 150, 50), scale=True, block_size=8)


@pytest.mark.engine
def test_bytes_follow_the_width_of_blocks():
    narrow, broad = fit(PARTIES, block_size=3), fit(PARTIES)
    assert len(narrow.log["rounds"]) > len(broad.log["rounds"])
    assert narrow.bytes_up_by_party[0] < broad.bytes_up_by_party[0]
    first, second = broad.log["rounds"][:2]
    assert (first["down"], second["down"]) == ([0] * 3, [60 * 14 * 4 + 128] * 3)  # the first is made from the seed
    assert second["up"] == [60 * 14 * 8 + 128] * 3
    warm = fit(PARTIES, warm_start="svd", max_rounds=2)
    assert [entry["phase"] for entry in warm.log["rounds"]] == ["sketch", "refine", "project"]
    assert warm.log["rounds"][0]["up"] == [8 * (60 + 3) + 4 * 16 * 60 + 6 * 128] * 3  # of four times the components
    np.testing.assert_allclose(fit(PARTIES, seed=1).components_, broad.components_, atol=1e-9)


@pytest.mark.parametrize("value", [3.0, 0.0])
def test_a_sketch_and_products_come_as_they_were_sent_in_float32(value, monkeypatch):
    """Rounded by half a last place, and by half of the smallest number for what becomes zero, rather: the whole."""
    parts, stack = [rows(40) * 1e-45, rows(20) * 1e-44], Mock(wraps=factors.stack_factors)
    monkeypatch.setattr(factors, "stack_factors", stack)
    server = server_of("sub-it", parts, n_components=1, warm_start="svd", wire="float32", max_rounds=2)
    for party in range(2):
        tamper_arrays(server, party, lambda arrays: [np.full_like(arrays[0], value), *arrays[1:]], "refine")
    added = blocks_added(monkeypatch)
    finish(server)
    all_sent, error = [factors.truncated_factor(part, 4).with_floor() for part in parts], 0.0
    for factor, sent in zip(*stack.call_args.args, all_sent, strict=True):
        assert (factor.omitted, factor.floor, factor.error) == (sent.omitted, sent.floor, sent.error)
        np.testing.assert_allclose(factor.rows, sent.rows, rtol=1e-7, atol=1e-52)
        error += subspace_iteration.root_unit(sent.trace) ** 2 * (2.0**-24 * value + 2.0**-149)
    assert [found / V.size**0.5 for V, found in added] == [pytest.approx(error, rel=1e-12, abs=0)]


@pytest.mark.parametrize("seed", range(6))
def test_the_first_block_is_no_eigenvector(seed):
    """Features of equal variance have eigenvectors (1, 1) and (1, -1), which a vector of signs would hit."""
    z = np.array([[3.0, 1], [-3, -1], [1, 3], [-1, -3]] * 5)
    model = fit(cut(z, 8, 6, 6), n_components=1, block_size=1, seed=seed, min_rows=1)
    assert model.explained_variance_ratio_[0] == pytest.approx(0.8)


def test_an_early_end_tells_what_is_certified():
    X = rows(600, 4) @ np.eye(4, 200) * 10 + np.random.default_rng(1).standard_normal((600, 200))
    model = fit(cut(X, 300, 200, 100), n_components=1, block_size=1)
    assert "degrees at most\n" in model.summary(full=True)
    assert model.log["exact"]
    X = spiked(200, 500, [30.0, 22.0, 16.0])
    model = fit(cut(X, 90, 60, 50), n_components=8, max_rounds=5)
    first = model.log["measured"]["certified_components"]
    assert 0 < first < 8
    assert angles_between(model.components_[:first].T, pooled_pca(X, first).components_.T).max() <= certified(model)
    assert f"{first} of 8 components certified: 1" in model.log["notes"][1]


@pytest.mark.parametrize("secure", [False, True])
@pytest.mark.parametrize(("decades", "seed"), [(3, 0), (8, 5), (8, 9), (12, 2), (12, 3)])
def test_scaling_takes_any_units_away_without_loss(decades, seed, secure):
    """The first block is random in scaled features; in raw features only the largest would count."""
    units = 10.0 ** np.random.default_rng(seed).uniform(-decades / 2, decades / 2, 12)
    X = rows(400, 12, seed=seed) * units
    options = {"secure_aggregation": True, "bound": 1e16, "min_parties": 2} if secure else {}
    model = fit_certified(cut(X, 200, 150, 50), within=1e-8, n_components=3, scale=True, seed=seed, **options)
    assert model.log["exact"]


def test_short_products_are_repeated_or_certified():
    """Eigenvalues are close together: float32 leaves some thousandths of a degree. Two blocks span all features."""
    warm = {"n_components": 2, "warm_start": "svd"}
    for d in (12, 60):
        X = np.random.default_rng(3).standard_normal((300, d)) * np.linspace(1.05, 1, d)
        options = {**warm, "warm_rank": 2, "wire": "float32", "block_size": d // 2}
        last = fit_certified(cut(X, 150, 100, 50), **options).log["rounds"][-2]
        assert last["up"] == [2 * d * 8 + 2 * 128] * 3  # there is nothing else left to ask
    for largest in (1e2, 1e3, 1e5):
        X = np.random.default_rng(3).standard_normal((900, 20)) * np.r_[largest, 1.001, np.ones(18)]
        parts, options = cut(X, 500, 300, 100), {**warm, "warm_rank": 1, "block_size": 4}
        fit_certified(parts, within=2 * certified(fit(parts, **options)), wire="float32", **options)
    # A party's sketch of a single direction guesses the others, and before any correction the sum was 123 %.
    X = np.random.default_rng(0).standard_normal((60, 36))
    options = {**warm, "n_components": 30, "block_size": 31, "warm_rank": 1, "max_rounds": 1, "min_rows": 1}
    assert fit([*X[:11, None], X[11:]], **options).explained_variance_ratio_.sum() <= 1 + 1e-9


@pytest.mark.engine
def test_float32_products_and_warm_starts_are_certified():
    warm = {"warm_start": "svd", "wire": "float32"}
    model = fit_certified(PARTIES, within=0.05, warm_rank=40, tolerance=0.05, **warm)
    assert principal_angles(model, pooled_pca(np.vstack(PARTIES), 4)).max < 1e-3
    # At the default tolerance their certificate would stand still at a hundred times as much.
    X = rows(600, 300) + 0.05 * np.random.default_rng(1).standard_normal((600, 300))
    narrow, full = (fit_certified(cut(X, 300, 200, 100), **{**warm, "wire": wire}) for wire in ("float32", "float64"))
    assert len(narrow.log["rounds"]) <= len(full.log["rounds"])
    up, down = ([sum(sum(r[way]) for r in m.log["rounds"]) for m in (narrow, full)] for way in ("up", "down"))
    assert up[0] < 0.8 * up[1]
    assert up[0] + down[0] < up[1] + down[1]
    X = rows(60, 900)
    fit_certified(cut(X, 30, 20, 10), warm_start="svd")
    everything = fit(cut(X[:, :8], 30, 20, 10), n_components=8, warm_start="svd")
    np.testing.assert_allclose(everything.explained_variance_, pooled_pca(X[:, :8], 8).explained_variance_, rtol=1e-9)


@pytest.mark.parametrize("scaled", [False, True])
def test_the_rounding_of_fixed_point_is_in_the_certificate(scaled, monkeypatch):
    """Each entry is off by a step for each party, of rows within the bound of their mean."""
    X = np.vstack(unlike_parties(12)) * np.logspace(0, 2, 12)
    options = {"n_components": 4, "scale": scaled, "secure_aggregation": True, "bound": 1e4, "min_parties": 2}
    added = blocks_added(monkeypatch)
    fit(cut(X, 400, 150, 50), **options)
    reach = (1e4 + np.abs(X.mean(axis=0))) / (X.std(axis=0) if scaled else 1.0)
    assert added
    step = 2 * 2.0**32 * np.square(np.linalg.norm(reach)) * 2.0**-121  # of two words, 63 and 58 bits
    for V, error in added:
        assert error / (step * np.sqrt(V.shape[1])) == pytest.approx(3, rel=1e-3)


@pytest.mark.engine
@pytest.mark.parametrize("options", [{}, {"warm_start": "svd", "wire": "float32"}, {"scale": True}], ids=str)
def test_components_above_the_noise_are_certified(options, monkeypatch):
    X, law = spiked(200, 500, [30.0, 22.0, 16.0]), Mock(wraps=MarchenkoPastur)
    parties, options = cut(X, 90, 60, 50), {"n_components": 8, **options}
    certified_all = fit(parties, max_rounds=200, **options)
    monkeypatch.setattr(subspace_iteration, "MarchenkoPastur", law)
    model, truth = fit(parties, certify="signal", **options), pooled_pca(X, 8, scale="scale" in options)
    assert {call.args for call in law.call_args_list} == {(199, 500)}  # about the mean, noise has one degree less
    assert model.log["measured"]["standing_out_components"] == model.log["measured"]["certified_components"] == 3
    assert angles_between(model.components_[:3].T, truth.components_[:3].T).max() <= certified(model) <= 1e-6
    assert model.rounds <= certified_all.rounds - (not options)
    assert not model.log["exact"]  # components 4 to 8 are not
    assert model.log["notes"][0].startswith("3 of 8 components certified: 1 to 3 each, to ")
    assert model.log["notes"][0].endswith(" degrees; components 4 to 8 lie in the noise")


def test_what_stands_out_is_certified_as_a_subspace_or_wholly():
    """Two directions of exactly equal variance have no basis of their own, but a plane."""
    rng = np.random.default_rng(0)
    scores = rng.standard_normal((200, 60))
    scores = np.linalg.qr(scores - scores.mean(axis=0))[0]
    X = scores * [40.0, 20.0, 20.0, *np.linspace(2.0, 1.9, 57)] @ np.linalg.qr(rng.standard_normal((60, 60)))[0]
    model = fit(cut(X, 100, 60, 40), n_components=4, certify="signal", block_size=7, tolerance=1e-4)
    assert model.log["measured"]["certified_components"] == 3
    assert "3 of 4 components certified: 1 each, 2 to 3 as a subspace, to " in model.log["notes"][0]
    model = fit_certified(PARTIES, certify="signal")
    assert ("standing_out_components" in model.log["measured"], model.log["exact"]) == (False, True)
