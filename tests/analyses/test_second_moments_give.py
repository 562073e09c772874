"""What moments of all rows give is what scikit-learn gives on the pooled rows, to 1e-8; no row is asked for again."""

import numpy as np
import pytest
import sklearn
from sklearn.cross_decomposition import CCA, PLSRegression
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits, load_linnerud, load_wine
from sklearn.decomposition import PCA, FactorAnalysis
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.linear_model import LinearRegression, Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.fixes import parse_version

from fedpca_flwr import analyses, run
from fedpca_flwr.errors import ConfigError, DataError
from fedpca_flwr.model.reference import pooled_pca, principal_angles
from fedpca_flwr.model.second_moments import SecondMoments
from tests.families import FAMILIES, cut, rows
from tests.harness import differences
from tests.refusals import refused


def kept(X):
    n = len(X)
    parties = cut(X, n - n // 3 - n // 10, n // 3, n // 10)
    return run("p-cov", parties, n_components=1, keep="moments", min_rows=1).moments_


@pytest.fixture(scope="module")
def diabetes():
    """Ten features, then two responses."""
    X, y = load_diabetes(return_X_y=True)
    return np.column_stack([X, y, X[:, 2] * 300 + y**0.5])


RESPONSES, P = [10, 11], 10


def close(ours, theirs, digits=1e-8):
    np.testing.assert_allclose(ours, theirs, rtol=digits, atol=digits * np.abs(theirs).max())


def same_pca(model, truth):
    assert principal_angles(model, truth).max < 1e-6
    close(model.explained_variance_, truth.explained_variance_, 1e-9)


@pytest.mark.parametrize("scale", [False, True])
def test_rounding_of_a_secure_sum_has_the_unit_of_variances(scale):
    """Features have units from 1 to 1,000; the bound on rounding is a millionth of each scatter, times 1 to 5."""
    X = rows(200, 5) * np.array([1, 10, 100, 1000, 3])
    scatters, parts = 200 * X.var(axis=0), 1e-6 * np.arange(1, 6)
    model = analyses.pca(SecondMoments(SecondMoments.of(X).moments, error_bound=parts * scatters), 2, scale=scale)
    expected = parts.sum() / 5 if scale else (parts * scatters).sum() / scatters.sum()
    assert model.log["measured"]["fixed_point_variance_share"] == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("scale", [False, True])
@pytest.mark.parametrize("name", FAMILIES)
def test_the_pca_of_kept_moments_is_that_of_a_run(name, scale):
    """`test_every_method` holds the components of a run against those of the pooled rows."""
    family = FAMILIES[name]
    moments = run("p-cov", family.parties, n_components=1, keep="moments", min_rows=1).moments_
    model = analyses.pca(moments, family.k, scale=scale)
    close(model.explained_variance_, pooled_pca(family.pooled, family.k, scale=scale).explained_variance_)
    assert not differences(model, run("p-cov", family.parties, n_components=family.k, scale=scale, min_rows=1))


def ridge(alpha):
    return lambda moments: analyses.ridge(moments, RESPONSES, alpha=alpha), Ridge(alpha, solver="svd")


def of_components(k, scale):
    theirs = make_pipeline(*[StandardScaler()] * scale, PCA(k, svd_solver="full"), LinearRegression())
    return lambda moments: analyses.principal_component_regression(moments, RESPONSES, k=k, scale=scale), theirs


OF_COMPONENTS = (1, True), (4, True), (4, False), (10, False)
REGRESSIONS = {f"ridge {alpha}": ridge(alpha) for alpha in (1e-3, 100)}
REGRESSIONS |= {f"{k} components, scale={s}": of_components(k, s) for k, s in OF_COMPONENTS}


@pytest.mark.parametrize("kind", REGRESSIONS)
def test_regressions_are_those_of_scikit_learn(diabetes, kind):
    ours, theirs = REGRESSIONS[kind]
    X, Y = diabetes[:, :P] * np.arange(1, P + 1), diabetes[:, P:]
    found, truth = ours(kept(np.column_stack([X, Y]))), theirs.fit(X, Y)
    close(found.predict(X), truth.predict(X))
    close(found.explained_share.mean(), truth.score(X, Y))
    if isinstance(truth, Ridge):
        close(found.coefficients.T, truth.coef_)


def test_least_squares_of_collinear_features(diabetes):
    """The two halves of a doubled column share its slope, as in least squares of least norm."""
    doubled = np.column_stack([diabetes[:, :P], diabetes[:, 3], np.full(len(diabetes), 7.0), diabetes[:, P:]])
    ours = analyses.least_squares(kept(doubled), [12, 13])
    theirs = LinearRegression().fit(doubled[:, :12], doubled[:, 12:])
    close(ours.predict(doubled[:, :12]), theirs.predict(doubled[:, :12]))
    close(ours.coefficients[3], ours.coefficients[10])


@pytest.mark.parametrize("responses", [[10], [10, 11]])
@pytest.mark.parametrize(("k", "scale"), [(1, False), (3, True), (6, False)])
def test_partial_least_squares(diabetes, k, responses, scale):
    X, Y = diabetes[:, :P], diabetes[:, responses]
    theirs = PLSRegression(k, scale=scale, tol=1e-20, max_iter=10**5).fit(X, Y).predict(X).reshape(len(X), -1)
    for unit in (1.0, 1e-20):
        ours = analyses.partial_least_squares(kept(diabetes * unit), responses, list(range(P)), k=k, scale=scale)
        close(ours.predict(X * unit), theirs * unit)


@pytest.mark.parametrize("regress", [analyses.principal_component_regression, analyses.partial_least_squares])
def test_no_more_directions_than_collinear_features_have(regress):
    """The variance of a further direction is rounding, and slopes divided by rounding are arbitrary."""
    X = rows(200, 3)
    X = np.column_stack([X, X[:, 0] + X[:, 1]])
    moments = kept(np.column_stack([X, X @ [1, 2, 3, 0]]))
    close(regress(moments, [4], k=3).predict(X)[:, 0], X @ [1, 2, 3, 0])
    with refused(DataError, "'k'", 4, 3):
        regress(moments, [4], k=4)


def test_partial_least_squares_end_where_all_is_explained():
    """The first latent variable explains everything, and a second would be rounding over rounding."""
    X = np.vstack([np.eye(6), -np.eye(6)])
    moments = kept(np.column_stack([X, X @ np.arange(1.0, 7)]))
    close(analyses.partial_least_squares(moments, [6], k=5, scale=False).coefficients[:, 0], np.arange(1.0, 7))


def test_canonical_correlations_and_directions():
    X, Y = load_linnerud(return_X_y=True)
    ours = analyses.canonical_correlations(kept(np.hstack([X, Y, np.ones((20, 1))])), [0, 1, 2], [3, 4, 5], k=3)
    theirs = CCA(3, tol=1e-24, max_iter=10**6).fit(X, Y)
    our_x, our_y = ours.transform(X, Y)
    their_x, their_y = theirs.transform(X, Y)
    between = np.corrcoef(np.hstack([our_x, our_y, their_x, their_y]).T)
    for i in range(3):
        close(np.abs(between[[i, 3 + i], [6 + i, 9 + i]]), np.ones(2))
        close(ours.correlations[[i, i]], between[[i, 6 + i], [3 + i, 9 + i]])
    close(np.cov(our_x, rowvar=False), np.eye(3))


def test_canonical_correlations_leave_out_what_does_not_vary():
    X = rows(200, 4)
    moments = kept(np.hstack([X[:, :2], X[:, :1] * 1e6, X[:, 2:] + X[:, :2]]))
    found, expected = (analyses.canonical_correlations(moments, *sets, k=2) for sets in ([[0, 1, 2]], [[0, 1], [3, 4]]))
    close(found.correlations, expected.correlations)
    for wrong, error, k in (
        ((moments, [0, 2], [3, 4]), DataError, 2),
        ((moments, [0, 1, 2], [3]), ConfigError, 2),
        ((SecondMoments.of(rows(3, 6)), [0, 1, 2], None), ConfigError, 3),
    ):
        with refused(error, "'k'", k, k - 1):
            analyses.canonical_correlations(*wrong, k=k)


@pytest.mark.parametrize("k", [2, 3])
def test_factor_analysis_has_the_likelihood_of_scikit_learn(k):
    X = load_wine().data
    unit = X.std(axis=0)
    theirs = FactorAnalysis(k, tol=1e-12, max_iter=50000, svd_method="lapack").fit(X / unit)
    ours = analyses.factor_analysis(kept(X), k)
    close(ours.log_likelihood, theirs.score(X / unit) - np.log(unit).sum())
    close(ours.noise_variance / unit**2, theirs.noise_variance_, 1e-4)  # EM stops on its likelihood
    np.testing.assert_allclose(np.abs(ours.transform(X)), np.abs(theirs.transform(X / unit)), atol=1e-3)
    assert ours.proper
    assert (ours.communalities > 0).all()


def with_classes(X, labels):
    return np.hstack([X, labels[:, None] == np.unique(labels)])


@pytest.mark.skipif(parse_version(sklearn.__version__) < parse_version("1.9"), reason="divides by n less the classes")
@pytest.mark.parametrize("load", [load_wine, load_digits, load_breast_cancer])
def test_linear_discriminant_analysis(load):
    """Digits have pixels that are always dark, and pixels that are so within a class."""
    X, labels = load(return_X_y=True)
    classes, counts = np.unique(labels, return_counts=True)
    places = X.shape[1] + classes
    ours = analyses.discriminant(kept(with_classes(X, labels)), places)
    theirs = LinearDiscriminantAnalysis().fit(X, labels)
    np.testing.assert_array_equal(classes[ours.predict(X)], theirs.predict(X))
    np.testing.assert_array_equal(ours.counts, counts)
    own, decided = ours.decision(X), theirs.decision_function(X).reshape(len(X), -1)
    close(own[:, 1:] - own[:, :1] if len(classes) == 2 else own, decided)
    close(np.abs(ours.transform(X)), np.abs(theirs.transform(X)))
    small = analyses.discriminant(kept(with_classes(X * 1e-9, labels)), places)
    np.testing.assert_array_equal(small.predict(X * 1e-9), ours.predict(X))


def test_columns_that_are_no_classes_are_refused():
    """The first row has 0.999 of a class, two classes and none; last, there is no class in which rows differ."""
    joint = with_classes(*load_wine(return_X_y=True))[:, 10:]
    spoilt = [np.vstack([[*joint[0, :3], *classes], joint[1:]]) for classes in ([0.999, 0, 0], [1, 0, 1], [0, 0, 0])]
    for wrong in (*spoilt, np.hstack([rows(3, 3), np.eye(3)])):
        with refused(DataError, 1, 0, match="class"):
            analyses.discriminant(SecondMoments.of(wrong), [3, 4, 5])


def test_what_cannot_be_is_refused(diabetes):
    moments = kept(diabetes)
    for call, named in [
        (lambda: analyses.ridge(moments, RESPONSES, alpha=0), ["'alpha'", 0]),
        (lambda: analyses.ridge(moments, RESPONSES, alpha=np.inf), ["'alpha'", "inf"]),
        (lambda: analyses.ridge(moments, list(range(12))), []),
        (lambda: analyses.ridge(moments, [10], [9, 10]), [10]),
        (lambda: analyses.ridge(moments, [12]), ["[12]", 12]),
        (lambda: analyses.principal_component_regression(moments, [10], k=12), ["'k'", 12, 1, 11]),
        (lambda: analyses.factor_analysis(moments, 12), ["'k'", 12, 1, 11]),
        (lambda: analyses.partial_least_squares(moments, [10], k=True), ["'k'", "True"]),
    ]:
        with refused(ConfigError, *named):
            call()
    still = SecondMoments.of(np.column_stack([diabetes, np.full(len(diabetes), 0.1)]))
    with refused(DataError, 12):
        analyses.factor_analysis(still)
    with refused(DataError, 12, 11):
        analyses.ridge(moments, [10]).predict(diabetes)


def test_least_squares_take_any_units_and_responses_that_vary():
    X = rows(50, 2) * [1e-3, 1e4]
    found = analyses.least_squares(SecondMoments.of(np.column_stack([X, X @ [2.0, -3.0] + 1])), [2])
    np.testing.assert_allclose(found.coefficients[:, 0], [2.0, -3.0], rtol=1e-7)
    np.testing.assert_allclose(found.intercepts, 1.0, rtol=1e-6)
    with refused(DataError, 2):
        analyses.least_squares(SecondMoments.of(np.column_stack([rows(50, 2), np.full(50, 7.0)])), [2])
    X = rows(300, 6)
    X[:, 5] = X[:, 0] + X[:, 1]
    assert not analyses.factor_analysis(kept(X), 3).proper


SIZES = 200, 90, 10


@pytest.fixture(scope="module")
def aged():
    """Six features; then age, sex (constant in the last party), and a copy of age in other units."""
    rng = np.random.default_rng(0)
    age, sex = rng.normal(50, 10, 300), (rng.random(300) < 0.5).astype(float)
    sex[290:] = 1
    X = rows(300, 6) + np.outer(age, np.linspace(0.1, 0.3, 6)) + np.outer(sex, [3, 0, 0, 1, 0, -2])
    X[200:290] += 4
    return np.column_stack([X, age, sex, age * 12 + 1])


def of_parties(aged):
    return run("p-cov", cut(aged, *SIZES), n_components=1, keep="parties").moments_


def residuals(X, Z):
    return X - LinearRegression().fit(Z, X).predict(Z)


@pytest.mark.parametrize("covariates", [[6], [6, 7], [6, 7, 8]])
def test_it_is_the_pca_of_the_residuals_of_the_pooled_rows(aged, covariates):
    """With age twice, a combination of the covariates does not vary."""
    found = analyses.adjusted(of_parties(aged).select([*range(6), *covariates]), list(range(6, 6 + len(covariates))))
    left = residuals(aged[:, :6], aged[:, covariates])
    model = analyses.pca(found.moments, 3)
    same_pca(model, pooled_pca(left, 3))
    rest = found.apply(aged[:, [*range(6), *covariates]])
    np.testing.assert_allclose(rest, left + aged[:, :6].mean(axis=0), atol=1e-8)
    spread = np.cov(model.transform(rest), rowvar=False)
    np.testing.assert_allclose(spread, np.diag(model.explained_variance_), atol=1e-8)
    assert found.collinear == ((6, 8) if len(covariates) == 3 else ())


def test_means_of_parties_are_taken_out_too(aged):
    found = analyses.adjusted(of_parties(aged), [6, 7], parties=True)
    place = np.repeat(np.eye(3), SIZES, axis=0)
    left = residuals(aged[:, [*range(6), 8]], np.column_stack([aged[:, 6:8], place]))
    same_pca(analyses.pca(found.moments, 3), pooled_pca(left, 3))
    np.testing.assert_allclose(found.apply(aged[290:], party="partition 2") - found.moments.mean, left[290:], atol=1e-7)
    with refused(ConfigError, "'party'", "'north'", "partition 0"):
        found.apply(aged, party="north")


def test_secure_sums_are_enough_and_what_rounding_misses_is_told(aged):
    secured = {"secure_aggregation": True, "bound": 2000.0}
    kept_securely = run("p-cov", cut(aged, *SIZES), n_components=1, keep="moments", **secured).moments_
    secure = analyses.adjusted(kept_securely, [6, 7])
    left = residuals(aged[:, [*range(6), 8]], aged[:, 6:8])
    np.testing.assert_allclose(secure.apply(aged) - secure.moments.mean, left, atol=1e-6)
    assert (secure.moments.error_bound > 0).all()
    # A slope of 2: of a feature off by 0.04 and a covariate off by 0.09 the rest is off by (0.2 + 2 0.3)^2.
    z, rest = np.array([-1.0, 1.0, -1.0, 1.0]), np.array([1.0, 1.0, -1.0, -1.0])
    own = SecondMoments.of(np.column_stack([2 * z + rest, z]))
    rounded = SecondMoments(own.moments, error_bound=np.array([0.04, 0.09]))
    np.testing.assert_allclose(analyses.adjusted(rounded, [1]).moments.error_bound, [0.64])


def test_what_cannot_be_taken_out_is_refused(aged):
    moments = of_parties(aged)
    for own, covariates, parties, error, named in (
        (moments.select([8, 6]), [1], False, DataError, []),
        (moments.pooled(), [6], True, ConfigError, ["keep='parties'"]),
        (moments, ["age"], False, ConfigError, ["'age'"]),
    ):
        with refused(error, *named):
            analyses.adjusted(own, covariates, parties=parties)
