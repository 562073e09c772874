"""Rotations find a simple structure, and varimax is scikit-learn's."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.decomposition._factor_analysis import _ortho_rotation

from fedpca_flwr.analyses.components import promax, varimax


def spread(loadings):
    """What varimax makes large."""
    return (loadings**2).var(axis=0).sum()


@pytest.mark.parametrize("seed", range(5))
def test_varimax_is_that_of_scikit_learn(seed):
    loadings = np.random.default_rng(seed).standard_normal((12, 3)) ** 3
    ours = loadings @ varimax(loadings, kaiser=False)
    theirs = _ortho_rotation(loadings, "varimax", tol=1e-14, max_iter=10**4).T
    np.testing.assert_allclose(spread(ours), spread(theirs), rtol=1e-9)
    order = [np.argmax(np.abs(ours.T @ column) / np.linalg.norm(ours, axis=0)) for column in theirs.T]
    np.testing.assert_allclose(np.abs(ours[:, order]), np.abs(theirs), atol=1e-5 * np.abs(theirs).max())


def test_varimax_is_orthogonal_and_finds_a_simple_structure():
    simple = np.kron(np.eye(3), np.array([[0.9], [0.7], [0.5], [0.8]]))
    turn, _ = np.linalg.qr(np.random.default_rng(0).standard_normal((3, 3)))
    found = varimax(simple @ turn)
    np.testing.assert_allclose(found @ found.T, np.eye(3), atol=1e-12)
    rotated = np.abs(simple @ turn @ found)
    np.testing.assert_allclose(np.sort(rotated, axis=1)[:, :2], 0, atol=1e-6)
    np.testing.assert_allclose(rotated.max(axis=1), simple.max(axis=1), atol=1e-6)


@pytest.mark.parametrize("rotate", [varimax, promax])
def test_kaisers_normalisation_is_the_default_and_rotates_loadings_of_length_1(rotate):
    """R: ``z <- loadings / sqrt(rowSums(loadings^2))``, and the rotation of z."""
    loadings = np.random.default_rng(3).standard_normal((12, 3)) * np.geomspace(0.05, 1, 12)[:, None]
    lengths = np.linalg.norm(loadings, axis=1)
    orthogonal = varimax(loadings / lengths[:, None], kaiser=False)
    np.testing.assert_allclose(varimax(loadings), orthogonal, atol=1e-12)
    assert not np.allclose(np.abs(rotate(loadings)), np.abs(rotate(loadings, kaiser=False)), atol=1e-3)
    spent = np.vstack([loadings, np.zeros(3)])  # a constant feature
    np.testing.assert_allclose(rotate(spent), rotate(loadings), atol=1e-9)


def test_promax_finds_correlated_factors():
    """Loadings of a simple pattern on two factors whose correlation is 0.4."""
    pattern = np.kron(np.eye(2), np.array([[0.9], [0.8], [0.7], [0.6]]))
    between = np.array([[1.0, 0.4], [0.4, 1.0]])
    loadings = pattern @ np.linalg.cholesky(between)
    turn = promax(loadings)
    inverse = np.linalg.inv(turn)
    correlated = inverse @ inverse.T
    np.testing.assert_allclose(np.diagonal(correlated), 1)
    np.testing.assert_allclose(abs(correlated[0, 1]), 0.4, atol=0.05)
    np.testing.assert_allclose(np.sort(np.abs(loadings @ turn), axis=1)[:, 0], 0, atol=0.05)
    np.testing.assert_allclose(loadings @ turn @ correlated @ turn.T @ loadings.T, loadings @ loadings.T, atol=1e-12)


def test_one_column_stays():
    np.testing.assert_allclose(np.abs(varimax(np.ones((4, 1)))), 1)
    np.testing.assert_allclose(np.abs(promax(np.arange(1.0, 5)[:, None])), 1)
