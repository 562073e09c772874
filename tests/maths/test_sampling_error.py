"""Errors of eigenvalues, components and scores: those of the formulas, and the shrinkage of new rows in simulation."""

import math

import numpy as np
import pytest

from fedpca_flwr import analyses, run
from fedpca_flwr.maths import inference
from fedpca_flwr.maths.marchenko_pastur import noise_variance

ONE_DEVIATION = math.erf(0.5**0.5)
"""The probability that a normal number is within one standard deviation."""


def test_the_jackknife_of_groups_of_any_size():
    left_out = np.random.default_rng(2).standard_normal((8, 3))
    _, variance = inference.grouped_jackknife(left_out.mean(axis=0), left_out, np.full(8, 20.0))
    np.testing.assert_allclose(variance, 7 / 8 * np.sum((left_out - left_out.mean(axis=0)) ** 2, axis=0), rtol=1e-12)
    sizes = np.array([100, 50, 30, 20, 10, 5, 5, 5, 40, 60])
    # Sums of 3,000 samples of that many normal numbers about 2.
    sums = np.random.default_rng(3).standard_normal((10, 3000)) * np.sqrt(sizes)[:, None] + sizes[:, None] * 2.0
    left_out, mean = (sums.sum(axis=0) - sums) / (sizes.sum() - sizes)[:, None], sums.sum(axis=0) / sizes.sum()
    estimate, variance = inference.grouped_jackknife(mean, left_out, sizes)
    np.testing.assert_allclose(estimate, mean)  # a mean is not biased
    np.testing.assert_allclose(np.mean(variance), 1 / sizes.sum(), rtol=0.05)


def test_intervals_by_their_degrees_of_freedom_and_spikes_in_closed_form():
    np.testing.assert_array_equal(inference.fourth_powers(np.array([[6.0, 1.0]]), np.array([4.0, 0.0])), [81, 0])
    # Of kurtosis 3 in 8 rows the step is half a normal quantile.
    low, high = inference.robust_intervals(np.array([2.0]), np.array([3.0]), 8, 0.5)[0]
    step = 0.6744897501960817 / 2
    assert (low, high) == pytest.approx((2 / (1 + step), 2 / (1 - step)), rel=1e-12)
    # The sample's variance and angle follow from the spike; of what noise alone may have nothing is known.
    for n, beside in ((5, [4.0, 3.0, 2.0, 0.0, 0.0, 0.0, 0.0]), (101, [2.4, 2.2, 2.1, 2.0, 1.9, 1.8, 1.6])):
        values = np.array([400.0, *beside])
        s2, ratio = noise_variance(values, n, 8), 8 / (n - 1)
        (spike, level), (angle, none) = inference.spiked(values, 2, n)
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
    (interval,) = inference.eigenvalue_intervals(np.ones(1), 5, 0.95)
    assert 0 < interval[0] < 1
    assert interval[1] == np.inf
    errors = inference.loading_errors(np.array([2.0, 1.0, 1.0]), np.eye(3), 2, 100)
    np.testing.assert_array_equal(np.isinf(errors), [[False, True]] * 3)
    # sqrt(2 / 8) is a half.
    np.testing.assert_allclose(inference.eigenvalue_intervals(np.array([3.0]), 9, ONE_DEVIATION), [[2.0, 6.0]])
    errors = inference.loading_errors(np.array([3.0, 1.0]), np.eye(2), 2, 3)
    np.testing.assert_allclose(errors, (1 - np.eye(2)) * math.sqrt(3 * 1 / (3 - 1) ** 2 / 2))
    # Of two groups there is one degree of freedom: Student's law is then that of Cauchy.
    for level in (0.5, 0.8, 0.95):
        assert inference.student_step(2, level) == pytest.approx(math.tan(math.pi * level / 2))


# New rows' scores are too small by what the spectrum tells


def test_corrected_scores_of_new_rows_lie_where_those_of_the_pca_do():
    """Of three populations whose centres are a noise level's multiple apart, old rows and new ones."""
    n, d, rng = 300, 1500, np.random.default_rng(0)
    between, label = rng.standard_normal((3, d)) * 0.12, np.arange(n) % 3
    old, new = (between[label] + rng.standard_normal((n, d)) for _ in range(2))
    model = run("qr-pca", np.array_split(old, 3), n_components=2)

    def centres(scores):
        return np.array([scores[label == one].mean(axis=0) for one in range(3)])

    seen, plain, right = (
        np.linalg.norm(centres(scores))
        for scores in (model.transform(old), model.transform(new), analyses.projected(model, new))
    )
    assert plain < 0.9 * seen
    np.testing.assert_allclose(right / seen, 1, atol=0.04)
    np.testing.assert_allclose(model.shrinkage_, plain / seen, atol=0.05)
    assert any("scores of new rows lie at 0." in note for note in model.log["notes"])


def test_shrinkage_is_the_formulas_and_none_of_few_features_or_without_variance():
    rows = np.random.default_rng(0).standard_normal((2000, 5)) * [5, 4, 1, 1, 1]
    model = run("p-cov", np.array_split(rows, 2), n_components=2)
    np.testing.assert_allclose(model.shrinkage_, 1, atol=0.01)
    assert model.log["notes"] == []
    # gamma = 4, level 1: a component of 12 stands for l with l + 4 l / (l - 1) = 12.
    found = inference.shrinkage(np.array([12.0, 4.0]), 12.0 + 4.0 + 4.0 * 98, 101, 400)
    spike = (9 + np.sqrt(81 - 48)) / 2
    np.testing.assert_allclose(spike + 4 * spike / (spike - 1), 12)
    np.testing.assert_allclose(found[0], (spike - 1) / (spike + 3))
    assert np.isnan(found[1])
    with np.errstate(all="raise"):
        # Beside a level of 1e28 a variance of 1 is nothing: l + gamma - 1 is 0, and nothing is divided by it.
        assert np.isnan(inference.shrinkage(np.array([1e30, 1.0]), 1e30 + 1.0 + 5e29, 100, 30)[1])
        found = inference.shrinkage(np.array([4.0, 0.0]), 5.0, 20, 10)
    assert found[0] > 0
    assert np.isnan(found[1])
