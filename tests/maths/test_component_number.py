"""Rules for the number of components, against scikit-learn, whole drawn data, the laws, and held-out errors."""

import numpy as np
import pytest
from scipy.optimize import brentq
from sklearn.datasets import load_breast_cancer, load_digits, load_wine
from sklearn.decomposition import PCA

from fedpca_flwr.maths import inference as rules
from fedpca_flwr.maths import marchenko_pastur as noise
from fedpca_flwr.maths.inference import BLOCKS, _folds, bi_cross_validation, held_out_errors
from fedpca_flwr.maths.moments import Moments


def spectrum(X):
    return np.linalg.eigvalsh(np.cov(X, rowvar=False))[::-1].clip(min=0)


def planted(n, d, strengths, seed=0, noise=1.0):
    """Noise, and components whose variances are so many times as large."""
    rng = np.random.default_rng(seed)
    basis, _ = np.linalg.qr(rng.standard_normal((d, len(strengths))))
    return np.sqrt(noise) * (
        rng.standard_normal((n, d)) + rng.standard_normal((n, len(strengths))) * np.sqrt(strengths) @ basis.T
    )


@pytest.mark.parametrize("scale", [False, True])
@pytest.mark.parametrize("load", [load_digits, load_wine, load_breast_cancer])
def test_minkas_dimension_is_that_of_scikit_learn(load, scale):
    X = load().data
    X = X / np.where(X.std(axis=0) > 0, X.std(axis=0), 1) if scale else X
    theirs = PCA("mle", svd_solver="full").fit(X)
    assert rules.minka(spectrum(X), len(X)) == theirs.n_components_


@pytest.mark.parametrize("seed", range(4))
def test_minkas_dimension_of_few_planted_ones(seed):
    """On the sets above it keeps nearly all; here the answer is in the middle."""
    X = planted(150, 12, [30.0, 12.0, 5.0], seed=seed)
    theirs = PCA("mle", svd_solver="full").fit(X)
    assert rules.minka(spectrum(X), len(X)) == theirs.n_components_ == 3
    assert rules.minka(spectrum(X[:10]), 10) is None


@pytest.mark.parametrize(("n", "d"), [(20, 6), (7, 12), (12, 12), (13, 12)])
def test_null_eigenvalues_are_those_of_whole_drawn_data(n, d):
    """Means over the draws, to four standard errors; without Bartlett's falling degrees of freedom they are 10 off."""
    variances = np.linspace(1, 9, d)
    ours = rules.null_eigenvalues(variances, n, 1000, np.random.default_rng(1))
    rng = np.random.default_rng(2)
    drawn = [spectrum(rng.standard_normal((n, d)) * np.sqrt(variances))[: min(n - 1, d)] for _ in range(1000)]
    difference = ours.mean(axis=0) - np.mean(drawn, axis=0)
    deviation = np.hypot(ours.std(axis=0), np.std(drawn, axis=0)) / np.sqrt(1000)
    assert ours.shape[1] == min(n - 1, d)
    assert (np.abs(difference) < 4 * deviation).all()


def test_the_band_is_the_same_each_time_and_its_percentile_is_met():
    band = rules.null_band(np.ones(8), 50, draws=400)
    np.testing.assert_array_equal(band, rules.null_band(np.ones(8), 50, draws=400))
    others = rules.null_eigenvalues(np.ones(8), 50, 1000, np.random.default_rng(5))
    np.testing.assert_allclose((others <= band).mean(axis=0), 0.95, atol=0.03)


@pytest.mark.parametrize(("n", "d"), [(400, 60), (60, 400), (200, 200)])
def test_planted_components_are_counted(n, d):
    strong = [80.0, 60.0, 40.0]
    values = spectrum(planted(n, d, strong, seed=3, noise=7.0))
    assert rules.leading_run(values > 1.02 * noise.edge(values, n, d)) == 3  # a largest null eigenvalue varies
    assert rules.leading_run(values > noise.optimal_threshold(values, n, d)) == 3
    np.testing.assert_allclose(noise.noise_variance(values, n, d), 7.0, rtol=0.1)
    variances = np.diagonal(np.cov(planted(n, d, strong, seed=3, noise=7.0), rowvar=False))
    assert rules.parallel_analysis(values, rules.null_band(variances, n)) == 3


@pytest.mark.parametrize("ratio", [0.1, 0.5, 1.0, 3.0])
def test_the_median_of_the_law_is_that_of_large_noise(ratio):
    d = 300
    n = round(d / ratio) + 1
    values = spectrum(np.random.default_rng(4).standard_normal((n, d)))[: min(n - 1, d)]
    np.testing.assert_allclose(noise.law_median(d / (n - 1)), np.median(values), rtol=0.02)


def test_rules_of_few_numbers():
    np.testing.assert_allclose(
        [rules.broken_stick(np.array(values)) for values in ([0.7, 0.2, 0.1], [0.9, 0.05, 0.05], [1.0, 1.0, 1.0])],
        [1, 1, 0],  # the pieces are 11/18, 5/18 and 2/18
    )
    assert rules.broken_stick(np.array([0.62, 0.29, 0.09])) == 2
    assert [rules.fraction(np.array([5.0, 3, 2]), share) for share in (0.4, 0.5, 0.79, 0.95)] == [1, 2, 2, 3]
    assert rules.leading_run(np.array([True, True, False, True])) == 2
    assert rules.leading_run(np.array([True])) == 1
    assert rules.leading_run(np.array([False])) == 0
    assert rules.minka(np.array([10.0, 1.0, 1.0]), 3) is not None
    assert rules.minka(np.array([10.0, 1.0, 1.0]), 2) is None
    # 2.858 times the median singular value (Gavish and Donoho 2014).
    values = np.linspace(9, 1, 100)
    np.testing.assert_allclose(np.sqrt(noise.optimal_threshold(values, 101, 100) / np.median(values)), 2.858, rtol=1e-3)


def test_noise_of_three_rows_has_two_degrees_of_freedom():
    """Of two features the ratio is 1, where singular values have the law of a quarter circle with radius 2."""
    median = brentq(lambda s: s * np.sqrt(4 - s**2) / 2 + 2 * np.arcsin(s / 2) - np.pi / 2, 0, 2) ** 2
    values = np.array([5.0, 3.0])
    np.testing.assert_allclose(noise.noise_variance(values, 3, 2), 4 / median, rtol=1e-3)
    np.testing.assert_allclose(noise.edge(values, 3, 2), 4 / median * (1 + 1) ** 2, rtol=1e-3)


@pytest.mark.parametrize("strength", [1.5, 2.0, 3.0, 3.8, 4.0])
def test_few_rows_hold_one_dimension_to_minka_as_to_scikit_learn(strength):
    """Ten rows: the others of their four eigenvalues are worth less than the free parameters of their directions."""
    columns = np.random.default_rng(0).standard_normal((10, 4))
    basis, _ = np.linalg.qr(columns - columns.mean(axis=0))
    values = np.array([9.0, strength, 1.1, 0.9])
    theirs = PCA("mle", svd_solver="full").fit(3 * basis * np.sqrt(values))
    np.testing.assert_allclose(theirs.explained_variance_, values[:1])
    assert rules.minka(values, 10) == theirs.n_components_ == 1


SIZES = (80, 50, 40, 30)


def drawn(rank, d=20, noise=1.0, seed=0, offset=0.0):
    rng = np.random.default_rng(seed)
    signal = (
        rng.standard_normal((sum(SIZES), rank))
        * np.linspace(4, 3, rank)
        @ np.linalg.qr(rng.standard_normal((d, d)))[0][:, :rank].T
    )
    return signal + noise * rng.standard_normal((sum(SIZES), d)) * np.linspace(0.8, 1.2, d) + offset


def parts(X):
    return [Moments.of(part) for part in np.split(X, np.cumsum(SIZES)[:-1])]


def by_rows(X, components):
    """The error of that many components, row by row: a rank-k pseudo-inverse of what is held in."""
    total, party = 0.0, np.repeat(np.arange(len(SIZES)), SIZES)
    for fold in range(len(SIZES)):
        centred = X - X[party != fold].mean(axis=0)
        for first in range(BLOCKS):
            block = np.arange(X.shape[1]) % BLOCKS == first
            A, B = centred[party == fold][:, block], centred[party == fold][:, ~block]
            C, D = centred[party != fold][:, block], centred[party != fold][:, ~block]
            U, values, Vt = np.linalg.svd(D, full_matrices=False)
            k = components
            found = B @ (Vt[:k].T / values[:k]) @ (U[:, :k].T @ C)
            total += ((A - found) ** 2).sum()
    return total


@pytest.mark.parametrize("offset", [0.0, 1e6])
def test_errors_are_those_of_the_pooled_rows(offset):
    X = drawn(3, offset=offset)
    found = held_out_errors(parts(X))
    np.testing.assert_allclose(found, [by_rows(X, k) for k in range(17)], rtol=1e-8)


@pytest.mark.parametrize("rank", [0, 1, 3, 6])
def test_the_rank_of_a_signal_is_found(rank):
    assert bi_cross_validation(parts(drawn(rank))) == rank


def test_folds_take_any_shape_and_unit():
    """Only as many components as every fold has; more would be rounding."""
    wide = drawn(3, d=400)
    found = held_out_errors(parts(wide))
    assert found.size <= 200 - max(SIZES)
    assert bi_cross_validation(parts(wide)) == 3
    X = drawn(3)
    for unit in (2.0**-200, 2.0**200):
        assert bi_cross_validation(parts(X * unit)) == 3
    assert _folds([10, 1, 1, 1, 1, 1, 1]) == [[0], [1, 5], [2, 6], [3], [4]]
