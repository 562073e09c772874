"""Covariates are taken out of moments as a regression of the pooled rows takes them out."""

import numpy as np
import pytest
from sklearn.linear_model import LinearRegression

from fedpca_flwr import analyses
from fedpca_flwr.errors import ConfigError, DataError
from fedpca_flwr.model.reference import pooled_pca, principal_angles
from fedpca_flwr.model.second_moments import SecondMoments
from simulations import run
from tests.families import cut, rows
from tests.refusals import refused

SIZES = 200, 90, 10


@pytest.fixture(scope="module")
def data():
    """Six features; then age, one sex in the last party, and a copy of age in other units."""
    rng = np.random.default_rng(0)
    age, sex = rng.normal(50, 10, 300), (rng.random(300) < 0.5).astype(float)
    sex[290:] = 1
    X = rows(300, 6) + np.outer(age, np.linspace(0.1, 0.3, 6)) + np.outer(sex, [3, 0, 0, 1, 0, -2])
    X[200:290] += 4
    return np.column_stack([X, age, sex, age * 12 + 1])


def kept(data, keep="parties", **secured):
    return run("p-cov", cut(data, *SIZES), n_components=1, keep=keep, **secured).moments_


def residuals(X, Z):
    return X - LinearRegression().fit(Z, X).predict(Z)


def same(model, truth):
    assert principal_angles(model, truth).max < 1e-6
    np.testing.assert_allclose(model.explained_variance_, truth.explained_variance_, rtol=1e-8)


@pytest.mark.parametrize("covariates", [[6], [6, 7], [6, 7, 8]])
def test_it_is_the_pca_of_the_residuals_of_the_pooled_rows(data, covariates):
    """With age twice too, of which one combination does not vary."""
    moments = kept(data).select([*range(6), *covariates])
    found = analyses.adjusted(moments, list(range(6, 6 + len(covariates))))
    left = residuals(data[:, :6], data[:, covariates])
    model = analyses.pca(found.moments, 3)
    same(model, pooled_pca(left, 3))
    rest = found.apply(data[:, [*range(6), *covariates]])
    np.testing.assert_allclose(rest, left + data[:, :6].mean(axis=0), atol=1e-8)
    spread = np.cov(model.transform(rest), rowvar=False)
    np.testing.assert_allclose(spread, np.diag(model.explained_variance_), atol=1e-8)
    assert found.collinear == ((6, 8) if len(covariates) == 3 else ())


def test_means_of_parties_are_taken_out_too(data):
    found = analyses.adjusted(kept(data), [6, 7], parties=True)
    place = np.repeat(np.eye(3), SIZES, axis=0)
    left = residuals(data[:, [*range(6), 8]], np.column_stack([data[:, 6:8], place]))
    model = analyses.pca(found.moments, 3)
    same(model, pooled_pca(left, 3))
    last = found.apply(data[290:], party="partition 2")
    np.testing.assert_allclose(last - found.moments.mean, left[290:], atol=1e-7)
    with refused(ConfigError, "'party'", "'north'", "partition 0"):
        found.apply(data, party="north")


def test_secure_sums_are_enough_and_what_rounding_misses_is_told(data):
    secure = analyses.adjusted(kept(data, keep="moments", secure_aggregation=True, bound=2000.0), [6, 7])
    left = residuals(data[:, [*range(6), 8]], data[:, 6:8])
    np.testing.assert_allclose(secure.apply(data) - secure.moments.mean, left, atol=1e-6)
    assert (secure.moments.missed > 0).all()
    # A slope of 2: of a feature off by 0.04 and a covariate off by 0.09 the rest is off by (0.2 + 2 0.3)^2.
    z, rest = np.array([-1.0, 1.0, -1.0, 1.0]), np.array([1.0, 1.0, -1.0, -1.0])
    own = SecondMoments.of(np.column_stack([2 * z + rest, z]))
    rounded = SecondMoments(own.moments, missed=np.array([0.04, 0.09]))
    np.testing.assert_allclose(analyses.adjusted(rounded, [1]).moments.missed, [0.64])


def test_what_cannot_be_taken_out_is_refused(data):
    moments = kept(data)
    with refused(DataError):
        analyses.adjusted(moments.select([8, 6]), [1])
    with refused(ConfigError, "keep='parties'"):
        analyses.adjusted(moments.pooled(), [6], parties=True)
    with refused(ConfigError, "'age'"):
        analyses.adjusted(moments, ["age"])
