"""`bound` in units that fit nothing else: what secure sums lose beside it is said, and what needs none has none."""

import numpy as np
import pytest

from fedpca_flwr.errors import ConfigError
from fedpca_flwr.model.loadings import Loadings
from fedpca_flwr.model.reference import principal_angles
from simulations import run
from tests.families import cut, rows
from tests.refusals import refused

SECURE = {"secure_aggregation": True, "min_parties": 2}


def fit(method, parties, **options):
    return run(method, parties, min_rows=1, **options)


@pytest.mark.parametrize("method", ["p-cov", "ap-cov", "sub-it", "personalised"])
def test_rows_that_are_alike_have_components_about_zero(method):
    """The fault: with center=false too they were said to have no variance next to the bound."""
    alike = [np.full((3, 2), [3.0, 4.0]), np.full((2, 2), [3.0, 4.0])]
    model = fit(method, alike, n_components=1, center=False, bound=4.0, **SECURE)
    np.testing.assert_allclose(model.components_, [[0.6, 0.8]])
    with refused(ConfigError, "'bound'", match="identical"):
        fit(method, alike, n_components=1, bound=4.0, **SECURE)


def by_columns(X):
    return np.split(X, [6, 9], axis=1)


@pytest.mark.parametrize(
    ("method", "sizes", "options"),
    [
        *((method, {3: 1e-30}, {"bound": 1e14}) for method in ("p-cov", "ap-cov", "sub-it")),
        ("p-cov", {3: 1e-9, 5: 1e9}, {"bound": 1e10, "survivors": 3}),
    ],
)
def test_a_feature_too_small_to_be_scaled_is_told(method, sizes, options):
    """Its scale is then 1, as that of a constant feature, and not its deviation."""
    X = rows(60) * [sizes.get(feature, 1.0) for feature in range(12)]
    model = fit(method, cut(X, 30, 20, 10), n_components=2, scale=True, **options, **SECURE)
    assert model.scale_[3] == 1
    assert "1 features were taken for constant and not scaled" in " ".join(model.log["notes"])


def test_features_that_fixed_point_rounds_off_are_refused_or_taken_for_constant():
    """The one sum of a run with survivors resolves less; the last round then finds rows that do not fit the model."""
    X = rows(60) * np.where(np.arange(12) == 3, 1e-15, 1.0)
    bound = 2 * float(np.abs(X).max())
    with refused(ConfigError, "'bound'", 1):
        fit("p-cov", cut(X, 30, 10, 10, 10), n_components=3, scale=True, bound=bound, survivors=4, **SECURE)
    X = rows(60) * (np.arange(12) != 3)
    own = {"n_components": 3, "scale": True}
    plain = fit("p-cov", cut(X, 30, 10, 10, 10), **own)
    bound = 2 * float(np.abs(X).max())
    secure = fit("p-cov", cut(X, 30, 10, 10, 10), bound=bound, survivors=4, **own, **SECURE)
    assert principal_angles(plain, secure).max < 1e-9
    assert "1 features were taken for constant" in " ".join(secure.log["notes"])


@pytest.mark.parametrize("method", ["vertical", "vertical-kernel kernel=linear gamma=1.0"])
def test_scaled_columns_need_no_bound(method):
    """They have no unit; sums that know it resolve them beside a bound of any size."""
    own = {"n_components": 2, "scale": True, "center": True}
    plain, secure = (fit(method, by_columns(rows(60)), **own, **way) for way in ({}, {"bound": 1e90, **SECURE}))
    assert principal_angles(plain, secure).max < 1e-9
    # With their means a nearer bound does not help where the columns are as large; another unit does.
    own |= {"center": False, **SECURE}
    with refused(ConfigError, "'bound'", "1e+90", "center=True"):
        fit(method.split()[0], by_columns(1e89 * rows(60)), bound=1e90, **own)
    assert fit(method.split()[0], by_columns(rows(60)), bound=10.0, **own).n_components_ == 2


def test_new_rows_of_small_units_have_scores_in_secure_sums(tmp_path):
    """Without scaling their size is known by `bound` alone."""
    parties, loadings = by_columns(1e-70 * rows(60)), [str(tmp_path / f"{party}.npz") for party in range(3)]
    first = fit("vertical", parties, n_components=2, loadings=loadings)
    again = fit("vertical-scores", parties, n_components=2, loadings=loadings, bound=1e-68, **SECURE)
    assert principal_angles(first, again).max < 1e-6


@pytest.mark.engine
def test_values_and_landmarks_at_the_ends_of_float64_are_taken_or_named():
    X = np.repeat(np.eye(3, 12), 20, axis=0)
    with refused(ConfigError, "'landmarks'", 8):
        fit("vertical-kernel", by_columns(X), n_components=6, landmarks=8)
    # A norm of variances must not square them: beyond float64 the certificate would be infinite.
    parties = cut(1e90 * rows(60), 30, 20, 10)
    options = {"n_components": 2, "mu": 0.5, "iterations": 5, "bound": 3e92}
    model = fit("personalised", parties, **options, **SECURE)
    assert np.isfinite(model.explained_variance_).all()
    # Else what rounding left of them would stand unscaled beside the others, and beyond what scaled columns can be.
    X = rows(60)
    X[:, 2] = 1e20 + np.spacing(1e20) * np.arange(60)
    model = fit("vertical", by_columns(X), n_components=2, scale=True, bound=1e25, **SECURE)
    others = fit("vertical", by_columns(np.delete(X, 2, axis=1)), n_components=2, scale=True)
    assert principal_angles(model, others).max < 1e-6


def test_loadings_of_components_without_variance_are_no_longer_than_one(tmp_path):
    """What rounding leaves of them, divided by nearly nothing, made scores that no public limit holds."""
    X = np.random.default_rng(0).integers(0, 2, (20, 40)) * np.where(np.arange(40) == 30, 1e17, 1.0)
    parties = np.split(X, 2, axis=1)
    loadings = [str(tmp_path / f"{party}.npz") for party in range(2)]
    fit("vertical", parties, n_components=20, loadings=loadings)
    for path in loadings:
        assert np.linalg.norm(Loadings.load(path).components, axis=1).max() <= 1 + 1e-6
    assert fit("vertical-scores", parties, n_components=20, loadings=loadings, bound=1e18, **SECURE).scores_ is not None
