"""How many components there are, and how sure values and scores are, beside scikit-learn, drawn data and formulas."""

import math
from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.stats import ttest_ind
from sklearn.datasets import load_breast_cancer, load_digits, load_wine
from sklearn.decomposition import PCA

from fedpca_flwr import analyses, run
from fedpca_flwr.maths import inference
from fedpca_flwr.maths import marchenko_pastur as noise
from fedpca_flwr.maths.eigen import fix_signs
from fedpca_flwr.maths.marchenko_pastur import MarchenkoPastur, largest_gap, noise_variance
from fedpca_flwr.maths.moments import Moments
from fedpca_flwr.maths.new_rows import new_rows
from tests.families import cut


def spectrum(X):
    return np.linalg.eigvalsh(np.cov(X, rowvar=False))[::-1].clip(min=0)


def planted(n, d, strengths=(), *, seed=0, correlated=False):
    """Noise, and components whose variances are so many times as large."""
    rng = np.random.default_rng(seed)
    beside = rng.standard_normal((n, d))
    if correlated:  # blocks of features that go together, as neighbouring genotypes
        beside = 0.6 * beside + 0.8 * np.repeat(rng.standard_normal((n, d // 10)), 10, axis=1)
    basis, _ = np.linalg.qr(rng.standard_normal((d, len(strengths))))
    return beside + rng.standard_normal((n, len(strengths))) * np.sqrt(strengths) @ basis.T


def scatter(n, d, deviations=(), **more):
    return np.cov(planted(n, d, np.square(deviations), **more), rowvar=False) * (n - 1)


def test_minkas_dimension_is_that_of_scikit_learn():
    """Take data sets of nearly full dimension, a few planted components, and ten rows with a single component."""
    sets = [load().data for load in (load_digits, load_wine, load_breast_cancer)]
    sets += [X / np.where(X.std(axis=0) > 0, X.std(axis=0), 1) for X in sets]
    sets += [planted(150, 12, [30.0, 12.0, 5.0], seed=seed) for seed in range(4)]
    found = [inference.minka(spectrum(X), len(X)) for X in sets]
    assert found == [PCA("mle", svd_solver="full").fit(X).n_components_ for X in sets]
    assert found[-4:] == [3] * 4
    assert inference.minka(spectrum(sets[-1][:10]), 10) is None
    # The others of four eigenvalues are worth less than the free parameters of their directions.
    columns = np.random.default_rng(0).standard_normal((10, 4))
    basis, _ = np.linalg.qr(columns - columns.mean(axis=0))
    for strength in (1.5, 2.0, 3.0, 3.8, 4.0):
        values = np.array([9.0, strength, 1.1, 0.9])
        theirs = PCA("mle", svd_solver="full").fit(3 * basis * np.sqrt(values))
        np.testing.assert_allclose(theirs.explained_variance_, values[:1])
        assert inference.minka(values, 10) == theirs.n_components_ == 1


@pytest.mark.engine
def test_null_eigenvalues_are_those_of_drawn_data():
    band = inference.null_band(np.ones(8), 50, draws=400)
    np.testing.assert_array_equal(band, inference.null_band(np.ones(8), 50, draws=400))
    others = inference.null_eigenvalues(np.ones(8), 50, 1000, np.random.default_rng(5))
    np.testing.assert_allclose((others <= band).mean(axis=0), 0.95, atol=0.03)
    # Means over the draws, to four standard errors; without Bartlett's falling degrees of freedom they are 10 off.
    for n, d in ((20, 6), (7, 12), (12, 12), (13, 12)):
        variances, rng = np.linspace(1, 9, d), np.random.default_rng(2)
        ours = inference.null_eigenvalues(variances, n, 1000, np.random.default_rng(1))
        drawn = [spectrum(rng.standard_normal((n, d)) * np.sqrt(variances))[: n - 1] for _ in range(1000)]
        assert ours.shape == np.shape(drawn)
        assert (np.abs(ttest_ind(ours, drawn, equal_var=False).statistic) < 4).all()


@pytest.mark.parametrize(("n", "d"), [(400, 60), (60, 400), (200, 200)])
def test_planted_components_are_counted(n, d):
    X = 7**0.5 * planted(n, d, [80.0, 60.0, 40.0], seed=3)
    values = spectrum(X)
    edges = 1.02 * noise.noise_edge(values, n, d), noise.optimal_threshold(values, n, d)  # null eigenvalues vary
    assert [inference.leading_run(values > edge) for edge in edges] == [3, 3]
    np.testing.assert_allclose(noise.noise_variance(values, n, d), 7.0, rtol=0.1)
    assert inference.parallel_analysis(values, inference.null_band(X.var(axis=0, ddof=1), n)) == 3


def test_rules_of_few_numbers_and_the_law_of_noise():
    shares = ([0.7, 0.2, 0.1], [0.9, 0.05, 0.05], [1.0, 1.0, 1.0], [0.62, 0.29, 0.09])
    # the pieces are 11/18, 5/18 and 2/18
    assert [inference.broken_stick(np.array(values)) for values in shares] == [1, 1, 0, 2]
    assert [inference.leading_run(np.array(run)) for run in ([True, True, False, True], [True], [False])] == [2, 1, 0]
    assert [inference.minka(np.array([10.0, 1.0, 1.0]), n) is None for n in (3, 2)] == [False, True]
    assert inference.minka(np.array([10.0]), 5) == 1
    # 2.858 times the median singular value (Gavish and Donoho 2014).
    values = np.linspace(9, 1, 100)
    np.testing.assert_allclose(np.sqrt(noise.optimal_threshold(values, 101, 100) / np.median(values)), 2.858, rtol=1e-3)
    few = noise.optimal_threshold(np.r_[values, np.zeros(900)], 101, 1000)  # of 1000 features, 100 eigenvalues above 0
    assert few == noise.optimal_threshold(values, 1001, 100)
    # Of two features the ratio is 1, where singular values have the law of a quarter circle with radius 2.
    median = brentq(lambda s: s * np.sqrt(4 - s**2) / 2 + 2 * np.arcsin(s / 2) - np.pi / 2, 0, 2) ** 2
    values = np.array([5.0, 3.0])
    np.testing.assert_allclose(noise.noise_variance(values, 3, 2), 4 / median, rtol=1e-7)
    np.testing.assert_allclose(noise.noise_edge(values, 3, 2), 4 / median * (1 + 1) ** 2, rtol=1e-7)
    for n in (101, 301, 601, 3001):
        values = spectrum(np.random.default_rng(4).standard_normal((n, 300)))[: n - 1]
        np.testing.assert_allclose(noise.law_median(300 / (n - 1)), np.median(values), rtol=0.02)


def drawn(rank, d=20):
    rng = np.random.default_rng(0)
    scores, axes = rng.standard_normal((200, rank)) * np.linspace(4, 3, rank), rng.standard_normal((d, d))
    return scores @ np.linalg.qr(axes)[0][:, :rank].T + rng.standard_normal((200, d)) * np.linspace(0.8, 1.2, d)


def parts(X):
    return [Moments.from_rows(part) for part in cut(X, 80, 50, 40, 30)]


def by_rows(X, k, sizes=(80, 50, 40, 30), folds=range(4)):
    """Return the error of k components, row by row: a rank-k pseudo-inverse of what is held in."""
    total, folds_of_rows = 0.0, np.repeat(folds, sizes)
    for fold, first in product(set(folds), range(inference.MAX_FEATURE_BLOCKS)):
        out, block = folds_of_rows == fold, np.arange(X.shape[1]) % inference.MAX_FEATURE_BLOCKS == first
        centred = X - X[~out].mean(axis=0)
        U, values, Vt = np.linalg.svd(centred[~out][:, ~block], full_matrices=False)
        fitted = (Vt[:k].T / values[:k]) @ (U[:, :k].T @ centred[~out][:, block])
        total += ((centred[out][:, block] - centred[out][:, ~block] @ fitted) ** 2).sum()
    return total


@pytest.mark.engine
def test_loading_errors_are_of_the_pooled_rows_in_any_unit():
    for offset in (0.0, 1e6):
        X = drawn(3) + offset
        np.testing.assert_allclose(inference.validation_errors(parts(X)), [by_rows(X, k) for k in range(17)], rtol=1e-8)
    # Folds take any shape and unit: only as many components as every fold has; more would be rounding.
    cases = [*(drawn(rank) for rank in (0, 1, 3, 6)), drawn(3, d=250), drawn(3) * 2.0**-200, drawn(3) * 2.0**200]
    assert [inference.bi_cross_validation(parts(X)) for X in cases] == [0, 1, 3, 6, 3, 3, 3]
    assert inference.validation_errors(parts(drawn(3, d=250))).size <= 200 - 80
    # The largest parties first, each joins the fold that has the fewest rows.
    X, sizes = drawn(3), [20] * 4 + [10] * 2 + [100]
    errors = inference.validation_errors([Moments.from_rows(part) for part in cut(X, *sizes)])
    np.testing.assert_allclose(errors[3], by_rows(X, 3, sizes, [1, 2, 3, 4, 1, 2, 0]), rtol=1e-8)


def counted(A, n, most):
    values = np.linalg.eigvalsh(A)[::-1]
    return values, MarchenkoPastur(n - 1, len(A)).count_above(values, float(np.trace(A)), most)


@pytest.mark.parametrize(("n", "d"), [(60, 200), (200, 60), (100, 100)])
def test_noise_exceeds_its_edge_one_time_in_twenty(n, d):
    assert sum(counted(scatter(n, d, seed=seed), n, 5)[1] > 0 for seed in range(60)) <= 8
    assert [counted(scatter(n, d, (40.0, 20.0, 10.0), seed=seed), n, 8)[1] for seed in range(5)] == [3] * 5


def test_the_edge_of_noise_is_johnstones_and_gaps_are_beyond_its_spacing():
    noise = MarchenkoPastur(99, 50)
    assert (noise.edge(7e10, 3), noise.edge(1.0, 50)) == (pytest.approx(1e10 * noise.edge(7.0, 3)), np.inf)
    # 0.9793 (Johnstone 2001; Bejan 2005); of 4 degrees of freedom and 4 features centre and spread are 16 and 4.
    assert MarchenkoPastur(4, 4).edge(16.0, 0) == pytest.approx(16 + 4 * 0.9793)
    # With 16 degrees of freedom and 16 features that are left: centre (4 + 4)^2, and 8 (1/4 + 1/4)^(1/3) about it.
    for j in (0, 2):
        edge = MarchenkoPastur(16 + j, 16 + j).edge(256.0, j)
        assert edge == pytest.approx(64 + 0.9793 * 8 * 0.5 ** (1 / 3), rel=1e-12)
    for seed in range(2):
        values, above = counted(scatter(80, 800, (30.0, 20.0), seed=seed, correlated=True), 80, 8)
        assert (above, largest_gap(values, 8)[0]) == (8, 2)
    # Eigenvalues of 379 rows of 54,051 genotypes, as plink2 gives them.
    text = "500.3 285.6 255.8 249.5 221.9 217.0 213.2 210.6 208.7 207.9 206.5 204.4 203.8 202.3 201.1 200.8"
    found, spacing = largest_gap(np.array(text.split(), float), 10)
    assert found == 4
    assert 221.9 - 217.0 < spacing < 249.5 - 221.9
    # Eigenvalues that fall as i^(2/3) from the second on, behind one that is far above.
    values = np.r_[100.0, 50 - 3 * np.arange(1, 9) ** (2 / 3)]
    assert largest_gap(values, 2) == (1, pytest.approx(6.0, rel=1e-12))


@pytest.mark.parametrize(("bound", "error", "told"), [(-1e-9, 0.0, True), (1e-9, 0.0, False), (-1e-9, 0.01, False)])
def test_counts_of_components_need_settled_bounds(bound, error, told):
    """Take bounds as an iteration gives both ways; the level asked for is as low as the rule allows."""
    behind = 50 - 3 * np.arange(1, 9) ** (2 / 3)  # a spacing of 6, so the gap is behind the first one
    asked = []

    def certified(law, values, trace, most, error, tolerance=1e-3):
        def eigenvalue(j, level):
            asked.append((j, level))
            return most

        ritz = SimpleNamespace(values=values, error=0.25, leading_residuals=lambda count: np.full((1, count), error))
        angles = SimpleNamespace(eigenvalue=eigenvalue, certifies=lambda j, degrees: (j, degrees) == (1, 1e-3))
        return law.count_certified(ritz, trace, 3, angles, tolerance)

    few, many = MarchenkoPastur(9, 16), MarchenkoPastur(99, 50)
    values, one, edge = np.r_[100.0, behind], np.r_[100.0, np.ones(8)], many.edge(50.0, 1)
    assert (few.count_above(values, 200.0, 3) > 1, many.count_above(one, 150.0, 3)) == (True, 1)
    assert certified(few, values, 200.0, values[2] + 6 + bound, 1.25 + error) == told
    assert certified(few, values, 200.0, 0.0, 0.0, tolerance=1.0) == 0
    assert certified(few, values[:-1], 200.0, 0.0, 0.0) == 0  # too few to tell a gap
    assert certified(many, one, 150.0, edge + bound, 0.0) == (bound < 0)
    assert asked == [(1, pytest.approx(50 - 3 * 2 ** (2 / 3) + 3)), (1, pytest.approx(edge - 0.5))]


ONE_DEVIATION = math.erf(0.5**0.5)  # the probability that a normal number is within one standard deviation


def test_intervals_and_spikes_have_closed_forms():
    left_out = np.random.default_rng(2).standard_normal((8, 3))
    _, variance = inference.grouped_jackknife(left_out.mean(axis=0), left_out, np.full(8, 20.0))
    np.testing.assert_allclose(variance, 7 * left_out.var(axis=0), rtol=1e-12)
    # Of groups of 10 and 30 rows with means 0 and 4, the squared distances to 3 over 40/10 - 1 and 40/30 - 1 are 3.
    found = inference.grouped_jackknife(np.array(3.0), np.array([4.0, 0.0]), np.array([10.0, 30.0]))
    np.testing.assert_allclose(found, [3, 3])
    units = inference.variance_units(2.0**-70 * np.array([4.0, 0.0, 1e-14]))
    np.testing.assert_array_equal(units, [2.0**-68, np.inf, np.inf])
    # A component far above the noise: its scores and the noise are off by what p directions of noise leak into it.
    powers = 1 / np.arange(1.0, 4)  # of three variances that fall as the rank, as skew
    first, second, third = (np.sum(powers**i) for i in (1, 2, 3))
    p = first**2 / second
    law = new_rows(np.array([1e6]), 10.0, 1 / (1 / p + 1 / 58), 60, 4)
    assert law.mean_spe == pytest.approx(10 * (1 + 59 / 58 * (1 / 59 + 1 / 57)) * (1 + 1 / 60), rel=1e-6)
    assert law.skew_directions / law.directions == pytest.approx(second**3 / third**2 / p, rel=1e-9)
    assert [new_rows(np.arange(9.0, 0, -1), 1.0, 3.0, 60, d) is None for d in (11, 12)] == [True, False]
    assert inference.robust_intervals(np.array([2.0]), np.array([0.5]), 8, 0.5).tolist() == [[2, 2]]
    # Of kurtosis 3 in 8 rows the step is half a normal quantile.
    low, high = inference.robust_intervals(np.array([2.0]), np.array([3.0]), 8, 0.5)[0]
    step = 0.6744897501960817 / 2
    assert (low, high) == pytest.approx((2 / (1 + step), 2 / (1 - step)), rel=1e-12)
    # The sample's variance and angle follow from the spike; of what noise alone may have nothing is known.
    for n, beside in ((5, [4.0, 3.0, 2.0, 0.0, 0.0, 0.0, 0.0]), (101, [2.4, 2.2, 2.1, 2.0, 1.9, 1.8, 1.6])):
        values = np.array([400.0, *beside])
        s2, ratio = noise_variance(values, n, 8), 8 / (n - 1)
        (spike, level), (angle, none) = inference.spiked_estimates(values, 2, n)
        over = spike - s2
        assert spike * (1 + ratio * s2 / over) == pytest.approx(400, rel=1e-12)
        cosine = math.sqrt((1 - ratio * s2**2 / over**2) / (1 + ratio * s2 / over))
        assert math.cos(math.radians(angle)) == pytest.approx(cosine, rel=1e-12)
        assert (level, none) == (s2, 90)
    # A loading's variance is a sum over all other components.
    values, (V, _) = np.array([9.0, 4.0, 1.0]), np.linalg.qr(np.random.default_rng(0).standard_normal((3, 3)))
    for i in (0, 1):
        terms = [values[i] * values[j] / (values[i] - values[j]) ** 2 * V[:, j] ** 2 for j in range(3) if j != i]
        np.testing.assert_allclose(inference.loading_errors(values, V, 2, 9)[:, i], np.sqrt(sum(terms) / 8))
    # Few rows and ties leave them open.
    ((low, high),) = inference.normal_intervals(np.ones(1), np.ones((1, 1)), 5, 0.95)
    assert 0 < low < 1 < high == np.inf
    errors = inference.loading_errors(np.array([2.0, 1.0, 1.0]), np.eye(3), 2, 100)
    np.testing.assert_array_equal(np.isinf(errors), [[False, True]] * 3)
    # sqrt(2 / 8) is a half.
    np.testing.assert_allclose(inference.normal_intervals(np.array([3.0]), V, 9, ONE_DEVIATION), [[2.0, 6.0]])
    errors = inference.loading_errors(np.array([3.0, 1.0]), np.eye(2), 2, 3)
    np.testing.assert_allclose(errors, (1 - np.eye(2)) * math.sqrt(3 * 1 / (3 - 1) ** 2 / 2))


def test_errors_of_a_correlation_matrix_follow_from_those_of_the_covariance():
    """By the derivative of each number in each entry of the covariance, whose errors are those of normal rows."""
    A, n = np.random.default_rng(3).standard_normal((4, 4)), 1000
    S = A @ A.T + np.eye(4)

    def eigenpairs(S):
        R = S / np.sqrt(np.outer(np.diagonal(S), np.diagonal(S)))
        values, vectors = np.linalg.eigh(R)
        return R, values[::-1], fix_signs(vectors)[:, ::-1]

    def numbers(S):
        """Return two values, and the vectors after these."""
        _, values, vectors = eigenpairs(S)
        return np.concatenate([values[:2], *vectors[:, :2].T])

    entries = [(i, j) for i in range(4) for j in range(i + 1)]
    steps = [1e-6 * np.isin(np.arange(16), (4 * i + j, 4 * j + i)).reshape(4, 4) for i, j in entries]
    slopes = [(numbers(S + step) - numbers(S - step)) / 2e-6 for step in steps]
    errors = np.array([[S[a, c] * S[b, d] + S[a, d] * S[b, c] for c, d in entries] for a, b in entries]) / (n - 1)
    expected, (R, values, vectors) = np.sqrt(np.einsum("ei,ef,fi->i", slopes, errors, slopes)), eigenpairs(S)
    found = inference.loading_errors(values * n / (n - 1), vectors, 2, n, R)
    np.testing.assert_allclose(found.T.ravel(), expected[2:], rtol=1e-6)
    (low, _), _ = inference.normal_intervals(values[:2] * n / (n - 1), vectors[:, :2], n, ONE_DEVIATION, R)
    np.testing.assert_allclose(values[0] * n / (n - 1) / low - 1, expected[0] / values[0], rtol=1e-6)


def test_shrinkage_follows_the_formula():
    rows = np.random.default_rng(0).standard_normal((2000, 5)) * [5, 4, 1, 1, 1]
    model = run("p-cov", np.array_split(rows, 2), n_components=2)
    np.testing.assert_allclose(model.shrinkage_, 1, atol=0.01)
    assert not any("scores of new rows" in note for note in model.log["notes"])
    # Scores of new rows are divided by it.
    X = planted(60, 300, [30.0])
    model = run("qr-pca", np.array_split(X, 2), n_components=1)
    np.testing.assert_allclose(analyses.projected(model, X) * model.shrinkage_, model.transform(X))
    assert any("scores of new rows are 0." in note for note in model.log["notes"])
    # gamma = 4, level 1: a component of 12 stands for l with l + 4 l / (l - 1) = 12.
    found = inference.score_shrinkage(np.array([12.0, 4.0]), 12.0 + 4.0 + 4.0 * 98, 101, 400)
    spike = (9 + np.sqrt(81 - 48)) / 2
    np.testing.assert_allclose(spike + 4 * spike / (spike - 1), 12)
    np.testing.assert_allclose(found[0], (spike - 1) / (spike + 3))
    assert np.isnan(found[1])
    with np.errstate(all="raise"):
        # Beside a level of 1e28 a variance of 1 is nothing: l + gamma - 1 is 0, and nothing is divided by it.
        assert np.isnan(inference.score_shrinkage(np.array([1e30, 1.0]), 1e30 + 1.0 + 5e29, 100, 30)[1])
        np.testing.assert_array_equal(inference.score_shrinkage(np.array([4.0, 0.0]), 5.0, 20, 10) > 0, [True, False])
