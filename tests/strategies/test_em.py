"""EM on rows with missing values: the pooled iteration's result, whoever holds what, and what a user is told."""

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer, load_wine
from sklearn.decomposition import PCA
from sklearn.preprocessing import scale

from fedpca_flwr.errors import ContractError, DataError, DisclosureError
from fedpca_flwr.maths import moments
from fedpca_flwr.maths.eigen import principal_angles
from fedpca_flwr.model.model import PCAModel
from tests.families import cut, rows
from tests.harness import fit
from tests.maths.test_incomplete import plain_em
from tests.refusals import refused

SUMS = {"secure_aggregation": True, "min_parties": 2}
every_model = pytest.mark.parametrize(
    "own", [{"n_components": 3}, {"n_components": 2, "model": "factors", "factors": 2}], ids=["gaussian", "factors"]
)


def holes(X, share, seed):
    """X with so much missing completely at random, but for rows that would have nothing left."""
    missing = np.random.default_rng(seed).random(X.shape) < share
    missing[missing.all(axis=1)] = False
    return np.where(missing, np.nan, X)


def parties_of_three(share=0.2, offset=0.0):
    return cut(holes(rows(300, 6), share, 1) + offset, 180, 100, 20)


def pooled_em(X, k, prior=100.0, steps=150):
    """Components (d, k) of the expected scatter, by the textbook's iteration on all rows, in the unit of the data."""
    mean, unit = np.nanmean(X, axis=0), np.nanstd(X, axis=0)
    m, T = plain_em((X - mean) / unit, prior, steps)
    values, vectors = np.linalg.eigh(T * np.outer(unit, unit))
    return mean + unit * m, values[::-1][:k], vectors[:, ::-1][:, :k]


def angle(model, vectors):
    return float(principal_angles(model.components_.T, vectors).max())


@pytest.mark.parametrize("way", [{}, {**SUMS, "bound": 1e3}], ids=["clear", "masked"])
def test_parties_get_what_the_same_em_gives_on_pooled_rows(way):
    parties = parties_of_three()
    parties[2][:, 2] = np.nan  # a party that never measured a feature
    mean, values, vectors = pooled_em(np.vstack(parties), 3)
    model = fit("em", parties, n_components=3, prior=100.0, tolerance=1e-9, **way)
    assert angle(model, vectors) <= 1e-8
    np.testing.assert_allclose(model.singular_values_**2, values, rtol=1e-9)
    np.testing.assert_allclose(model.mean_, mean, atol=1e-10)
    assert model.log["measured"]["degrees_ahead"] <= 1e-9


@every_model
@pytest.mark.parametrize("offset", [1e6, 1e8])
def test_a_mean_of_many_deviations_costs_nothing(offset, own):
    parties = [np.round(part * 2**20) / 2**20 for part in parties_of_three()]
    near, far = (fit("em", [part + by for part in parties], tolerance=1e-9, **own) for by in (0.0, offset))
    assert angle(far, near.components_.T) <= 1e-8


@every_model
def test_who_holds_which_rows_changes_nothing(own):
    X = np.vstack(parties_of_three())
    one, other = (fit("em", parties, tolerance=1e-9, **own) for parties in ([X], [X[i::7] for i in range(7)]))
    assert angle(one, other.components_.T) <= 1e-8
    np.testing.assert_allclose(one.explained_variance_, other.explained_variance_, rtol=1e-9)


@pytest.mark.parametrize("scaled", [False, True])
def test_without_missing_values_it_is_p_cov_after_one_step(scaled):
    parties = cut(rows(300), 180, 100, 20)
    ours, theirs = (fit(method, parties, n_components=4, scale=scaled) for method in ("em", "p-cov"))
    assert angle(ours, theirs.components_.T) <= 1e-12 * 1e3
    np.testing.assert_allclose(ours.explained_variance_ratio_, theirs.explained_variance_ratio_, rtol=1e-12)
    assert ours.rounds == 3
    assert any("no value is missing" in note for note in ours.log["notes"])


TABLE = {  # what docs/missing.md says: degrees to the complete rows' components (mean of three draws), and most rounds
    ("wine", 0.05): (4.5, 10),
    ("wine", 0.2): (12.2, 14),
    ("wine", 0.4): (21.0, 20),
    ("breast-cancer", 0.05): (1.45, 12),
    ("breast-cancer", 0.2): (5.0, 15),
}


@pytest.mark.parametrize(("name", "share"), TABLE)
def test_the_components_are_nearer_than_those_of_means(name, share):
    X = {"wine": load_wine, "breast-cancer": load_breast_cancer}[name]().data
    truth, most = PCA(3).fit(scale(X)).components_.T, TABLE[name, share]
    ours, by_means, rounds = [], [], []
    for seed in range(3):
        Y = holes(X, share, seed)
        model = fit("em", np.array_split(Y, 3), n_components=3, scale=True)
        ours.append(angle(model, truth))
        rounds.append(model.rounds)
        means = np.where(np.isnan(Y), np.nanmean(Y, axis=0), Y)
        by_means.append(float(principal_angles(PCA(3).fit(scale(means)).components_.T, truth).max()))
    assert np.mean(ours) <= most[0]
    assert np.mean(ours) < np.mean(by_means)
    assert max(rounds) <= most[1]


def test_values_that_are_missing_because_they_are_large_shift_the_mean():
    """What EM cannot know: it presumes that a value's being missing does not depend on the value."""
    X = rows(2000, 4)
    Y = X.copy()
    Y[X[:, 0] > np.quantile(X[:, 0], 0.7), 0] = np.nan
    model = fit("em", np.array_split(Y, 2), n_components=2)
    deviation = X[:, 0].std()
    assert X[:, 0].mean() - model.mean_[0] > 0.2 * deviation
    at_random = fit("em", np.array_split(holes(X, 0.3, 0), 2), n_components=2)
    assert abs(X[:, 0].mean() - at_random.mean_[0]) < 0.1 * deviation


@pytest.mark.parametrize(("own", "times"), [({}, 20), ({"model": "factors"}, 10)], ids=["gaussian", "factors"])
def test_the_forecast_of_what_is_left_to_go_is_of_the_right_size(own, times):
    parties = parties_of_three(share=0.5)
    limit = fit("em", parties, n_components=2, tolerance=1e-9, **own)
    for steps in (5, 8, 11):
        model = fit("em", parties, n_components=2, tolerance=1e-9, max_rounds=steps, **own)
        ahead = model.log["measured"]["degrees_ahead"]
        assert angle(model, limit.components_.T) <= times * ahead
        assert any(f"after max-rounds = {steps} steps" in note for note in model.log["notes"])


def test_new_rows_are_completed_by_what_is_expected_of_them(tmp_path):
    X = rows(400, 6) + 3.0
    model = fit("em", np.array_split(holes(X, 0.2, 0), 3), n_components=3)
    new = rows(50, 6, seed=9) + 3.0
    truth, incomplete = model.transform(new), holes(new, 0.3, 4)
    by_means = model.transform(np.where(np.isnan(incomplete), model.mean_, incomplete))
    assert np.linalg.norm(model.transform(incomplete) - truth) < 0.8 * np.linalg.norm(by_means - truth)
    again = PCAModel.load(model.save(tmp_path / "model"))
    np.testing.assert_array_equal(again.transform(incomplete), model.transform(incomplete))
    np.testing.assert_allclose(model.transform(np.full((1, 6), np.nan)), np.zeros((1, 3)), atol=1e-12)
    with refused(DataError, "X", match="infinity"):
        model.transform(np.full((1, 6), np.inf))


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("way", [{}, {**SUMS, "bound": 1e3}], ids=["clear", "masked"])
def test_sites_keep_the_scores_of_incomplete_rows(tmp_path, way, scaled):
    parties = parties_of_three()
    parties[0][3] = np.nan
    files = [tmp_path / f"{i}.npy" for i in range(3)]
    model = fit("em", parties, n_components=3, scores=files, scale=scaled, **way)
    for part, file in zip(parties, files, strict=True):
        np.testing.assert_allclose(np.load(file), model.transform(part), atol=1e-9)


@every_model
def test_rows_and_features_without_any_value_are_counted_or_named(own):
    parties = parties_of_three()
    with_empty = [np.vstack([parties[0], np.full((7, 6), np.nan)]), *parties[1:]]
    one, other = (fit("em", some, **own) for some in (parties, with_empty))
    assert angle(one, other.components_.T) <= 1e-8
    assert other.n_samples_ == 300
    assert any("7 rows without any value were left out" in note for note in other.log["notes"])
    parties = parties_of_three()
    for part in parties:
        part[:, [1, 4]] = np.nan
    with refused(DataError, "[1, 4]"):
        fit("em", parties, **own)


@pytest.mark.parametrize("model", ["gaussian", "factors"])
def test_a_constant_feature_is_not_scaled_by_the_rounding_of_its_mean(model):
    """The fault: its deviation of 1e-16 passed for one, and noise of rounding for a feature of variance 1."""
    X = rows(100, 12)
    X[:, 4:] = rows(1, 8, seed=1)  # whose sums over so many rows are rounded
    found = fit("em", cut(X, 13, 32, 55), n_components=2, model=model, scale=True)
    np.testing.assert_array_equal(found.scale_[4:], 1.0)
    np.testing.assert_allclose(found.components_[:, 4:], 0.0, atol=1e-5)


def test_features_and_values_that_too_few_rows_have_are_counted_or_refused():
    parties = parties_of_three()
    parties[0][:, 1] = parties[1][:, 4] = parties[2][:, 4] = np.nan
    model = fit("em", parties, n_components=2)
    assert any(note.startswith("1 pairs of features have no row in common") for note in model.log["notes"])
    assert not any("pairs of features" in note for note in fit("em", parties_of_three(), n_components=2).log["notes"])
    parties = parties_of_three()
    parties[2][:, 3] = np.nan
    assert fit("em", parties, n_components=2, min_rows=10).n_samples_ == 300  # it has none of that feature
    parties[2][:9, 3] = 1.0
    with refused(DisclosureError, "client 2", "min_rows", 10, match="values"):
        fit("em", parties, n_components=2, min_rows=10)
    with refused(DisclosureError, "client 2", "min_rows"):  # the last five rows are left out
        fit("em", cut(holes(rows(300, 6), 0.2, 1), 180, 95, 25), n_components=2, min_rows=19, round_rows=10)


def test_the_server_cannot_send_a_covariance_that_is_none(monkeypatch):
    monkeypatch.setattr(moments, "pack", lambda matrix: np.ones(21))
    with refused(ContractError, "client 0", "'covariance'"):
        fit("em", parties_of_three(), n_components=2)
