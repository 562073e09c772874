"""Odd rows are found by limits that the pooled rows would give, whoever holds them, and features are named."""

import numpy as np
import pandas as pd
import pytest
from scipy.stats import chi2, kstest
from sklearn.datasets import load_breast_cancer

from fedpca_flwr import analyses, run
from fedpca_flwr.errors import ConfigError, ContractError, DataError
from fedpca_flwr.maths.eigen import Eigenpairs
from fedpca_flwr.model.federation import Federation
from fedpca_flwr.model.model import PCAModel
from fedpca_flwr.model.reference import pooled_pca
from fedpca_flwr.model.second_moments import SecondMoments
from tests.families import cut, rows
from tests.refusals import refused, unnamed

X = rows(600, 12) + np.arange(12)
PARTIES = cut(X, 300, 200, 80, 20)


@pytest.fixture(scope="module")
def model():
    return run("p-cov", PARTIES, n_components=3)


CANCER = load_breast_cancer().data


POOLED = {"drawn": (X, False), "cancer": (CANCER, False), "cancer scaled": (CANCER, True)}
POOLED |= {"by Lanczos": (rows(600, 300), False)}


@pytest.mark.parametrize(("data", "scale"), POOLED.values(), ids=POOLED)
def test_distances_are_those_of_the_pooled_rows(data, scale):
    n, k = len(data), 4
    model = run("p-cov", cut(data, n - n // 2 - n // 5, n // 2, n // 5), n_components=k, scale=scale)
    found = analyses.outliers(model, data)
    centred = (data - data.mean(axis=0)) / (data.std(axis=0) if scale else 1)
    values, vectors = np.linalg.eigh(np.cov(centred, rowvar=False))
    values, scores = values[::-1], centred @ vectors[:, ::-1]
    spe = (scores[:, k:] ** 2).sum(axis=1)
    np.testing.assert_allclose(found.t_squared, (scores[:, :k] ** 2 / values[:k]).sum(axis=1), rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(found.spe, spe, rtol=1e-6, atol=1e-7 * spe.max())


def drawn(n, d, k, spectrum, seed):
    """Draw a model with k components of n rows of d features, and return a function that draws new rows, too."""
    rng = np.random.default_rng([n, d, k, seed])
    deviations = {"flat": np.ones(d), "steep": 2.0 ** (-np.arange(d) / 4)}[spectrum.removesuffix(" with gap")]
    deviations[:k] *= 4 if "gap" in spectrum else 1
    model = analyses.pca(SecondMoments.of(rng.standard_normal((n, d)) * deviations), k)
    return model, lambda rows: rng.standard_normal((rows, d)) * deviations


KINDS = [(50, 100, 10, "flat with gap"), (50, 100, 10, "flat"), (100, 30, 6, "steep"), (60, 8, 6, "steep with gap")]


@pytest.mark.parametrize("kind", [*KINDS, (300, 10, 2, "flat")], ids=str)
def test_new_rows_exceed_each_limit_as_often_as_it_says(kind):
    """The fault: limits of fitted rows, in the first case with 30 % of new rows beyond SPE, none beyond T squared."""
    shares = []
    n, d, k, spectrum = kind
    for seed in range(25):
        model, draw = drawn(n, d, k, spectrum, seed)
        found = analyses.outliers(model, draw(800))
        shares.append([(found.spe > found.spe_limit).mean(), (found.t_squared > found.t_squared_limit).mean()])
    assert (np.mean(shares, axis=0) > 0.004).all(), shares
    assert (np.mean(shares, axis=0) < 0.021).all(), shares


@pytest.mark.parametrize(("n", "d", "k", "rows"), [(50, 10, 3, 200), (100, 100, 10, 50), (400, 30, 3, 10)])
def test_drift_of_new_rows_is_as_rare_as_promised(n, d, k, rows):
    """The faults: limits of fitted rows, and an error of the model's own numbers that is not counted."""
    draws = (drawn(n, d, k, "flat with gap", seed) for seed in range(150))
    found = [analyses.drift(model, draw(rows)) for model, draw in draws]
    assert sum(one.drifted for one in found) <= 6
    shift, spread = np.array([[one.shift_probability, one.spread_probability] for one in found]).T
    assert kstest(shift, "uniform").pvalue > 1e-3
    assert 0.25 < (spread < 0.5).mean() < 0.65
    assert (spread < 0.1).mean() < 0.18


def test_where_no_limit_is_known_the_objects_say_so():
    for n, d, k in ((49, 10, 2), (50, 100, 11), (60, 8, 7), (60, 4, 3)):
        model, draw = drawn(n, d, k, "flat with gap", 0)
        found, drift = analyses.outliers(model, draw(20)), analyses.drift(model, draw(20))
        assert np.isnan([found.spe_limit, found.t_squared_limit, drift.shift_probability, drift.odd_share]).all()
        assert not found.odd.any()
        for one in (found, drift):
            assert not unnamed(str(one), "no limit of new rows", k, n, d)
    for size in ((50, 100, 10), (60, 8, 6), (55, 5, 3), (150, 4, 2)):
        assert not analyses.outliers(drawn(*size, "flat", 0)[0], np.zeros((1, size[1]))).note


@pytest.mark.parametrize("unit", [2.0**-400, 2.0**400])
def test_no_unit_of_the_data_overflows(unit, model):
    """The faults: a raw OverflowError, of fourth powers of the unit; or 0 / 0, as of the single rows of AP-COV."""
    nothing = np.zeros((3, 3), order="F")
    assert Eigenpairs(np.zeros(1), np.eye(3)[:, :1], 0.0).residual_directions(nothing) is None
    other = run("p-cov", [part * unit for part in PARTIES], n_components=3)
    there, here = analyses.outliers(other, X * unit), analyses.outliers(model, X)
    np.testing.assert_allclose(there.spe_limit / unit**2, here.spe_limit, rtol=1e-9)
    np.testing.assert_allclose(there.t_squared, here.t_squared, rtol=1e-9, atol=1e-9)


def test_limits_do_not_depend_on_the_source_of_moments(model, tmp_path):
    limit, t_squared = analyses.outliers(model, X[:2]).spe_limit, analyses.outliers(model, X[:2]).t_squared
    for survivors in (0, 3):
        secured = {"secure_aggregation": True, "bound": 30.0, "survivors": survivors}
        found = analyses.outliers(run("p-cov", PARTIES, n_components=3, **secured), X[:2])
        np.testing.assert_allclose(found.spe_limit, limit, rtol=1e-8)
        np.testing.assert_allclose(found.t_squared, t_squared, rtol=1e-6)
    kept = run("p-cov", PARTIES, n_components=1, keep="moments").moments_
    federation = Federation.open(tmp_path)
    for i, party in enumerate(PARTIES):
        federation.join(f"{i}", party)
    for other in (analyses.pca(kept, 3), federation.model(3), PCAModel.load(model.save(tmp_path / "model"))):
        np.testing.assert_allclose(analyses.outliers(other, X[:1]).spe_limit, limit, rtol=1e-10)


def test_odd_rows_are_named_and_contributions_add_up(model):
    table = pd.DataFrame(X[:20].copy(), index=[f"patient {i}" for i in range(20)])
    table.iloc[7, 7] += 100
    table.iloc[3] = model.mean_ + 8 * np.sqrt(model.explained_variance_[0]) * model.components_[0]
    table.iloc[5] = model.mean_ + 9 * np.linalg.svd(model.components_)[2][-1]
    found = analyses.outliers(model, table)
    np.testing.assert_allclose([found.t_squared[3], found.spe[3], found.t_squared[5]], [64, 0, 0], atol=1e-9)
    assert found.odd[[3, 5, 7]].all()
    np.testing.assert_array_equal(found.odd, (found.t_squared > found.t_squared_limit) | (found.spe > found.spe_limit))
    assert analyses.drift(model, table).odd_share == found.odd.mean() < 0.5
    assert found.labels[7] == "patient 7"
    title, _, *lines = str(found).splitlines()
    excess = np.maximum(found.t_squared / found.t_squared_limit, found.spe / found.spe_limit)
    farthest = np.argsort(-excess)[: found.odd.sum()]
    assert [line.split("  ")[1].strip() for line in lines] == [f"patient {i}" for i in farthest]
    assert f"T squared {found.t_squared_limit:.4g}, SPE {found.spe_limit:.4g}" in title
    np.testing.assert_allclose(found.t_squared_contributions.sum(axis=1), found.t_squared, rtol=1e-10, atol=1e-20)
    np.testing.assert_allclose(found.spe_contributions.sum(axis=1), found.spe, rtol=1e-10, atol=1e-20)
    assert found.spe_contributions[7].argmax() == 7


def off(model):
    return np.linalg.svd(model.components_)[2][-1]


def test_two_looks_share_the_false_alarms_of_a_drift(model):
    """One of two probabilities is p: a drift where more than 2 p of false alarms are accepted, none where fewer are.

    The mean of twelve rows, which vary off the model, is so far from its mean in standard errors that p is 0.0075.
    """
    distance = chi2.isf(0.0075, 3) * (1 / 12 + 1 / model.n_samples_) * model.explained_variance_[0]
    new = model.mean_ + np.sqrt(distance) * model.components_[0]
    new = new + np.outer(np.linspace(-1, 1, 12) * np.sqrt(model.noise_variance_), off(model))
    p = analyses.drift(model, new).shift_probability
    assert 0.0075 < p < 0.009  # the model's variances are uncertain, too
    assert not analyses.drift(model, new, false_alarms=1.9 * p).drifted
    assert analyses.drift(model, new, false_alarms=2.1 * p).drifted


def test_a_shifted_party_is_flagged(model):
    new, mean = rows(80, 12, seed=7), np.arange(12)
    shifted = (new + 0.8 * model.components_[0], new + 0.3 * off(model), new * 1.5, new)
    found = [analyses.drift(model, own + mean) for own in shifted]
    assert [one.drifted for one in found] == [True, True, True, False]
    assert ["no longer" in str(one) for one in found] == [True, True, True, False]
    assert analyses.drift(model, new[:10] + mean).spread_probability > 0  # so many rows are enough
    assert [one.shift_probability < 0.005 for one in found[:3]] == [True, False, False]


def test_what_cannot_be_judged_is_refused(model):
    few = run("p-cov", cut(X[:12], 6, 6), n_components=11, min_rows=1)
    for call, error, named in [
        (lambda: analyses.outliers(run("sub-it", PARTIES, n_components=3), X), ContractError, ["sub-it"]),
        (lambda: analyses.outliers(pooled_pca(X, 3), X), ContractError, ["'pooled'"]),
        (lambda: analyses.outliers(run("p-cov", PARTIES, n_components=12), X), ContractError, ["p-cov"]),
        (lambda: analyses.outliers(few, X), ContractError, ["p-cov"]),
        (lambda: analyses.outliers(model, np.full((2, 12), np.nan)), DataError, ["NaN"]),
        (lambda: analyses.outliers(model, X, level=99), ConfigError, ["'level'", 99]),
        (lambda: analyses.drift(model, X[:9]), DataError, [9, 10]),
        (lambda: analyses.drift(model, X, false_alarms=0.0), ConfigError, ["false_alarms", 0.0]),
    ]:
        with refused(error, *named):
            call()
    assert not analyses.drift(model, X[:10]).drifted
