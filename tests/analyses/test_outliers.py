"""Odd rows are found by limits that the pooled rows would give, whoever holds them, and features are named."""

import numpy as np
import pandas as pd
import pytest
from scipy.stats import chi2, f, t
from sklearn.datasets import load_breast_cancer, load_digits

from fedpca_flwr import analyses
from fedpca_flwr.errors import ConfigError, ContractError, DataError
from fedpca_flwr.maths.eigen import Eigenpairs
from fedpca_flwr.maths.inference import left_out_directions
from fedpca_flwr.model.federation import Federation
from fedpca_flwr.model.model import PCAModel
from fedpca_flwr.model.reference import pooled_pca
from simulations import run
from tests.families import cut, rows
from tests.refusals import refused

X = rows(600, 12) + np.arange(12)
PARTIES = cut(X, 300, 200, 80, 20)


@pytest.fixture(scope="module")
def model():
    return run("p-cov", PARTIES, n_components=3)


def test_rows_of_a_data_frame_are_named_by_its_index(model):
    table = pd.DataFrame(X[:20].copy(), index=[f"patient {i}" for i in range(20)])
    table.iloc[7] += 100
    found = analyses.outliers(model, table)
    assert found.labels[7] == "patient 7"
    assert str(found).splitlines()[2].split("  ")[1].strip() == "patient 7"


def by_pooled_rows(data, new, k, level=0.99, scale=False):
    """T2, SPE and limits, from the rows and all their eigenvalues."""
    unit = data.std(axis=0) if scale else np.ones(data.shape[1])
    centred, n = (data - data.mean(axis=0)) / unit, len(data)
    values, vectors = np.linalg.eigh(centred.T @ centred / (n - 1))
    values, vectors = values[::-1], vectors[:, ::-1]
    scores = ((new - data.mean(axis=0)) / unit) @ vectors
    t2, spe = (scores[:, :k] ** 2 / values[:k]).sum(axis=1), (scores[:, k:] ** 2).sum(axis=1)
    one, two = values[k:].sum(), (values[k:] ** 2).sum()
    limit = k * (n**2 - 1) / (n * (n - k)) * f.ppf(level, k, n - k)
    return t2, spe, limit, two / one * chi2.ppf(level, one**2 / two)


@pytest.mark.parametrize("scale", [False, True])
@pytest.mark.parametrize(
    "data",
    [X, load_breast_cancer().data, load_digits().data[:, load_digits().data.std(axis=0) > 0], rows(900, 400)],
    ids=["drawn", "breast-cancer", "digits", "by Lanczos"],
)
def test_distances_and_limits_are_those_of_the_pooled_rows(data, scale):
    n = len(data)
    parties = cut(data, n - n // 2 - n // 5, n // 2, n // 5)
    found = analyses.outliers(run("p-cov", parties, n_components=4, scale=scale), data)
    t2, spe, t2_limit, spe_limit = by_pooled_rows(data, data, 4, scale=scale)
    np.testing.assert_allclose(found.t_squared, t2, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(found.spe, spe, rtol=1e-6, atol=1e-7 * spe.max())
    np.testing.assert_allclose([found.t_squared_limit, found.spe_limit], [t2_limit, spe_limit], rtol=1e-6)


def test_nothing_leaves_nothing_out():
    """AP-COV of single rows: the fault was a warning of 0 / 0."""
    nothing = np.zeros((3, 3), order="F")
    assert left_out_directions(nothing, Eigenpairs(np.zeros(1), np.eye(3)[:, :1], 0.0)) is None


@pytest.mark.parametrize("unit", [2.0**-400, 2.0**400])
def test_no_unit_of_the_data_overflows(unit, model):
    """The fault: a raw OverflowError, of fourth powers of the unit; or 0 / 0."""
    other = run("p-cov", [part * unit for part in PARTIES], n_components=3)
    there, here = analyses.outliers(other, X * unit), analyses.outliers(model, X)
    np.testing.assert_allclose(there.spe_limit / unit**2, here.spe_limit, rtol=1e-12)
    np.testing.assert_allclose(there.t_squared, here.t_squared, rtol=1e-9, atol=1e-9)


def test_rows_exceed_each_limit_one_time_in_a_hundred_or_far_along_a_component(model):
    """20,000 rows of the same kind: to three standard errors and Box's approximation."""
    new = rows(20000, 12, seed=8) + np.arange(12)
    found = analyses.outliers(model, new)
    assert 0.006 < (found.t_squared > found.t_squared_limit).mean() < 0.014
    assert 0.006 < (found.spe > found.spe_limit).mean() < 0.016
    assert 0.012 < found.odd.mean() < 0.03
    far = model.mean_ + 8 * np.sqrt(model.explained_variance_[0]) * model.components_[:1]
    found = analyses.outliers(model, far)
    assert found.t_squared > found.t_squared_limit
    assert found.spe < 1e-20
    np.testing.assert_allclose(found.t_squared, 64)


@pytest.mark.parametrize(
    "secured",
    [{"secure_aggregation": True, "bound": 30.0}, {"secure_aggregation": True, "bound": 30.0, "survivors": 3}],
    ids=["masked", "surviving"],
)
def test_secure_sums_give_the_same_limits(model, secured):
    secure = run("p-cov", PARTIES, n_components=3, **secured)
    one, other = analyses.outliers(model, X[:2]), analyses.outliers(secure, X[:2])
    np.testing.assert_allclose(one.spe_limit, other.spe_limit, rtol=1e-8)
    np.testing.assert_allclose(one.t_squared, other.t_squared, rtol=1e-6)


def test_models_of_kept_moments_and_federations_know_the_limits(model, tmp_path):
    kept = run("p-cov", PARTIES, n_components=1, keep="moments").moments_
    federation = Federation.open(tmp_path)
    for i, party in enumerate(PARTIES):
        federation.join(f"{i}", party)
    limit = analyses.outliers(model, X[:1]).spe_limit
    for other in (analyses.pca(kept, 3), federation.model(3), PCAModel.load(model.save(tmp_path / "model"))):
        np.testing.assert_allclose(analyses.outliers(other, X[:1]).spe_limit, limit, rtol=1e-10)


def test_contributions_add_up_and_name_the_feature(model):
    odd = X[:1].copy()
    odd[0, 7] += 5
    for row in (X[:5], odd):
        found = analyses.outliers(model, row)
        np.testing.assert_allclose(found.t_squared_contributions.sum(axis=1), found.t_squared, rtol=1e-10)
        np.testing.assert_allclose(found.spe_contributions.sum(axis=1), found.spe, rtol=1e-10)
    assert analyses.outliers(model, odd).spe_contributions.argmax() == 7
    assert analyses.outliers(model, odd).odd.all()


def test_false_alarms_of_drift_are_as_rare_as_said_and_two_looks_share_them(model):
    drifted = [analyses.drift(model, rows(80, 12, seed=100 + i) + np.arange(12)).drifted for i in range(400)]
    assert sum(drifted) <= 12  # more have a probability of 2e-4 where 1 % is true
    # One of two probabilities is 0.0075: a drift where 1.6 % of false alarms are accepted, none where 1 % are.
    new = shifted_along(model, chi2.isf(0.0075, 3))
    assert analyses.drift(model, new).shift_probability == pytest.approx(0.0075, rel=1e-9)
    assert not analyses.drift(model, new, false_alarms=0.01).drifted
    assert analyses.drift(model, new, false_alarms=0.016).drifted


def shifted_along(model, distance, rows=12):
    """Rows whose mean is so far from the model's, squared, in standard errors of a mean; they vary off the model."""
    along = np.sqrt(distance * (1 / rows + 1 / model.n_samples_) * model.explained_variance_[0]) * model.components_[0]
    off = np.linalg.svd(model.components_)[2][-1]
    return model.mean_ + along + np.outer(np.linspace(-1, 1, rows) * np.sqrt(model.noise_variance_), off)


def test_probabilities_of_a_drift_are_those_of_their_distributions():
    """Of a model of few rows, whose own mean is as uncertain as that of the new ones."""
    model = run("p-cov", cut(X[:20], 12, 8), n_components=3, min_rows=1)
    new = shifted_along(model, 5.0)
    found = analyses.drift(model, new)
    assert found.shift_probability == pytest.approx(chi2.sf(5.0, 3), rel=1e-9)
    spe = np.linspace(-1, 1, 12) ** 2 * model.noise_variance_
    left_out = model.total_variance - model.explained_variance_.sum()
    step = (spe.mean() - left_out) / (spe.std(ddof=1) * np.sqrt(1 / 12 + 1 / 20))
    assert found.spread_probability == pytest.approx(t.sf(step, 11), rel=1e-9)


@pytest.mark.parametrize("kind", ["mean within", "mean without", "spread"])
def test_a_shifted_party_is_flagged(model, kind):
    new = rows(80, 12, seed=7) + np.arange(12)
    changed = {
        "mean within": new + 0.8 * model.components_[0],
        "mean without": new + 0.3 * np.linalg.svd(model.components_)[2][-1],
        "spread": (new - np.arange(12)) * 1.5 + np.arange(12),
    }[kind]
    found = analyses.drift(model, changed)
    assert found.drifted
    assert (found.shift_probability < 0.005) == (kind == "mean within")


def test_what_cannot_be_judged_is_refused(model):
    with refused(ContractError, "sub-it"):
        analyses.outliers(run("sub-it", PARTIES, n_components=3), X)
    with refused(ContractError, "'pooled'"):
        analyses.outliers(pooled_pca(X, 3), X)
    with refused(ContractError, "p-cov"):
        analyses.outliers(run("p-cov", PARTIES, n_components=12), X)
    few = run("p-cov", cut(X[:12], 6, 6), n_components=11, min_rows=1)
    with refused(ContractError, "p-cov"):
        analyses.outliers(few, X)
    with refused(DataError, 9, 10):
        analyses.drift(model, X[:9])
    with refused(DataError, "NaN"):
        analyses.outliers(model, np.full((2, 12), np.nan))
    with refused(ConfigError, "'level'", 99):
        analyses.outliers(model, X, level=99)
    with refused(ConfigError, "false_alarms", 0.0):
        analyses.drift(model, X, false_alarms=0.0)


def test_the_spread_of_a_drift_knows_that_the_model_is_of_few_rows():
    """Rows off the model whose mean error is a little above what the model left out: neither certain nor impossible."""
    model = run("p-cov", cut(X[:20], 12, 8), n_components=3, min_rows=1)
    left_out = model.total_variance - model.explained_variance_.sum()
    sizes = np.sqrt(np.linspace(0.6, 1.6, 12) * left_out)
    new = model.mean_ + np.outer(sizes, np.linalg.svd(model.components_)[2][-1])
    step = (1.1 - 1) / (np.linspace(0.6, 1.6, 12).std(ddof=1) * np.sqrt(1 / 12 + 1 / 20))
    assert analyses.drift(model, new).spread_probability == pytest.approx(t.sf(step, 11), rel=1e-9)
