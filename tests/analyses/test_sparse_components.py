"""Sparse components of all parties' rows: what their scores explain, their bounds, and what is refused."""

import numpy as np
import pytest
from sklearn.datasets import load_wine

from fedpca_flwr import analyses, run
from fedpca_flwr.analyses.sparse_pca import sparse_component
from fedpca_flwr.errors import ConfigError, ContractError
from fedpca_flwr.model.second_moments import SecondMoments
from tests.families import cut, rows
from tests.refusals import refused

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
    shares = result.adjusted_variances / Z.var().sum()
    np.testing.assert_allclose(result.explained_shares, shares, rtol=1e-9)
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
