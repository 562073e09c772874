"""Sparse components are the best of all supports, their bounds hold, and they beat R's `elasticnet`."""

from itertools import combinations, product

import numpy as np
import pytest
from sklearn.datasets import load_wine

from fedpca_flwr import analyses, run
from fedpca_flwr.analyses import sparse_pca
from fedpca_flwr.analyses.sparse_pca import deflate, sparse_component
from fedpca_flwr.errors import ConfigError, ContractError
from fedpca_flwr.model.second_moments import SecondMoments
from tests.families import cut, rows
from tests.refusals import refused


def largest_variance(C, s):
    """Return the largest leading eigenvalue of all principal submatrices (s, s)."""
    supports = np.array(list(combinations(range(len(C)), s)))
    return np.linalg.eigvalsh(C[supports[:, :, None], supports[:, None, :]])[:, -1].max()


def drawn(seed, d, n):
    rng = np.random.default_rng(seed)
    return np.cov(rng.standard_normal((n, d)) * np.exp(rng.standard_normal(d) / 2), rowvar=False)


WORDS = np.random.default_rng(7).integers(-1, 2, (12, 9)).astype(float)  # many equal entries, and equal sums
COVARIANCES = {
    "many rows": drawn(0, 12, 400),
    "few rows, singular": drawn(1, 13, 5),
    "fifteen features": np.corrcoef(rows(40, 15), rowvar=False),
    "small whole numbers": np.cov(WORDS, rowvar=False),
    "no correlation": np.eye(8),
    "equal positive correlations": 0.4 + 0.6 * np.eye(9),
    "equal negative correlations": (1.1 * np.eye(9) - 0.1) / 0.9,
    "signs that alternate": (-0.7) ** np.abs(np.subtract.outer(range(11), range(11))),
    "each feature twice, once negative": np.kron([[1, -1], [-1, 1]], np.corrcoef(rows(30, 6), rowvar=False)),
    "blocks": np.kron(np.eye(3), 0.5 + 0.5 * np.eye(4)),
    "constant features": np.diag([0.0, 3.0, 0.0, 1.0]),
    "one feature": np.array([[2.0]]),
}


@pytest.mark.parametrize("kind", COVARIANCES)
def test_up_to_fifteen_features_no_support_is_better(kind):
    C = COVARIANCES[kind]
    d = len(C)
    for s in sorted({1, min(2, d), min(3, d), (d + 1) // 2, max(1, d - 1), d}):
        component = sparse_component(C, s)
        best = largest_variance(C, s)
        assert component.exact
        assert component.variance == pytest.approx(best, rel=1e-9)
        assert best <= component.bound * (1 + 1e-12)
        assert component.variance <= component.bound
        v = component.loadings
        assert v @ C @ v == pytest.approx(component.variance, rel=1e-9)
        assert np.linalg.norm(v) == pytest.approx(1)
        assert np.count_nonzero(v) <= s
        assert v.max() >= np.abs(v).max() * (1 - 1e-6)


def test_bounds_are_the_smaller_of_eigenvalue_and_row_sum():
    C = COVARIANCES["fifteen features"]
    for s in range(1, 16):
        sums = max(row[i] + np.sort(np.delete(np.abs(row), i))[15 - s :].sum() for i, row in enumerate(C))
        expected = min(np.linalg.eigvalsh(C)[-1], sums)
        assert sparse_component(C, s).bound == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("seed", [2, 4, 19, 26])
def test_branch_and_bound_mends_a_search_that_misses(seed, monkeypatch):
    """Of one start and one step; noise of equal variances, where supports differ little."""
    monkeypatch.setattr(sparse_pca, "ROW_STARTS", 0)
    monkeypatch.setattr(sparse_pca, "MAX_STEPS", 1)
    C = np.corrcoef(np.random.default_rng(seed).standard_normal((30, 14)), rowvar=False)
    best = {s: largest_variance(C, s) for s in (3, 5, 7)}
    for (s, variance), unit in product(best.items(), (1e-6, 1e6)):  # bounds have the unit of the covariance
        component = sparse_component(unit * C, s)
        assert component.exact
        assert component.variance == pytest.approx(unit * variance, rel=1e-9)
    monkeypatch.setattr(sparse_pca, "MAX_EXACT_FEATURES", 13)
    search = {s: sparse_component(C, s) for s in best}
    assert any(search[s].variance < 0.999 * best[s] for s in best)
    assert not any(component.exact for component in search.values())
    assert all(best[s] <= search[s].bound for s in best)


def test_a_search_that_ends_early_claims_no_best(monkeypatch):
    monkeypatch.setattr(sparse_pca, "MAX_NODES", 3)
    component = sparse_component(COVARIANCES["fifteen features"], 5)
    assert not component.exact
    assert component.variance < component.bound


def test_the_search_alone_finds_the_best_of_fourteen(monkeypatch):
    monkeypatch.setattr(sparse_pca, "MAX_EXACT_FEATURES", 0)
    monkeypatch.setattr(sparse_pca, "ROW_STARTS", 4)
    for seed in range(8):
        C = np.corrcoef(np.random.default_rng(seed).standard_normal((30, 14)), rowvar=False)
        assert sparse_component(C, 5).variance == pytest.approx(largest_variance(C, 5), rel=1e-9)


@pytest.mark.parametrize("n", [40, 2000])
def test_beyond_thirty_features_the_search_finds_the_best(n):
    for seed in range(3):
        C = np.corrcoef(np.random.default_rng(seed).standard_normal((n, 36)), rowvar=False)
        component = sparse_component(C, 3)
        assert component.variance == pytest.approx(largest_variance(C, 3), rel=1e-9)
        assert component.variance < component.bound
        assert not component.exact
    assert sparse_component(C, 1).exact
    assert sparse_component(C, 36).exact  # where the bound is reached, nothing is better


def test_deflated_covariance_is_of_residuals_after_regression():
    X = rows(60, 7)
    C = np.cov(X, rowvar=False)
    v = sparse_component(C, 3).loadings
    scores = np.column_stack([X @ v, np.ones(60)])
    residuals = X - scores @ np.linalg.lstsq(scores, X, rcond=None)[0]
    np.testing.assert_allclose(deflate(C, v), np.cov(residuals, rowvar=False), atol=1e-14)


PITPROPS = """954
364 297
342 284 882
-129 -118 -148 220
313 291 153 381 364
496 503 -29 174 296 813
424 419 -54 -59 4 90 372
592 648 125 137 -39 211 465 482
545 569 -81 -14 37 274 679 557 526
84 76 162 97 -91 -36 -113 61 85 -319
-19 -36 220 169 -145 24 -232 -357 -127 -368 29
134 144 126 15 -208 -329 -424 -202 -76 -291 7 184"""
"""Correlations, in thousandths, of 13 measures of pit props (Jeffers 1967), below the diagonal."""

SPCA = {
    (1, 1, 1, 1): [0.0769230769, 0.0701377692, 0.0747756226, 0.0745068396],
    (2, 2, 2, 2): [0.1249926823, 0.0980552740, 0.0691927827, 0.0815976448],
    (3, 3, 3, 3): [0.1752778188, 0.1045471462, 0.0833655161, 0.0798263232],
    (5, 5, 5, 5): [0.2486977025, 0.1432053068, 0.1527726132, 0.0837444736],
    (8, 8, 8, 8): [0.2831705822, 0.1699852475, 0.1601031235, 0.0860064855],
    (12, 12, 12, 12): [0.3224796311, 0.1828667373, 0.1447338778, 0.0856861195],
    (7, 4, 4, 1, 1): [0.2817102590, 0.1393305997, 0.1306714484, 0.0743942263, 0.0684547054],
}
"""By R's elasticnet 1.3, ``spca(pitprops, K, para, type = "Gram", sparse = "varnum")$pev``: the adjusted variances."""


def pitprops():
    C = np.eye(13)
    C[np.tril_indices(13, -1)] = np.array(PITPROPS.split(), float) / 1000
    return np.tril(C) + np.tril(C, -1).T


@pytest.mark.parametrize("counts", SPCA)
def test_components_explain_as_much_as_those_of_elasticnet(counts):
    C, variances = pitprops(), []
    for count in counts:
        component = sparse_component(C, count)
        variances.append(component.variance / 13)
        C = deflate(C, component.loadings)
    assert (np.cumsum(variances) >= np.cumsum(SPCA[counts]) - 1e-9).all()


WINE = load_wine(as_frame=True).data
POOLED = SecondMoments.of(WINE)


@pytest.mark.parametrize("scale", [False, True])
def test_adjusted_variances_are_those_of_scores_by_qr(scale):
    """Zou, Hastie and Tibshirani (2006): squared diagonal of R of the centred scores."""
    result = analyses.sparse_components(POOLED, 4, [5, 3, 3, 1], scale=scale)
    scores = result.transform(WINE)
    Z = (WINE - WINE.mean()) / (WINE.std(ddof=0) if scale else 1)
    np.testing.assert_allclose(scores, Z @ result.components.T, atol=1e-9)
    _, R = np.linalg.qr(scores - scores.mean(axis=0))
    np.testing.assert_allclose(result.adjusted_variances, np.diagonal(R) ** 2 / 177, rtol=1e-9)
    np.testing.assert_allclose(result.explained_shares, result.adjusted_variances / Z.var().sum(), rtol=1e-9)
    assert np.count_nonzero(result.components, axis=1).tolist() == [5, 3, 3, 1]
    assert result.exact.all()
    np.testing.assert_allclose(result.gaps, 1 - result.adjusted_variances / result.bounds)
    assert (result.gaps >= 0).all()
    assert result.features == tuple(WINE.columns)


def test_masked_parties_change_a_variance_by_the_error_of_their_sums():
    X = rows(150, 8)
    secure = {"secure_aggregation": True, "bound": 1e6}
    moments = run("p-cov", cut(X, 60, 50, 40), n_components=1, keep="moments", **secure).moments_
    masked, pooled = (analyses.sparse_components(one, 2, 3) for one in (moments, SecondMoments.of(X)))
    error = moments.error_bound.sum() / 149 + 1e-14
    assert abs(masked.adjusted_variances[0] - pooled.adjusted_variances[0]) <= error
    np.testing.assert_array_equal(masked.components != 0, pooled.components != 0)
    np.testing.assert_allclose(masked.components, pooled.components, atol=1e-12)


def test_many_features_have_a_bound_and_no_proof():
    X = rows(80, 40)
    result = analyses.sparse_components(SecondMoments.of(X), 2, [4, 40])
    assert result.exact.tolist() == [False, True]
    assert 0 < result.gaps[0] < 1
    np.testing.assert_allclose(result.adjusted_variances[0], sparse_component(np.cov(X.T), 4).variance)
    assert "not proven" in repr(result)


@pytest.mark.parametrize("count", [0, 14, -1, 2.0, True, "3", None])
def test_a_number_of_loadings_that_cannot_be_is_refused(count):
    with refused(ConfigError, "'loadings'", repr(count), 1, 13):
        analyses.sparse_components(POOLED, 1, [count])
    if not isinstance(count, str):
        with refused(ConfigError, "'loadings'", repr(count), 1, 13):
            analyses.sparse_components(POOLED, 2, count)


def test_components_that_cannot_be_are_refused():
    alike = SecondMoments.of(np.outer(np.arange(9.0), [1.0, -2.0, 3.0]))
    for moments, k, loadings, error, named in (
        *((POOLED, k, 2, ConfigError, ["'k'", repr(k), 1, 13]) for k in (0, 14, "2", None)),
        (SecondMoments.of(WINE[:4]), 4, 2, ConfigError, ["'k'", 4, 3]),
        (POOLED, 2, [4, 4, 4], ConfigError, ["'loadings'", 3, 2]),
        (alike, 2, 1, ContractError, [2]),
        (None, 2, 3, ConfigError, ["'moments'", "NoneType", "keep='moments'"]),
    ):
        with refused(error, *named):
            analyses.sparse_components(moments, k, loadings)
