"""What components mean in terms of the features, groups of features in equal weight, and sparse components.

Groups are held against weighted singular vectors and R's FactoMineR, sparse components against all supports and R's
`elasticnet`.
"""

from dataclasses import replace
from itertools import combinations, product

import numpy as np
import pytest
from scipy.stats import chi2
from sklearn.datasets import load_wine
from sklearn.decomposition import PCA
from sklearn.decomposition._factor_analysis import _ortho_rotation
from sklearn.preprocessing import StandardScaler

from fedpca_flwr import analyses, run
from fedpca_flwr.analyses import sparse_pca
from fedpca_flwr.analyses.components import promax, varimax
from fedpca_flwr.analyses.sparse_pca import deflate, sparse_component
from fedpca_flwr.errors import ConfigError, ContractError, DataError
from fedpca_flwr.model.model import PCAModel
from fedpca_flwr.model.second_moments import SecondMoments
from tests.families import cut, rows
from tests.refusals import refused

WINE = load_wine(as_frame=True).data
NAMES = list(WINE.columns)
POOLED = SecondMoments.of(WINE)
X = np.column_stack([WINE, np.full(178, 3.0)])


@pytest.fixture(scope="module")
def moments():
    return run("p-cov", cut(X, 100, 50, 28), n_components=1, keep="moments").moments_


@pytest.mark.parametrize("scale", [False, True])
def test_loadings_are_correlations_of_scores_with_features(moments, scale):
    found, model = analyses.read(moments, 3, scale=scale), analyses.pca(moments, 3, scale=scale)
    scores = model.transform(X)
    expected = np.corrcoef(scores.T, X[:, :13].T)[:3, 3:]
    signs = np.sign(np.sum(expected * found.correlations[:, :13], axis=1))
    np.testing.assert_allclose(found.correlations[:, :13] * signs[:, None], expected, atol=1e-9)
    np.testing.assert_array_equal(found.correlations[:, 13], 0)
    left = np.linalg.lstsq(np.c_[scores, np.ones(178)], X[:, :13], rcond=None)[1]
    np.testing.assert_allclose(found.communalities[:13], 1 - left / (178 * X[:, :13].var(axis=0)), atol=1e-9)
    np.testing.assert_allclose(found.contributions, model.components_**2, atol=1e-12)
    np.testing.assert_array_equal(found.between, np.eye(3))


@pytest.mark.parametrize("scale", [False, True])
@pytest.mark.parametrize("rotation", ["none", "varimax", "promax"])
def test_a_rotation_keeps_scores_and_what_the_components_hold(moments, scale, rotation):
    some, deviation = moments.select(range(13)), X[:, :13].std(axis=0, ddof=1)
    plain, found = (analyses.read(some, 3, scale=scale, rotation=one) for one in ("none", rotation))
    scores = found.scores(X[:, :13])
    np.testing.assert_allclose(np.cov(scores.T), found.between, atol=1e-9)
    slopes = np.linalg.lstsq(scores, (X[:, :13] - X[:, :13].mean(axis=0)) / deviation, rcond=None)[0]
    np.testing.assert_allclose(found.correlations, slopes, atol=1e-9)  # if orthogonal, also correlations
    unit = X[:, :13].std(axis=0) if scale else 1.0
    np.testing.assert_allclose(found.variances, ((slopes * deviation / unit) ** 2).sum(axis=1), rtol=1e-9)
    np.testing.assert_allclose(found.contributions.sum(axis=1), 1)
    np.testing.assert_allclose(found.communalities, plain.communalities)
    reproduced = found.correlations.T @ found.between @ found.correlations
    np.testing.assert_allclose(reproduced, plain.correlations.T @ plain.correlations, atol=1e-10)
    assert (rotation != "promax") == bool(np.allclose(found.between, np.eye(3)))
    if scale and rotation != "none":
        assert (found.correlations.max(axis=1) == np.abs(found.correlations).max(axis=1)).all()
        assert (np.diff(np.sum(found.correlations**2, axis=1)) <= 0).all()
        assert (found.correlations**2).var(axis=1).sum() > (plain.correlations**2).var(axis=1).sum()


@pytest.mark.parametrize("scale", [False, True])
def test_supplementary_features_are_read_and_have_no_part(moments, scale):
    """FactoMineR does the same: the components are those of the active features, which come first."""
    besides, rest = [12, 0], [*range(1, 12), 13]
    found = analyses.read(moments, 2, scale=scale, supplementary=besides)
    alone = analyses.read(moments.select(rest), 2, scale=scale)
    np.testing.assert_allclose(found.correlations[:, :12], alone.correlations, atol=1e-12)
    np.testing.assert_array_equal(found.contributions[:, 12:], 0)
    scores = analyses.pca(moments.select(rest), 2, scale=scale).transform(X[:, rest])
    expected = np.corrcoef(scores.T, X[:, [*rest[:-1], *besides]].T)[:2, 2:]
    signs = np.sign(np.sum(expected[:, :11] * alone.correlations[:, :11], axis=1))
    np.testing.assert_allclose(found.correlations[:, 12:], signs[:, None] * expected[:, 11:], atol=1e-9)
    turned = analyses.read(moments, 2, scale=scale, rotation="varimax", supplementary=besides)
    np.testing.assert_allclose(turned.communalities, found.communalities, atol=1e-9)
    assert turned.supplementary == 2


@pytest.mark.parametrize("scale", [False, True])
def test_a_supplementary_level_stands_at_the_mean_of_its_rows(scale):
    indicators = np.eye(3)[load_wine().target]
    table = np.column_stack([indicators[:, 0], WINE, indicators[:, 1:]])
    moments = SecondMoments.of(table)
    scores = analyses.pca(moments.select(range(1, 14)), 3, scale=scale).transform(X[:, :13])
    expected = indicators.T @ scores / indicators.sum(axis=0)[:, None]
    found = analyses.barycentres(moments, 3, [0, 14, 15], scale=scale)
    np.testing.assert_allclose(found, expected, atol=1e-9 * np.abs(scores).max())
    with refused(DataError, 1):
        analyses.barycentres(moments, 3, [0, 1])
    table[0, 0] = 0.9
    with refused(DataError, 0, match="indicators"):
        analyses.barycentres(SecondMoments.of(table), 3, [0])


def test_whitened_scores_are_those_of_scikit_learn():
    theirs = PCA(3, whiten=True, svd_solver="full").fit_transform(X)
    whitened = analyses.whitened(run("p-cov", cut(X, 100, 78), n_components=3), X)
    np.testing.assert_allclose(np.abs(whitened), np.abs(theirs), atol=1e-7)
    flat = run("p-cov", cut(rows(40, 3) @ np.eye(3, 6), 20, 20), n_components=4)
    with refused(ContractError, 4):
        analyses.whitened(flat, rows(5, 6))


def test_rotations_and_components_that_cannot_be_are_refused(moments):
    """Loadings of collinear features and of those that do not vary look like any others."""
    collinear = SecondMoments.of(np.column_stack([X[:, :3], 2 * X[:, 0]]))
    still = SecondMoments.of(np.column_stack([X[:, :1], np.ones((178, 2))]))
    for own, k, options, error, named in (
        (moments, 2, {"rotation": "oblimin"}, ConfigError, ["'rotation'", "'oblimin'"]),
        (collinear, 4, {"scale": True}, ContractError, [4]),
        (still, 2, {"rotation": "varimax"}, ContractError, [2]),
        (collinear, 2, {"scale": np.ones(3)}, ConfigError, ["'scale'"]),
        (collinear, 2, {"rotation": ["varimax"]}, ConfigError, ["'rotation'"]),
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
    ours, theirs = loadings @ turn, _ortho_rotation(loadings, "varimax", tol=1e-14, max_iter=10**4).T
    spread, expected = ((one**2).var(axis=0).sum() for one in (ours, theirs))  # what varimax makes large
    np.testing.assert_allclose(spread, expected, rtol=1e-9)
    order = np.argmax(np.abs(theirs.T @ ours) / np.linalg.norm(ours, axis=0), axis=1)
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
    correlated = np.linalg.inv(turn.T @ turn)
    np.testing.assert_allclose(np.diagonal(correlated), 1)
    np.testing.assert_allclose(abs(correlated[0, 1]), 0.4, atol=0.05)
    np.testing.assert_allclose(np.abs(loadings @ turn).min(axis=1), 0, atol=0.05)


def test_factorability_follows_from_partial_correlations_and_the_determinant():
    R = np.corrcoef(X[:, :6].T)
    found, precision = analyses.factorability(SecondMoments.of(X[:, :6])), np.linalg.inv(R)
    squares = R**2 - np.eye(6)
    partial = precision**2 / np.outer(np.diagonal(precision), np.diagonal(precision)) - np.eye(6)
    np.testing.assert_allclose(found.kmo_by_feature, squares.sum(0) / (squares + partial).sum(0), rtol=1e-9)
    np.testing.assert_allclose(found.kmo, squares.sum() / (squares + partial).sum(), rtol=1e-9)
    np.testing.assert_allclose(found.chi_squared, -(177 - 17 / 6) * np.log(np.linalg.det(R)), rtol=1e-9)
    np.testing.assert_allclose([found.probability, found.degrees], [chi2.sf(found.chi_squared, 15), 15])
    for rows_of, named in ((X[:, [0, 1, 0]], [178, 3]), (X[:, :1], [178, 1]), (X[:, [0, 13]], ["1"])):
        with refused(DataError, *named):
            analyses.factorability(SecondMoments.of(rows_of))


GROUPS = {"body": NAMES[:5], "phenols": NAMES[5:9], "colour": NAMES[9:]}
EIGENVALUES = [2.1019407858852039, 1.3741348142081811, 0.8384293750423036, 0.4969759701477313, 0.4393310064840696]
OF_GROUPS = [1.63048284390237, 2.77498283259876, 2.03728577766897]
COORDINATES = [  # of alcohol, malic_acid, ash
    [0.349676157491126, 0.755866699793142, -0.284490076335568],
    [-0.571191557489663, 0.382908453119913, -0.00455219847315562],
    [-0.033965843094458, 0.549853497632697, 0.732831077148835],
]
PERCENT = [
    [26.1819359662738, 56.6388312898854, 84.3092645902523],
    [38.5284587531571, 0.353477328582705, 5.42598821251094],
    [35.2896052805692, 43.007691381532, 10.2647471972369],
]
"""Of FactoMineR 2.14: ``MFA(wine, group = c(5, 4, 4), type = rep("s", 3))`` of scikit-learn's table."""


def test_groups_are_analysed_as_by_factominer(tmp_path):
    missed = replace(POOLED, error_bound=1e-6 * np.arange(1, 14) * WINE.var().to_numpy())
    result = analyses.multiple_factor_analysis(missed, GROUPS, 5)
    np.testing.assert_allclose(result.eigenvalues, EIGENVALUES, rtol=1e-10)
    np.testing.assert_allclose(result.group_eigenvalues, OF_GROUPS, rtol=1e-10)
    coordinates = result.reading.correlations.T[:3, :3]
    signs = np.sign(np.sum(coordinates * COORDINATES, axis=0))
    np.testing.assert_allclose(coordinates * signs, COORDINATES, atol=1e-10)
    np.testing.assert_allclose(100 * result.contributions.T[:, :3], PERCENT, atol=1e-9)
    assert result.groups == tuple(GROUPS)
    # What rounding misses is in the unit of the weighted features.
    bound = np.sum(missed.error_bound / result.model.scale_**2) / (177 * result.model.total_variance)
    assert result.model.log["measured"]["fixed_point_variance_share"] == pytest.approx(bound, rel=1e-6, abs=0)
    model = PCAModel.load(result.model.save(tmp_path / "groups"))  # as sites get it
    np.testing.assert_array_equal(model.transform(WINE), result.model.transform(WINE))


def test_components_are_singular_vectors_of_weighted_rows():
    """Groups of unequal sizes whose columns are not side by side, and one column that is constant."""
    X = np.column_stack([rows(90, 7, seed=2) * np.arange(1, 8), np.full(90, 5.0)])
    groups = {"one": [0, 3, 6], "two": [1, 7, 2], "three": [4], "four": [5]}
    result = analyses.multiple_factor_analysis(SecondMoments.of(X), groups, 4)
    Z, unit = StandardScaler().fit_transform(X), np.empty(8)
    for columns in groups.values():
        unit[columns] = np.linalg.norm(Z[:, columns], 2) / np.sqrt(90)  # rows have the weight 1 / n
    W = (Z / unit)[:, :7]
    reference = PCA(4, svd_solver="full").fit(W)
    np.testing.assert_allclose(result.eigenvalues, reference.explained_variance_ * 89 / 90, rtol=1e-10)
    scores, found = reference.transform(W), result.model.transform(X)
    np.testing.assert_allclose(found * np.sign(np.sum(found * scores, axis=0)), scores, atol=1e-10)
    correlations = result.reading.correlations
    np.testing.assert_allclose(correlations[:, :7], np.corrcoef(found.T, Z[:, :7].T)[:4, 4:], atol=1e-10)
    np.testing.assert_array_equal(correlations[:, 7], 0)
    assert result.model.scale_[7] == 1
    shares = np.column_stack([reference.components_**2, np.zeros(4)])
    np.testing.assert_allclose(result.reading.contributions, shares, atol=1e-10)
    by_group = [shares[:, columns].sum(axis=1) for columns in groups.values()]
    np.testing.assert_allclose(result.contributions.T, by_group, atol=1e-10)
    np.testing.assert_allclose(result.reading.communalities, np.sum(correlations**2, axis=0))


def test_groups_that_are_no_partition_are_refused():
    X, pairs, torn = rows(30, 2), {"a": [0, 1], "b": [2, 3]}, {**GROUPS, "colour": [NAMES[9], NAMES[11]]}
    still, twins = (SecondMoments.of(np.column_stack([X, other])) for other in (np.full((30, 2), 3.0), X))
    for moments, groups, k, error, named, match in (
        (POOLED, {**GROUPS, "ashes": ["ash"]}, 2, ConfigError, ["'groups'", "ash"], "more than one"),
        (POOLED, torn, 2, ConfigError, ["'groups'", "hue", "proline"], "no group"),
        (POOLED, {**GROUPS, "sweet": ["sugar"]}, 2, ConfigError, ["'sugar'"], None),
        *((POOLED, wrong, 2, ConfigError, ["'groups'"], None) for wrong in ({}, NAMES, None)),
        (POOLED, GROUPS, 14, ConfigError, ["'k'", 14, 13], None),
        (still, pairs, 1, DataError, ["'b'"], None),
        (SecondMoments.of(WINE[:4]), GROUPS, 4, ConfigError, ["'k'", 4, 3], None),
        (twins, pairs, 3, ContractError, [3], None),
    ):
        with refused(error, *named, match=match):
            analyses.multiple_factor_analysis(moments, groups, k)


def largest_variance(C, s):
    """Return the largest leading eigenvalue of all principal submatrices (s, s)."""
    supports = np.array(list(combinations(range(len(C)), s)))
    return np.linalg.eigvalsh(C[supports[:, :, None], supports[:, None, :]])[:, -1].max()


def drawn(seed, d, n):
    rng = np.random.default_rng(seed)
    return np.cov(rng.standard_normal((n, d)) * np.exp(rng.standard_normal(d) / 2), rowvar=False)


def noise(seed, n=30, d=14):
    """Correlations of features of equal variances, of which supports differ little."""
    return np.corrcoef(np.random.default_rng(seed).standard_normal((n, d)), rowvar=False)


FIFTEEN = np.corrcoef(rows(40, 15), rowvar=False)
COVARIANCES = {
    "many rows": drawn(0, 12, 400),
    "few rows, singular": drawn(1, 13, 5),
    "fifteen features": FIFTEEN,
    "many equal sums": np.cov(np.random.default_rng(7).integers(-1, 2, (12, 9)).astype(float), rowvar=False),
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
    C, d = COVARIANCES[kind], len(COVARIANCES[kind])
    for s in sorted({1, min(2, d), min(3, d), (d + 1) // 2, max(1, d - 1), d}):
        component, best = sparse_component(C, s), largest_variance(C, s)
        assert component.exact
        assert component.variance == pytest.approx(best, rel=1e-9)
        assert best <= component.bound * (1 + 1e-12)
        assert component.variance <= component.bound
        v = component.loadings
        assert [v @ C @ v, np.linalg.norm(v)] == pytest.approx([component.variance, 1], rel=1e-9)
        assert np.count_nonzero(v) <= s
        assert v.max() >= np.abs(v).max() * (1 - 1e-6)


@pytest.mark.parametrize("seed", [2, 4, 19, 26])
def test_branch_and_bound_mends_a_search_that_misses(seed, monkeypatch):
    """Of one start and one step."""
    monkeypatch.setattr(sparse_pca, "ROW_STARTS", 0)
    monkeypatch.setattr(sparse_pca, "MAX_STEPS", 1)
    C = noise(seed)
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


def test_bounds_are_the_smaller_of_eigenvalue_and_row_sum_and_no_best_where_a_search_ends_early(monkeypatch):
    for s in range(1, 16):
        sums = max(row[i] + np.sort(np.delete(np.abs(row), i))[15 - s :].sum() for i, row in enumerate(FIFTEEN))
        expected = min(np.linalg.eigvalsh(FIFTEEN)[-1], sums)
        assert sparse_component(FIFTEEN, s).bound == pytest.approx(expected, rel=1e-12)
    monkeypatch.setattr(sparse_pca, "MAX_NODES", 3)
    component = sparse_component(FIFTEEN, 5)
    assert not component.exact
    assert component.variance < component.bound
    # The search alone finds the best of fourteen.
    monkeypatch.setattr(sparse_pca, "MAX_EXACT_FEATURES", 0)
    monkeypatch.setattr(sparse_pca, "ROW_STARTS", 4)
    for seed in range(8):
        assert sparse_component(noise(seed), 5).variance == pytest.approx(largest_variance(noise(seed), 5), rel=1e-9)


def test_beyond_thirty_features_the_search_finds_the_best_and_has_a_bound_and_no_proof():
    for C in (noise(seed, n, 36) for n in (40, 2000) for seed in range(3)):
        component = sparse_component(C, 3)
        assert component.variance == pytest.approx(largest_variance(C, 3), rel=1e-9)
        assert component.variance < component.bound
        assert [sparse_component(C, s).exact for s in (1, 3, 36)] == [True, False, True]  # where the bound is reached
    X = rows(80, 40)
    result = analyses.sparse_components(SecondMoments.of(X), 2, [4, 40])
    assert result.exact.tolist() == [False, True]
    assert 0 < result.gaps[0] < 1
    np.testing.assert_allclose(result.adjusted_variances[0], sparse_component(np.cov(X.T), 4).variance)
    assert "not proven" in repr(result)


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


@pytest.mark.parametrize("counts", SPCA)
def test_components_explain_as_much_as_those_of_elasticnet(counts):
    C, variances = np.eye(13), []
    C[np.tril_indices(13, -1)] = C.T[np.tril_indices(13, -1)] = np.array(PITPROPS.split(), float) / 1000
    for count in counts:
        component = sparse_component(C, count)
        variances.append(component.variance / 13)
        C = deflate(C, component.loadings)
    assert (np.cumsum(variances) >= np.cumsum(SPCA[counts]) - 1e-9).all()


@pytest.mark.parametrize("scale", [False, True])
def test_adjusted_variances_are_those_of_scores_by_qr(scale):
    """Zou, Hastie and Tibshirani (2006): squared diagonal of R of the centred scores."""
    result = analyses.sparse_components(POOLED, 4, [5, 3, 3, 1], scale=scale)
    scores = result.transform(WINE)
    Z = (WINE - WINE.mean()) / (WINE.std(ddof=0) if scale else 1)
    np.testing.assert_allclose(scores, Z @ result.components.T, atol=1e-9)
    R = np.linalg.qr(scores - scores.mean(axis=0), mode="r")
    np.testing.assert_allclose(result.adjusted_variances, np.diagonal(R) ** 2 / 177, rtol=1e-9)
    np.testing.assert_allclose(result.explained_shares, result.adjusted_variances / Z.var().sum(), rtol=1e-9)
    assert np.count_nonzero(result.components, axis=1).tolist() == [5, 3, 3, 1]
    assert result.exact.all()
    np.testing.assert_allclose(result.gaps, 1 - result.adjusted_variances / result.bounds)
    assert (result.gaps >= 0).all()
    assert result.features == tuple(NAMES)


def test_sparse_components_that_cannot_be_are_refused():
    alike = SecondMoments.of(np.outer(np.arange(9.0), [1.0, -2.0, 3.0]))
    counts = [0, 14, -1, 2.0, True, "3", None]
    for moments, k, loadings, error, named in (
        *((POOLED, 1, [count], ConfigError, ["'loadings'", repr(count), 1, 13]) for count in counts),
        *((POOLED, 2, n, ConfigError, ["'loadings'", repr(n), 1, 13]) for n in counts if n != "3"),
        *((POOLED, k, 2, ConfigError, ["'k'", repr(k), 1, 13]) for k in (0, 14, "2", None)),
        (SecondMoments.of(WINE[:4]), 4, 2, ConfigError, ["'k'", 4, 3]),
        (POOLED, 2, [4, 4, 4], ConfigError, ["'loadings'", 3, 2]),
        (alike, 2, 1, ContractError, [2]),
    ):
        with refused(error, *named):
            analyses.sparse_components(moments, k, loadings)
