"""Errors of eigenvalues and components: in simulation they are what the formulas say."""

import math

import numpy as np
import pytest

from fedpca_flwr.maths import inference
from fedpca_flwr.maths.marchenko_pastur import noise_variance

VARIANCES = np.array([9.0, 4.0, 1.0, 0.25])


def eigenpairs(X):
    values, vectors = np.linalg.eigh(np.cov(X, rowvar=False))
    vectors = vectors[:, ::-1]
    return values[::-1], vectors * np.sign(np.diagonal(vectors))


@pytest.fixture(scope="module")
def samples():
    """Eigenpairs of 1,500 samples of 200 normal rows whose components are the axes."""
    rng = np.random.default_rng(0)
    return [eigenpairs(rng.standard_normal((200, 4)) * np.sqrt(VARIANCES)) for _ in range(1500)]


def test_samples_vary_as_errors_and_intervals_say(samples):
    spread = np.std([vectors[:, :2] for _, vectors in samples], axis=0)
    told = inference.loading_errors(VARIANCES, np.eye(4), 2, 200)
    off = ~np.eye(4, 2, dtype=bool)  # on the axis the error is of second order
    np.testing.assert_allclose(told[off], spread[off], rtol=0.1)
    np.testing.assert_array_equal(told[~off], 0)
    # To four standard errors of 1,500 draws, and what 200 rows are short of many.
    for level in (0.5, 0.95):
        inside = [
            (low <= VARIANCES[:2]) & (VARIANCES[:2] <= high)
            for low, high in (inference.eigenvalue_intervals(values[:2], 200, level).T for values, _ in samples)
        ]
        np.testing.assert_allclose(np.mean(inside, axis=0), level, atol=0.045)


def test_few_rows_and_ties_leave_intervals_open_by_their_degrees_of_freedom():
    (interval,) = inference.eigenvalue_intervals(np.ones(1), 5, 0.95)
    assert 0 < interval[0] < 1
    assert interval[1] == np.inf
    errors = inference.loading_errors(np.array([2.0, 1.0, 1.0]), np.eye(3), 2, 100)
    np.testing.assert_array_equal(np.isinf(errors), [[False, True]] * 3)
    # sqrt(2 / 8) is a half.
    interval = inference.eigenvalue_intervals(np.array([3.0]), 9, ONE_DEVIATION)
    np.testing.assert_allclose(interval, [[2.0, 6.0]])
    errors = inference.loading_errors(np.array([3.0, 1.0]), np.eye(2), 2, 3)
    np.testing.assert_allclose(errors, (1 - np.eye(2)) * math.sqrt(3 * 1 / (3 - 1) ** 2 / 2))


@pytest.mark.parametrize(("n", "d"), [(401, 200), (201, 400)])
def test_spikes_are_larger_and_turned_as_the_spiked_model_says(n, d):
    rng = np.random.default_rng(1)
    truth, s2 = np.array([60.0, 25.0]), 3.0
    found = []
    for _ in range(12):
        X = rng.standard_normal((n, d)) * np.sqrt(np.r_[truth, np.full(d - 2, s2)])
        values, vectors = np.linalg.eigh(np.cov(X, rowvar=False))
        variances, angles = inference.spiked(values[::-1].clip(min=0), 4, n)
        turned = np.degrees(np.arccos(np.abs(np.diagonal(vectors[:, ::-1])[:2])))
        found.append([*variances[:2], *angles[:2], *turned, *angles[2:]])
    mean = np.mean(found, axis=0)
    np.testing.assert_allclose(mean[:2], truth, rtol=0.06)
    np.testing.assert_allclose(mean[2:4], mean[4:6], atol=1.5)
    assert (mean[6:] > 80).all()  # a largest eigenvalue of noise is not always below the edge
    assert mean[4] > 8  # a test that sees nothing turned would see no formula


def test_the_jackknife_of_groups_of_any_size():
    rng = np.random.default_rng(2)
    left_out = rng.standard_normal((8, 3))
    _, variance = inference.grouped_jackknife(left_out.mean(axis=0), left_out, np.full(8, 20.0))
    np.testing.assert_allclose(variance, 7 / 8 * np.sum((left_out - left_out.mean(axis=0)) ** 2, axis=0), rtol=1e-12)
    rng = np.random.default_rng(3)
    sizes = np.array([100, 50, 30, 20, 10, 5, 5, 5, 40, 60])
    estimates, variances = [], []
    for _ in range(3000):
        sums = rng.standard_normal(10) * np.sqrt(sizes) + sizes * 2.0
        left_out = (sums.sum() - sums) / (sizes.sum() - sizes)
        mean = np.asarray(sums.sum() / sizes.sum())
        estimate, variance = inference.grouped_jackknife(mean, left_out, sizes)
        np.testing.assert_allclose(estimate, mean)  # a mean is not biased
        estimates.append(mean)
        variances.append(variance)
    np.testing.assert_allclose(np.mean(variances), 1 / sizes.sum(), rtol=0.05)


ONE_DEVIATION = math.erf(0.5**0.5)
"""The probability that a normal number is within one standard deviation."""


@pytest.mark.parametrize("level", [0.5, 0.8, 0.95])
def test_an_interval_of_two_groups_has_one_degree_of_freedom(level):
    """Student's law is then that of Cauchy."""
    assert inference.student_step(2, level) == pytest.approx(math.tan(math.pi * level / 2))


def test_robust_intervals_and_spikes_in_closed_form():
    np.testing.assert_array_equal(inference.fourth_powers(np.array([[6.0, 1.0]]), np.array([4.0, 0.0])), [81, 0])
    # Of kurtosis 3 in 8 rows the step is half a normal quantile.
    low, high = inference.robust_intervals(np.array([2.0]), np.array([3.0]), 8, 0.5)[0]
    step = 0.6744897501960817 / 2
    assert (low, high) == pytest.approx((2 / (1 + step), 2 / (1 - step)), rel=1e-12)
    # Of five rows and eight features: the sample's variance and angle follow from the spike with a ratio of 8 / 4.
    values = np.array([400.0, 4.0, 3.0, 2.0, 0.0, 0.0, 0.0, 0.0])
    s2 = noise_variance(values, 5, 8)
    (spike,), (angle,) = inference.spiked(values, 1, 5)
    over = spike - s2
    assert spike * (1 + 2 * s2 / over) == pytest.approx(400, rel=1e-12)
    cosine = math.sqrt((1 - 2 * s2**2 / over**2) / (1 + 2 * s2 / over))
    assert math.cos(math.radians(angle)) == pytest.approx(cosine, rel=1e-12)
