"""What moments of all rows give is what scikit-learn gives on the pooled rows, to 1e-8; no row is asked for again.

How many components to keep, and how sure variances and loadings are (`benchmarks.coverage` counts how often).
"""

from dataclasses import replace

import numpy as np
import pytest
import sklearn
from scipy.stats import norm, t
from sklearn.cross_decomposition import CCA, PLSRegression
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits, load_linnerud, load_wine
from sklearn.decomposition import PCA, FactorAnalysis
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.linear_model import LinearRegression, Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.fixes import parse_version

from fedpca_flwr import analyses, run
from fedpca_flwr.errors import ConfigError, ContractError, DataError
from fedpca_flwr.maths.inference import spiked_estimates
from fedpca_flwr.model.reference import pooled_pca, principal_angles
from fedpca_flwr.model.second_moments import SecondMoments
from tests.families import FAMILIES, cut, rows
from tests.harness import differences, own
from tests.refusals import refused

RESPONSES, P, SIZES, ROWS = [10, 11], 10, (200, 90, 10), rows(400, 6)
OF_COMPONENTS = [{"k": k, "scale": scale} for k, scale in ((1, True), (4, True), (4, False), (10, False))]


def fit(X, **options):
    parties = cut(X, len(X) - len(X) // 3 - len(X) // 5, len(X) // 3, len(X) // 5)
    return run("p-cov", parties, **{"n_components": 1, "keep": "moments", "min_rows": 1, **options})


def kept(X):
    return fit(X).moments_


@pytest.fixture(scope="module")
def diabetes():
    """Ten features, then two responses."""
    X, y = load_diabetes(return_X_y=True)
    return np.column_stack([X, y, X[:, 2] * 300 + y**0.5])


def close(ours, theirs, digits=1e-8):
    np.testing.assert_allclose(ours, theirs, rtol=digits, atol=digits * np.abs(theirs).max())


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


@pytest.mark.parametrize("options", [{"alpha": 1e-3}, {"alpha": 100}, *OF_COMPONENTS], ids=str)
def test_regressions_are_those_of_scikit_learn(diabetes, options):
    X, Y = diabetes[:, :P] * np.arange(1, P + 1), diabetes[:, P:]
    moments = kept(np.column_stack([X, Y]))
    if "alpha" in options:
        found, truth = analyses.ridge(moments, RESPONSES, **options), Ridge(**options, solver="svd").fit(X, Y)
    else:
        steps = [*[StandardScaler()] * options["scale"], PCA(options["k"], svd_solver="full"), LinearRegression()]
        found = analyses.principal_component_regression(moments, RESPONSES, **options)
        truth = make_pipeline(*steps).fit(X, Y)
    close(found.predict(X), truth.predict(X))
    close(found.explained_share.mean(), truth.score(X, Y))
    if isinstance(truth, Ridge):
        close(found.coefficients.T, truth.coef_)


def test_least_squares_of_collinear_features_and_of_any_units(diabetes):
    """The two halves of a doubled column share its slope, as in least squares of least norm."""
    X = np.column_stack([diabetes[:, :P], diabetes[:, 3], np.full(len(diabetes), 7.0)])
    ours = analyses.least_squares(kept(np.column_stack([X, diabetes[:, P:]])), [12, 13])
    close(ours.predict(X), LinearRegression().fit(X, diabetes[:, P:]).predict(X))
    close(ours.coefficients[3], ours.coefficients[10])
    X = rows(50, 2) * [1e-3, 1e4]
    found = analyses.least_squares(SecondMoments.of(np.column_stack([X, X @ [2.0, -3.0] + 1])), [2])
    np.testing.assert_allclose(found.coefficients[:, 0], [2.0, -3.0], rtol=1e-7)
    np.testing.assert_allclose(found.intercepts, 1.0, rtol=1e-6)


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
    X = rows(200, 3) @ np.column_stack([np.eye(3), [1, 1, 0]])
    moments = kept(np.column_stack([X, X @ [1, 2, 3, 0]]))
    close(regress(moments, [4], k=3).predict(X)[:, 0], X @ [1, 2, 3, 0])
    with refused(DataError, "'k'", 4, 3):
        regress(moments, [4], k=4)
    if regress is analyses.partial_least_squares:  # the first explains everything, and a second would be rounding
        X = np.vstack([np.eye(6), -np.eye(6)])
        moments = kept(np.column_stack([X, X @ np.arange(1.0, 7)]))
        close(regress(moments, [6], k=5, scale=False).coefficients[:, 0], np.arange(1.0, 7))


def test_canonical_correlations_and_directions():
    X, Y = load_linnerud(return_X_y=True)
    ours = analyses.canonical_correlations(kept(np.hstack([X, Y, np.ones((20, 1))])), [0, 1, 2], [3, 4, 5], k=3)
    scores = [*ours.transform(X, Y), *CCA(3, tol=1e-24, max_iter=10**6).fit(X, Y).transform(X, Y)]
    between = np.corrcoef(np.hstack(scores).T)
    for i in range(3):
        close(np.abs(between[[i, 3 + i], [6 + i, 9 + i]]), np.ones(2))
        close(ours.correlations[[i, i]], between[[i, 6 + i], [3 + i, 9 + i]])
    close(np.cov(scores[0], rowvar=False), np.eye(3))
    # What does not vary is left out.
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
    X = rows(300, 5) @ np.column_stack([np.eye(5), [1, 1, 0, 0, 0]])
    assert not analyses.factor_analysis(kept(X), 3).proper


def with_classes(X, labels):
    return np.hstack([X, labels[:, None] == np.unique(labels)])


@pytest.mark.skipif(parse_version(sklearn.__version__) < parse_version("1.9"), reason="divides by n less the classes")
@pytest.mark.parametrize("load", [load_wine, load_digits, load_breast_cancer])
def test_linear_discriminant_analysis(load):
    """Digits have pixels that are always dark, and pixels that are so within a class."""
    X, labels = load(return_X_y=True)
    classes, counts = np.unique(labels, return_counts=True)
    both = (kept(with_classes(X * unit, labels)) for unit in (1, 1e-9))
    ours, small = (analyses.discriminant(moments, X.shape[1] + classes) for moments in both)
    theirs = LinearDiscriminantAnalysis().fit(X, labels)
    np.testing.assert_array_equal(classes[ours.predict(X)], theirs.predict(X))
    np.testing.assert_array_equal(ours.counts, counts)
    decision, decided = ours.decision(X), theirs.decision_function(X).reshape(len(X), -1)
    close(decision[:, 1:] - decision[:, :1] if len(classes) == 2 else decision, decided)
    close(np.abs(ours.transform(X)), np.abs(theirs.transform(X)))
    np.testing.assert_array_equal(small.predict(X * 1e-9), ours.predict(X))


def test_what_cannot_be_is_refused(diabetes):
    """The first row has 0.999 of a class, two classes and none; last, there is no class in which rows differ."""
    joint = with_classes(*load_wine(return_X_y=True))[:, 10:]
    spoilt = [np.vstack([[*joint[0, :3], *classes], joint[1:]]) for classes in ([0.999, 0, 0], [1, 0, 1], [0, 0, 0])]
    for wrong in (*spoilt, np.hstack([rows(3, 3), np.eye(3)])):
        with refused(DataError, 1, 0, match="class"):
            analyses.discriminant(SecondMoments.of(wrong), [3, 4, 5])
    moments, still = kept(diabetes), SecondMoments.of(np.column_stack([rows(50, 2), np.full(50, 7.0)]))
    for call, error, named in [
        (lambda: analyses.ridge(moments, RESPONSES, alpha=0), ConfigError, ["'alpha'", 0]),
        (lambda: analyses.ridge(moments, RESPONSES, alpha=np.inf), ConfigError, ["'alpha'", "inf"]),
        (lambda: analyses.ridge(moments, list(range(12))), ConfigError, []),
        (lambda: analyses.ridge(moments, [10], [9, 10]), ConfigError, [10]),
        (lambda: analyses.ridge(moments, [12]), ConfigError, ["[12]", 12]),
        (lambda: analyses.factor_analysis(moments, 12), ConfigError, ["'k'", 12, 1, 11]),
        (lambda: analyses.factor_analysis(still, 1), DataError, [2]),
        (lambda: analyses.least_squares(still, [2]), DataError, [2]),
        (lambda: analyses.ridge(moments, [10]).predict(diabetes), DataError, [12, 11]),
    ]:
        with refused(error, *named):
            call()


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


@pytest.mark.parametrize("parties", [False, True])
@pytest.mark.parametrize("covariates", [[6], [6, 7], [6, 7, 8]])
def test_it_is_the_pca_of_the_residuals_of_the_pooled_rows(aged, covariates, parties):
    """With age twice, a combination of the covariates does not vary; so may the means of parties be taken out."""
    own, count = aged[:, [*range(6), *covariates]], len(covariates)
    found = analyses.adjusted(of_parties(own), list(range(6, 6 + count)), parties=parties)
    beside = np.column_stack([own[:, 6:], *[np.repeat(np.eye(3), SIZES, axis=0)] * parties])
    left = own[:, :6] - LinearRegression().fit(beside, own[:, :6]).predict(beside)
    model, truth = analyses.pca(found.moments, 3), pooled_pca(left, 3)
    assert principal_angles(model, truth).max < 1e-6
    close(model.explained_variance_, truth.explained_variance_, 1e-9)
    assert found.collinear == ((6, 8) if count == 3 else ())
    named = [{"party": f"partition {i}"} if parties else {} for i in range(3)]
    rest = np.vstack([found.apply(part, **name) for part, name in zip(cut(own, *SIZES), named, strict=True)])
    np.testing.assert_allclose(rest, left + own[:, :6].mean(axis=0), atol=1e-7 if parties else 1e-8)
    spread = np.cov(model.transform(rest), rowvar=False)
    np.testing.assert_allclose(spread, np.diag(model.explained_variance_), atol=1e-8)
    if parties:
        with refused(ConfigError, "'party'", "'north'", "partition 0"):
            found.apply(own, party="north")


def test_what_rounding_misses_is_told_and_what_cannot_be_taken_out_refused(aged):
    """A slope of 2: of a feature off by 0.04 and a covariate off by 0.09 the rest is off by (0.2 + 2 0.3)^2."""
    z, rest = np.array([-1.0, 1.0, -1.0, 1.0]), np.array([1.0, 1.0, -1.0, -1.0])
    rounded = replace(SecondMoments.of(np.column_stack([2 * z + rest, z])), error_bound=np.array([0.04, 0.09]))
    np.testing.assert_allclose(analyses.adjusted(rounded, [1]).moments.error_bound, [0.64])
    moments = of_parties(aged)
    for own_moments, covariates, parties, error, named in (
        (moments.select([8, 6]), [1], False, DataError, []),
        (moments.pooled(), [6], True, ConfigError, ["keep='parties'"]),
        (moments, ["age"], False, ConfigError, ["'age'"]),
    ):
        with refused(error, *named):
            analyses.adjusted(own_moments, covariates, parties=parties)


def test_rules_and_spikes_are_those_of_a_known_spectrum_and_bi_cross_validation_holds_out_parties():
    """Ten features, 100 degrees of freedom: noise reaches 1.8, and values that help to reconstruct begin at 2.6."""
    rng, rule = np.random.default_rng(0), "bi-cross-validation (Owen, Perry)"
    X = rng.standard_normal((600, 3)) @ rng.standard_normal((3, 15)) * 3 + rng.standard_normal((600, 15))
    of_four = run("p-cov", cut(X, 200, 300, 60, 40), n_components=2, keep="parties").moments_
    assert analyses.how_many(of_four, draws=5).by_rule[rule] == 3
    assert rule not in analyses.how_many(of_four.pooled(), draws=5).by_rule
    whole = SecondMoments.of(rows(60, 5))
    alone = SecondMoments(whole.moments, parties={"only": whole.moments})
    assert analyses.how_many(alone).by_rule == analyses.how_many(whole).by_rule
    values, centred = np.array([10, 5, 2, *np.ones(7)]), np.random.default_rng(0).standard_normal((101, 10))
    moments = SecondMoments.of(np.linalg.qr(centred - centred.mean(axis=0))[0] * np.sqrt(100 * values))
    report = analyses.how_many(moments, draws=5, fraction=0.9)
    rules = {"Marchenko-Pastur edge": 3, "optimal threshold (Gavish, Donoho)": 2, "broken stick": 2}
    rules |= {"90% of the variance": 8, "parallel analysis (Horn)": 0}  # the features are uncorrelated
    assert report.by_rule.items() >= rules.items()
    assert not [rule for rule in (*rules, "greatest evidence (Minka)") if rule not in str(report)]
    found = analyses.spikes(moments, 4)
    np.testing.assert_allclose((found.variances, found.angles), spiked_estimates(values, 4, 101), rtol=1e-9)
    assert analyses.how_many(SecondMoments.of(rows(8, 12))).by_rule["greatest evidence (Minka)"] is None
    with refused(DataError):
        analyses.how_many(SecondMoments.of(np.ones((5, 3))))
    for option, wrongs in {"fraction": (95, 1.0, 0.0, np.nan), "draws": (100_001,)}.items():
        for wrong in wrongs:
            with refused(ConfigError, f"'{option}'", wrong, *[1, 100_000] * (option == "draws")):
                analyses.how_many(moments, **{option: wrong})


@pytest.mark.parametrize("scale", [False, True])
@pytest.mark.parametrize("load", [load_wine, load_breast_cancer])
def test_auto_keeps_what_horns_own_procedure_keeps(load, scale):
    """Horn's own procedure takes the eigenvalues of data matrices of unrelated normal features."""
    X = np.insert(load().data, 2, 5.0, axis=1)  # a constant feature among them
    model = fit(X, n_components="auto", scale=scale)
    unit, rng = X / np.where(X.std(axis=0) > 0, X.std(axis=0), 1) if scale else X, np.random.default_rng(9)
    drawn = [rng.standard_normal(X.shape) * unit.std(axis=0) for _ in range(100)]
    sizes = [np.linalg.svd(rows - rows.mean(axis=0), compute_uv=False) for rows in (unit, *drawn)]
    expected = int(np.append(sizes[0] > np.percentile(sizes[1:], 95, axis=0), False).argmin())
    assert model.n_components_ == max(1, expected)
    said = [note for note in model.log["notes"] if "Horn" in note]
    assert said == [f"n-components='auto': parallel analysis (Horn) keeps {expected or 'none'} of {X.shape[1]}"]
    assert analyses.how_many(model.moments_, scale=scale).by_rule["parallel analysis (Horn)"] == expected
    assert analyses.pca(model.moments_, "auto", scale=scale).n_components_ == model.n_components_


def test_auto_is_about_variances_leaves_one_component_and_no_other_word_is_taken():
    X, secure = load_digits().data[:300], {"secure_aggregation": True, "bound": 30.0}
    assert fit(X, n_components="auto", **secure).n_components_ == fit(X, n_components="auto").n_components_ > 5
    model = fit(np.random.default_rng(0).standard_normal((300, 5)), n_components="auto")
    assert model.n_components_ == 1
    assert "keeps none of 5" in model.summary(full=True)
    for method in ("sub-it", "qr-pca", "sapca", "dp-pca", "adaptive", "vertical"):  # which have not all variances
        with refused(ConfigError, "n_components", "'auto'"):
            run(method, cut(rows(60), 40, 20), n_components="auto", **own(method))
    moments = SecondMoments.of(rows(60))
    for ask in (fit, lambda X, **options: analyses.pca(moments, options["n_components"], center=False)):
        with refused(ConfigError, "n_components", "'auto'", "center=True"):
            ask(rows(60), n_components="auto", center=False)
    for wrong in ("all", "Auto", 0, -0.5, 1.5):
        with refused(ConfigError, "n_components", repr(wrong)):
            fit(rows(60), n_components=wrong)
        with refused(ConfigError, "n-components", repr(wrong)):
            analyses.pca(moments, wrong)


@pytest.fixture(scope="module")
def moments():
    return run("p-cov", cut(ROWS, 100, 80, 60, 50, 40, 30, 20, 20), n_components=2, keep="parties").moments_


def test_errors_are_those_of_the_bootstrap(moments):
    """Another way to the same, from the rows themselves; eight parties know a spread to some 30 %."""
    model, rng, found = analyses.pca(moments, 2), np.random.default_rng(0), []
    for _ in range(400):
        drawn = ROWS[rng.integers(0, len(ROWS), len(ROWS))]
        _, sizes, turned = np.linalg.svd(drawn - drawn.mean(axis=0), full_matrices=False)
        signs = np.sign(np.sum(turned[:2] * model.components_, axis=1))
        found.append(np.column_stack([turned[:2] * signs[:, None], np.log(sizes[:2] ** 2)]))
    spread = np.std(found, axis=0)
    for ask, step in ((analyses.how_sure, 1.96), (analyses.how_sure_by_parties, 2.365)):  # 7 degrees of freedom
        told = ask(moments, 2)
        np.testing.assert_allclose(np.linalg.norm(told.loading_errors), np.linalg.norm(spread[:, :-1]), rtol=0.35)
        low, high = told.variance_intervals.T
        np.testing.assert_allclose(np.log(high / low) / 2 / step, spread[:, -1], rtol=0.5)
        assert ((low < told.variances) & (told.variances < high)).all()
        np.testing.assert_allclose(told.variances, model.explained_variance_)
    scaled = analyses.how_sure_by_parties(moments, 2, scale=True)
    np.testing.assert_allclose(scaled.variances, analyses.pca(moments, 2, scale=True).explained_variance_)


def test_intervals_follow_the_level_and_the_draws(moments):
    model, step = analyses.pca(moments, 2), norm.ppf(0.9)
    expected = model.explained_variance_[:, None] / (1 + np.array([1, -1]) * step * np.sqrt(2 / 399))
    np.testing.assert_allclose(analyses.how_sure(moments, 2, level=0.8).variance_intervals, expected, rtol=1e-12)
    model = replace(model, log={**model.log, "kurtosis": [3.0, 5.0]})
    expected = model.explained_variance_[:, None] / (1 + np.outer(np.sqrt([2 / 400, 4 / 400]), [step, -step]))
    np.testing.assert_allclose(analyses.variance_intervals(model, level=0.8), expected, rtol=1e-12)
    wide, narrow = (analyses.how_sure_by_parties(moments, 2, level=level).variance_intervals for level in (0.95, 0.8))
    widths = np.log(wide[:, 1] / wide[:, 0]) / np.log(narrow[:, 1] / narrow[:, 0])
    np.testing.assert_allclose(widths, t.ppf(0.975, 7) / t.ppf(0.9, 7))  # eight parties
    assert analyses.how_many(moments, draws=1).null_band[0] != analyses.how_many(moments, draws=2).null_band[0]


def test_unlike_parties_widen_intervals_and_signs_do_not():
    parties, widths = cut(rows(400, 6), *[50] * 8), []
    for scale in (1, 4):
        unlike = run("p-cov", [*parties[:-1], parties[-1] * scale], n_components=2, keep="parties").moments_
        widths.append(np.log(np.divide(*analyses.how_sure_by_parties(unlike, 1).variance_intervals[0])))
    assert widths[1] < 3 * widths[0]
    # Two loadings of one size and opposite signs: the larger of them is positive, whichever that is.
    rng = np.random.default_rng(1)
    X = rng.standard_normal((400, 1)) * [1, -1] + 0.1 * rng.standard_normal((400, 2))
    moments = run("p-cov", cut(X, *[50] * 8), n_components=1, keep="parties").moments_
    assert len({np.sign(analyses.pca(moments.without(party), 1).components_[0, 0]) for party in moments.parties}) == 2
    assert analyses.how_sure_by_parties(moments, 1).loading_errors.max() < 0.01


def test_spikes_of_scaled_features_and_of_few_rows(moments):
    spikes, expected = analyses.spikes(moments, 2, scale=True), analyses.spikes(moments.scaled(), 2)
    np.testing.assert_array_equal(spikes.variances, expected.variances)
    assert (spikes.variances != analyses.spikes(moments, 2).variances).any()
    wide = kept(rows(60, 40) * 5)
    turned = analyses.spikes(wide, 3)
    assert 0 < turned.angles[0] < turned.angles[1] < turned.angles[2] <= 90
    assert (turned.variances[:1] < analyses.pca(wide, 1).explained_variance_).all()


def test_components_of_rounding_have_no_errors(moments):
    """They would have small ones: of how float64 rounds."""
    four = SecondMoments(moments.moments, parties=dict(list(moments.parties.items())[:4]))
    doubled = cut(np.column_stack([ROWS[:, :2], ROWS[:, :2] * 2]), 100, 80, 70, 80, 70)
    rounding = run("p-cov", doubled, n_components=1, keep="parties").moments_
    for ask, held, k, options, error, named in (
        (analyses.how_sure_by_parties, moments.pooled(), 2, {}, ConfigError, [0, 5]),
        (analyses.how_sure_by_parties, four, 2, {}, ConfigError, [4, 5]),
        *((analyses.how_sure, moments, 2, {"level": n}, ConfigError, ["'level'", repr(n)]) for n in (95, "0.9")),
        (analyses.how_sure, moments, 7, {}, ConfigError, ["'k'", 7, 1, 6]),
        (analyses.how_sure, SecondMoments.of(ROWS[:3]), 3, {}, ConfigError, ["'k'", 3, 2]),
        *((ask, rounding, 3, {}, ContractError, [3]) for ask in (analyses.how_sure, analyses.how_sure_by_parties)),
    ):
        with refused(error, *named):
            ask(held, k, **options)
