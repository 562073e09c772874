"""What only the covariance methods have: centring, scaling, variance fractions, the correction, the payload's size."""

import numpy as np
import pytest
from scipy.linalg import svd
from sklearn.decomposition import PCA
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from fedpca_flwr.errors import ContractError, DataError
from fedpca_flwr.model.reference import pooled_pca, principal_angles
from simulations import run
from tests.families import FAMILIES, cut, rows
from tests.harness import finish, server_of, tamper_arrays
from tests.refusals import refused


def fit(method, parties, **options):
    return run(method, parties, **{"min_rows": 1, **options})


def test_scaling_is_that_of_standardised_rows():
    X = (rows(300) + np.arange(12)) * np.logspace(-12, 12, 12)
    model = fit("p-cov", cut(X, 180, 100, 20), n_components=4, scale=True)
    theirs = make_pipeline(StandardScaler(), PCA(4, svd_solver="full")).fit(X)
    ours = model.to_sklearn()
    signs = np.sign((ours[-1].components_ * theirs[-1].components_).sum(axis=1))
    np.testing.assert_allclose(ours.transform(X), theirs.transform(X) * signs, atol=1e-9)
    np.testing.assert_allclose(model.transform(X), ours.transform(X), atol=1e-12)
    np.testing.assert_allclose(model.explained_variance_, theirs[-1].explained_variance_, rtol=1e-9)


@pytest.mark.parametrize("method", ["p-cov", "ap-cov"])
def test_without_centring_the_components_are_those_of_the_raw_rows(method):
    X = rows(300) + 2
    model = fit(method, cut(X, 180, 100, 20), n_components=4, center=False)
    singular = svd(X, compute_uv=False)
    assert principal_angles(model, pooled_pca(X, 4, center=False)).max <= 1e-6
    np.testing.assert_allclose(model.singular_values_, singular[:4], rtol=1e-9)
    np.testing.assert_array_equal(model.mean_, 0)
    np.testing.assert_allclose(model.explained_variance_ratio_, singular[:4] ** 2 / (singular**2).sum(), atol=1e-10)


@pytest.mark.parametrize("fraction", [0.5, 0.9, 0.999])
def test_a_variance_fraction_keeps_as_many_components_as_scikit_learn(fraction):
    X = rows(300)
    theirs = PCA(fraction, svd_solver="full").fit(X)
    assert fit("p-cov", cut(X, 180, 100, 20), n_components=fraction).n_components_ == theirs.n_components_


def test_shifted_clients_need_the_correction_and_lies_do_not_pass():
    """The fault of averaging covariances: 86 degrees here, and it says so itself."""
    family = FAMILIES["means shifted by ten deviations"]
    truth = pooled_pca(family.pooled, 3)
    assert principal_angles(fit("p-cov", family.parties, n_components=3), truth).max <= 1e-6
    averaged = fit("ap-cov", family.parties, n_components=3)
    angle = principal_angles(averaged, truth).max
    assert angle > 10
    assert averaged.log["measured"]["angle_to_exact_max_degrees"] == pytest.approx(angle, rel=1e-6)
    server = server_of("p-cov", cut(rows(300), 180, 120), n_components=2)
    tamper_arrays(server, 1, lambda arrays: [*arrays[:-1], 2 * arrays[-1]])
    with refused(ContractError, match="fit"):
        finish(server)


def test_uploads_are_the_packed_triangle_the_mean_and_one_vector_more_for_a_large_offset():
    d = 40
    model = fit("p-cov", cut(rows(300, d), 180, 120), n_components=3)
    values = d * (d + 1) // 2 + d + 1
    headers = 4 * 128
    assert model.log["rounds"][0]["up"] == [8 * values + headers] * 2
    d = 12
    model = fit("p-cov", cut(np.round(rows(300) * 1000) + 1e8 + 0.1, 180, 120), n_components=3)
    assert max(model.log["rounds"][0]["up"]) == 8 * (d * (d + 1) // 2 + 2 * d + 1) + 4 * 128


@pytest.mark.parametrize(
    ("scale", "mean", "named"),
    [(1e150, 0.0, ["client 0", "1e+140"]), (1e-162, 0.0, ["client 0", "1e-140"]), (1e-142, 1e-138, ["float64"])],
)
def test_values_outside_the_range_of_float64_are_refused(scale, mean, named):
    X = rows(60) * scale + mean
    with refused(DataError, *named):
        fit("p-cov", cut(X, 30, 30), n_components=2)


def test_what_averaging_leaves_out_is_nothing_without_centring_and_in_the_units_of_the_solution():
    model = fit("ap-cov", FAMILIES["means shifted by ten deviations"].parties, n_components=2, center=False)
    assert model.log["measured"]["between_parties_variance_share"] < 1e-12
    parties = FAMILIES["means shifted by ten deviations"].parties
    X = np.vstack(parties)
    within = sum(len(p) * p.var(axis=0) / X.var(axis=0) for p in parties).sum() / (12 * len(X))
    model = fit("ap-cov", parties, n_components=2, scale=True)
    assert model.log["measured"]["between_parties_variance_share"] == pytest.approx(1 - within, rel=1e-9)


def test_bright_and_dark_bytes_are_added_up_exactly():
    """Sorted rows: blocks of 1,024 would exceed 2^24, where float32 loses whole numbers."""
    rng = np.random.default_rng(3)
    X = np.vstack([rng.integers(0, 9, (9000, 6)), rng.integers(240, 256, (1500, 6))]).astype(np.uint8)
    model, truth = fit("p-cov", [X, X[::-1][:2000]], n_components=6), pooled_pca(np.vstack([X, X[::-1][:2000]]), 6)
    np.testing.assert_allclose(model.explained_variance_, truth.explained_variance_, rtol=1e-12)


@pytest.mark.parametrize("transport", [{}, {"bound": 9.0}, {"bound": 9.0, "survivors": 4}], ids=len)
def test_averages_of_parties_without_any_variance_are_refused(transport):
    """Single rows have none of their own; the model claimed 0 % of the variance, and a predicted error of NaN."""
    parties = np.split(rows(4), 4)
    secure = {"secure_aggregation": True, **transport} if transport else {}
    with refused(DataError, "p-cov"):
        fit("ap-cov", parties, n_components=2, min_rows=1, **secure)
    assert fit("ap-cov", parties, n_components=2, min_rows=1, center=False).explained_variance_[0] > 0
