"""What components mean in terms of the features, by correlations with their scores and by rotations."""

from typing import Any

import numpy as np
import pytest
from scipy.stats import chi2
from sklearn.datasets import load_wine
from sklearn.decomposition import PCA
from sklearn.decomposition._factor_analysis import _ortho_rotation

from fedpca_flwr import analyses, run
from fedpca_flwr.analyses.components import promax, varimax
from fedpca_flwr.errors import ConfigError, ContractError, DataError
from fedpca_flwr.model.second_moments import SecondMoments
from tests.families import cut, rows
from tests.refusals import refused

X = np.column_stack([load_wine().data, np.full(178, 3.0)])


@pytest.fixture(scope="module")
def moments():
    return run("p-cov", cut(X, 100, 50, 28), n_components=1, keep="moments").moments_


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
    np.testing.assert_allclose(found.contributions, analyses.pca(moments, 3, scale=scale).components_ ** 2, atol=1e-12)
    np.testing.assert_array_equal(found.between, np.eye(3))


@pytest.mark.parametrize("scale", [False, True])
@pytest.mark.parametrize("rotation", ["none", "varimax", "promax"])
def test_a_reading_keeps_what_gives_rotated_scores(moments, scale, rotation):
    found = analyses.read(moments.select(range(13)), 3, scale=scale, rotation=rotation)
    scores = found.scores(X[:, :13])
    np.testing.assert_allclose(np.cov(scores.T), found.between, atol=1e-9)
    deviation = X[:, :13].std(axis=0, ddof=1)
    slopes = np.linalg.lstsq(scores, (X[:, :13] - X[:, :13].mean(axis=0)) / deviation, rcond=None)[0]
    np.testing.assert_allclose(found.correlations, slopes, atol=1e-9)  # if orthogonal, also correlations
    unit = X[:, :13].std(axis=0) if scale else 1.0
    np.testing.assert_allclose(found.variances, ((slopes * deviation / unit) ** 2).sum(axis=1), rtol=1e-9)
    np.testing.assert_allclose(found.contributions.sum(axis=1), 1)


@pytest.mark.parametrize("scale", [False, True])
def test_supplementary_features_are_read_and_have_no_part(moments, scale):
    """FactoMineR does the same: the components are those of the active features, which come first."""
    besides = [12, 0]
    rest = [j for j in range(14) if j not in besides]
    found = analyses.read(moments, 2, scale=scale, supplementary=besides)
    alone = analyses.read(moments.select(rest), 2, scale=scale)
    np.testing.assert_allclose(found.correlations[:, :12], alone.correlations, atol=1e-12)
    np.testing.assert_array_equal(found.contributions[:, 12:], 0)
    scores = analyses.pca(moments.select(rest), 2, scale=scale).transform(X[:, rest])
    expected = np.corrcoef(scores.T, X[:, besides].T)[:2, 2:]
    signs = np.sign(np.sum(np.corrcoef(scores.T, X[:, rest[:-1]].T)[:2, 2:] * alone.correlations[:, :-1], axis=1))
    np.testing.assert_allclose(found.correlations[:, 12:], signs[:, None] * expected, atol=1e-9)
    turned = analyses.read(moments, 2, scale=scale, rotation="varimax", supplementary=besides)
    np.testing.assert_allclose(turned.communalities, found.communalities, atol=1e-9)
    assert turned.supplementary == 2


@pytest.mark.parametrize("scale", [False, True])
def test_a_supplementary_level_stands_at_the_mean_of_its_rows(scale):
    labels = load_wine().target
    table = np.column_stack([labels == 0, X[:, :13], labels == 1, labels == 2])
    moments = run("p-cov", cut(table, 100, 50, 28), n_components=1, keep="moments").moments_
    found = analyses.barycentres(moments, 3, [0, 14, 15], scale=scale)
    scores = analyses.pca(moments.select(range(1, 14)), 3, scale=scale).transform(X[:, :13])
    expected = [scores[labels == label].mean(axis=0) for label in range(3)]
    np.testing.assert_allclose(found, expected, atol=1e-9 * np.abs(scores).max())
    with refused(DataError, 1):
        analyses.barycentres(moments, 3, [0, 1])
    table[0, 0] = 0.9
    with refused(DataError, 0, match="indicators"):
        analyses.barycentres(SecondMoments.of(table), 3, [0])


@pytest.mark.parametrize("rotation", ["varimax", "promax"])
def test_rotation_keeps_what_the_components_hold_together(moments, rotation):
    plain, turned = (analyses.read(moments, 3, scale=True, rotation=one) for one in ("none", rotation))
    np.testing.assert_allclose(turned.communalities, plain.communalities)
    reproduced = turned.correlations.T @ turned.between @ turned.correlations
    np.testing.assert_allclose(reproduced, plain.correlations.T @ plain.correlations, atol=1e-10)
    for row in turned.correlations:
        assert row[np.abs(row).argmax()] > 0
    assert (np.diff(np.sum(turned.correlations**2, axis=1)) <= 0).all()
    assert (turned.correlations**2).var(axis=1).sum() > (plain.correlations**2).var(axis=1).sum()
    assert (rotation == "varimax") == bool(np.allclose(turned.between, np.eye(3)))


def test_whitened_scores_are_those_of_scikit_learn():
    model = run("p-cov", cut(X, 100, 78), n_components=3)
    theirs = PCA(3, whiten=True, svd_solver="full").fit_transform(X)
    np.testing.assert_allclose(np.abs(analyses.whitened(model, X)), np.abs(theirs), atol=1e-7)
    flat = run("p-cov", cut(rows(40, 3) @ np.eye(3, 6), 20, 20), n_components=4)
    with refused(ContractError, 4):
        analyses.whitened(flat, rows(5, 6))


OF_ANOTHER_TYPE: dict[str, Any] = {"scale": np.ones(3), "rotation": ["varimax"]}


def test_rotations_and_components_that_cannot_be_are_refused(moments):
    """Loadings of collinear features and of those that do not vary look like any others."""
    collinear = SecondMoments.of(np.column_stack([X[:, :3], 2 * X[:, 0]]))
    still = SecondMoments.of(np.column_stack([X[:, :1], np.ones((178, 2))]))
    for own, k, options, error, named in (
        (moments, 2, {"rotation": "oblimin"}, ConfigError, ["'rotation'", "'oblimin'"]),
        (collinear, 4, {"scale": True}, ContractError, [4]),
        (still, 2, {"rotation": "varimax"}, ContractError, [2]),
        *((collinear, 2, {name: value}, ConfigError, [f"'{name}'"]) for name, value in OF_ANOTHER_TYPE.items()),
        (collinear, np.ones(2), {}, ConfigError, ["'k'"]),
        (collinear, 2, {"supplementary": None}, ConfigError, ["features"]),
    ):
        with refused(error, *named):
            analyses.read(own, k, **options)


@pytest.mark.parametrize("seed", range(2))
def test_varimax_is_that_of_scikit_learn(seed):
    loadings = np.random.default_rng(seed).standard_normal((12, 3)) ** 3
    turn = varimax(loadings, kaiser=False)
    np.testing.assert_allclose(turn @ turn.T, np.eye(3), atol=1e-12)
    ours = loadings @ turn
    theirs = _ortho_rotation(loadings, "varimax", tol=1e-14, max_iter=10**4).T
    spread, expected = ((one**2).var(axis=0).sum() for one in (ours, theirs))  # what varimax makes large
    np.testing.assert_allclose(spread, expected, rtol=1e-9)
    order = [np.argmax(np.abs(ours.T @ column) / np.linalg.norm(ours, axis=0)) for column in theirs.T]
    np.testing.assert_allclose(np.abs(ours[:, order]), np.abs(theirs), atol=1e-5 * np.abs(theirs).max())


@pytest.mark.parametrize("rotate", [varimax, promax])
def test_kaiser_normalisation_is_the_default(rotate):
    """R: ``z <- loadings / sqrt(rowSums(loadings^2))``, and the rotation of z."""
    loadings = np.random.default_rng(3).standard_normal((12, 3)) * np.geomspace(0.05, 1, 12)[:, None]
    orthogonal = varimax(loadings / np.linalg.norm(loadings, axis=1)[:, None], kaiser=False)
    np.testing.assert_allclose(varimax(loadings), orthogonal, atol=1e-12)
    assert not np.allclose(np.abs(rotate(loadings)), np.abs(rotate(loadings, kaiser=False)), atol=1e-3)
    spent = np.vstack([loadings, np.zeros(3)])  # a constant feature
    np.testing.assert_allclose(rotate(spent), rotate(loadings), atol=1e-9)
    np.testing.assert_allclose(np.abs(rotate(np.arange(1.0, 5)[:, None])), 1)  # of one column there is no other turn


def test_promax_finds_correlated_factors():
    """Loadings of a simple pattern on two factors whose correlation is 0.4."""
    pattern = np.kron(np.eye(2), np.array([[0.9], [0.8], [0.7], [0.6]]))
    loadings = pattern @ np.linalg.cholesky(np.array([[1.0, 0.4], [0.4, 1.0]]))
    turn = promax(loadings)
    inverse = np.linalg.inv(turn)
    correlated = inverse @ inverse.T
    np.testing.assert_allclose(np.diagonal(correlated), 1)
    np.testing.assert_allclose(abs(correlated[0, 1]), 0.4, atol=0.05)
    np.testing.assert_allclose(np.sort(np.abs(loadings @ turn), axis=1)[:, 0], 0, atol=0.05)
    np.testing.assert_allclose(loadings @ turn @ correlated @ turn.T @ loadings.T, loadings @ loadings.T, atol=1e-12)


def test_factorability_follows_from_partial_correlations_and_the_determinant():
    Z, n = (X[:, :6] - X[:, :6].mean(axis=0)) / X[:, :6].std(axis=0), len(X)
    found = analyses.factorability(SecondMoments.of(X[:, :6]))
    R, partial = np.corrcoef(Z.T), np.zeros((6, 6))
    for i in range(6):
        for j in range(i):
            others = np.delete(Z, [i, j], axis=1)
            left = Z[:, [i, j]] - others @ np.linalg.lstsq(others, Z[:, [i, j]], rcond=None)[0]
            partial[i, j] = partial[j, i] = np.corrcoef(left.T)[0, 1]
    squares = R**2 - np.eye(6)
    np.testing.assert_allclose(found.kmo_by_feature, squares.sum(0) / (squares + partial**2).sum(0), rtol=1e-9)
    np.testing.assert_allclose(found.kmo, squares.sum() / (squares + partial**2).sum(), rtol=1e-9)
    np.testing.assert_allclose(found.chi_squared, -(n - 1 - 17 / 6) * np.log(np.linalg.det(R)), rtol=1e-9)
    np.testing.assert_allclose([found.probability, found.degrees], [chi2.sf(found.chi_squared, 15), 15])
    for rows_of, named in ((X[:, [0, 1, 0]], [178, 3]), (X[:, :1], [178, 1]), (X[:, [0, 13]], ["1"])):
        with refused(DataError, *named):
            analyses.factorability(SecondMoments.of(rows_of))
