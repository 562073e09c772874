"""Methods of a single round: of moments (P-COV, AP-COV) and of factors (QR-PCA, AP-STACK)."""

import numpy as np
import pytest
from scipy.linalg import svd
from sklearn.decomposition import PCA

from fedpca_flwr.errors import DataError
from fedpca_flwr.model.reference import pooled_pca, principal_angles
from tests.families import FAMILIES, cut, rows
from tests.families import unlike_parties as parties
from tests.harness import fit
from tests.refusals import refused

SHIFTED = FAMILIES["means shifted by ten deviations"]


def angle(method, k=4, **options):
    return principal_angles(fit(method, parties(), n_components=k, **options), pooled_pca(np.vstack(parties()), k)).max


def test_uploads_have_the_stated_sizes():
    headers = 4 * 128
    up = fit("p-cov", parties(), n_components=2).log["rounds"][0]["up"]
    assert up == [8 * (40 * 41 // 2 + 40 + 1) + headers] * 3
    assert fit("qr-pca", parties(), n_components=2).log["rounds"][0]["up"] == up
    offset_model = fit("p-cov", cut(np.round(rows(300) * 1000) + 1e8 + 0.1, 180, 100, 20), n_components=3)
    assert max(offset_model.log["rounds"][0]["up"]) == 8 * (12 * 13 // 2 + 2 * 12 + 1) + headers
    up = fit("qr-pca", FAMILIES["wide"].parties, n_components=2).log["rounds"][0]["up"]
    assert up == [8 * (h * 80 - h * (h - 1) // 2 + 80 + 1) + headers for h in (11, 9, 7)]


def test_averages_lack_what_lies_between_shifted_parties():
    """Averaged covariances are off by 86 degrees here, and the model says so; about zero they leave nothing out."""
    X, share = SHIFTED.pooled, "between_parties_variance_share"
    averaged = fit("ap-cov", SHIFTED.parties, n_components=3)
    off = principal_angles(averaged, pooled_pca(X, 3))
    assert off.max > 10
    angles = [averaged.log["measured"][f"angle_to_exact_{what}_degrees"] for what in ("max", "mean")]
    np.testing.assert_allclose(angles, [off.max, off.mean], rtol=1e-6)
    uncentred, singular = fit("ap-cov", SHIFTED.parties, n_components=4, center=False), svd(X, compute_uv=False)
    assert uncentred.log["measured"][share] < 1e-12
    assert principal_angles(uncentred, pooled_pca(X, 4, center=False)).max <= 1e-6
    np.testing.assert_allclose(uncentred.singular_values_, singular[:4], rtol=1e-9)
    np.testing.assert_array_equal(uncentred.mean_, 0)
    np.testing.assert_allclose(uncentred.explained_variance_ratio_, singular[:4] ** 2 / (singular**2).sum(), atol=1e-10)
    scaled = fit("ap-cov", SHIFTED.parties, n_components=2, scale=True)
    within = sum(len(p) * p.var(axis=0) / X.var(axis=0) for p in SHIFTED.parties).sum() / (12 * len(X))
    assert scaled.log["measured"][share] == pytest.approx(1 - within, rel=1e-9)


def test_a_fraction_is_scikit_learns_of_components_with_variance():
    theirs = PCA(0.9, svd_solver="full").fit(rows(300))
    assert fit("p-cov", cut(rows(300), 180, 100, 20), n_components=0.9).n_components_ == theirs.n_components_
    model = fit("ap-cov", cut(np.random.default_rng(0).standard_normal((20, 30)), 10, 10), n_components=0.99)
    assert model.n_components_ == 18  # each party's rows about their own mean
    assert (model.explained_variance_ > 0).all()
    assert any("all components that there are hold" in note for note in model.log["notes"])


def test_variances_beyond_float64_or_of_single_rows_are_refused():
    """Single rows have none of their own; the model claimed 0 % of the variance, and a predicted error of NaN."""
    with refused(DataError, "float64"):
        fit("p-cov", cut(rows(60) * 1e-142 + 1e-138, 30, 30), n_components=2)
    for transport in ({}, {"bound": 9.0}, {"bound": 9.0, "survivors": 4}):
        with refused(DataError, "p-cov"):
            fit("ap-cov", np.split(rows(4), 4), n_components=2, secure_aggregation=bool(transport), **transport)
    assert fit("ap-cov", np.split(rows(4), 4), n_components=2, center=False).explained_variance_[0] > 0
    first, second = rows(2)  # which have a component together
    (component,) = fit("p-cov", [first[None], second[None]], n_components=1).components_
    np.testing.assert_allclose(np.abs(component @ (second - first)), np.linalg.norm(second - first))


def test_weights_of_parties_make_a_stack_exact():
    assert angle("ap-stack", rank=40) > 1
    assert angle("ap-stack", rank=40, party_weights="rows") < 1e-9
    stack = fit("ap-stack", parties(), n_components=4, rank=16, party_weights="rows")
    truncated = fit("qr-pca", parties(), n_components=4, rank=16, filler=False)
    assert principal_angles(stack, truncated).max <= 1e-6
    bounds = [model.log["measured"]["angle_bound_degrees"] for model in (stack, truncated)]
    assert bounds[0] == pytest.approx(bounds[1], rel=1e-9)
    up = fit("ap-stack", parties(), n_components=4).log["rounds"][0]["up"]
    assert up == [8 * (4 * 40 + 40 + 3) + 6 * 128] * 3  # as many as components
    single = np.split(rows(4), 4)
    with refused(DataError, "party_weights='rows'"):
        fit("ap-stack", single, n_components=2)
    exact = fit("ap-stack", single, n_components=2, party_weights="rows")
    assert principal_angles(exact, pooled_pca(rows(4), 2)).max <= 1e-6


@pytest.mark.parametrize("unit", [1.0, 1e-60, 1e60])
@pytest.mark.parametrize("center", [True, False])
def test_float32_factors_take_half_the_bytes(unit, center):
    X = [part * unit for part in parties()]
    model = fit("qr-pca", X, n_components=4, wire="float32", center=center)
    truth = pooled_pca(np.vstack(X), 4, center=center)
    assert 1e-9 < principal_angles(model, truth).max <= model.log["measured"]["angle_bound_degrees"] < 1e-3
    assert model.log["exact"] is False
    assert max(model.bytes_up_by_party) < 0.6 * max(fit("qr-pca", X, n_components=4).bytes_up_by_party)


def test_truncation_and_float32_hold_their_bounds():
    errors = {(rank, filler): angle("qr-pca", rank=rank, filler=filler) for rank in (8, 16) for filler in (False, True)}
    assert errors[16, True] < errors[8, True] < errors[8, False] < 10
    assert errors[16, True] < errors[16, False]
    assert angle("qr-pca", rank=40) < 1e-9
    for rank in (8, 16, 30):
        model = fit("qr-pca", parties(), n_components=4, rank=rank)
        assert angle("qr-pca", rank=rank) <= model.log["measured"]["angle_bound_degrees"]
    # Singular values of 3 and 1 have a gap of 8; the scatter is off by 2 |R| |dR| + |dR|^2, |dR| by eps |R|_F / 2.
    X = np.array([[1.5, 0], [-1.5, 0], [0, 0.5], [0, -0.5]])
    model = fit("qr-pca", [X, X], n_components=1, wire="float32")
    off = 2.0**-23 * np.sqrt(9 + 1) / 2
    expected = np.degrees(np.arcsin((2 * 3 + off) * off / 8))
    assert model.log["measured"]["angle_bound_degrees"] == pytest.approx(expected, rel=1e-4)
