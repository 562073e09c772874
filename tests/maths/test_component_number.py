"""Rules for the number of components, against scikit-learn, whole drawn data, the laws, and held-out errors."""

import numpy as np
import pytest
from scipy.optimize import brentq
from sklearn.datasets import load_breast_cancer, load_digits, load_wine
from sklearn.decomposition import PCA

from fedpca_flwr.maths import inference as rules
from fedpca_flwr.maths import marchenko_pastur as noise
from fedpca_flwr.maths.moments import Moments
from tests.families import cut


def spectrum(X):
    return np.linalg.eigvalsh(np.cov(X, rowvar=False))[::-1].clip(min=0)


def planted(n, d, strengths, seed=0, noise=1.0):
    """Noise, and components whose variances are so many times as large."""
    rng = np.random.default_rng(seed)
    basis, _ = np.linalg.qr(rng.standard_normal((d, len(strengths))))
    beside = rng.standard_normal((n, d))
    return np.sqrt(noise) * (beside + rng.standard_normal((n, len(strengths))) * np.sqrt(strengths) @ basis.T)


def test_minkas_dimension_is_that_of_scikit_learn():
    """On the data sets it keeps nearly all; of few planted ones the answer is in the middle, of ten rows one."""
    sets = [load().data for load in (load_digits, load_wine, load_breast_cancer)]
    sets += [X / np.where(X.std(axis=0) > 0, X.std(axis=0), 1) for X in sets]
    sets += [planted(150, 12, [30.0, 12.0, 5.0], seed=seed) for seed in range(4)]
    found = [rules.minka(spectrum(X), len(X)) for X in sets]
    assert found == [PCA("mle", svd_solver="full").fit(X).n_components_ for X in sets]
    assert found[-4:] == [3] * 4
    assert rules.minka(spectrum(sets[-1][:10]), 10) is None
    # The others of four eigenvalues are worth less than the free parameters of their directions.
    columns = np.random.default_rng(0).standard_normal((10, 4))
    basis, _ = np.linalg.qr(columns - columns.mean(axis=0))
    for strength in (1.5, 2.0, 3.0, 3.8, 4.0):
        values = np.array([9.0, strength, 1.1, 0.9])
        theirs = PCA("mle", svd_solver="full").fit(3 * basis * np.sqrt(values))
        np.testing.assert_allclose(theirs.explained_variance_, values[:1])
        assert rules.minka(values, 10) == theirs.n_components_ == 1


@pytest.mark.engine
def test_null_eigenvalues_are_those_of_whole_drawn_data_and_the_band_their_percentile():
    band = rules.null_band(np.ones(8), 50, draws=400)
    np.testing.assert_array_equal(band, rules.null_band(np.ones(8), 50, draws=400))
    others = rules.null_eigenvalues(np.ones(8), 50, 1000, np.random.default_rng(5))
    np.testing.assert_allclose((others <= band).mean(axis=0), 0.95, atol=0.03)
    # Means over the draws, to four standard errors; without Bartlett's falling degrees of freedom they are 10 off.
    for n, d in ((20, 6), (7, 12), (12, 12), (13, 12)):
        variances = np.linspace(1, 9, d)
        ours = rules.null_eigenvalues(variances, n, 1000, np.random.default_rng(1))
        rng = np.random.default_rng(2)
        drawn = [spectrum(rng.standard_normal((n, d)) * np.sqrt(variances))[: min(n - 1, d)] for _ in range(1000)]
        deviation = np.hypot(ours.std(axis=0), np.std(drawn, axis=0)) / np.sqrt(1000)
        assert ours.shape[1] == min(n - 1, d)
        assert (np.abs(ours.mean(axis=0) - np.mean(drawn, axis=0)) < 4 * deviation).all()


@pytest.mark.parametrize(("n", "d"), [(400, 60), (60, 400), (200, 200)])
def test_planted_components_are_counted(n, d):
    X = planted(n, d, [80.0, 60.0, 40.0], seed=3, noise=7.0)
    values = spectrum(X)
    assert rules.leading_run(values > 1.02 * noise.edge(values, n, d)) == 3  # a largest null eigenvalue varies
    assert rules.leading_run(values > noise.optimal_threshold(values, n, d)) == 3
    np.testing.assert_allclose(noise.noise_variance(values, n, d), 7.0, rtol=0.1)
    assert rules.parallel_analysis(values, rules.null_band(X.var(axis=0, ddof=1), n)) == 3


def test_rules_of_few_numbers_and_the_law_of_noise():
    shares = ([0.7, 0.2, 0.1], [0.9, 0.05, 0.05], [1.0, 1.0, 1.0], [0.62, 0.29, 0.09])
    # the pieces are 11/18, 5/18 and 2/18
    assert [rules.broken_stick(np.array(values)) for values in shares] == [1, 1, 0, 2]
    assert [rules.fraction(np.array([5.0, 3, 2]), share) for share in (0.4, 0.5, 0.79, 0.95)] == [1, 2, 2, 3]
    runs = ([True, True, False, True], [True], [False])
    assert [rules.leading_run(np.array(run)) for run in runs] == [2, 1, 0]
    assert [rules.minka(np.array([10.0, 1.0, 1.0]), n) is None for n in (3, 2)] == [False, True]
    # 2.858 times the median singular value (Gavish and Donoho 2014).
    values = np.linspace(9, 1, 100)
    np.testing.assert_allclose(np.sqrt(noise.optimal_threshold(values, 101, 100) / np.median(values)), 2.858, rtol=1e-3)
    # Of two features the ratio is 1, where singular values have the law of a quarter circle with radius 2.
    median = brentq(lambda s: s * np.sqrt(4 - s**2) / 2 + 2 * np.arcsin(s / 2) - np.pi / 2, 0, 2) ** 2
    values = np.array([5.0, 3.0])
    np.testing.assert_allclose(noise.noise_variance(values, 3, 2), 4 / median, rtol=1e-3)
    np.testing.assert_allclose(noise.edge(values, 3, 2), 4 / median * (1 + 1) ** 2, rtol=1e-3)
    for ratio in (0.1, 0.5, 1.0, 3.0):
        d = 300
        n = round(d / ratio) + 1
        values = spectrum(np.random.default_rng(4).standard_normal((n, d)))[: min(n - 1, d)]
        np.testing.assert_allclose(noise.law_median(d / (n - 1)), np.median(values), rtol=0.02)


# Held-out errors

SIZES = (80, 50, 40, 30)


def drawn(rank, d=20, offset=0.0):
    rng = np.random.default_rng(0)
    scores = rng.standard_normal((sum(SIZES), rank)) * np.linspace(4, 3, rank)
    signal = scores @ np.linalg.qr(rng.standard_normal((d, d)))[0][:, :rank].T
    return signal + rng.standard_normal((sum(SIZES), d)) * np.linspace(0.8, 1.2, d) + offset


def parts(X):
    return [Moments.of(part) for part in cut(X, *SIZES)]


def by_rows(X, k):
    """The error of k components, row by row: a rank-k pseudo-inverse of what is held in."""
    total, party = 0.0, np.repeat(np.arange(len(SIZES)), SIZES)
    for fold in range(len(SIZES)):
        centred = X - X[party != fold].mean(axis=0)
        for first in range(rules.BLOCKS):
            block = np.arange(X.shape[1]) % rules.BLOCKS == first
            A, B = centred[party == fold][:, block], centred[party == fold][:, ~block]
            C, D = centred[party != fold][:, block], centred[party != fold][:, ~block]
            U, values, Vt = np.linalg.svd(D, full_matrices=False)
            total += ((A - B @ (Vt[:k].T / values[:k]) @ (U[:, :k].T @ C)) ** 2).sum()
    return total


@pytest.mark.engine
def test_errors_are_those_of_the_pooled_rows_in_any_shape_and_unit():
    for offset in (0.0, 1e6):
        X = drawn(3, offset=offset)
        np.testing.assert_allclose(rules.held_out_errors(parts(X)), [by_rows(X, k) for k in range(17)], rtol=1e-8)
    # Folds take any shape and unit: only as many components as every fold has; more would be rounding.
    assert [rules.bi_cross_validation(parts(drawn(rank))) for rank in (0, 1, 3, 6)] == [0, 1, 3, 6]
    wide = drawn(3, d=250)
    assert rules.held_out_errors(parts(wide)).size <= 200 - max(SIZES)
    assert rules.bi_cross_validation(parts(wide)) == 3
    assert [rules.bi_cross_validation(parts(drawn(3) * unit)) for unit in (2.0**-200, 2.0**200)] == [3, 3]
    assert rules._folds([10, 1, 1, 1, 1, 1, 1]) == [[0], [1, 5], [2, 6], [3], [4]]
