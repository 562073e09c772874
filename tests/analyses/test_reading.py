"""What components mean in terms of the features, against correlations of the pooled rows with their scores."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.datasets import load_wine
from sklearn.decomposition import PCA

from fedpca_flwr import analyses
from fedpca_flwr.errors import ConfigError, ContractError
from fedpca_flwr.model.second_moments import SecondMoments
from simulations import run
from tests.families import cut, rows
from tests.refusals import refused

X = np.column_stack([load_wine().data, np.full(178, 3.0)])


@pytest.fixture(scope="module")
def moments():
    return run("p-cov", cut(X, 100, 50, 28), n_components=1, keep="moments", engine="loopback").moments_


@pytest.mark.parametrize("scale", [False, True])
def test_loadings_are_correlations_of_scores_with_features(moments, scale):
    found = analyses.read(moments, 3, scale=scale)
    scores = analyses.pca(moments, 3, scale=scale).transform(X)
    expected = [[np.corrcoef(score, column)[0, 1] for column in X[:, :13].T] for score in scores.T]
    signs = np.sign(np.sum(expected * found.correlations[:, :13], axis=1))
    np.testing.assert_allclose(found.correlations[:, :13] * signs[:, None], expected, atol=1e-9)
    np.testing.assert_array_equal(found.correlations[:, 13], 0)
    explained = [np.linalg.lstsq(np.c_[scores, np.ones(178)], column, rcond=None)[1][0] for column in X[:, :13].T]
    np.testing.assert_allclose(found.communalities[:13], 1 - explained / (178 * X[:, :13].var(axis=0)), atol=1e-9)
    np.testing.assert_allclose(found.contributions.sum(axis=1), 1)
    np.testing.assert_array_equal(found.between, np.eye(3))


@pytest.mark.parametrize("rotation", ["varimax", "promax"])
def test_rotation_keeps_what_the_components_hold_together(moments, rotation):
    plain, turned = (analyses.read(moments, 3, scale=True, rotation=one) for one in ("none", rotation))
    np.testing.assert_allclose(turned.communalities, plain.communalities)
    reproduced = turned.correlations.T @ turned.between @ turned.correlations
    np.testing.assert_allclose(reproduced, plain.correlations.T @ plain.correlations, atol=1e-10)
    for row in turned.correlations:
        assert row[np.abs(row).argmax()] > 0
    strengths = np.sum(turned.correlations**2, axis=1)
    assert (np.diff(strengths) <= 0).all()
    assert (turned.correlations**2).var(axis=1).sum() > (plain.correlations**2).var(axis=1).sum()
    assert (rotation == "varimax") == bool(np.allclose(turned.between, np.eye(3)))


def test_whitened_scores_are_those_of_scikit_learn():
    model = run("p-cov", cut(X, 100, 78), n_components=3, engine="loopback")
    theirs = PCA(3, whiten=True, svd_solver="full").fit_transform(X)
    np.testing.assert_allclose(np.abs(analyses.whitened(model, X)), np.abs(theirs), atol=1e-7)
    flat = run("p-cov", cut(rows(40, 3) @ np.eye(3, 6), 20, 20), n_components=4, engine="loopback")
    with refused(ContractError, 4):
        analyses.whitened(flat, rows(5, 6))


def test_a_rotation_that_there_is_not(moments):
    with refused(ConfigError, "'rotation'", "'oblimin'"):
        analyses.read(moments, 2, rotation="oblimin")


def test_components_of_rounding_are_not_read():
    """Their loadings look like any others."""
    collinear = np.column_stack([X[:, :3], 2 * X[:, 0]])
    with refused(ContractError, 4):
        analyses.read(SecondMoments.of(collinear), 4, scale=True)
    still = SecondMoments.of(np.column_stack([X[:, :1], np.ones((178, 2))]))
    with refused(ContractError, 2):
        analyses.read(still, 2, rotation="varimax")
