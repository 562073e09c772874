"""Odd rows are found by limits that the pooled rows would give, whoever holds them, and features are named."""

import numpy as np
import pandas as pd
import pytest
from scipy.stats import chi2, f, t
from sklearn.datasets import load_breast_cancer

from fedpca_flwr import analyses, run
from fedpca_flwr.errors import ConfigError, ContractError, DataError
from fedpca_flwr.maths.eigen import Eigenpairs
from fedpca_flwr.model.federation import Federation
from fedpca_flwr.model.model import PCAModel
from fedpca_flwr.model.reference import pooled_pca
from tests.families import cut, rows
from tests.refusals import refused

X = rows(600, 12) + np.arange(12)
PARTIES = cut(X, 300, 200, 80, 20)


@pytest.fixture(scope="module")
def model():
    return run("p-cov", PARTIES, n_components=3)


CANCER = load_breast_cancer().data


@pytest.mark.parametrize(
    ("data", "scale"),
    [(X, False), (CANCER, False), (CANCER, True), (rows(600, 300), False)],
    ids=["drawn", "breast-cancer", "breast-cancer scaled", "by Lanczos"],
)
def test_distances_and_limits_are_those_of_the_pooled_rows(data, scale):
    n, k = len(data), 4
    parties = cut(data, n - n // 2 - n // 5, n // 2, n // 5)
    model = run("p-cov", parties, n_components=k, scale=scale)
    found = analyses.outliers(model, data)
    centred = (data - data.mean(axis=0)) / (data.std(axis=0) if scale else 1)
    values, vectors = np.linalg.eigh(np.cov(centred, rowvar=False))
    values, scores = values[::-1], centred @ vectors[:, ::-1]
    spe, one, two = (scores[:, k:] ** 2).sum(axis=1), values[k:].sum(), (values[k:] ** 2).sum()
    np.testing.assert_allclose(found.t_squared, (scores[:, :k] ** 2 / values[:k]).sum(axis=1), rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(found.spe, spe, rtol=1e-6, atol=1e-7 * spe.max())
    other = analyses.outliers(model, data[:2], level=0.9)
    for level, its in ((0.99, found), (0.9, other)):
        limits = k * (n**2 - 1) / (n * (n - k)) * f.ppf(level, k, n - k), two / one * chi2.ppf(level, one**2 / two)
        np.testing.assert_allclose([its.t_squared_limit, its.spe_limit], limits, rtol=1e-6)


@pytest.mark.parametrize("unit", [2.0**-400, 2.0**400])
def test_no_unit_of_the_data_overflows(unit, model):
    """The faults: a raw OverflowError, of fourth powers of the unit; or 0 / 0, as of the single rows of AP-COV."""
    nothing = np.zeros((3, 3), order="F")
    assert Eigenpairs(np.zeros(1), np.eye(3)[:, :1], 0.0).residual_directions(nothing) is None
    other = run("p-cov", [part * unit for part in PARTIES], n_components=3)
    there, here = analyses.outliers(other, X * unit), analyses.outliers(model, X)
    np.testing.assert_allclose(there.spe_limit / unit**2, here.spe_limit, rtol=1e-12)
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


def shifted_along(model, distance, rows=12):
    """Rows whose mean is so far from the model's, squared, in standard errors of a mean; they vary off the model."""
    along = np.sqrt(distance * (1 / rows + 1 / model.n_samples_) * model.explained_variance_[0]) * model.components_[0]
    return model.mean_ + along + np.outer(np.linspace(-1, 1, rows) * np.sqrt(model.noise_variance_), off(model))


def test_two_looks_share_the_false_alarms_of_a_drift(model):
    """One of two probabilities is 0.0075: a drift where 1.6 % of false alarms are accepted, none where 1 % are."""
    new = shifted_along(model, chi2.isf(0.0075, 3))
    assert analyses.drift(model, new).shift_probability == pytest.approx(0.0075, rel=1e-9)
    assert not analyses.drift(model, new, false_alarms=0.01).drifted
    assert analyses.drift(model, new, false_alarms=0.016).drifted


@pytest.mark.parametrize("kind", ["within", "off, far too near", "off, a little too far"])
def test_drift_probabilities_follow_their_distributions(kind):
    """A model of few rows has a mean that is as uncertain as that of the new rows."""
    model = run("p-cov", cut(X[:20], 12, 8), n_components=3, min_rows=1)
    left_out = model.total_variance - model.explained_variance_.sum()
    if kind == "within":
        new, spe = shifted_along(model, 5.0), np.linspace(-1, 1, 12) ** 2 * model.noise_variance_
        assert analyses.drift(model, new).shift_probability == pytest.approx(chi2.sf(5.0, 3), rel=1e-9)
    else:
        spe = left_out * np.linspace(*((0.1, 0.4) if "near" in kind else (0.6, 1.6)), 12)
        new = model.mean_ + np.outer(np.sqrt(spe), off(model))
    step = (spe.mean() - left_out) / (spe.std(ddof=1) * np.sqrt(1 / 12 + 1 / 20))
    assert analyses.drift(model, new).spread_probability == pytest.approx(t.sf(step, 11), rel=1e-9)


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
