"""Sparse components of all parties' rows: what their scores explain, their bounds, and what is refused."""

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_wine

from fedpca_flwr import analyses, run
from fedpca_flwr.analyses.sparse_pca import sparse_component
from fedpca_flwr.errors import ConfigError, ContractError
from fedpca_flwr.model.second_moments import SecondMoments
from tests.families import cut, rows
from tests.refusals import refused

WINE = load_wine(as_frame=True).data
PARTS = [WINE[0::3], WINE[1::3], WINE[2::3]]
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
    shares = result.adjusted_variances / Z.var().sum()
    np.testing.assert_allclose(result.explained_shares, shares, rtol=1e-9)
    assert np.count_nonzero(result.components, axis=1).tolist() == [5, 3, 3, 1]
    assert result.exact.all()
    np.testing.assert_allclose(result.gaps, 1 - result.adjusted_variances / result.bounds)
    assert (result.gaps >= 0).all()
    assert result.features == tuple(WINE.columns)


def test_with_all_loadings_they_are_the_principal_components():
    result = analyses.sparse_components(POOLED, 3, 13, scale=True)
    model = analyses.pca(POOLED, 3, scale=True)
    np.testing.assert_allclose(result.components, model.components_, atol=1e-9)
    np.testing.assert_allclose(result.adjusted_variances, model.explained_variance_, rtol=1e-9)
    np.testing.assert_allclose(result.bounds, model.explained_variance_, rtol=1e-9)


def test_components_of_three_parties_are_those_of_pooled_rows():
    pooled = analyses.sparse_components(POOLED, 3, 4, scale=True)
    moments = run("p-cov", PARTS, n_components=1, keep="moments").moments_
    result = analyses.sparse_components(moments, 3, 4, scale=True)
    np.testing.assert_allclose(result.components, pooled.components, atol=1e-10)
    np.testing.assert_allclose(result.bounds, pooled.bounds, rtol=1e-10)
    np.testing.assert_allclose(result.mean, WINE.mean(), rtol=1e-12)


def test_secure_sums_change_a_variance_by_their_error_at_most():
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
    for k in (0, 14, "2", None):
        with refused(ConfigError, "'k'", repr(k), 1, 13):
            analyses.sparse_components(POOLED, k, 2)
    with refused(ConfigError, "'k'", 4, 3):
        analyses.sparse_components(SecondMoments.of(WINE[:4]), 4, 2)
    with refused(ConfigError, "'loadings'", 3, 2):
        analyses.sparse_components(POOLED, 2, [4, 4, 4])
    alike = SecondMoments.of(pd.DataFrame(np.outer(np.arange(9.0), [1.0, -2.0, 3.0])))
    with refused(ContractError, 2):
        analyses.sparse_components(alike, 2, 1)
    with refused(ConfigError, "'moments'", "NoneType", "keep='moments'"):
        analyses.sparse_components(run("p-cov", PARTS, n_components=1).moments_, 2, 3)
