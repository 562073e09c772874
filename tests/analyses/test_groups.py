"""Groups of features in equal weight: equal to weighted singular vectors of the rows, and to R's FactoMineR."""

import numpy as np
import pytest
from sklearn.datasets import load_wine
from sklearn.decomposition import PCA
from sklearn.preprocessing import StandardScaler

from fedpca_flwr import analyses, run
from fedpca_flwr.errors import ConfigError, ContractError, DataError
from fedpca_flwr.model.model import PCAModel
from fedpca_flwr.model.second_moments import SecondMoments
from tests.families import cut, rows
from tests.refusals import refused

WINE = load_wine(as_frame=True).data
NAMES = list(WINE.columns)
GROUPS = {"body": NAMES[:5], "phenols": NAMES[5:9], "colour": NAMES[9:]}
POOLED = SecondMoments.of(WINE)

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


def weighted(X, groups):
    """Scaled columns, those of each group divided by its first singular value; rows have the weight 1 / n."""
    Z = StandardScaler().fit_transform(X)
    unit = np.empty(Z.shape[1])
    for columns in groups:
        unit[columns] = np.linalg.svd(Z[:, columns] / np.sqrt(len(Z)), compute_uv=False)[0]
    return Z, Z / unit


def test_groups_are_analysed_as_by_factominer():
    result = analyses.multiple_factor_analysis(POOLED, GROUPS, 5)
    np.testing.assert_allclose(result.eigenvalues, EIGENVALUES, rtol=1e-10)
    np.testing.assert_allclose(result.group_eigenvalues, OF_GROUPS, rtol=1e-10)
    coordinates = result.reading.correlations.T[:3, :3]
    signs = np.sign(np.sum(coordinates * COORDINATES, axis=0))
    np.testing.assert_allclose(coordinates * signs, COORDINATES, atol=1e-10)
    np.testing.assert_allclose(100 * result.contributions.T[:, :3], PERCENT, atol=1e-9)
    assert result.groups == tuple(GROUPS)


def test_components_are_singular_vectors_of_weighted_rows():
    """Groups of unequal sizes whose columns are not side by side, and one column that is constant."""
    X = np.column_stack([rows(90, 7, seed=2) * np.arange(1, 8), np.full(90, 5.0)])
    groups = [[0, 3, 6], [1, 7, 2], [4], [5]]
    result = analyses.multiple_factor_analysis(
        SecondMoments.of(X), {f"group {g}": columns for g, columns in enumerate(groups)}, 4
    )
    Z, W = weighted(X, groups)
    reference = PCA(4, svd_solver="full").fit(W[:, :7])
    np.testing.assert_allclose(result.eigenvalues, reference.explained_variance_ * 89 / 90, rtol=1e-10)
    scores = reference.transform(W[:, :7])
    found = result.model.transform(X)
    np.testing.assert_allclose(found * np.sign(np.sum(found * scores, axis=0)), scores, atol=1e-10)
    expected = np.array([[np.corrcoef(score, column)[0, 1] for column in Z[:, :7].T] for score in found.T])
    np.testing.assert_allclose(result.reading.correlations[:, :7], expected, atol=1e-10)
    np.testing.assert_array_equal(result.reading.correlations[:, 7], 0)
    assert result.model.scale_[7] == 1
    shares = reference.components_**2
    np.testing.assert_allclose(result.reading.contributions[:, :7], shares, atol=1e-10)
    by_group = np.column_stack([shares[:, [0, 3, 6]].sum(axis=1), shares[:, [1, 2]].sum(axis=1), shares[:, 4:6]])
    np.testing.assert_allclose(result.contributions, by_group, atol=1e-10)
    np.testing.assert_allclose(result.reading.communalities, np.sum(result.reading.correlations**2, axis=0))


def test_groups_of_masked_parties_are_those_of_pooled_rows(tmp_path):
    X = rows(150, 8)
    groups = {"a": [0, 1, 2, 3], "b": [4, 5, 6, 7]}
    secure = {"secure_aggregation": True, "bound": 1e6}
    moments = run("p-cov", cut(X, 60, 50, 40), n_components=1, keep="moments", **secure).moments_
    masked, pooled = (analyses.multiple_factor_analysis(one, groups, 3) for one in (moments, SecondMoments.of(X)))
    np.testing.assert_allclose(masked.eigenvalues, pooled.eigenvalues, rtol=1e-12)
    np.testing.assert_allclose(masked.reading.correlations, pooled.reading.correlations, atol=1e-12)
    np.testing.assert_allclose(masked.contributions, pooled.contributions, atol=1e-12)
    bound = np.sum(moments.error_bound / masked.model.scale_**2) / (149 * masked.model.total_variance)
    assert masked.model.log["measured"]["fixed_point_variance_share"] == pytest.approx(bound, rel=1e-6, abs=0)
    model = PCAModel.load(masked.model.save(tmp_path / "groups"))  # as sites get it
    np.testing.assert_allclose(model.transform(X), pooled.model.transform(X), atol=1e-9)


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
        (None, GROUPS, 2, ConfigError, ["'moments'", "NoneType", "keep='moments'"], None),
    ):
        with refused(error, *named, match=match):
            analyses.multiple_factor_analysis(moments, groups, k)
